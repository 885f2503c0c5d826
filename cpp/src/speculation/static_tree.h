// A draft tree of a given shape: nodes are paths of ranks, and the child of rank r is the r-th
// likeliest token after its parent. Pure.
#pragma once

#include <span>
#include <vector>

namespace specdec {

class StaticTree {
 public:
  // Without a shape, any node may have any children.
  StaticTree() = default;
  // `paths` as SpeculativeConfig::validate() accepts them, in any order; empty: no shape.
  explicit StaticTree(std::span<const std::vector<int>> paths);

  bool is_given() const { return !nodes_.empty(); }
  // The child of rank `rank` below `node` (0: the root); -1: the tree has none.
  int child(int node, int order) const;
  bool has_children(int node) const { return !is_given() || !nodes_[node].children.empty(); }
  // Number of nodes below the root down to `depth`.
  int num_nodes(int depth) const;

 private:
  struct Node {
    int depth = 0;
    std::vector<int> children;  // by rank
  };
  std::vector<Node> nodes_;  // the root first
};

}  // namespace specdec
