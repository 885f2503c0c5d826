// An Aho-Corasick automaton over bytes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace specdec {

// Finds texts in a stream of bytes. Threads may share it.
class ByteAutomaton {
 public:
  // The longest end of the bytes so far that begins one of the texts; 0: none.
  using State = int32_t;
  struct Child {
    uint8_t byte = 0;
    State state = 0;
  };
  struct Node {
    std::vector<Child> children;  // in the order of their bytes
    State fallback = 0;           // the longest proper end of this node's text that is a node
    int depth = 0;                // bytes of its text
    bool ends_text = false;       // it, or an end of it, is one of the texts
  };

  // None of the texts may be empty.
  explicit ByteAutomaton(std::span<const std::string> texts);

  State step(State state, uint8_t byte) const;
  const Node& node(State state) const { return nodes_[static_cast<size_t>(state)]; }
  int num_states() const { return static_cast<int>(nodes_.size()); }

 private:
  void add(const std::string& text);
  void link_fallbacks();
  State child_of(State state, uint8_t byte) const;  // 0: none

  std::vector<Node> nodes_;
};

}  // namespace specdec
