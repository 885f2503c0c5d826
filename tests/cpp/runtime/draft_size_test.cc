#include "runtime/draft_size.h"

#include <gtest/gtest.h>

#include <array>
#include <thread>
#include <vector>

#include "comm/thread_communicator.h"

namespace specdec {
namespace {

// 1 GB at 1 GB/s takes a second; four ranks take a quarter, and 33 exchanges.
TEST(DraftSizeTest, MoreRanksPayWhileExchangesAreShort) {
  std::vector<ModelFacts> facts;
  for (const int size : {1, 2, 4}) {
    facts.push_back({.num_ranks = size, .output = {.weights = 1e9 / size}, .output_bytes = 1});
    if (size > 1) facts.back().output.num_exchanges = 30;
  }
  const auto choose = [&](double together, double exchange) {
    return choose_draft_size(facts, {.bytes_per_second_alone = 1e9,
                                     .bytes_per_second_together = together,
                                     .exchange_seconds = exchange});
  };
  EXPECT_EQ(choose(1e9, 1e-3), 4);     // 0.25 + 0.03 seconds
  EXPECT_EQ(choose(1e9, 0.015), 4);    // 0.70, against 0.95 of two
  EXPECT_EQ(choose(1e9, 0.026), 1);    // 1.03 of four and 1.28 of two
  EXPECT_EQ(choose(0.25e9, 1e-6), 1);  // together they read no faster than one alone
}

TEST(DraftSizeTest, RanksAgreeOnWhatWasMeasured) {
  auto groups = make_thread_communicators(2, std::chrono::seconds(30));
  std::array<GroupSpeed, 2> speeds;
  const auto measure = [&](size_t rank) {
    const auto backend = make_backend({.num_threads = 1});
    speeds[rank] = measure_group(*backend, *groups[rank]);
  };
  std::thread other(measure, 1);
  measure(0);
  other.join();
  EXPECT_GT(speeds[0].bytes_per_second_alone, 0);
  EXPECT_GE(speeds[0].exchange_seconds, 0);
  EXPECT_EQ(speeds[0].bytes_per_second_alone, speeds[1].bytes_per_second_alone);
  EXPECT_EQ(speeds[0].bytes_per_second_together, speeds[1].bytes_per_second_together);
  EXPECT_EQ(speeds[0].exchange_seconds, speeds[1].exchange_seconds);
}

}  // namespace
}  // namespace specdec
