#include "speculation/draft_policy.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "testing/draft_world.h"

namespace specdec {
namespace {

using testing::best_fixed_rate;
using testing::DraftWorld;
using testing::DraftWorldOptions;
using testing::fixed_rate;

struct Setting {
  bool has_model = true;
  int num_requests = 1;
  double row_share = 0.02;  // of a row more in the target's pass
  double pass_share = 0.3;  // of the drafter's pass
  double acceptance = 0.7;
};

DraftWorldOptions world_of(const Setting& setting, uint32_t seed = 1) {
  return {
      .num_requests = setting.num_requests,
      .max_depth = setting.has_model ? 8 : 16,
      .has_model = setting.has_model,
      .verify_seconds = [setting](int rows) { return 0.01 * (1 + setting.row_share * (rows - 1)); },
      .pass_seconds = 0.01 * setting.pass_share,
      .acceptance = [setting](int, int64_t, int) { return setting.acceptance; },
      .timed_rows = {1, 2, 4, 8, 16},
      .seed = seed};
}

// The policy's rate after the first tokens, relative to the rate of the best fixed length.
double share_of_best(const Setting& setting) {
  const DraftWorldOptions options = world_of(setting);
  DraftWorld world(options);
  world.run(128);
  return world.run(6000).tokens_per_second() / best_fixed_rate(options);
}

std::string text_of(const Setting& setting) {
  return std::string(setting.has_model ? "model" : "cheap") +
         ", requests: " + std::to_string(setting.num_requests) +
         ", row: " + std::to_string(setting.row_share) +
         ", pass: " + std::to_string(setting.pass_share) +
         ", acceptance: " + std::to_string(setting.acceptance);
}

TEST(DraftPolicy, ReachesTheRateOfTheBestFixedLength) {
  double total = 0;
  int count = 0;
  for (const double row_share : {0.02, 0.1}) {
    for (const double acceptance : {0.0, 0.1, 0.3, 0.5, 0.7, 0.85, 0.95, 1.0}) {
      std::vector<Setting> settings = {{false, 1, row_share, 0, acceptance},
                                       {false, 8, row_share, 0, acceptance}};
      for (const double pass_share : {0.1, 0.3, 0.6}) {
        settings.push_back({true, 1, row_share, pass_share, acceptance});
      }
      for (const Setting& setting : settings) {
        const double share = share_of_best(setting);
        EXPECT_GT(share, 0.90) << text_of(setting);
        total += share;
        ++count;
      }
    }
  }
  EXPECT_GT(total / count, 0.97);
}

TEST(DraftPolicy, DraftsOfABatchAreWorthLessAndNeverCostMuch) {
  for (const double pass_share : {0.1, 0.3}) {
    for (const double acceptance : {0.0, 0.3, 0.5, 0.7, 0.85, 0.95, 1.0}) {
      const Setting setting{true, 8, 0.02, pass_share, acceptance};
      EXPECT_GT(share_of_best(setting), 0.85) << text_of(setting);
    }
  }
}

TEST(DraftPolicy, AHopelessDrafterCostsAtMostTwoPercent) {
  for (const bool has_model : {false, true}) {
    for (const int num_requests : {1, 8}) {
      for (const double pass_share : {0.1, 0.3, 0.6, 1.5}) {
        const Setting setting{has_model, num_requests, 0.05, pass_share, 0.0};
        const DraftWorldOptions options = world_of(setting);
        DraftWorld world(options);
        const double plain = fixed_rate(options, 0);
        // The first request, too, loses little.
        EXPECT_GT(world.run(128).tokens_per_second(), 0.95 * plain) << text_of(setting);
        EXPECT_GT(world.run(2000).tokens_per_second(), 0.98 * plain) << text_of(setting);
        const DraftPolicyStats& stats = world.policy().stats();
        EXPECT_GT(stats.num_without_drafts, 0.9 * stats.num_decisions);
      }
    }
  }
}

TEST(DraftPolicy, LevelsDecidedAheadReachTheBestFixedDepth) {
  for (const int width : {1, 3}) {
    for (const int num_requests : {1, 8}) {
      for (const double pass_share : {0.1, 0.3}) {
        for (const double acceptance : {0.1, 0.5, 0.7, 0.85, 0.95}) {
          const Setting setting{true, num_requests, 0.02, pass_share, acceptance};
          DraftWorldOptions options = world_of(setting);
          options.width = width;
          const double best = best_fixed_rate(options);
          options.levels = true;
          DraftWorld world(options);
          world.run(128);
          const double rate = world.run(4000).tokens_per_second();
          EXPECT_GT(rate / best, 0.9) << text_of(setting) << " width " << width;
        }
      }
    }
  }
}

TEST(DraftPolicy, LevelsOfAHopelessDrafterCostAtMostTwoPercent) {
  for (const int num_requests : {1, 8}) {
    for (const double pass_share : {0.1, 0.6}) {
      const Setting setting{true, num_requests, 0.05, pass_share, 0.0};
      DraftWorldOptions options = world_of(setting);
      const double plain = fixed_rate(options, 0);
      options.levels = true;
      DraftWorld world(options);
      EXPECT_GT(world.run(2000).tokens_per_second(), 0.98 * plain) << text_of(setting);
    }
  }
}

TEST(DraftPolicy, ACheapDrafterThatIsWrongIsNotVerifiedButStillWatched) {
  // Wrong for a thousand tokens, right from then on.
  DraftWorldOptions options = world_of({false, 1, 0.05, 0, 0});
  options.acceptance = [](int, int64_t token, int) { return token < 1000 ? 0.0 : 0.95; };
  DraftWorld world(options);
  world.run(900);
  const DraftPolicyStats before = world.policy().stats();
  EXPECT_LT(before.num_verified_tokens, 60);
  EXPECT_TRUE(before.is_paused);
  EXPECT_EQ(before.num_pauses_too_costly, 1);
  world.run(160);  // a hundred past the change; noticing it takes some sixty
  const double rate = world.run(100).tokens_per_second();
  EXPECT_FALSE(world.policy().stats().is_paused);
  EXPECT_EQ(world.policy().stats().num_pauses_too_costly, 1);
  options.acceptance = [](int, int64_t, int) { return 0.95; };
  EXPECT_GT(rate, 0.8 * best_fixed_rate(options));
}

TEST(DraftPolicy, AModelThatBecomesUsefulIsFoundByProbing) {
  DraftWorldOptions options = world_of({true, 1, 0.02, 0.2, 0});
  options.acceptance = [](int, int64_t token, int) { return token < 500 ? 0.05 : 0.9; };
  DraftWorld world(options);
  world.run(500);
  world.run(1500);
  EXPECT_GT(world.policy().stats().num_probes, 0);
  const double rate = world.run(500).tokens_per_second();
  options.acceptance = [](int, int64_t, int) { return 0.9; };
  EXPECT_GT(rate, 0.9 * best_fixed_rate(options));
}

TEST(DraftPolicy, AModelThatBecomesUselessIsLeft) {
  DraftWorldOptions options = world_of({true, 1, 0.02, 0.3, 0});
  options.acceptance = [](int, int64_t token, int) { return token < 1000 ? 0.95 : 0.02; };
  DraftWorld world(options);
  world.run(1000);
  world.run(60);
  EXPECT_GT(world.run(1000).tokens_per_second(), 0.96 * fixed_rate(world_of({}), 0));
}

TEST(DraftPolicy, RequestsOfOneBatchAreToldApart) {
  // One copies, the others are guessed wrong.
  DraftWorldOptions options = world_of({false, 4, 0.1, 0, 0});
  options.acceptance = [](int request, int64_t, int) { return request == 0 ? 0.98 : 0.02; };
  DraftWorld world(options);
  world.run(200);
  const size_t seen = world.lengths().size();
  world.run(100);
  double verified[2] = {0, 0};
  for (size_t i = seen; i < world.lengths().size(); ++i) {
    verified[i % 4 == 0 ? 0 : 1] += world.lengths()[i];
  }
  EXPECT_GT(verified[0], 20 * verified[1]);
}

TEST(DraftPolicy, TheKneeOfThePassIsRespected) {
  // Rows are free up to eight and dear beyond.
  DraftWorldOptions options = world_of({false, 1, 0, 0, 0.97});
  options.verify_seconds = [](int rows) { return rows <= 8 ? 0.01 : 0.01 + 0.003 * (rows - 8); };
  DraftWorld world(options);
  world.run(500);
  const size_t seen = world.lengths().size();
  world.run(500);
  double total = 0;
  for (size_t i = seen; i < world.lengths().size(); ++i) total += world.lengths()[i];
  EXPECT_NEAR(total / static_cast<double>(world.lengths().size() - seen), 7.0, 1.3);
}

struct Curve {
  std::string name;
  std::function<double(int num_rows)> seconds;
};

// Costs where another row adds from a third to all of the time of a pass over one row.
std::vector<Curve> steep_curves() {
  const auto straight = [](double share) {
    return [share](int rows) { return 0.01 * (1 + share * (rows - 1)); };
  };
  // Weights of four bits with AVX2: two rows are nearly free, eight cost two and a half.
  const auto bent = [](int rows) {
    const double at_two = 1.1;
    return 0.01 * (rows <= 2 ? 1 + (at_two - 1) * (rows - 1) : at_two + 0.25 * (rows - 2));
  };
  return {{"30%", straight(0.3)}, {"80%", straight(0.8)}, {"bent", bent}};
}

struct Text {
  std::string name;
  std::function<double(int request, int64_t token, int depth)> acceptance;
  double hit_rate = 1.0;
};

std::vector<Text> texts() {
  const auto always = [](double p) { return [p](int, int64_t, int) { return p; }; };
  return {{"never right", always(0.0)},
          {"seldom right", always(0.1)},
          {"seldom right, and seldom drafted", always(0.1), 0.2},
          {"right every third time", always(0.3)},
          {"right every second time", always(0.5)},
          {"mostly right", always(0.85)},
          {"a copy", always(0.97)},
          {"first a copy", [](int, int64_t token, int) { return token < 40 ? 0.97 : 0.02; }},
          {"in the end a copy", [](int, int64_t token, int) { return token < 40 ? 0.02 : 0.97; }},
          {"pieces of a copy",
           [](int, int64_t token, int) { return token / 16 % 2 == 0 ? 0.05 : 0.97; }}};
}

// A fresh engine's rate over its first 128 tokens, relative to plain decoding.
double first_ratio(const Curve& curve, const Text& text, uint32_t seed) {
  DraftWorld world({.max_depth = 16,
                    .has_model = false,
                    .verify_seconds = curve.seconds,
                    .acceptance = text.acceptance,
                    .hit_rate = [&text](int, int64_t) { return text.hit_rate; },
                    .outlier_rate = 0.01,
                    .timed_rows = {1, 2, 4, 8, 16},
                    .seed = seed});
  return world.run(128).tokens_per_second() * curve.seconds(1);
}

TEST(DraftPolicy, TheFirstTokensOfAFreshEngineLoseAtMostThreePercent) {
  for (const Curve& curve : steep_curves()) {
    for (const Text& text : texts()) {
      for (uint32_t seed = 1; seed <= 8; ++seed) {
        EXPECT_GE(first_ratio(curve, text, seed), 0.97)
            << curve.name << " a row, " << text.name << ", seed " << seed;
      }
    }
  }
}

TEST(DraftPolicy, TheFirstTokensOfAFreshEngineGainWhatACopyIsWorth) {
  const Curve curve{.name = "10%",
                    .seconds = [](int rows) { return 0.01 * (1 + 0.1 * (rows - 1)); }};
  double total = 0;
  for (uint32_t seed = 1; seed <= 8; ++seed) {
    total += first_ratio(curve, {.name = "a copy", .acceptance = texts()[6].acceptance}, seed);
  }
  DraftWorldOptions options = world_of({false, 1, 0, 0, 0.97});
  options.verify_seconds = curve.seconds;
  EXPECT_GT(total / 8, 0.8 * best_fixed_rate(options) * curve.seconds(1));
}

TEST(DraftPolicy, EqualMeasurementsGiveEqualDecisions) {
  for (const bool has_model : {false, true}) {
    DraftWorld one(world_of({has_model, 3, 0.05, 0.2, 0.6}));
    DraftWorld other(world_of({has_model, 3, 0.05, 0.2, 0.6}));
    one.run(300);
    other.run(300);
    EXPECT_EQ(one.lengths(), other.lengths());
  }
}

// --- one step at a time

constexpr uint64_t kRequest = 7;

DraftPolicy of_one(DrafterTraits drafter) {
  return DraftPolicy(std::vector<DrafterTraits>{drafter});
}

void record(DraftPolicy& policy, DraftPlan& step, const std::vector<int32_t>& tokens) {
  policy.record(step, {.sequence = kRequest, .tokens = tokens});
}

// Plain steps until the policy knows what one costs.
void settle(DraftPolicy& policy, double seconds = 0.01) {
  for (int i = 0; i < 5; ++i) {
    DraftPlan step = policy.begin_step(1, 0);
    DraftTree tree;
    tree.reset(0);
    const DraftPolicy::Draft draft{.sequence = kRequest, .tree = &tree, .max_nodes = 8};
    policy.choose(step, {&draft, 1});
    record(policy, step, {0});
    policy.end_step(step, seconds);
  }
}

DraftTree chain_of(int length, float confidence = 0.9f) {
  DraftTree tree;
  tree.reset(0);
  int node = 0;
  for (int i = 1; i <= length; ++i) {
    node = tree.add(node, i, tree.survival(node) * confidence, 0);
  }
  return tree;
}

TEST(DraftCredit, DraftsMayLoseAShareOfAllSecondsAndWhatTheySaved) {
  DraftCredit credit({});
  EXPECT_FALSE(credit.covers(1e-9));
  credit.start(0.01);
  EXPECT_DOUBLE_EQ(credit.seconds(), 0.02);
  EXPECT_TRUE(credit.covers(0.019));
  credit.add(-0.05);  // in debt, until a share of 300 steps has made up for that
  EXPECT_EQ(credit.seconds(), 0.0);
  for (int step = 0; step < 290; ++step) credit.earn(0.01, 0.01);
  EXPECT_FALSE(credit.covers(0.0));
  for (int step = 0; step < 20; ++step) credit.earn(0.01, 0.01);
  EXPECT_TRUE(credit.covers(0.0));
  credit.add(1.0);
  credit.earn(0.01, 0.01);
  EXPECT_DOUBLE_EQ(credit.seconds(), 0.04);  // no more is saved up than four steps
}

TEST(DraftPolicySteps, NothingIsVerifiedBeforeAStepWasMeasured) {
  DraftPolicy policy = of_one({});
  DraftPlan step = policy.begin_step(1, 0);
  DraftTree tree = chain_of(6);
  const DraftPolicy::Draft draft{.sequence = kRequest, .tree = &tree, .max_nodes = 8};
  policy.choose(step, {&draft, 1});
  EXPECT_EQ(tree.num_drafts(), 0);
}

// A batch that verifies no drafts must not slow the prompts beside it.
TEST(DraftPolicySteps, RowsAreHeldForAsManyDraftsAsWereVerifiedLately) {
  DraftPolicy policy = of_one({});
  settle(policy);
  const int at_first = policy.most_held();
  EXPECT_GT(at_first, 0);  // or drafts would never come in beside prompts
  EXPECT_LE(at_first, 8);
  DraftPlan step = policy.begin_step(1, 0);
  DraftTree tree = chain_of(6, 0.99f);
  const DraftPolicy::Draft draft{.sequence = kRequest, .tree = &tree, .max_nodes = 6};
  policy.choose(step, {&draft, 1});
  const int num_verified = tree.num_drafts();
  ASSERT_GT(num_verified, 0);
  std::vector<int32_t> tokens;
  for (int i = 0; i <= num_verified; ++i) tokens.push_back(i + 1);
  record(policy, step, tokens);
  policy.end_step(step, 0.01);
  EXPECT_GT(policy.most_held(), num_verified);
  settle(policy);
  settle(policy);
  EXPECT_EQ(policy.most_held(), at_first);
}

TEST(DraftPolicySteps, BudgetsAreNeverExceeded) {
  DraftPolicy policy = of_one({});
  settle(policy);
  for (int limit = 0; limit <= 6; ++limit) {
    EXPECT_LE(policy.draft_budget(kRequest, limit), limit);
    DraftPlan step = policy.begin_step(1, 0);
    DraftTree tree = chain_of(12, 0.99f);
    const DraftPolicy::Draft draft{.sequence = kRequest, .tree = &tree, .max_nodes = limit};
    policy.choose(step, {&draft, 1});
    EXPECT_LE(tree.num_drafts(), limit);
    tree.check_integrity();
    std::vector<int32_t> tokens;
    for (int i = 0; i <= tree.num_drafts(); ++i) tokens.push_back(i + 1);
    record(policy, step, tokens);
    policy.end_step(step, 0.01);
  }
}

TEST(DraftPolicySteps, LikelyBranchesAreKeptBeforeUnlikelyOnes) {
  DraftPolicy policy = of_one({});
  settle(policy);
  DraftPlan step = policy.begin_step(1, 0);
  DraftTree tree;
  tree.reset(0);
  const int unlikely = tree.add(0, 1, 0.05f, 0);
  tree.add(unlikely, 2, 0.04f, 0);
  const int likely = tree.add(0, 3, 0.9f, 0);
  tree.add(likely, 4, 0.85f, 0);
  const DraftPolicy::Draft draft{.sequence = kRequest, .tree = &tree, .max_nodes = 2};
  policy.choose(step, {&draft, 1});
  ASSERT_EQ(tree.num_drafts(), 2);
  EXPECT_EQ(tree.path(2), (std::vector<int32_t>{3, 4}));
  tree.check_integrity();
}

TEST(DraftPolicySteps, CatchingUpOnAPromptMustPayOverWhatIsLeft) {
  const auto is_asked = [](int num_unseen, int num_remaining) {
    DraftPolicy policy =
        of_one({.cost = DrafterTraits::Cost::kPerLevel, .relative_pass_cost = 0.1});
    settle(policy);
    DraftPlan step = policy.begin_step(1, 0);
    DraftPolicy::Ask ask{.sequence = kRequest,
                         .max_depth = 4,
                         .num_unseen = num_unseen,
                         .num_remaining = num_remaining};
    policy.plan(step, 0, {&ask, 1}, {.same_depth = false});
    return ask.depth > 0;
  };
  EXPECT_TRUE(is_asked(1, 100));
  EXPECT_TRUE(is_asked(200, 100));
  EXPECT_FALSE(is_asked(5000, 4));
}

TEST(DraftPolicySteps, APassThatDraftsAllLevelsIsPaidOnce) {
  const auto planned_depth = [](DrafterTraits::Cost cost) {
    DraftPolicy policy = of_one({.cost = cost, .relative_pass_cost = 0.2});
    settle(policy);
    DraftPlan step = policy.begin_step(1, 0);
    DraftPolicy::Ask ask{.sequence = kRequest, .max_depth = 8, .num_remaining = 100};
    policy.plan(step, 0, {&ask, 1}, {.same_depth = false});
    return ask.depth;
  };
  EXPECT_GT(planned_depth(DrafterTraits::Cost::kOnePass),
            planned_depth(DrafterTraits::Cost::kPerLevel));
}

// The rows of prompts take their time with and without drafts: a draft that would not pay in a step
// of decoding does not pay beside them, however long they make the step.
TEST(DraftPolicySteps, DraftsBesidePromptsMustPayAsInStepsOfDecoding) {
  const DrafterTraits head = {.cost = DrafterTraits::Cost::kPerLevel, .relative_pass_cost = 0.3};
  const auto policy_with = [&](double row_share) {
    DraftPolicy policy({{}, head});
    const auto seconds = [&](int rows) { return 0.01 * (1 + row_share * (rows - 1)); };
    std::vector<TimedPass> passes;
    for (const int rows : {1, 2, 4, 8, 16, 32, 64}) passes.push_back({rows, seconds(rows)});
    policy.start_from(passes);
    settle(policy);
    return policy;
  };
  const auto num_verified = [&](double row_share, int num_prompt_rows) {
    DraftPolicy policy = policy_with(row_share);
    DraftPlan step = policy.begin_step(1, num_prompt_rows);
    DraftTree tree = chain_of(4, 0.5f);
    const DraftPolicy::Draft draft{.sequence = kRequest, .tree = &tree, .max_nodes = 8};
    policy.choose(step, {&draft, 1});
    return tree.num_drafts();
  };
  const auto asked_depth = [&](double row_share, int num_prompt_rows) {
    DraftPolicy policy = policy_with(row_share);
    DraftPlan step = policy.begin_step(1, num_prompt_rows);
    DraftPolicy::Ask ask{
        .sequence = kRequest, .max_depth = 4, .num_unseen = 50, .num_remaining = 96};
    policy.plan(step, 1, {&ask, 1}, {.same_depth = false});
    return ask.depth;
  };
  const double dear = 3.0;  // too dear to be tried either
  const double cheap = 0.02;
  for (const int num_prompt_rows : {0, 50, 400}) {
    EXPECT_EQ(num_verified(dear, num_prompt_rows), 0) << num_prompt_rows;
    EXPECT_EQ(asked_depth(dear, num_prompt_rows), 0) << num_prompt_rows;
    EXPECT_GT(num_verified(cheap, num_prompt_rows), 0) << num_prompt_rows;
    EXPECT_GT(asked_depth(cheap, num_prompt_rows), 0) << num_prompt_rows;
  }
}

TEST(DraftPolicySteps, AnOutlierChangesLittle) {
  DraftPolicy policy = of_one({});
  settle(policy);
  DraftPlan step;
  const auto verified = [&] {
    step = policy.begin_step(1, 0);
    DraftTree tree = chain_of(8, 0.95f);
    const DraftPolicy::Draft draft{.sequence = kRequest, .tree = &tree, .max_nodes = 8};
    policy.choose(step, {&draft, 1});
    return tree.num_drafts();
  };
  const int before = verified();
  EXPECT_GT(before, 0);
  record(policy, step, {1, 2, 3, 4, 5, 6, 7, 8, 9});
  policy.end_step(step, 5.0);  // five hundred times as long: preempted
  EXPECT_GT(verified(), before / 2);
}

}  // namespace
}  // namespace specdec
