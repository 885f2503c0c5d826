// The price of handing out work: a fork-join with nothing to do, with little to do, and a decoder's
// step beside threads that want the same cores.
//
// "step" makes as many fork-joins as a decode step of SmolLM2-135M, each with that step's share of
// arithmetic. `of_share` compares its speed beside B busy threads with the speed alone times the
// part of the machine that is the pool's when every thread is given an equal part of the time.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "common/options.h"
#include "common/report.h"
#include "common/timing.h"
#include "core/cpu_topology.h"
#include "core/thread_pool.h"

namespace specdec::bench {
namespace {

constexpr int kStepCalls = 210;          // fork-joins of a step
constexpr int64_t kStepUnits = 64;       // pieces of work in each
constexpr int kUnitRounds = 280;         // about 0.9 us
constexpr double kMeasureSeconds = 1.5;  // beside others: long enough for many time slices

// Arithmetic whose duration the compiler cannot shorten.
void spend(int rounds) {
  uint64_t value = 1;
  for (int i = 0; i < rounds; ++i) {
    value = value * 6364136223846793005u + 1442695040888963407u;
    asm volatile("" : "+r"(value));
  }
}

// Threads that never sleep, until destroyed.
class Burners {
 public:
  Burners(int count, int nice) {
    for (int i = 0; i < count; ++i) {
      threads_.emplace_back([this, nice] {
        if (nice > 0) setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), nice);
        while (!stop_.load(std::memory_order_relaxed)) spend(1000);
      });
    }
  }
  ~Burners() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

void bench_fork_join(const Options& options, int threads, int rounds, const char* shape,
                     Report& report) {
  ThreadPool pool(threads);
  const ThreadPool::StepScope hot(pool);
  const double seconds = seconds_per_call(options.samples(31), options.batch_seconds(), [&] {
    pool.parallel_for(threads, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) spend(rounds);
    });
  });
  const double alone =
      seconds_per_call(options.samples(31), options.batch_seconds(), [&] { spend(rounds); });
  report.add({.kernel = "fork_join",
              .shape = shape,
              .threads = threads,
              .seconds = seconds,
              .counters = {{"overhead_ns", (seconds - alone) * 1e9}}});
}

void run_step(ThreadPool& pool) {
  const ThreadPool::StepScope hot(pool);
  for (int call = 0; call < kStepCalls; ++call) {
    pool.parallel_for(kStepUnits, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) spend(kUnitRounds);
    });
  }
}

double seconds_per_step(ThreadPool& pool, double measure_seconds) {
  run_step(pool);
  const Stopwatch watch;
  int steps = 0;
  do {
    run_step(pool);
    ++steps;
  } while (watch.seconds() < measure_seconds);
  return watch.seconds() / steps;
}

void bench_beside_burners(const Options& options, int threads, Report& report) {
  const double measure_seconds = options.smoke ? 0.02 : kMeasureSeconds;
  ThreadPool pool(threads);
  const double alone = seconds_per_step(pool, measure_seconds);
  const int cpus = static_cast<int>(allowed_cpus().size());
  struct Others {
    int count;
    int nice;
    double weight;  // of one thread in the kernel's division of time; ours weigh 1
  };
  for (const Others others : {Others{0, 0, 1.0},
                              {1, 0, 1.0},
                              {cpus, 0, 1.0},
                              {2 * cpus, 0, 1.0},
                              {1, 10, 0.107},
                              {cpus, 10, 0.107},
                              {2 * cpus, 10, 0.107}}) {
    const Burners burners(others.count, others.nice);
    const double seconds = seconds_per_step(pool, measure_seconds);
    // The pool's fair share of the CPUs that it could use alone.
    const double used_alone = std::min(threads, cpus);
    const double total_weight = threads + others.count * others.weight;
    const double share = std::min(1.0, threads * cpus / total_weight / used_alone);
    report.add(
        {.kernel = "step",
         .shape = "beside " + std::to_string(others.count) + " busy, nice " +
                  std::to_string(others.nice),
         .threads = threads,
         .seconds = seconds,
         .counters = {{"of_alone", alone / seconds}, {"of_share", alone / seconds / share}}});
  }
}

int run(const Options& options) {
  Report report("thread_pool_bench", options);
  for (int threads = 1; threads <= options.num_threads; ++threads) {
    if (options.selects("fork_join")) {
      bench_fork_join(options, threads, 0, "empty", report);
      bench_fork_join(options, threads, 100, "0.3 us a thread", report);
      bench_fork_join(options, threads, 3000, "10 us a thread", report);
    }
    if (options.selects("step")) bench_beside_burners(options, threads, report);
  }
  return report.finish();
}

}  // namespace
}  // namespace specdec::bench

int main(int argc, char** argv) {
  return specdec::bench::run(specdec::bench::parse_options(argc, argv));
}
