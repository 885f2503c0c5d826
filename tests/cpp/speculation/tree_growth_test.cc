#include "speculation/tree_growth.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

namespace specdec {
namespace {

using Path = std::vector<int32_t>;
struct Scored {
  Path path;
  float probability = 0;
};

// A model with a fixed answer for every path: its likeliest tokens and their probabilities.
class ScriptedModel {
 public:
  // With `num_steps` probabilities are multiples of 1 / num_steps, so many paths tie.
  ScriptedModel(uint32_t seed, int width, int num_steps)
      : random_(seed), width_(width), num_steps_(num_steps) {}

  const std::vector<Scored>& children(const Path& path) {
    const auto [it, is_new] = answers_.try_emplace(path);
    if (!is_new) return it->second;
    std::uniform_real_distribution<float> uniform(0.0f, 1.0f);
    std::vector<float> probabilities;
    for (int i = 0; i < width_; ++i) {
      const float probability = std::pow(uniform(random_), 3.0f);
      probabilities.push_back(num_steps_ == 0 ? probability
                                              : std::ceil(probability * num_steps_) / num_steps_);
    }
    std::ranges::sort(probabilities, std::ranges::greater{});
    for (int i = 0; i < width_; ++i) {
      it->second.push_back({path, probabilities[i]});
      it->second.back().path.push_back(100 + i);
    }
    return it->second;
  }

