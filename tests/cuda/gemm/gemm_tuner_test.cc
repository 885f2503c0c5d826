// Which way the tuner chooses, given fake times.
#include "cuda/gemm/gemm_tuner.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace specdec::cuda {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

class GemmTunerTest : public ::testing::Test {
 protected:
  int choose(const GemmKey& key, const std::vector<double>& seconds) {
    return tuner_.choose(key, static_cast<int>(seconds.size()), [&](int way) {
      asked_.push_back(way);
      return seconds[static_cast<size_t>(way)];
    });
  }

  GemmTuner tuner_;
  std::vector<int> asked_;
  GemmKey key_ = {.out_features = 4096, .num_k_blocks = 128, .row_bucket = 512};
};

TEST_F(GemmTunerTest, TheFastestIsChosenAndEachIsTimedOnce) {
  EXPECT_EQ(tuner_.find(key_), std::nullopt);
  EXPECT_EQ(choose(key_, {3, 1, 2}), 1);
  EXPECT_EQ(asked_, (std::vector{0, 1, 2}));
  EXPECT_EQ(tuner_.find(key_), 1);
  EXPECT_EQ(choose(key_, {0, 1, 2}), 1);
  EXPECT_EQ(asked_.size(), 3u);
}

TEST_F(GemmTunerTest, OfEquallyFastOnesTheFirstIsChosen) {
  EXPECT_EQ(choose(key_, {2, 1.01, 1}), 1);
  key_.row_bucket = 1024;
  EXPECT_EQ(choose(key_, {2, 1.03, 1}), 2);
}

TEST_F(GemmTunerTest, WhatDoesNotRunIsNotChosen) { EXPECT_EQ(choose(key_, {kNever, 5}), 1); }

TEST_F(GemmTunerTest, EveryPartOfTheKeyHasAChoiceOfItsOwn) {
  choose(key_, {1, 2});
  std::vector<GemmKey> others(6, key_);
  others[0].out_features = 4112;
  others[1].num_k_blocks = 64;
  others[2].finish = Finish::kActivate;
  others[3].changes_sums = true;
  others[4].act_dtype = DType::kF16;
  others[5].row_bucket = 128;
  for (const GemmKey& other : others) {
    EXPECT_EQ(tuner_.find(other), std::nullopt);
    EXPECT_EQ(choose(other, {2, 1}), 1);
  }
  EXPECT_EQ(tuner_.find(key_), 0);
}

TEST_F(GemmTunerTest, ForgottenChoicesAreMadeAgain) {
  choose(key_, {1, 2});
  tuner_.forget();
  EXPECT_EQ(choose(key_, {2, 1}), 1);
}

TEST(RowBuckets, ArePowersOfTwoFrom128To2048) {
  for (const auto& [rows, bucket] :
       {std::pair{65, 128}, {128, 128}, {129, 256}, {1024, 1024}, {1025, 2048}, {2048, 2048}}) {
    EXPECT_EQ(row_bucket(rows), bucket) << rows;
  }
}

}  // namespace
}  // namespace specdec::cuda
