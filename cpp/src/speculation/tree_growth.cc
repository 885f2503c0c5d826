#include "speculation/tree_growth.h"

#include <algorithm>
#include <functional>

namespace specdec {

std::vector<OpenNode> children_of_others(const DraftTree& tree, const OpenNode& parent,
                                         int drafter) {
  std::vector<OpenNode> children;
  for (const DraftTree::Attempt& attempt : tree.attempts(parent.node)) {
    if (tree.find_proposal(attempt.child, drafter) != nullptr) continue;
    const float confidence = parent.confidence * tree.proposals(attempt.child).front().confidence;
    children.push_back({.node = attempt.child, .confidence = confidence, .rating = confidence});
  }
  return children;
}

std::vector<int> choose_parents(const DraftTree& tree, std::span<const OpenNode> level,
                                const StaticTree& shape, const GrowthLimits& limits) {
  std::vector<int> chosen;
  for (int i = 0; i < static_cast<int>(level.size()); ++i) {
    const OpenNode& open = level[i];
    if (tree.depth(open.node) >= limits.max_depth || open.confidence < limits.min_confidence) {
      continue;
    }
    if (shape.has_children(open.shape_node)) chosen.push_back(i);
  }
  std::ranges::stable_sort(chosen, std::ranges::greater{}, [&](int i) { return level[i].rating; });
  const int most = shape.is_given() ? limits.room : std::min(limits.width, limits.room);
  if (static_cast<int>(chosen.size()) > most) chosen.resize(most);
  return chosen;
}

}  // namespace specdec
