// Paths through a grammar, and the drafts it forces and forbids.
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <vector>

#include "core/token_mask.h"
#include "specdec/error.h"
#include "speculation/drafters.h"
#include "speculation/grammar_drafter.h"
#include "speculation/grammar_path.h"
#include "testing/draft_once.h"
#include "testing/toy_grammar.h"

namespace specdec {
namespace {

using testing::draft_unplanned;
using testing::make_toy_grammar;
using testing::ToyGrammar;
using Tokens = std::vector<int32_t>;

constexpr int kVocab = 67;
constexpr int32_t kEnd = 2;

// The tokens that a matcher allows after consuming `text` directly.
Tokens allowed_after(const Grammar& grammar, const Tokens& text) {
  const auto matcher = grammar.make_matcher();
  for (const int32_t token : text) matcher->advance(token);
  std::vector<uint32_t> mask((kVocab + 31) / 32);
  matcher->fill_mask(mask);
  Tokens allowed;
  for (int32_t token = 0; token < kVocab; ++token) {
    if (is_in(mask, token)) allowed.push_back(token);
  }
  return allowed;
}

TEST(GrammarPath, MasksAreThoseOfTheTextWhateverPathsWereTriedBefore) {
  const auto grammar = make_toy_grammar(kVocab, kEnd, 20, 30);
  std::mt19937 random(3);
  for (int round = 0; round < 20; ++round) {
    GrammarPath path(*grammar);
    Tokens text;
    while (text.empty() || text.back() != kEnd) {
      for (int i = 0; i < 6; ++i) {
        Tokens drafted, whole = text;
        for (int depth = random() % 5; depth > 0; --depth) {
          const Tokens allowed = allowed_after(*grammar, whole);
          drafted.push_back(allowed[random() % allowed.size()]);
          whole.push_back(drafted.back());
        }
        const Tokens expected = allowed_after(*grammar, whole);
        const std::span<const uint32_t> mask = path.mask_after(drafted);
        ASSERT_EQ(mask.size(), (kVocab + 31) / 32);
        for (int32_t token = 0; token < kVocab; ++token) {
          const bool is_allowed = std::ranges::find(expected, token) != expected.end();
          ASSERT_EQ(is_in(mask, token), is_allowed);
          ASSERT_EQ(path.allows(drafted, token), is_allowed);
        }
      }
      const Tokens allowed = allowed_after(*grammar, text);
      text.push_back(allowed[random() % allowed.size()]);
      path.commit(text.back());
    }
  }
}

TEST(GrammarPath, AForbiddenTokenIsToldByTheNextCall) {
  const ToyGrammar grammar(kVocab, kEnd, [](const Tokens&) { return Tokens{5}; });
  GrammarPath path(grammar);
  path.commit(6);
  EXPECT_THROW(path.mask_after({}), GrammarError);
  path.commit(5);
  EXPECT_THROW(path.forced_tokens(), GrammarError);
}

// "5 6 7" is forced after any token below 10; elsewhere all tokens are allowed.
const ToyGrammar& forcing() {
  static const ToyGrammar grammar(kVocab, kEnd, [](const Tokens& before) {
    const size_t phase = before.size() % 4;
    if (phase > 0) return Tokens{static_cast<int32_t>(4 + phase)};
    return Tokens{0, 1, 3, 4, 5};
  });
  return grammar;
}

struct Drafted {
  explicit Drafted(const Grammar& grammar) : path(grammar) {
    request.grammar = &path;
    request.tokens = tokens;
    request.max_depth = request.max_nodes = request.draft_budget = 8;
    request.tree = &tree;
    tree.reset(tokens.back());
  }
  Tokens tokens = {1, 1};
  GrammarPath path;
  DraftTree tree;
  DraftRequest request;
};

TEST(GrammarDrafter, DraftsTheForcedTokens) {
  Drafted drafted(forcing());
  GrammarDrafter drafter(0);
  drafter.draft({&drafted.request, 1});
  EXPECT_EQ(drafted.tree.num_drafts(), 0);
  drafted.path.commit(3);
  drafted.request.max_depth = 2;
  drafter.draft({&drafted.request, 1});
  EXPECT_EQ(drafted.tree.path(2), (Tokens{5, 6}));
  drafted.request.max_depth = 8;
  drafter.draft({&drafted.request, 1});
  EXPECT_EQ(drafted.tree.num_drafts(), 3);
  EXPECT_EQ(drafted.tree.path(3), (Tokens{5, 6, 7}));
}

TEST(GrammarDrafter, ForbiddenDraftsAreCutWithAllThatFollowsThem) {
  Drafted drafted(forcing());
  DraftTree& tree = drafted.tree;
  const int good = tree.add(0, 3, 0.9f, 0);
  const int bad = tree.add(0, 9, 0.8f, 0);
  tree.add(bad, 5, 0.7f, 0);
  tree.add(tree.add(good, 5, 0.6f, 0), 6, 0.5f, 0);
  tree.add(good, 6, 0.4f, 0);
  cut_forbidden(drafted.request);
  ASSERT_EQ(tree.num_drafts(), 3);
  EXPECT_EQ(tree.path(3), (Tokens{3, 5, 6}));
  tree.check_integrity();
}

// Drafts one chain.
class ChainDrafter final : public Drafter {
 public:
  ChainDrafter(Tokens chain, DrafterTraits traits) : chain_(std::move(chain)), traits_(traits) {}
  DrafterTraits traits() const override { return traits_; }
  void draft(std::span<DraftRequest> requests) override {
    for (DraftRequest& request : requests) {
      int node = DraftTree::kRoot;
      for (const int32_t token : chain_) node = add_draft(request, node, token, 0.5f, 0);
    }
  }

