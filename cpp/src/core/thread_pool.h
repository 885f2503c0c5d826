// A fork-join pool: parallel_for splits [0, count) over the pool's threads and returns when all are
// done. Workers spin between calls while a StepScope is alive (a decode step makes hundreds of
// calls a millisecond apart) and sleep otherwise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>

#include "core/cpu_topology.h"

namespace specdec {

class ThreadPool {
 public:
  // num_threads includes the calling thread; at least 1. Where the process has CPUs of several
  // memory nodes, each thread stays on one node: workers always, the caller within a StepScope (see
  // assign_nodes).
  explicit ThreadPool(int num_threads);
  ThreadPool(int num_threads, const CpuTopology& topology);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return num_threads_; }

  // Calls body(begin, end, thread) over disjoint ranges that cover [0, count); `thread` in
  // [0, num_threads) is unique among concurrent calls (index of per-thread scratch). Ranges begin
  // at multiples of `grain` and are at least that long, save the last. Thread t begins with the
  // t-th of num_threads equal parts of [0, count), to the grain, and takes other parts only from
  // threads that are behind: so memory first written over the same range is near the thread that
  // reads it. An exception in the body is rethrown here once all threads are done. One caller at a
  // time; calls do not nest.
  template <class Body>
  void parallel_for(int64_t count, int64_t grain, Body&& body) {
    using Stored = std::remove_reference_t<Body>;
    run(
        count, grain,
        [](void* context, int64_t begin, int64_t end, int thread) {
          (*static_cast<Stored*>(context))(begin, end, thread);
        },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

  // While alive, idle workers spin instead of sleeping.
  class StepScope {
   public:
    explicit StepScope(ThreadPool& pool);
    ~StepScope();
    StepScope(const StepScope&) = delete;
    StepScope& operator=(const StepScope&) = delete;

   private:
    ThreadPool& pool_;
    AffinityScope affinity_;
  };

  // Physical cores in the affinity mask, no more than the control group grants time for.
  static int default_num_threads();

 private:
  using Body = void (*)(void* context, int64_t begin, int64_t end, int thread);
  void run(int64_t count, int64_t grain, Body body, void* context);

  struct State;
  int num_threads_;
  std::unique_ptr<State> state_;
};

// Calls body(i) for each i in [0, count), on the pool's threads or, where it is null, on this one.
template <class Body>
void for_each_index(ThreadPool* pool, size_t count, const Body& body) {
  const auto part = [&](int64_t begin, int64_t end, int /*thread*/) {
    for (int64_t i = begin; i < end; ++i) body(static_cast<size_t>(i));
  };
  if (pool != nullptr) return pool->parallel_for(static_cast<int64_t>(count), 1, part);
  part(0, static_cast<int64_t>(count), 0);
}

}  // namespace specdec
