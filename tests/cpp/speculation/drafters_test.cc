#include "speculation/drafters.h"

#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "specdec/error.h"
#include "speculation/custom_drafter.h"
#include "testing/draft_once.h"
#include "testing/thrown.h"

namespace specdec {
namespace {

using testing::draft_once;
using testing::draft_unplanned;
using testing::DraftLimits;
using testing::drafts_of;
using testing::request_for;
using Tokens = std::vector<int32_t>;

struct Calls {
  std::vector<std::vector<uint64_t>> drafted;  // sequences of every batch
  std::vector<uint64_t> finished;
};

// Drafts a fixed chain for requests whose last token it knows.
class FixedDrafter : public Drafter {
 public:
  FixedDrafter(int id, bool is_cheap, int32_t knows, Tokens chain, Calls* calls)
      : id_(id), is_cheap_(is_cheap), knows_(knows), chain_(std::move(chain)), calls_(calls) {}

  DrafterTraits traits() const override {
    using Cost = DrafterTraits::Cost;
    return {.cost = is_cheap_ ? Cost::kCheap : Cost::kPerCall};
  }
  void draft(std::span<DraftRequest> requests) override {
    calls_->drafted.emplace_back();
    for (DraftRequest& request : requests) {
      calls_->drafted.back().push_back(request.sequence);
      if (request.tokens.back() != knows_) continue;
      int node = DraftTree::kRoot;
      for (const int32_t token : chain_) {
        node = add_draft(request, node, token, 0.5f, id_);
        if (node < 0) break;
      }
    }
  }
  void finish(const FinishedSequence& finished) override {
    calls_->finished.push_back(finished.sequence);
  }
  int64_t memory_bytes() const override { return 100; }

 private:
  int id_;
  bool is_cheap_;
  int32_t knows_;
  Tokens chain_;
  Calls* calls_;
};

class ScriptedDrafter : public CustomDrafter {
 public:
  std::vector<Tokens> continuations;
  int32_t fails_after = -1;  // last token of the request that makes it throw
  int asked_for = 0;