 private:
  Tokens chain_;
  DrafterTraits traits_;
};

Tokens longest_path(const DraftTree& tree) {
  Tokens longest;
  for (int node = 1; node < tree.num_nodes(); ++node) {
    if (tree.path(node).size() > longest.size()) longest = tree.path(node);
  }
  return longest;
}

TEST(GrammarDrafter, OtherDraftersAddToWhatIsForced) {
  using Cost = DrafterTraits::Cost;
  for (const bool merge : {false, true}) {
    for (const Cost cost : {Cost::kCheap, Cost::kPerLevel}) {
      std::vector<std::unique_ptr<Drafter>> drafters;
      drafters.push_back(
          std::make_unique<ChainDrafter>(Tokens{5, 6, 7, 4, 5, 9, 9}, DrafterTraits{.cost = cost}));
      drafters.push_back(std::make_unique<GrammarDrafter>(1));
      Drafters all(std::move(drafters), merge, /*adapts=*/false);
      Drafted drafted(forcing());
      drafted.path.commit(3);
      draft_unplanned(all, {&drafted.request, 1});
      // 9 is forbidden, and what is forced is there once.
      EXPECT_EQ(longest_path(drafted.tree), (Tokens{5, 6, 7, 4, 5}));
      EXPECT_EQ(drafted.tree.num_drafts(), 5);
    }
  }
}

TEST(GrammarDrafter, RequestsWithoutAGrammarAreLeftAlone) {
  std::vector<std::unique_ptr<Drafter>> drafters;
  drafters.push_back(std::make_unique<ChainDrafter>(Tokens{9, 9}, DrafterTraits{}));
  drafters.push_back(std::make_unique<GrammarDrafter>(1));
  Drafters all(std::move(drafters), /*merge=*/false, /*adapts=*/true);
  Drafted drafted(forcing());
  drafted.request.grammar = nullptr;
  draft_unplanned(all, {&drafted.request, 1});
  EXPECT_EQ(drafted.request.error, nullptr);
}

// It fails again when that token is due, if the text gets that far.
TEST(GrammarDrafter, AGrammarThatFailsHasNoDrafts) {
  const ToyGrammar failing(kVocab, kEnd,
                           [](const Tokens&) -> Tokens { throw Error("out of steps"); });
  std::vector<std::unique_ptr<Drafter>> drafters;
  drafters.push_back(std::make_unique<ChainDrafter>(Tokens{5}, DrafterTraits{}));
  drafters.push_back(std::make_unique<GrammarDrafter>(1));
  Drafters all(std::move(drafters), /*merge=*/false, /*adapts=*/false);
  Drafted bad(failing), good(forcing());
  std::vector<DraftRequest> requests = {bad.request, good.request};
  draft_unplanned(all, requests);
  EXPECT_EQ(requests[0].error, nullptr);
  EXPECT_EQ(bad.tree.num_drafts(), 0);
  EXPECT_EQ(requests[1].error, nullptr);
  EXPECT_THROW(bad.path.mask_after({}), GrammarError);
}

}  // namespace
}  // namespace specdec
