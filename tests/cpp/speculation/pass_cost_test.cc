#include "speculation/pass_cost.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>
#include <vector>

namespace specdec {
namespace {

double noisy(std::mt19937& random, double seconds, double noise) {
  return seconds * std::exp(std::normal_distribution<double>(0, noise)(random));
}

TEST(PassCost, FollowsTheCostsMeasured) {
  std::mt19937 random(1);
  const auto cost = [](int rows) { return 0.02 * (1 + 0.05 * (rows - 1)); };
  PassCost pass;
  EXPECT_FALSE(pass.is_measured());
  for (int i = 0; i < 400; ++i) {
    const int rows = 1 + static_cast<int>(random() % 32);
    pass.record(rows, noisy(random, cost(rows), 0.05));
  }
  EXPECT_TRUE(pass.is_measured());
  for (int rows = 1; rows <= 32; ++rows) {
    EXPECT_NEAR(pass.seconds(rows) / cost(rows), 1.0, 0.08) << rows;
  }
}

TEST(PassCost, AStepInTheCostIsFound) {
  std::mt19937 random(2);
  const auto cost = [](int rows) { return rows <= 8 ? 0.01 : 0.02; };
  PassCost pass;
  for (int i = 0; i < 400; ++i) {
    const int rows = 1 + static_cast<int>(random() % 16);
    pass.record(rows, noisy(random, cost(rows), 0.03));
  }
  EXPECT_LT(pass.seconds(8) / pass.seconds(1), 1.15);
  EXPECT_GT(pass.seconds(9) / pass.seconds(8), 1.6);
}

TEST(PassCost, NeverFallsWithRows) {
  std::mt19937 random(3);
  PassCost pass;
  for (int i = 0; i < 100; ++i) {
    pass.record(1 + static_cast<int>(random() % 600), noisy(random, 0.01, 0.5));
    for (int rows = 1; rows < 600; ++rows) ASSERT_LE(pass.seconds(rows), pass.seconds(rows + 1));
  }
}

TEST(PassCost, WhatIsMeasuredSaysSomethingOfRowsThatWereNot) {
  PassCost pass;
  for (int i = 0; i < 50; ++i) {
    pass.record(1, 0.01);
    pass.record(8, 0.03);  // far more than expected
  }
  EXPECT_GT(pass.seconds(7), 0.02);
  EXPECT_GT(pass.seconds(16), 0.03);
  EXPECT_LT(pass.seconds(16), 0.06);
}

TEST(PassCost, OneRowKnownGivesAllInProportion) {
  PassCost slow;
  PassCost fast;
  for (int i = 0; i < 10; ++i) {
    slow.record(1, 0.1);
    fast.record(1, 0.001);
  }
  for (const int rows : {2, 8, 64, 1000}) {
    EXPECT_NEAR(slow.seconds(rows) / fast.seconds(rows), 100.0, 0.01) << rows;
  }
}

TEST(PassCost, OutliersCountForLittleAndTheFirstForLess) {
  PassCost pass;
  pass.record(1, 0.05);  // the first touches memory
  for (int i = 0; i < 8; ++i) pass.record(1, 0.01);
  EXPECT_NEAR(pass.seconds(1), 0.01, 0.001);
  pass.record(1, 1.0);
  EXPECT_LT(pass.seconds(1), 0.0125);
}

TEST(PassCost, ALastingChangeIsFollowed) {
  PassCost pass;
  for (int i = 0; i < 500; ++i) pass.record(1 + i % 8, 0.01);
  for (int i = 0; i < 60; ++i) pass.record(1 + i % 8, 0.02);
  EXPECT_NEAR(pass.seconds(1), 0.02, 0.002);
  EXPECT_NEAR(pass.seconds(8), 0.02, 0.002);
}

TEST(PassCost, AGuessHoldsUntilPassesAreRecorded) {
  PassCost pass;
  pass.assume(0.004);
  EXPECT_NEAR(pass.seconds(1), 0.004, 1e-9);
  EXPECT_FALSE(pass.is_measured());
  for (int i = 0; i < 5; ++i) pass.record(1, 0.001);
  pass.assume(0.004);
  EXPECT_NEAR(pass.seconds(1), 0.001, 2e-4);
}

// Times as with AVX2 and 4-bit weights.
const std::vector<TimedPass> kSteep = {{1, 0.010}, {2, 0.011}, {4, 0.015}, {8, 0.025}, {16, 0.050}};

TEST(PassCost, PassesTimedBeforehandGiveTheCurve) {
  PassCost pass;
  pass.start_from(kSteep);
  EXPECT_FALSE(pass.is_measured());
  pass.record(1, 0.02);  // a long context: all passes take twice as long
  EXPECT_TRUE(pass.is_measured());
  const double one_row = pass.seconds(1);
  EXPECT_NEAR(one_row, 0.02, 0.002);
  for (const auto& [num_rows, seconds] : kSteep) {
    EXPECT_NEAR(pass.seconds(num_rows) / one_row, seconds / 0.01, 0.01) << num_rows;
  }
  EXPECT_NEAR(pass.seconds(12) / one_row, 3.75, 0.1);
  // Beyond them rows cost what they cost last, and are taken for a little cheaper.
  EXPECT_NEAR(pass.seconds(32) / one_row, 10.0, 1.0);
  EXPECT_LT(pass.seconds(32) / one_row, 10.0);
}

TEST(PassCost, TimedPassesThatFallWithRowsCountAsEqual) {
  PassCost pass;
  pass.start_from(std::vector<TimedPass>{{1, 0.01}, {2, 0.008}, {4, 0.012}});
  EXPECT_NEAR(pass.seconds(2) / pass.seconds(1), 1.0, 1e-6);
  EXPECT_NEAR(pass.seconds(4) / pass.seconds(1), 1.2, 1e-6);
}

TEST(PassCost, StepsCorrectWhatWasTimedBeforehand) {
  PassCost pass;
  pass.start_from(std::vector<TimedPass>{{1, 0.01}, {8, 0.011}, {16, 0.012}});
  for (int i = 0; i < 20; ++i) {
    pass.record(1, 0.01);
    pass.record(8, 0.02);  // a busy machine, say
  }
  EXPECT_NEAR(pass.seconds(1), 0.01, 0.0005);
  EXPECT_NEAR(pass.seconds(8), 0.02, 0.002);
}

TEST(PassCost, OptimismIsForMoreRowsThanWereTriedOnly) {
  PassCost tried;
  PassCost untried;
  for (int i = 0; i < 3; ++i) {
    tried.record(1, 0.01);
    untried.record(1, 0.01);
  }
  tried.record(16, 0.013);  // no surprise
  EXPECT_GT(tried.seconds(8), 1.02 * untried.seconds(8));
}

TEST(PassCost, WhatIsNoMeasurementIsIgnored) {
  PassCost pass;
  pass.record(1, 0.0);
  pass.record(1, -1.0);
  pass.record(1, std::nan(""));
  pass.record(0, 1.0);
  EXPECT_FALSE(pass.is_measured());
}

}  // namespace
}  // namespace specdec
