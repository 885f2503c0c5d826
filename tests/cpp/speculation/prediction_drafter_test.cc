#include "speculation/prediction_drafter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#include "speculation/ngram_drafter.h"
#include "testing/draft_once.h"

namespace specdec {
namespace {

using testing::draft_unplanned;
using testing::DraftLimits;
using testing::drafts_of;
using testing::random_tokens;
using testing::request_for;
using Tokens = std::vector<int32_t>;

// Next place and match length after every token of the answer, from the definition: all places are
// listed and sorted.
std::vector<std::pair<int, int>> places_by_definition(const Tokens& prediction,
                                                      const Tokens& answer) {
  std::vector<std::pair<int, int>> places;
  int next = 0;
  int match = 0;
  for (size_t i = 0; i < answer.size(); ++i) {
    const bool lost = i > 0 && match == 0;
    if (!lost && next < static_cast<int>(prediction.size()) && prediction[next] == answer[i]) {
      places.emplace_back(++next, ++match);
      continue;
    }
    using Rank = std::tuple<int, bool, int, int>;  // -length, is before, distance, end
    std::vector<Rank> ranks;
    for (int end = 1; end <= static_cast<int>(prediction.size()); ++end) {
      int length = 0;
      for (int n = 1; n <= std::min({end, static_cast<int>(i) + 1, 32}); ++n) {
        const bool same = std::equal(prediction.begin() + end - n, prediction.begin() + end,
                                     answer.begin() + static_cast<int>(i) + 1 - n);
        if (same) length = n;
      }
      const bool is_before = end <= next;
      if (length > 0) ranks.emplace_back(-length, is_before, std::abs(end - next), end);
    }
    match = 0;
    if (!ranks.empty()) {
      const Rank best = *std::ranges::min_element(ranks);
      match = -std::get<0>(best);
      next = std::get<3>(best);
    }
    places.emplace_back(next, match);
  }
  return places;
}

// Copies the prediction with edits, as answers do.
Tokens edited(const Tokens& prediction, std::mt19937& random, int vocab_size) {
  Tokens answer;
  for (size_t i = 0; i < prediction.size(); ++i) {
    const auto kind = random() % 12;
    if (kind == 0) continue;                                                       // left out
    if (kind == 1) answer.push_back(static_cast<int32_t>(random() % vocab_size));  // put in
    if (kind == 2) i = random() % prediction.size();                               // moved
    answer.push_back(prediction[i]);
    if (answer.size() > 2 * prediction.size()) break;
  }
  return answer;
}

TEST(PredictionPlace, IsTheDefinitionsHoweverTokensCome) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 300; ++trial) {
    const int vocab_size = trial % 3 == 0 ? 2 : 30;
    const Tokens prediction =
        random_tokens(random, 1 + static_cast<int>(random() % 90), vocab_size);
    const Tokens answer = edited(prediction, random, vocab_size + 1);
    const auto expected = places_by_definition(prediction, answer);
    PredictionPlace place;
    for (size_t read = 0; read < answer.size();) {
      read = std::min(answer.size(), read + 1 + random() % 4);
      place.follow(prediction, std::span(answer).first(read));
      ASSERT_EQ(place.match_length(), expected[read - 1].second) << "after " << read;
      ASSERT_EQ(place.next(), expected[read - 1].first) << "after " << read;
    }
  }
}

DraftTree draft(PredictionDrafter& drafter, const Tokens& prediction, const Tokens& answer,
                uint64_t sequence = 0, const DraftLimits& limits = {}) {
  Tokens tokens = {1, 2};  // the prompt
  tokens.insert(tokens.end(), answer.begin(), answer.end());
  DraftTree tree;
  DraftRequest request = request_for(tokens, tree, limits, sequence);
  request.num_prompt_tokens = 2;
  request.prediction = prediction;
  drafter.draft({&request, 1});
  tree.check_integrity();
  return tree;
}

TEST(PredictionDrafter, FollowsTheTextThroughAnEdit) {
  PredictionDrafter drafter(0);
  const Tokens text = {10, 11, 12, 13, 14, 15, 16, 17, 18, 19};
  EXPECT_EQ(drafts_of(draft(drafter, text, {})), (Tokens{10, 11, 12, 13}));
  EXPECT_EQ(drafts_of(draft(drafter, text, {10})), (Tokens{11, 12, 13, 14}));
  EXPECT_EQ(drafts_of(draft(drafter, text, {10, 11, 90})), Tokens{});      // nowhere in the text
  EXPECT_EQ(drafts_of(draft(drafter, text, {10, 11, 90, 14})), Tokens{});  // may be chance
  EXPECT_EQ(drafts_of(draft(drafter, text, {10, 11, 90, 14, 15})), (Tokens{16, 17, 18, 19}));
  EXPECT_EQ(drafts_of(draft(drafter, text, {10, 11, 90, 14, 15, 16, 17, 18})), Tokens{19});
  EXPECT_EQ(draft(drafter, text, {10, 11, 90, 14, 15, 16, 17, 18, 19}).num_drafts(), 0);
}

TEST(PredictionDrafter, GoesOnBehindTheNearestOfEqualMatches) {
  PredictionDrafter drafter(0);
  const Tokens text = {5, 6, 20, 21, 5, 6, 30, 31, 5, 6, 40, 41};
  // The answer leaves out the line that begins at 20.
  EXPECT_EQ(drafts_of(draft(drafter, text, {7, 7, 20, 21, 8, 5, 6})), (Tokens{30, 31, 5, 6}));
}

