#include "core/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <thread>
#include <vector>

#include "core/cpu_topology.h"
#include "specdec/error.h"

namespace specdec {
namespace {

class ThreadPoolTest : public testing::TestWithParam<int> {};

TEST_P(ThreadPoolTest, EveryIndexOnceWhateverTheSize) {
  ThreadPool pool(GetParam());
  for (int64_t count : {0, 1, 2, 3, 7, 8, 63, 64, 65, 1000, 4097}) {
    for (int64_t grain : {1, 3, 16, 5000}) {
      std::vector<int> visits(count, 0);  // ranges are disjoint, so no two threads share an element
      std::atomic<int> misplaced{0};
      pool.parallel_for(count, grain, [&](int64_t begin, int64_t end, int thread) {
        if (begin % grain != 0 || begin >= end || thread < 0 || thread >= GetParam()) ++misplaced;
        if (end - begin < grain && end != count) ++misplaced;
        for (int64_t i = begin; i < end; ++i) ++visits[i];
      });
      EXPECT_EQ(misplaced, 0) << count << " by " << grain;
      for (int64_t i = 0; i < count; ++i) ASSERT_EQ(visits[i], 1) << count << " by " << grain;
    }
  }
}

TEST_P(ThreadPoolTest, ThreadIndexIsUniqueAmongConcurrentCalls) {
  ThreadPool pool(GetParam());
  std::vector<std::atomic<int>> inside(GetParam());
  std::atomic<int> collisions{0};
  for (int round = 0; round < 50; ++round) {
    pool.parallel_for(256, 1, [&](int64_t, int64_t, int thread) {
      if (inside[thread].fetch_add(1) != 0) ++collisions;
      std::this_thread::yield();
      inside[thread].fetch_sub(1);
    });
  }
  EXPECT_EQ(collisions, 0);
}

TEST_P(ThreadPoolTest, ExceptionReachesTheCallerAndThePoolLives) {
  ThreadPool pool(GetParam());
  for (int64_t bad = 0; bad < 40; bad += 3) {
    try {
      pool.parallel_for(40, 1, [&](int64_t begin, int64_t end, int) {
        if (begin <= bad && bad < end) throw std::out_of_range("planted");
      });
      FAIL() << "no exception for " << bad;
    } catch (const std::out_of_range& error) {
      EXPECT_STREQ(error.what(), "planted");
    }
    std::atomic<int64_t> sum{0};
    pool.parallel_for(100, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) sum += i;
    });
    EXPECT_EQ(sum, 4950);
  }
}

TEST_P(ThreadPoolTest, ShortCallsInsideAndOutsideOfStepScopes) {
  ThreadPool pool(GetParam());
  int64_t total = 0;
  std::vector<int64_t> cells(32, 0);
  std::optional<ThreadPool::StepScope> scope;
  for (int call = 0; call < 10000; ++call) {
    if (call % 1000 == 0) scope.emplace(pool);
    if (call % 1000 == 900) scope.reset();
    pool.parallel_for(32, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) cells[i] += i;
    });
    total += 32 * 31 / 2;
  }
  EXPECT_EQ(std::accumulate(cells.begin(), cells.end(), int64_t{0}), total);
}

TEST_P(ThreadPoolTest, StepScopesNest) {
  ThreadPool pool(GetParam());
  std::atomic<int> calls{0};
  const auto count = [&](int64_t begin, int64_t end, int) {
    calls += static_cast<int>(end - begin);
  };
  {
    const ThreadPool::StepScope outer(pool);
    {
      const ThreadPool::StepScope inner(pool);
      pool.parallel_for(50, 1, count);
    }
    pool.parallel_for(50, 1, count);
    std::this_thread::sleep_for(std::chrono::milliseconds(30));  // workers have gone to sleep
    pool.parallel_for(50, 1, count);
  }
  pool.parallel_for(50, 1, count);
  EXPECT_EQ(calls, 200);
}

TEST_P(ThreadPoolTest, CallersMayTakeTurns) {
  ThreadPool pool(GetParam());
  std::vector<int64_t> cells(64, 0);
  const auto add = [&] {
    for (int call = 0; call < 20; ++call) {
      pool.parallel_for(64, 1, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; ++i) ++cells[i];
      });
    }
  };
  for (int turn = 0; turn < 5; ++turn) std::thread(add).join();
  EXPECT_EQ(cells, std::vector<int64_t>(64, 100));
}

TEST_P(ThreadPoolTest, NestedCallsAreRefused) {
  ThreadPool pool(GetParam());
  EXPECT_THROW(pool.parallel_for(4, 1,
                                 [&](int64_t, int64_t, int) {
                                   pool.parallel_for(4, 1, [](int64_t, int64_t, int) {});
                                 }),
               InternalError);
}

INSTANTIATE_TEST_SUITE_P(Threads, ThreadPoolTest, testing::Values(1, 2, 3, 8),
                         testing::PrintToStringParamName());

TEST(ThreadPoolConstruction, NeedsAThread) { EXPECT_THROW(ThreadPool(0), InternalError); }

TEST(ThreadPoolConstruction, DefaultIsWithinTheAffinityMask) {
  EXPECT_GE(ThreadPool::default_num_threads(), 1);
  EXPECT_LE(ThreadPool::default_num_threads(), num_allowed_cpus());
  EXPECT_LE(num_allowed_physical_cores(), num_allowed_cpus());
}

TEST(CpuTopology, ReadsControlGroupLimits) {
  EXPECT_EQ(parse_cpu_max("max 100000"), 0);
  EXPECT_EQ(parse_cpu_max(""), 0);
  EXPECT_EQ(parse_cpu_max("50000 100000"), 1);  // half a CPU still runs one thread
  EXPECT_EQ(parse_cpu_max("350000 100000"), 3);
}

}  // namespace
}  // namespace specdec
