#include "grammar/byte_automaton.h"

#include <algorithm>

namespace specdec {

ByteAutomaton::ByteAutomaton(std::span<const std::string> texts) : nodes_(1) {
  for (const std::string& text : texts) add(text);
  link_fallbacks();
}

void ByteAutomaton::add(const std::string& text) {
  State state = 0;
  for (const char character : text) {
    const auto byte = static_cast<uint8_t>(character);
    State child = child_of(state, byte);
    if (child == 0) {
      child = static_cast<State>(nodes_.size());
      const int depth = nodes_[state].depth + 1;
      nodes_.emplace_back().depth = depth;
      std::vector<Child>& children = nodes_[state].children;
      children.insert(std::ranges::upper_bound(children, byte, {}, &Child::byte), {byte, child});
    }
    state = child;
  }
  nodes_[state].ends_text = true;
}

// Shorter texts first: a node's fallback is a shorter text than its own.
void ByteAutomaton::link_fallbacks() {
  std::vector<State> by_depth = {0};
  for (size_t i = 0; i < by_depth.size(); ++i) {
    const State parent = by_depth[i];
    for (const auto& [byte, state] : nodes_[parent].children) {
      Node& node = nodes_[state];
      node.fallback = parent == 0 ? 0 : step(nodes_[parent].fallback, byte);
      node.ends_text |= nodes_[node.fallback].ends_text;
      by_depth.push_back(state);
    }
  }
}

ByteAutomaton::State ByteAutomaton::child_of(State state, uint8_t byte) const {
  const std::vector<Child>& children = nodes_[state].children;
  const auto found = std::ranges::lower_bound(children, byte, {}, &Child::byte);
  return found == children.end() || found->byte != byte ? 0 : found->state;
}

ByteAutomaton::State ByteAutomaton::step(State state, uint8_t byte) const {
  while (true) {
    const State child = child_of(state, byte);
    if (child != 0 || state == 0) return child;
    state = nodes_[state].fallback;
  }
}

}  // namespace specdec