TEST(PredictionDrafter, ItsSurvivalIsLaplaces) {
  PredictionDrafter drafter(0);
  const Tokens text = {10, 11, 12, 13, 14, 15};
  const DraftTree first = draft(drafter, text, {});
  const DraftTree later = draft(drafter, text, {10, 11, 12});
  for (int depth = 1; depth <= 3; ++depth) {
    EXPECT_FLOAT_EQ(first.survival(depth), 1.0f / static_cast<float>(1 + depth));
    EXPECT_FLOAT_EQ(later.survival(depth), 4.0f / static_cast<float>(4 + depth));
  }
}

TEST(PredictionDrafter, SequencesHaveTheirOwnPlacesUntilTheyEnd) {
  PredictionDrafter drafter(0);
  const Tokens text = {10, 11, 12, 13};
  EXPECT_EQ(drafts_of(draft(drafter, text, {10, 11}, 1)), (Tokens{12, 13}));
  EXPECT_EQ(drafts_of(draft(drafter, text, {}, 2)), text);
  EXPECT_GT(drafter.memory_bytes(), 0);
  for (const uint64_t sequence : {1, 2}) drafter.finish({.sequence = sequence, .tokens = {}});
  EXPECT_EQ(drafter.memory_bytes(), 0);
  EXPECT_EQ(drafts_of(draft(drafter, text, {}, 1)), text);
}

TEST(PredictionDrafter, ItsDraftsComeBeforeThoseOfOtherCheapDrafters) {
  DrafterConfig ngram;
  const Tokens tokens = {3, 4, 9, 9, 3};
  const Tokens text = {3, 50, 51};
  for (const bool has_prediction : {false, true}) {
    for (const bool merge : {false, true}) {
      std::vector<std::unique_ptr<Drafter>> both;
      both.push_back(std::make_unique<NgramDrafter>(ngram, 0));
      both.push_back(std::make_unique<PredictionDrafter>(1));
      Drafters drafters(std::move(both), merge, /*adapts=*/false);
      DraftTree tree;
      DraftRequest request = request_for(tokens, tree, {.max_depth = 2});
      request.num_prompt_tokens = 5;
      if (has_prediction) request.prediction = text;
      draft_unplanned(drafters, {&request, 1});
      const Tokens by_ngram = {4, 9};
      const Tokens predicted = {3, 50};
      Tokens expected = has_prediction ? predicted : by_ngram;
      if (has_prediction && merge) expected.insert(expected.end(), {4, 9});
      EXPECT_EQ(drafts_of(tree), expected);
      EXPECT_EQ(tree.drafter(1), has_prediction ? 1 : 0);
    }
  }
}

// Steps in which an answer is decoded by drafters that see `prediction`; each step takes as long as
// a pass whose rows cost a fiftieth of it.
int num_steps(std::vector<std::unique_ptr<Drafter>> list, const Tokens& prompt,
              const Tokens& answer, const Tokens& prediction) {
  Drafters drafters(std::move(list), /*merge=*/false, /*adapts=*/true);
  Tokens tokens = prompt;
  tokens.push_back(answer[0]);
  int count = 0;
  for (size_t done = 1; done < answer.size(); ++count) {
    DraftPlan plan = drafters.policy()->begin_step(1, 0);
    DraftTree tree;
    DraftRequest request = request_for(tokens, tree, {.max_depth = 8, .max_nodes = 8});
    request.num_prompt_tokens = static_cast<int>(prompt.size());
    request.prediction = prediction;
    drafters.draft(plan, {&request, 1});
    const double seconds = 0.01 * (1 + 0.02 * tree.num_drafts());
    Tokens emitted;
    for (int node = DraftTree::kRoot; node >= 0 && done < answer.size();) {
      emitted.push_back(answer[done++]);
      node = tree.find_child(node, emitted.back());
    }
    tokens.insert(tokens.end(), emitted.begin(), emitted.end());
    drafters.policy()->record(plan, {.sequence = 0, .tokens = emitted});
    drafters.policy()->end_step(plan, seconds);
  }
  return count;
}

// Lines of the answer are lines of the prompt in another order; the prediction's lines have two
// tokens in common with them, behind which they go on otherwise. An n-gram of three tokens knows.
TEST(PredictionDrafter, AWeakMatchTakesNoStepFromALongerNgram) {
  const auto line = [](int32_t i, int32_t base) {
    return Tokens{base + i, 5, 6, base + 100 + i, base + 200 + i, base + 300 + i, base + 400 + i};
  };
  std::mt19937 random(5);
  Tokens prompt;
  Tokens answer;
  Tokens prediction;
  for (int32_t i = 0; i < 100; ++i) {
    for (const int32_t token : line(i, 1000)) prompt.push_back(token);
    for (const int32_t token : line(i, 3000)) prediction.push_back(token);
    for (const int32_t token : line(static_cast<int32_t>(random() % 100), 1000)) {
      answer.push_back(token);
    }
  }
  const auto make = [](bool has_ngram, bool has_prediction) {
    DrafterConfig config;
    config.prompt_lookup_min = 3;
    std::vector<std::unique_ptr<Drafter>> drafters;
    if (has_ngram) drafters.push_back(std::make_unique<NgramDrafter>(config, 0));
    const auto id = static_cast<int>(drafters.size());
    if (has_prediction) drafters.push_back(std::make_unique<PredictionDrafter>(id));
    return drafters;
  };
  const int plain = num_steps({}, prompt, answer, prediction);
  const int by_ngram = num_steps(make(true, false), prompt, answer, prediction);
  const int by_both = num_steps(make(true, true), prompt, answer, prediction);
  EXPECT_LT(by_ngram, plain * 6 / 10);
  EXPECT_LT(by_both, by_ngram * 11 / 10);
  // Where the prediction is right, it is what counts.
  const int by_right = num_steps(make(false, true), prompt, answer, answer);
  EXPECT_LT(num_steps(make(true, true), prompt, answer, answer), by_right * 11 / 10);
}

}  // namespace
}  // namespace specdec
