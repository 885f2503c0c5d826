// The outputs of finished requests that suffix decoding drafts from, apart by cache_salt: an answer
// is never drafted from one of another salt, so its speed tells nothing about that one.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "speculation/suffix_tree.h"

namespace specdec {

// Outputs of every salt, the empty one included, have a tree of their own. Together they stay
// within a number of outputs and of bytes: the oldest output of all is evicted first.
class SuffixOutputs {
 public:
  // What a tree counts for beside its content.
  static constexpr int64_t kTreeBytes = int64_t{32} << 10;

  SuffixOutputs(int max_tree_depth, int max_outputs, int64_t max_bytes)
      : max_tree_depth_(max_tree_depth), max_outputs_(max_outputs), max_bytes_(max_bytes) {}

  void add(std::string_view salt, std::span<const int32_t> output);
  // The outputs of a salt; null: there are none.
  const SuffixTree* find(std::string_view salt) const;

  int num_outputs() const { return static_cast<int>(salts_.size()); }
  int64_t memory_bytes() const;

 private:
  using Trees = std::map<std::string, SuffixTree, std::less<>>;

  void evict_oldest();

  int max_tree_depth_;
  int max_outputs_;
  int64_t max_bytes_;
  Trees trees_;
  std::deque<Trees::iterator> salts_;  // the tree of each output, oldest first
  int64_t used_bytes_ = 0;             // of all trees, each with kTreeBytes
};

}  // namespace specdec
