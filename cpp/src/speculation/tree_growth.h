// How a model grows a draft tree level by level: below the nodes of a level with the greatest
// probability (EAGLE-2), or in a given shape. Pure.
#pragma once

#include <span>
#include <vector>

#include "speculation/draft_tree.h"
#include "speculation/static_tree.h"

namespace specdec {

// A drafted node below which a model may go on.
struct OpenNode {
  int node = DraftTree::kRoot;
  int shape_node = 0;       // node of the given shape
  float confidence = 1.0f;  // probability of its path by the model
  float rating = 1.0f;      // orders the nodes of a level
};

struct GrowthLimits {
  int max_depth = 0;
  int width = 1;                // nodes of a level that get children, unless a shape is given
  int room = 0;                 // most nodes of a level that get children, with a given shape, too
  double min_confidence = 0.0;  // nodes less likely than this get no children
};

// Children of `parent` that only other drafters proposed; `drafter`'s model may go on below them.
std::vector<OpenNode> children_of_others(const DraftTree& tree, const OpenNode& parent,
                                         int drafter);

// Chooses the nodes of a new level that get children, as indices into `level`, best first (ties:
// the earlier node).
std::vector<int> choose_parents(const DraftTree& tree, std::span<const OpenNode> level,
                                const StaticTree& shape, const GrowthLimits& limits);

}  // namespace specdec
