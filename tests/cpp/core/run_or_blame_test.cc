#include "core/run_or_blame.h"

#include <gtest/gtest.h>

#include <exception>
#include <vector>

#include "specdec/error.h"

namespace specdec {
namespace {

std::vector<size_t> blamed_of(size_t count, size_t bad) {
  std::vector<size_t> blamed;
  run_or_blame(
      count,
      [&](size_t begin, size_t end) {
        if (begin <= bad && bad < end) throw Error("bad");
      },
      [&](size_t i, const std::exception_ptr&) { blamed.push_back(i); });
  return blamed;
}

TEST(RunOrBlame, BlamesWhoThrowsAlone) {
  EXPECT_EQ(blamed_of(5, 3), std::vector<size_t>{3});
  EXPECT_EQ(blamed_of(1, 0), std::vector<size_t>{0});
  EXPECT_TRUE(blamed_of(4, 9).empty());
}

TEST(RunOrBlame, TheEnginesFailureIsNobodys) {
  for (const size_t count : {1, 3}) {
    int num_runs = 0;
    const auto work = [&](size_t, size_t) {
      ++num_runs;
      throw RankFailure(1, "broadcast", "gone");
    };
    const auto fail = [](size_t, const std::exception_ptr&) { FAIL(); };
    EXPECT_THROW(run_or_blame(count, work, fail), RankFailure);
    EXPECT_EQ(num_runs, 1);
  }
}

}  // namespace
}  // namespace specdec
