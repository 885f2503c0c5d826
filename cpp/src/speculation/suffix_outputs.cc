#include "speculation/suffix_outputs.h"

namespace specdec {

void SuffixOutputs::add(std::string_view salt, std::span<const int32_t> output) {
  if (output.empty() || max_outputs_ == 0) return;
  auto tree = trees_.find(salt);
  if (tree == trees_.end()) {
    tree = trees_.emplace(salt, SuffixTree(max_tree_depth_)).first;
    used_bytes_ += kTreeBytes + tree->second.used_bytes();
  }
  const int64_t before = tree->second.used_bytes();
  for (const int32_t token : output) tree->second.append(token);
  tree->second.close_sequence();
  used_bytes_ += tree->second.used_bytes() - before;
  salts_.push_back(tree);
  while (num_outputs() > max_outputs_ || (num_outputs() > 0 && used_bytes_ > max_bytes_)) {
    evict_oldest();
  }
}

void SuffixOutputs::evict_oldest() {
  const auto oldest = salts_.front();
  salts_.pop_front();
  SuffixTree& tree = oldest->second;
  used_bytes_ -= tree.used_bytes();
  tree.evict_oldest();
  used_bytes_ += tree.used_bytes();
  if (tree.num_closed() > 0) return;
  used_bytes_ -= kTreeBytes + tree.used_bytes();
  trees_.erase(oldest);
}

const SuffixTree* SuffixOutputs::find(std::string_view salt) const {
  const auto tree = trees_.find(salt);
  return tree == trees_.end() ? nullptr : &tree->second;
}

int64_t SuffixOutputs::memory_bytes() const {
  auto bytes = static_cast<int64_t>(salts_.size() * sizeof(Trees::iterator));
  for (const auto& [salt, tree] : trees_) {
    bytes += tree.memory_bytes() + static_cast<int64_t>(sizeof(Trees::value_type) + salt.size());
  }
  return bytes;
}

}  // namespace specdec