 private:
  std::mt19937 random_;
  int width_;
  int num_steps_;
  std::map<Path, std::vector<Scored>> answers_;
};

// Grows a tree as a model's drafter does.
DraftTree grow(ScriptedModel& model, const StaticTree& shape, const GrowthLimits& limits) {
  DraftTree tree;
  tree.reset(7);
  std::vector<OpenNode> frontier(1);
  while (!frontier.empty()) {
    std::vector<OpenNode> level;
    for (const OpenNode& open : frontier) {
      int order = 0;
      for (const Scored& child : model.children(tree.path(open.node))) {
        const int shape_node = shape.child(open.shape_node, order++);
        if (shape_node < 0) break;
        const int node =
            tree.add(open.node, child.path.back(), tree.survival(open.node) * child.probability, 0);
        const float confidence = open.confidence * child.probability;
        level.push_back({.node = node,
                         .shape_node = shape_node,
                         .confidence = confidence,
                         .rating = confidence});
      }
    }
    frontier.clear();
    for (const int i : choose_parents(tree, level, shape, limits)) frontier.push_back(level[i]);
  }
  return tree;
}

std::set<Path> paths_of(const DraftTree& tree) {
  std::set<Path> paths;
  for (int node = 1; node < tree.num_nodes(); ++node) paths.insert(tree.path(node));
  return paths;
}

// EAGLE-2 as published: the k likeliest tokens, then `depth` times the k likeliest children of each
// of k nodes; the k best nodes of that level go on. The total - 1 best of all nodes are kept.
// The score of a node is the product along its path; of equal ones the earlier is kept.
std::set<Path> eagle2_tree(ScriptedModel& model, int k, int depth, int total) {
  const auto by_score = [](const Scored& a, const Scored& b) {
    return a.probability > b.probability;
  };
  std::vector<Scored> all = model.children({});
  std::vector<Scored> frontier = all;
  for (int i = 0; i < depth; ++i) {
    std::vector<Scored> level;
    for (const Scored& parent : frontier) {
      for (const Scored& child : model.children(parent.path)) {
        level.push_back({child.path, parent.probability * child.probability});
      }
    }
    all.insert(all.end(), level.begin(), level.end());
    std::ranges::stable_sort(level, by_score);
    level.resize(k);
    frontier = std::move(level);
  }
  std::ranges::stable_sort(all, by_score);
  std::set<Path> kept;
  for (int i = 0; i < std::min(total - 1, static_cast<int>(all.size())); ++i) {
    kept.insert(all[i].path);
  }
  return kept;
}

TEST(TreeGrowth, GrowsTheTreesOfEagle2) {
  for (const int num_steps : {0, 8, 2, 1}) {
    for (const auto& [k, depth, total] :
         {std::tuple(10, 5, 60), std::tuple(4, 5, 8), std::tuple(1, 3, 4), std::tuple(3, 2, 30)}) {
      for (uint32_t seed = 0; seed < 20; ++seed) {
        ScriptedModel model(seed, k, num_steps);
        DraftTree tree =
            grow(model, StaticTree(), {.max_depth = depth + 1, .width = k, .room = total});
        tree.truncate(total - 1);
        tree.check_integrity();
        ASSERT_EQ(paths_of(tree), eagle2_tree(model, k, depth, total))
            << "k " << k << " depth " << depth << " total " << total << " steps " << num_steps;
      }
    }
  }
}

TEST(TreeGrowth, OfEqualNodesTheShallowAndTheFirstAreKept) {
  ScriptedModel model(1, 3, 1);  // every probability is one
  DraftTree tree = grow(model, StaticTree(), {.max_depth = 3, .width = 2, .room = 100});
  tree.truncate(4);
  EXPECT_EQ(paths_of(tree), (std::set<Path>{{100}, {101}, {102}, {100, 100}}));
}

TEST(TreeGrowth, FillsExactlyTheGivenTree) {
  const std::vector<std::vector<int>> paths = {{1},    {0},    {0, 1},    {0, 0},   {2},
                                               {1, 0}, {2, 0}, {0, 0, 0}, {2, 0, 0}};
  std::set<Path> expected;
  for (const std::vector<int>& path : paths) {
    Path tokens;
    for (const int order : path) tokens.push_back(100 + order);
    expected.insert(tokens);
  }
  const StaticTree shape(paths);
  for (uint32_t seed = 0; seed < 10; ++seed) {
    ScriptedModel model(seed, 5, 0);
    const DraftTree tree = grow(model, shape, {.max_depth = 3, .width = 1, .room = 100});
    EXPECT_EQ(paths_of(tree), expected);
  }
  ScriptedModel model(1, 5, 0);
  std::erase_if(expected, [](const Path& path) { return path.size() > 2; });
  EXPECT_EQ(paths_of(grow(model, shape, {.max_depth = 2, .width = 1, .room = 100})), expected);
}

TEST(TreeGrowth, AModelGoesOnBelowWhatOthersProposed) {
  DraftTree tree;
  tree.reset(7);
  const int copied = tree.add(DraftTree::kRoot, 100, 0.9f, 0);
  const int shared = tree.add(DraftTree::kRoot, 101, 0.5f, 0);
  tree.add(DraftTree::kRoot, 101, 0.4f, 1);
  tree.add(DraftTree::kRoot, 102, 0.3f, 1);
  tree.add(shared, 103, 0.2f, 0);
  const std::vector<OpenNode> open = children_of_others(tree, {.confidence = 0.5f}, 1);
  ASSERT_EQ(open.size(), 1u);
  EXPECT_EQ(open[0].node, copied);
  EXPECT_FLOAT_EQ(open[0].confidence, 0.45f);
}

TEST(TreeGrowth, UnlikelyPathsAndFullTreesEnd) {
  ScriptedModel model(3, 4, 0);
  const DraftTree tree =
      grow(model, StaticTree(), {.max_depth = 6, .width = 4, .room = 100, .min_confidence = 0.2});
  for (int node = 1; node < tree.num_nodes(); ++node) {
    const int parent = tree.parents()[node];
    EXPECT_GE(tree.survival(parent), 0.2f);
  }
  EXPECT_EQ(grow(model, StaticTree(), {.max_depth = 6, .width = 4, .room = 0}).num_drafts(), 4);
}

TEST(StaticTree, CountsItsLevels) {
  const std::vector<std::vector<int>> paths = {{0, 0}, {0}, {1}, {0, 0, 0}, {1, 0}};
  const StaticTree tree(paths);
  EXPECT_EQ(tree.num_nodes(0), 0);
  EXPECT_EQ(tree.num_nodes(1), 2);
  EXPECT_EQ(tree.num_nodes(2), 4);
  EXPECT_EQ(tree.num_nodes(9), 5);
  EXPECT_EQ(tree.child(0, 2), -1);
  EXPECT_FALSE(tree.has_children(tree.child(tree.child(0, 1), 0)));
  EXPECT_FALSE(StaticTree().is_given());
}

}  // namespace
}  // namespace specdec
