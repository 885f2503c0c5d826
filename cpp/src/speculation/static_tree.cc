#include "speculation/static_tree.h"

#include <algorithm>

#include "core/check.h"

namespace specdec {

StaticTree::StaticTree(std::span<const std::vector<int>> paths) {
  if (paths.empty()) return;
  std::vector<std::vector<int>> sorted(paths.begin(), paths.end());
  std::ranges::sort(sorted);  // parents and smaller ranks first
  nodes_.emplace_back();
  for (const std::vector<int>& path : sorted) {
    int parent = 0;
    for (size_t i = 0; i + 1 < path.size(); ++i) parent = child(parent, path[i]);
    SPECDEC_CHECK_GE(parent, 0);
    SPECDEC_CHECK_EQ(path.back(), static_cast<int>(nodes_[parent].children.size()));
    nodes_[parent].children.push_back(static_cast<int>(nodes_.size()));
    nodes_.push_back({.depth = nodes_[parent].depth + 1, .children = {}});
  }
}

int StaticTree::child(int node, int order) const {
  if (!is_given()) return 0;
  const std::vector<int>& children = nodes_[node].children;
  return order < static_cast<int>(children.size()) ? children[order] : -1;
}

int StaticTree::num_nodes(int depth) const {
  const auto is_within = [&](const Node& node) { return node.depth > 0 && node.depth <= depth; };
  return static_cast<int>(std::ranges::count_if(nodes_, is_within));
}

}  // namespace specdec