  std::vector<Tokens> propose(std::span<const int32_t> tokens, int max_tokens) override {
    asked_for = max_tokens;
    if (tokens.back() == fails_after) throw std::runtime_error("no idea");
    return continuations;
  }
};

std::vector<std::unique_ptr<Drafter>> list_of(std::unique_ptr<Drafter> first,
                                              std::unique_ptr<Drafter> second) {
  std::vector<std::unique_ptr<Drafter>> drafters;
  drafters.push_back(std::move(first));
  drafters.push_back(std::move(second));
  return drafters;
}

TEST(Drafters, TheFirstThatDraftsServesTheRequest) {
  Calls first, second;
  Drafters drafters(list_of(std::make_unique<FixedDrafter>(0, true, 1, Tokens{10, 11}, &first),
                            std::make_unique<FixedDrafter>(1, true, 2, Tokens{20}, &second)),
                    /*merge=*/false, /*adapts=*/false);
  const std::vector<Tokens> tokens = {{1}, {2}, {3}};
  std::vector<DraftTree> trees(3);
  std::vector<DraftRequest> requests;
  for (int i = 0; i < 3; ++i) requests.push_back(request_for(tokens[i], trees[i], {}, i));
  draft_unplanned(drafters, requests);
  EXPECT_EQ(drafts_of(trees[0]), (Tokens{10, 11}));
  EXPECT_EQ(drafts_of(trees[1]), (Tokens{20}));
  EXPECT_EQ(trees[2].num_drafts(), 0);
  EXPECT_EQ(trees[1].drafter(1), 1);
  // In batches, and only those still without drafts.
  EXPECT_EQ(first.drafted, (std::vector<std::vector<uint64_t>>{{0, 1, 2}}));
  EXPECT_EQ(second.drafted, (std::vector<std::vector<uint64_t>>{{1, 2}}));
}

TEST(Drafters, CheapDraftersAreAskedFirst) {
  Calls costly, cheap;
  Drafters drafters(list_of(std::make_unique<FixedDrafter>(0, false, 1, Tokens{10}, &costly),
                            std::make_unique<FixedDrafter>(1, true, 1, Tokens{20}, &cheap)),
                    /*merge=*/false, /*adapts=*/false);
  EXPECT_EQ(drafts_of(draft_once(drafters, Tokens{1})), (Tokens{20}));
  EXPECT_TRUE(costly.drafted.empty());
}

TEST(Drafters, MergingGraftsAllDraftsIntoOneTree) {
  Calls calls;
  Drafters drafters(list_of(std::make_unique<FixedDrafter>(0, false, 1, Tokens{10, 11}, &calls),
                            std::make_unique<FixedDrafter>(1, true, 1, Tokens{10, 12}, &calls)),
                    /*merge=*/true, /*adapts=*/false);
  const DraftTree tree = draft_once(drafters, Tokens{1});
  EXPECT_EQ(drafts_of(tree), (Tokens{10, 11, 12}));
  EXPECT_EQ(tree.path(3), (Tokens{10, 12}));
  EXPECT_EQ(tree.drafter(1), 0);  // in the order given
  EXPECT_EQ(tree.drafter(3), 1);
}

TEST(Drafters, MergingStopsWhenTheTreeIsFull) {
  Calls first, second;
  Drafters drafters(
      list_of(std::make_unique<FixedDrafter>(0, true, 1, Tokens{10, 11}, &first),
              std::make_unique<FixedDrafter>(1, true, 1, Tokens{20, 21, 22}, &second)),
      /*merge=*/true, /*adapts=*/false);
  EXPECT_EQ(draft_once(drafters, Tokens{1}, {.max_nodes = 3}).num_drafts(), 3);
  EXPECT_EQ(second.drafted.size(), 1u);
  EXPECT_EQ(drafts_of(draft_once(drafters, Tokens{1}, {.max_nodes = 2})), (Tokens{10, 11}));
  EXPECT_EQ(second.drafted.size(), 1u);  // not asked again
}

TEST(Drafters, FinishAndMemoryReachAll) {
  Calls first, second;
  Drafters drafters(list_of(std::make_unique<FixedDrafter>(0, true, 1, Tokens{}, &first),
                            std::make_unique<FixedDrafter>(1, true, 1, Tokens{}, &second)),
                    /*merge=*/false, /*adapts=*/false);
  drafters.finish({7, Tokens{1, 2}, 1});
  EXPECT_EQ(first.finished, (std::vector<uint64_t>{7}));
  EXPECT_EQ(second.finished, (std::vector<uint64_t>{7}));
  EXPECT_EQ(drafters.memory_bytes(0), 100);
  EXPECT_EQ(drafters.memory_bytes(1), 100);
}

TEST(Drafters, WhereLengthsAdaptThePolicyDecidesWhatIsAskedAndVerified) {
  Calls cheap, costly;
  Drafters drafters(
      list_of(std::make_unique<FixedDrafter>(0, true, 1, Tokens{10, 11, 12, 13}, &cheap),
              std::make_unique<FixedDrafter>(1, false, 2, Tokens{20}, &costly)),
      /*merge=*/false, /*adapts=*/true);
  // A step of the request that ends with `last`, in which `text` is emitted.
  const auto step = [&](int32_t last, const Tokens& text, int draft_budget) {
    const Tokens tokens = {last};
    DraftPlan plan = drafters.policy()->begin_step(1, 0);
    DraftTree tree;
    DraftRequest request = request_for(tokens, tree, {.max_depth = 4, .max_nodes = 8});
    request.draft_budget = draft_budget;
    drafters.draft(plan, {&request, 1});
    drafters.policy()->record(plan, {.sequence = 0, .tokens = text});
    drafters.policy()->end_step(plan, 0.01);
    return tree.num_drafts();
  };
  // Nothing is verified, and the costly drafter is not asked, before the policy knows what it
  // costs.
  EXPECT_EQ(step(1, {10, 11, 12, 13, 14}, 4), 0);
  EXPECT_EQ(cheap.drafted.size(), 1u);
  EXPECT_TRUE(costly.drafted.empty());
  // The cheap drafter's drafts were right although none was verified. It may draft more than there
  // are slots.
  step(1, {10, 11, 12, 13, 14}, 4);
  EXPECT_EQ(step(1, {10, 11, 12, 13, 14}, 2), 2);
  EXPECT_EQ(cheap.drafted.size(), 3u);
  EXPECT_TRUE(costly.drafted.empty());
  // If the cheap drafter finds no draft, the costly one is tried.
  for (int i = 0; i < 8; ++i) step(2, {20, 21}, 4);
  EXPECT_FALSE(costly.drafted.empty());
}

// The drafts of the other one are learned from, too, although they are never verified.
TEST(Drafters, WhereLengthsAdaptTheCheapDrafterThatWasRightIsTaken) {
  Calls calls;
  Drafters drafters(list_of(std::make_unique<FixedDrafter>(0, true, 1, Tokens{10, 11, 12}, &calls),
                            std::make_unique<FixedDrafter>(1, true, 1, Tokens{20, 21, 22}, &calls)),
                    /*merge=*/false, /*adapts=*/true);
  // Which drafter's drafts are verified after steps that all emit `text`.
  const auto taken_after = [&](int num_steps, const Tokens& text) {
    const Tokens tokens = {1};
    DraftTree tree;
    for (int i = 0; i < num_steps; ++i) {
      DraftPlan plan = drafters.policy()->begin_step(1, 0);
      plan.measuring = DraftPlan::Measuring::kNothing;
      DraftRequest request = request_for(tokens, tree);
      drafters.draft(plan, {&request, 1});
      EXPECT_TRUE(tree.is_chain());
      drafters.policy()->record(plan, {.sequence = 0, .tokens = text});
      drafters.policy()->end_step(plan, 0.01);
    }
    return tree.num_drafts() == 0 ? -1 : tree.drafter(1);
  };
  EXPECT_EQ(taken_after(20, {20, 21, 22, 23}), 1);
  EXPECT_EQ(taken_after(300, {10, 11, 12, 13}), 0);
  EXPECT_EQ(taken_after(300, {20, 21, 22, 23}), 1);
}

TEST(Drafters, AnErrorStaysWithItsRequest) {
  auto script = std::make_shared<ScriptedDrafter>();
  script->fails_after = 1;
  Calls calls;
  Drafters drafters(list_of(std::make_unique<CustomDrafterAdapter>(script, 0, 100),
                            std::make_unique<FixedDrafter>(1, false, 2, Tokens{20}, &calls)),
                    /*merge=*/false, /*adapts=*/false);
  const std::vector<Tokens> tokens = {{1}, {2}};
  std::vector<DraftTree> trees(2);
  std::vector<DraftRequest> requests;
  for (int i = 0; i < 2; ++i) requests.push_back(request_for(tokens[i], trees[i], {}, i));
  draft_unplanned(drafters, requests);
  EXPECT_THROW(std::rethrow_exception(requests[0].error), std::runtime_error);
  EXPECT_EQ(requests[1].error, nullptr);
  EXPECT_EQ(drafts_of(trees[1]), (Tokens{20}));
  EXPECT_EQ(calls.drafted, (std::vector<std::vector<uint64_t>>{{1}}));
}

// --- drafters of the user's own ---

TEST(CustomDrafter, ChainsAreCutToTheDepth) {
  auto script = std::make_shared<ScriptedDrafter>();
  script->continuations = {{1, 2, 3, 4, 5}};
  CustomDrafterAdapter adapter(script, 3, 100);
  const DraftTree tree = draft_once(adapter, Tokens{7}, {.max_depth = 3});
  EXPECT_EQ(drafts_of(tree), (Tokens{1, 2, 3}));
  EXPECT_EQ(tree.drafter(1), 3);
  EXPECT_EQ(script->asked_for, 3);
  EXPECT_EQ(draft_once(adapter, Tokens{7}, {.max_nodes = 2}).num_drafts(), 2);
}

TEST(CustomDrafter, ContinuationsMergeIntoATreeOfTheAllowedWidth) {
  auto script = std::make_shared<ScriptedDrafter>();
  script->continuations = {{1, 2}, {1, 3}, {4}, {5, 6}};
  CustomDrafterAdapter adapter(script, 0, 100);
  const DraftTree tree = draft_once(adapter, Tokens{7}, {.tree_width = 2});
  EXPECT_EQ(drafts_of(tree), (Tokens{1, 2, 3, 4}));
  EXPECT_EQ(tree.path(3), (Tokens{1, 3}));
  EXPECT_GT(tree.survival(1), tree.survival(4));
  const DraftTree chain = draft_once(adapter, Tokens{7});
  EXPECT_TRUE(chain.is_chain());
  EXPECT_EQ(drafts_of(chain), (Tokens{1, 2}));
}

TEST(CustomDrafter, NoProposalsAreNoDrafts) {
  auto script = std::make_shared<ScriptedDrafter>();
  CustomDrafterAdapter adapter(script, 0, 100);
  EXPECT_EQ(draft_once(adapter, Tokens{7}).num_drafts(), 0);
  script->continuations = {{}};
  EXPECT_EQ(draft_once(adapter, Tokens{7}).num_drafts(), 0);
}

TEST(CustomDrafter, TokensOutsideTheVocabularyAreTheRequestsError) {
  for (const int32_t token : {-1, 100}) {
    auto script = std::make_shared<ScriptedDrafter>();
    script->continuations = {{1, 2}, {99, token}};
    CustomDrafterAdapter adapter(script, 4, 100);
    const Tokens tokens = {7};
    DraftTree tree;
    DraftRequest request = request_for(tokens, tree);
    adapter.draft({&request, 1});
    EXPECT_EQ(tree.num_drafts(), 0);
    ASSERT_NE(request.error, nullptr);
    const auto error =
        testing::error_of<InvalidArgument>([&] { std::rethrow_exception(request.error); });
    EXPECT_EQ(error.field(), "custom drafter 4");
    EXPECT_NE(std::string(error.what()).find("[0, 99]"), std::string::npos);
  }
}

}  // namespace
}  // namespace specdec
