// A draft tree whose shape is given: its nodes are paths of ranks, and the child of rank r is the
// r-th likeliest token after its parent. Pure.
#pragma once

#include <span>
#include <vector>

namespace specdec {

class StaticTree {
 public:
  // Nothing is given, so any node may have any children.
  StaticTree() = default;
  // `paths` as SpeculativeConfig::validate() accepts them, in any order. None: nothing is given.
  explicit StaticTree(std::span<const std::vector<int>> paths);

  bool is_given() const { return !nodes_.empty(); }
  // The node of that rank below `node`, where 0 is the root; -1: the tree has none.
  int child(int node, int rank) const;
  bool has_children(int node) const { return !is_given() || !nodes_[node].children.empty(); }
  // Nodes below the root that are at most so deep.
  int num_nodes(int depth) const;

 private:
  struct Node {
    int depth = 0;
    std::vector<int> children;  // by rank
  };
  std::vector<Node> nodes_;  // the root first
};

}  // namespace specdec
