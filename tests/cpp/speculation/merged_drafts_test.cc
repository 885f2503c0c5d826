// A drafter that copies and a model that reads, together and alone, in a world of known chances.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "speculation/drafters.h"
#include "speculation/tree_growth.h"

namespace specdec {
namespace {

struct World {
  double copied = 0.4;         // share of the text that repeats what stood before
  double copier_right = 0.95;  // chance of a copied token where it does
  double sharpness = 1.0;      // of the model: log-odds of its confidences
  double bias = 0;             // log-odds by which they are too high
};

constexpr int kDraftBudget = 8;
constexpr int kDepth = 6;
constexpr int kWidth = 3;

// The text to come. Wrong tokens are negative.
class Text {
 public:
  explicit Text(const World& world) : world_(world) {}

  static int32_t at(int64_t position) { return static_cast<int32_t>(position); }
  // Stretches of some forty tokens are copied.
  bool is_copied(int64_t position) const {
    const auto stretch = static_cast<uint64_t>(position / 40);
    return static_cast<double>(stretch * 2654435761u % 1000) < 1000 * world_.copied;
  }
  const World& world() const { return world_; }

 private:
  World world_;
};

double chance(std::mt19937& random) { return std::uniform_real_distribution<double>()(random); }

// Chains that are mostly right in copied stretches.
class Copier : public Drafter {
 public:
  Copier(const Text& text, int id) : text_(text), id_(id) {}

  DrafterTraits traits() const override { return {}; }
  void draft(std::span<DraftRequest> requests) override {
    for (DraftRequest& request : requests) {
      const auto position = static_cast<int64_t>(request.tokens.back());
      const bool is_copied = text_.is_copied(position + 1);
      // The match length is an unreliable sign of a copied stretch.
      request.match_length = (chance(random_) < 0.85) == is_copied ? 6 : 1;
      bool right = true;
      int node = DraftTree::kRoot;
      for (int depth = 1; depth <= request.max_depth; ++depth) {
        const double rate = text_.is_copied(position + depth) ? text_.world().copier_right : 0.1;
        right = right && chance(random_) < rate;
        const int32_t token = right ? Text::at(position + depth) : -1 - depth;
        node = add_draft(request, node, token, std::pow(0.85f, static_cast<float>(depth)), id_);
        if (node < 0) break;
      }
    }
  }

 private:
  const Text& text_;
  int id_;
  std::mt19937 random_{3};
};

// Grows trees as a draft model does, in passes of a twentieth of the target's.
class Model : public Drafter {
 public:
  Model(const Text& text, int id) : text_(text), id_(id) {}

  DrafterTraits traits() const override {
    return {.cost = DrafterTraits::Cost::kPerLevel, .relative_pass_cost = 0.05};
  }
  std::span<const TimedPass> passes() const override { return passes_; }
  int num_unseen(const DraftRequest&) const override { return 1; }

  void draft(std::span<DraftRequest> requests) override {
    passes_.clear();
    for (DraftRequest& request : requests) grow(request);
  }

 private:
  void grow(DraftRequest& request) {
    const DraftTree& tree = *request.tree;
    std::vector<OpenNode> frontier(1);
    while (!frontier.empty()) {
      passes_.push_back({.num_rows = static_cast<int>(frontier.size()), .seconds = 0.0005});
      std::vector<OpenNode> level;
      for (const OpenNode& open : frontier) add_children(request, open, level);
      for (OpenNode& open : level) {
        open.rating =
            static_cast<float>(request.policy->survival(request.sequence, tree, open.node));
      }
      std::vector<FrontierNode> nodes;
      for (const int i : choose_parents(tree, level, StaticTree(),
                                        {.max_depth = request.max_depth,
                                         .width = request.tree_width,
                                         .room = request.draft_budget})) {
        nodes.push_back({.sequence = request.sequence, .tree = &tree, .node = level[i].node});
      }
      if (!nodes.empty()) request.policy->plan_pass(*request.step, id_, nodes);
      frontier.clear();
      for (const FrontierNode& node : nodes) {
        if (node.goes_on) frontier.push_back({.node = node.node});
      }
    }
  }

