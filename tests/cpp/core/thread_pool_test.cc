#include "core/thread_pool.h"

#include <gtest/gtest.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "core/cpu_topology.h"
#include "specdec/error.h"
#include "testing/thrown.h"

namespace specdec {
namespace {

class ThreadPoolTest : public ::testing::TestWithParam<int> {};

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
    const auto error = testing::error_of<std::out_of_range>([&] {
      pool.parallel_for(40, 1, [&](int64_t begin, int64_t end, int) {
        if (begin <= bad && bad < end) throw std::out_of_range("planted");
      });
    });
    EXPECT_STREQ(error.what(), "planted");
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

// CPU time of all threads of this process.
double cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

TEST_P(ThreadPoolTest, IdleThreadsUseNoCpuTime) {
  ThreadPool pool(GetParam());
  const auto used_while_idle = [] {
    const double before = cpu_seconds();
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    return cpu_seconds() - before;
  };
  const auto work = [&] { pool.parallel_for(1000, 1, [](int64_t, int64_t, int) {}); };
  {
    const ThreadPool::StepScope hot(pool);
    work();
    EXPECT_LT(used_while_idle(), 0.1);  // a step that waits for something else
  }
  work();
  EXPECT_LT(used_while_idle(), 0.1);
}

// A worker whose piece takes long is waited for although the caller may have gone to sleep.
TEST_P(ThreadPoolTest, CallerWaitsForSlowPieces) {
  ThreadPool pool(GetParam());
  const ThreadPool::StepScope hot(pool);
  for (int round = 0; round < 20; ++round) {
    std::atomic<int64_t> done{0};
    pool.parallel_for(4 * GetParam(), 1, [&](int64_t begin, int64_t end, int thread) {
      if (thread != 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      done += end - begin;
    });
    ASSERT_EQ(done, 4 * GetParam());
  }
}

void keep_core(int64_t nanoseconds) {
  using std::chrono::steady_clock;
  const auto end = steady_clock::now() + std::chrono::nanoseconds(nanoseconds);
  while (steady_clock::now() < end) {
  }
}
// The time that an idle thread waits before it sleeps, plus up to `spread` nanoseconds.
int64_t patience(int seed, int64_t spread) {
  return 50'000 + static_cast<int64_t>(seed) * 7919 % spread;
}

// A worker ends its piece just as the caller goes to sleep. A wake-up that is missed is a wait
// without end.
TEST(ThreadPoolWakeUps, ReachACallerThatIsGoingToSleep) {
  ThreadPool pool(2);
  const ThreadPool::StepScope hot(pool);
  for (int job = 0; job < 15'000; ++job) {
    pool.parallel_for(2, 1, [&](int64_t, int64_t, int thread) {
      keep_core(thread == 1 ? patience(job, 4'000) : 2'000);  // the worker begins meanwhile
    });
  }
}

TEST(ThreadPoolWakeUps, ReachWorkersThatAreGoingToSleep) {
  for (int round = 0; round < 2000; ++round) {
    ThreadPool pool(2);
    keep_core(patience(round, 10'000));  // its thread takes a few microseconds to begin
  }  // the pool stops, and waits for its workers
}

TEST_P(ThreadPoolTest, NestedCallsAreRefused) {
  ThreadPool pool(GetParam());
  EXPECT_THROW(pool.parallel_for(4, 1,
                                 [&](int64_t, int64_t, int) {
                                   pool.parallel_for(4, 1, [](int64_t, int64_t, int) {});
                                 }),
               InternalError);
}

INSTANTIATE_TEST_SUITE_P(Threads, ThreadPoolTest, ::testing::Values(1, 2, 3, 8),
                         ::testing::PrintToStringParamName());

TEST(ThreadPoolConstruction, NeedsAThread) { EXPECT_THROW(ThreadPool(0), InternalError); }

TEST(ThreadPoolConstruction, DefaultIsWithinTheAffinityMask) {
  EXPECT_GE(ThreadPool::default_num_threads(), 1);
  EXPECT_LE(ThreadPool::default_num_threads(), static_cast<int>(allowed_cpus().size()));
}

// CPUs 0 and 1 are given as nodes of their own, whatever the machine says about them.
TEST(ThreadPoolConstruction, ThreadsKeepToTheirNodes) {
  const std::vector<int> allowed = allowed_cpus();
  if (allowed.size() < 2) GTEST_SKIP() << "needs two CPUs";
  const CpuTopology topology{{{{allowed[0]}, {allowed[0]}}, {{allowed[1]}, {allowed[1]}}}};
  ThreadPool pool(2, topology);
  std::vector<std::vector<int>> masks(2);
  {
    const ThreadPool::StepScope hot(pool);
    while (masks[1].empty()) {  // until the worker came in time
      pool.parallel_for(2, 1,
                        [&](int64_t, int64_t, int thread) { masks[thread] = allowed_cpus(); });
    }
  }
  EXPECT_EQ(masks[0], topology.nodes[0].cpus);
  EXPECT_EQ(masks[1], topology.nodes[1].cpus);
  EXPECT_EQ(allowed_cpus(), allowed);
}

TEST(ThreadPoolConstruction, ThreadsOfOneNodeAreFree) {
  const std::vector<int> allowed = allowed_cpus();
  ThreadPool pool(2, CpuTopology{{{allowed, allowed}}});
  std::vector<std::vector<int>> masks(2);
  const ThreadPool::StepScope hot(pool);
  while (masks[1].empty()) {
    pool.parallel_for(2, 1, [&](int64_t, int64_t, int thread) { masks[thread] = allowed_cpus(); });
  }
  EXPECT_EQ(masks[1], allowed);
}

// A directory like /sys/devices/system: every CPU with the siblings of its core, every node with
// its CPUs.
class FakeSys {
 public:
  FakeSys(const std::string& nodes, const std::vector<std::string>& siblings)
      : root_(std::filesystem::temp_directory_path() /
              ("specdec_sys_" + std::to_string(getpid()) + "_" + std::to_string(siblings.size()))) {
    write("node/online", nodes);
    for (size_t cpu = 0; cpu < siblings.size(); ++cpu) {
      write("cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list", siblings[cpu]);
    }
  }
  ~FakeSys() { std::filesystem::remove_all(root_); }

  void write(const std::string& path, const std::string& line) const {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << line << "\n";
  }
  std::string root() const { return root_.string(); }

 private:
  std::filesystem::path root_;
};

// Two nodes of two cores of two threads, numbered as most machines do.
class TwoNodes : public FakeSys {
 public:
  TwoNodes() : FakeSys("0,2", {"0,4", "1,5", "2,6", "3,7", "0,4", "1,5", "2,6", "3,7"}) {
    write("node/node0/cpulist", "0-1,4-5");
    write("node/node2/cpulist", "2-3,6-7");
  }
};

TEST(CpuTopology, ReadsNodesAndCores) {
  const TwoNodes sys;
  const CpuTopology all = read_cpu_topology({0, 1, 2, 3, 4, 5, 6, 7}, sys.root());
  ASSERT_EQ(all.nodes.size(), 2u);
  EXPECT_EQ(all.nodes[0].cpus, (std::vector{0, 1, 4, 5}));
  EXPECT_EQ(all.nodes[0].cores, (std::vector{0, 1}));
  EXPECT_EQ(all.nodes[1].cpus, (std::vector{2, 3, 6, 7}));
  EXPECT_EQ(all.nodes[1].cores, (std::vector{2, 3}));
  EXPECT_EQ(all.num_cpus(), 8);
  EXPECT_EQ(all.num_cores(), 4);
}

TEST(CpuTopology, KeepsWithinTheAffinityMask) {
  const TwoNodes sys;
  const CpuTopology one_node = read_cpu_topology({2, 6, 7}, sys.root());
  ASSERT_EQ(one_node.nodes.size(), 1u);
  EXPECT_EQ(one_node.nodes[0].cpus, (std::vector{2, 6, 7}));
  EXPECT_EQ(one_node.nodes[0].cores, (std::vector{2, 7}));
  EXPECT_TRUE(assign_nodes(one_node, 2).empty());
}

TEST(CpuTopology, WithoutNodesOrCoresEveryCpuIsOne) {
  const CpuTopology topology = read_cpu_topology({0, 3}, "/no/such/directory");
  ASSERT_EQ(topology.nodes.size(), 1u);
  EXPECT_EQ(topology.nodes[0].cores, (std::vector{0, 3}));
  EXPECT_EQ(read_cpu_topology({}, "/no/such/directory").num_cores(), 1);
}

// Two cores of a phone's processor that are slow, two that are not quite the fastest, and one of
// these.
class ThreeKinds : public FakeSys {
 public:
  ThreeKinds() : FakeSys("0", {"0", "1", "2", "3", "4"}) {
    write("node/node0/cpulist", "0-4");
    const char* const capacities[] = {"290", "290", "870", "870", "1024"};
    for (int cpu = 0; cpu < 5; ++cpu) {
      write("cpu/cpu" + std::to_string(cpu) + "/cpu_capacity", capacities[cpu]);
    }
  }
};

TEST(CpuTopology, SlowCoresAreToldFromFastOnes) {
  const ThreeKinds sys;
  const CpuTopology all = read_cpu_topology({0, 1, 2, 3, 4}, sys.root());
  EXPECT_EQ(all.num_cores(), 5);
  EXPECT_EQ(all.num_fast_cores(), 3);
  // Among those that the process may use.
  EXPECT_EQ(read_cpu_topology({0, 1}, sys.root()).num_fast_cores(), 2);
  EXPECT_EQ(read_cpu_topology({0, 1, 2}, sys.root()).num_fast_cores(), 1);
  // A machine that does not say of every core has equal ones.
  sys.write("cpu/cpu3/cpu_capacity", "");
  EXPECT_EQ(read_cpu_topology({0, 1, 2, 3, 4}, sys.root()).num_fast_cores(), 5);
  const TwoNodes without;
  EXPECT_EQ(read_cpu_topology({0, 1, 2, 3, 4, 5, 6, 7}, without.root()).num_fast_cores(), 4);
}

TEST(CpuTopology, ThreadsAreDividedAmongNodes) {
  const TwoNodes sys;
  const CpuTopology topology = read_cpu_topology({0, 1, 2, 3, 4, 5, 6, 7}, sys.root());
  EXPECT_EQ(assign_nodes(topology, 1), (std::vector{0}));
  EXPECT_EQ(assign_nodes(topology, 2), (std::vector{0, 1}));
  EXPECT_EQ(assign_nodes(topology, 4), (std::vector{0, 0, 1, 1}));
  EXPECT_EQ(assign_nodes(topology, 8), (std::vector{0, 0, 0, 0, 1, 1, 1, 1}));
  EXPECT_TRUE(assign_nodes(topology, 9).empty());  // who goes where would change all the time
  const CpuTopology uneven = read_cpu_topology({0, 1, 2}, sys.root());
  EXPECT_EQ(assign_nodes(uneven, 3), (std::vector{0, 0, 1}));
}

TEST(CpuTopology, ParsesCpuLists) {
  EXPECT_EQ(parse_cpu_list("0-3,8"), (std::vector{0, 1, 2, 3, 8}));
  EXPECT_EQ(parse_cpu_list("5"), (std::vector{5}));
  EXPECT_TRUE(parse_cpu_list("").empty());
  EXPECT_TRUE(parse_cpu_list("3-1").empty());
  EXPECT_TRUE(parse_cpu_list("0-x").empty());
  EXPECT_TRUE(parse_cpu_list("all").empty());
}

TEST(CpuTopology, ReadsControlGroupLimits) {
  EXPECT_EQ(parse_cpu_max("max 100000"), 0);
  EXPECT_EQ(parse_cpu_max(""), 0);
  EXPECT_EQ(parse_cpu_max("50000 100000"), 1);  // half a CPU still runs one thread
  EXPECT_EQ(parse_cpu_max("350000 100000"), 3);
}

}  // namespace
}  // namespace specdec
