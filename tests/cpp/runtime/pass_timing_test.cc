#include "runtime/pass_timing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace specdec {
namespace {

// A model whose passes take as long as it is told.
struct FakeModel {
  std::vector<int> ran = {};
  double one_row = 0.001;
  double more = 0.5;  // of one row, for each other
  double first = 1;   // times as long as the others

  double run(int num_rows) {
    ran.push_back(num_rows);
    const double seconds = one_row * (1 + more * (num_rows - 1));
    return ran.size() == 1 ? first * seconds : seconds;
  }
  std::vector<TimedPass> time(const std::vector<int>& counts) {
    return time_counts(counts, [this](int num_rows) { return run(num_rows); });
  }
  double seconds_run() const {
    double total = 0;
    for (const int num_rows : ran) total += one_row * (1 + more * (num_rows - 1));
    return total;
  }
};

TEST(TimeCounts, EveryCountIsRunThriceAndThePassesRise) {
  FakeModel model{.first = 50};
  const std::vector<TimedPass> passes = model.time({1, 8, 4, 2});
  ASSERT_EQ(passes.size(), 4);
  const int rows[] = {1, 2, 4, 8};
  for (size_t i = 0; i < passes.size(); ++i) {
    EXPECT_EQ(passes[i].num_rows, rows[i]);
    EXPECT_NEAR(passes[i].seconds, 0.001 * (1 + 0.5 * (rows[i] - 1)), 1e-12);
  }
  EXPECT_EQ(model.ran.size(), 1 + 3 * 4);
}

TEST(TimeCounts, TheShortestOfSeveralPassesCounts) {
  int num_runs = 0;
  const std::vector<int> counts = {1, 2};
  const auto passes = time_counts(counts, [&](int num_rows) {
    const bool interrupted = ++num_runs == 2 || num_runs == 3;  // the first of either count
    return (interrupted ? 0.02 : 0.001) * num_rows;
  });
  EXPECT_NEAR(passes[0].seconds, 0.001, 1e-12);
  EXPECT_NEAR(passes[1].seconds, 0.002, 1e-12);
}

TEST(TimeCounts, ALargeModelIsTimedForEightPassesOfOneRow) {
  const std::vector<int> counts = {1, 8, 4, 16, 2, 32, 64};
  FakeModel flat{.one_row = 1, .more = 0.01};
  flat.time(counts);
  EXPECT_GT(flat.seconds_run(), 8);
  EXPECT_LT(flat.seconds_run(), 8 + 1.63);  // and the pass under way
  // However dear rows are, eight of them are compared with one.
  FakeModel steep{.one_row = 1, .more = 3};
  EXPECT_EQ(steep.time(counts).size(), 2);
  EXPECT_EQ(steep.ran, (std::vector<int>{1, 1, 8}));
}

}  // namespace
}  // namespace specdec