  void add_children(DraftRequest& request, const OpenNode& open, std::vector<OpenNode>& level) {
    DraftTree& tree = *request.tree;
    const auto root = static_cast<int64_t>(request.tokens.back());
    const int depth = tree.depth(open.node) + 1;
    const bool is_right =
        open.node == DraftTree::kRoot || tree.tokens()[open.node] == Text::at(root + depth - 1);
    std::normal_distribution<double> normal;
    double rest = 1;
    double coin = chance(random_);
    for (int rank = 0; rank < kWidth; ++rank) {
      const double odds = text_.world().sharpness * (0.4 + 1.3 * normal(random_));
      const double right = rest / (1 + std::exp(-odds));
      const double told = rest / (1 + std::exp(-odds - text_.world().bias));
      rest -= right;
      const bool hit = is_right && coin >= 0 && coin < right;
      coin -= right;
      const int32_t token = hit ? Text::at(root + depth) : -100 - --num_wrong_;
      const auto confidence = static_cast<float>(told);
      const int node =
          tree.add(open.node, token, tree.survival(open.node) * confidence, id_, confidence);
      level.push_back({.node = node, .confidence = confidence, .rating = confidence});
    }
    for (const OpenNode& other : children_of_others(tree, open, id_)) level.push_back(other);
  }

  const Text& text_;
  int id_;
  int32_t num_wrong_ = 0;
  std::mt19937 random_{4};
  std::vector<TimedPass> passes_;
};

struct Fared {
  double accepted = 0;  // a step
  double verified = 0;
};

enum class With : uint8_t { kCopier, kModel, kFirst, kMerged };

// Up to nine rows cost the target the same, so as many drafts are verified as there are slots.
Fared fare(const World& world, With with) {
  const Text text(world);
  std::vector<std::unique_ptr<Drafter>> drafters;
  if (with != With::kModel) drafters.push_back(std::make_unique<Copier>(text, 0));
  if (with != With::kCopier) {
    drafters.push_back(std::make_unique<Model>(text, static_cast<int>(drafters.size())));
  }
  Drafters both(std::move(drafters), /*merge=*/with == With::kMerged, /*adapts=*/true);
  Fared fared;
  int64_t position = 0;
  constexpr int kSteps = 3000;
  constexpr int kWarmUp = 300;
  for (int step = 0; step < kSteps; ++step) {
    DraftPlan plan = both.policy()->begin_step(1, 0);
    const std::vector<int32_t> tokens = {Text::at(position)};
    DraftTree tree;
    tree.reset(tokens.back());
    DraftRequest request{.tokens = tokens,
                         .max_depth = kDepth,
                         .max_nodes = kDraftBudget,
                         .draft_budget = kDraftBudget,
                         .tree_width = kWidth,
                         .num_remaining = 100000,
                         .tree = &tree,
                         .error = {}};
    both.draft(plan, {&request, 1});
    tree.check_integrity();
    std::vector<int32_t> emitted;
    for (int node = 0; node >= 0; node = tree.find_child(node, emitted.back())) {
      emitted.push_back(Text::at(++position));
    }
    if (step >= kWarmUp) {
      fared.accepted += static_cast<double>(emitted.size() - 1) / (kSteps - kWarmUp);
      fared.verified += static_cast<double>(tree.num_drafts()) / (kSteps - kWarmUp);
    }
    both.policy()->record(plan, {.sequence = 0, .tokens = emitted});
    both.policy()->end_step(plan, tree.num_drafts() <= kDraftBudget ? 0.01 : 1.0);
  }
  return fared;
}

TEST(MergedDrafts, AreAcceptedMoreOftenThanThoseOfEitherDrafter) {
  for (const World& world : {World{},
                             {.copied = 0.2},
                             {.copied = 0.6},
                             {.copier_right = 0.7},
                             {.bias = 1.5},
                             {.bias = -1.5},
                             {.sharpness = 2}}) {
    const Fared merged = fare(world, With::kMerged);
    const Fared model = fare(world, With::kModel);
    SCOPED_TRACE(::testing::Message()
                 << "copied " << world.copied << ", right " << world.copier_right << ", sharpness "
                 << world.sharpness << ", bias " << world.bias);
    EXPECT_GT(merged.accepted, 1.03 * model.accepted);
    EXPECT_GT(merged.accepted, 1.03 * fare(world, With::kCopier).accepted);
    EXPECT_GT(merged.accepted, 1.03 * fare(world, With::kFirst).accepted);
    EXPECT_LE(merged.verified, model.verified);
  }
}

TEST(MergedDrafts, LoseNothingWhereOneDrafterIsBest) {
  const World never_copied{.copied = 0};
  EXPECT_GT(fare(never_copied, With::kMerged).accepted,
            0.99 * fare(never_copied, With::kModel).accepted);
  const World all_copied{.copied = 1};
  EXPECT_GT(fare(all_copied, With::kMerged).accepted,
            0.99 * fare(all_copied, With::kCopier).accepted);
}

}  // namespace
}  // namespace specdec
