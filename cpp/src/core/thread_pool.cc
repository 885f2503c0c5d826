#include "core/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/cpu_topology.h"

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

namespace specdec {
namespace {

constexpr size_t kCacheLineBytes = 64;
// A thread's share is handed out in this many pieces, so that others can take over what a delayed
// thread has not begun.
constexpr int64_t kPiecesPerThread = 4;

// An idle worker first pauses in place, then gives its core to whoever wants it, then sleeps. The
// bounds keep a pool that shares its cores with others from burning their time.
constexpr int kPauses = 4000;       // about 0.1 ms
constexpr int kYields = 20000;      // about 10 ms on an idle machine
constexpr int kPausesCrowded = 50;  // when there are more threads than cores

void pause_cpu() {
#if defined(__x86_64__) || defined(__i386__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("isb");
#endif
}

// The part of a job that belongs to one thread; others take from it once theirs is done.
struct alignas(kCacheLineBytes) Share {
  std::atomic<int64_t> next{0};
  int64_t end = 0;
};

}  // namespace

// A call to run() opens the gate, works, closes it, and waits for the workers that came in. A
// worker that is late (asleep, or without a core) finds it closed and is not waited for.
struct ThreadPool::State {
  static constexpr uint32_t kOpen = 1u << 31;  // the other bits count the workers inside

  explicit State(int num_threads) : shares(num_threads) {}

  // The job; written by the caller while the gate is closed and nobody is inside.
  Body body = nullptr;
  void* context = nullptr;
  int64_t chunk = 0;
  std::vector<Share> shares;
  std::mutex error_mutex;
  std::exception_ptr error;
  std::atomic<bool> failed{false};

  alignas(kCacheLineBytes) std::atomic<uint32_t> gate{0};
  alignas(kCacheLineBytes) std::atomic<int> ticket{0};  // changes when there is reason to look
  std::atomic<int> step_scopes{0};
  std::atomic<bool> stopping{false};
  std::atomic<bool> busy{false};
  int max_pauses = kPauses;
  std::vector<std::thread> workers;

  void announce() {
    ticket.fetch_add(1, std::memory_order_release);
    ticket.notify_all();
  }

  bool enter() {
    uint32_t seen = gate.load(std::memory_order_relaxed);
    while ((seen & kOpen) != 0) {
      if (gate.compare_exchange_weak(seen, seen + 1, std::memory_order_acquire,
                                     std::memory_order_relaxed)) {
        return true;
      }
    }
    return false;
  }
  void leave() { gate.fetch_sub(1, std::memory_order_release); }

  void work(int thread) {
    const int num_threads = static_cast<int>(shares.size());
    try {
      for (int offset = 0; offset < num_threads; ++offset) {
        Share& share = shares[(thread + offset) % num_threads];
        while (!failed.load(std::memory_order_relaxed)) {
          if (share.next.load(std::memory_order_relaxed) >= share.end) break;
          const int64_t begin = share.next.fetch_add(chunk, std::memory_order_relaxed);
          if (begin >= share.end) break;
          body(context, begin, std::min(begin + chunk, share.end), thread);
        }
      }
    } catch (...) {
      const std::scoped_lock lock(error_mutex);
      if (!error) error = std::current_exception();
      failed.store(true, std::memory_order_relaxed);
    }
  }

  // Returns once `ticket` is no longer `seen`.
  void await_change(int seen) const {
    int rounds = 0;
    while (ticket.load(std::memory_order_acquire) == seen) {
      if (step_scopes.load(std::memory_order_relaxed) == 0 || rounds >= max_pauses + kYields) {
        ticket.wait(seen, std::memory_order_acquire);
        return;
      }
      rounds < max_pauses ? pause_cpu() : std::this_thread::yield();
      ++rounds;
    }
  }

  void worker_loop(int thread) {
    int seen = 0;
    while (true) {
      await_change(seen);
      seen = ticket.load(std::memory_order_acquire);
      if (stopping.load(std::memory_order_acquire)) return;
      if (enter()) {
        work(thread);
        leave();
      }
    }
  }

  void close_and_wait() {
    gate.fetch_and(~kOpen, std::memory_order_relaxed);
    for (int rounds = 0; gate.load(std::memory_order_acquire) != 0; ++rounds) {
      rounds < max_pauses ? pause_cpu() : std::this_thread::yield();
    }
  }

  void stop() {
    stopping.store(true, std::memory_order_release);
    announce();
    for (std::thread& worker : workers) worker.join();
    workers.clear();
  }
};

ThreadPool::ThreadPool(int num_threads) : num_threads_(num_threads) {
  SPECDEC_CHECK_GE(num_threads, 1);
  state_ = std::make_unique<State>(num_threads);
  if (num_threads > num_allowed_cpus()) state_->max_pauses = kPausesCrowded;
  try {
    for (int thread = 1; thread < num_threads; ++thread) {
      state_->workers.emplace_back([state = state_.get(), thread] { state->worker_loop(thread); });
    }
  } catch (...) {  // the machine is out of threads
    state_->stop();
    throw;
  }
}

ThreadPool::~ThreadPool() { state_->stop(); }

void ThreadPool::run(int64_t count, int64_t grain, Body body, void* context) {
  if (count <= 0) return;
  SPECDEC_CHECK_GE(grain, 1);
  State& state = *state_;
  SPECDEC_CHECK(!state.busy.exchange(true, std::memory_order_acquire));
  struct Release {
    std::atomic<bool>& busy;
    ~Release() { busy.store(false, std::memory_order_release); }
  } release{state.busy};
  if (num_threads_ == 1 || count <= grain) {
    body(context, 0, count, 0);
    return;
  }

  const int64_t units = (count + grain - 1) / grain;  // ranges begin at multiples of grain
  for (int64_t thread = 0; thread < num_threads_; ++thread) {
    Share& share = state.shares[thread];
    share.next.store(units * thread / num_threads_ * grain, std::memory_order_relaxed);
    share.end = std::min(units * (thread + 1) / num_threads_ * grain, count);
  }
  const int64_t pieces = kPiecesPerThread * num_threads_;
  state.chunk = (units + pieces - 1) / pieces * grain;
  state.body = body;
  state.context = context;
  state.gate.store(State::kOpen, std::memory_order_release);
  state.announce();
  state.work(0);
  state.close_and_wait();
  if (state.failed.load(std::memory_order_relaxed)) {
    state.failed.store(false, std::memory_order_relaxed);
    std::rethrow_exception(std::exchange(state.error, nullptr));
  }
}

ThreadPool::StepScope::StepScope(ThreadPool& pool) : pool_(pool) {
  pool_.state_->step_scopes.fetch_add(1, std::memory_order_relaxed);
  pool_.state_->announce();  // sleepers wake, find no job, and start to spin
}

ThreadPool::StepScope::~StepScope() {
  pool_.state_->step_scopes.fetch_sub(1, std::memory_order_relaxed);
}

int ThreadPool::default_num_threads() {
  const int cores = num_allowed_physical_cores();
  const int limit = cgroup_cpu_limit();
  return limit > 0 ? std::min(cores, limit) : cores;
}

}  // namespace specdec
