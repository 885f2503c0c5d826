#include "core/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "core/cache_line.h"
#include "core/check.h"
#include "core/cpu_topology.h"

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

namespace specdec {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;

// A thread's share is handed out in this many pieces, so that other threads can take over the
// pieces that a delayed thread has not begun.
constexpr int64_t kPiecesPerShare = 4;
// A worker that has finished its own share helps this many of its neighbours; the caller helps all.
constexpr int kHelpedNeighbours = 8;

// How long a thread with nothing to do keeps its core before it sleeps. No thread yields: a thread
// that yields to another program waits for the rest of that program's time slice.
constexpr microseconds kSpinInStep{500};
constexpr microseconds kSpinOutsideStep{50};
constexpr microseconds kSpinForOthers{50};  // the caller, for a worker that is still working
constexpr int kPausesPerLook = 32;          // pauses between two looks at the clock: about 1 us

void pause_cpu() {
#if defined(__x86_64__) || defined(__i386__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("isb");
#endif
}

// A job's ticket encodes which job it is, how many shares it has and how many pieces a share has.
class Ticket {
 public:
  Ticket() = default;
  explicit Ticket(uint64_t word) : word_(word) {}
  Ticket(uint64_t epoch, int64_t shares, int64_t pieces)
      : word_(epoch << 24 | static_cast<uint64_t>(shares) << 8 | static_cast<uint64_t>(pieces)) {}

  uint64_t word() const { return word_; }
  uint64_t epoch() const { return word_ >> 24; }
  int shares() const { return static_cast<int>(word_ >> 8 & 0xffff); }
  int pieces() const { return static_cast<int>(word_ & 0xff); }

 private:
  uint64_t word_ = 0;
};

// One thread's part of a job. The two words are on separate cache lines: the caller watches `state`
// while the owner still takes pieces.
struct Share {
  // epoch << 24 | pieces taken. A word of an older job means that no thread has begun this job,
  // because a finished job leaves all its pieces taken.
  alignas(kCacheLineBytes) std::atomic<uint64_t> taken{0};
  // 2 * epoch: the thread works on this job; 2 * epoch + 1: it has left the job.
  alignas(kCacheLineBytes) std::atomic<uint64_t> state{0};

  // The next piece that no thread has taken; none when all are taken or the job is over.
  std::optional<int> take(Ticket ticket) {
    uint64_t word = taken.load(std::memory_order_acquire);
    for (;;) {
      const uint64_t epoch = word >> 24;
      if (epoch > ticket.epoch()) return std::nullopt;
      const int piece = epoch == ticket.epoch() ? static_cast<int>(word & 0xffffff) : 0;
      if (piece >= ticket.pieces()) return std::nullopt;
      const uint64_t next = ticket.epoch() << 24 | static_cast<uint64_t>(piece + 1);
      if (taken.compare_exchange_weak(word, next, std::memory_order_acq_rel,
                                      std::memory_order_acquire)) {
        return piece;
      }
    }
  }
};

}  // namespace

// run() publishes a job under a new ticket, takes pieces of its own share and then pieces left in
// other shares, and waits for the workers that are inside the job. A worker that comes late finds
// every piece taken, and no thread waits for it. Only a thread that holds a piece reads the job,
// and the job cannot change before that piece is done.
struct ThreadPool::State {
  explicit State(int num_threads) : shares(num_threads) {}

  // Only the caller writes these. Workers spin on the ticket; the job lies in the same cache line.
  alignas(kCacheLineBytes) std::atomic<uint64_t> ticket{0};
  Body body = nullptr;
  void* context = nullptr;
  int64_t count = 0;
  int64_t grain = 0;
  int64_t units = 0;

  alignas(kCacheLineBytes) std::atomic<int> step_scopes{0};
  std::atomic<bool> stopping{false};
  std::atomic<bool> failed{false};
  std::vector<Share> shares;
  std::vector<int> caller_cpus;  // where the caller stays in a step; empty: anywhere
  std::mutex error_mutex;
  std::exception_ptr error;
  std::vector<std::thread> workers;

  // A worker raises num_asleep, looks at the ticket once more, and sleeps. run() looks at
  // num_asleep after it has written the ticket. If it sees 0 too early, that worker sleeps through
  // this job, others do its share, and the next job wakes it.
  //
  // Nobody would wake the caller a second time. So the caller and a worker each exchange their own
  // word before they load the other's: under qemu a load may be done before an earlier plain store
  // is visible, even where both are sequentially consistent.
  alignas(kCacheLineBytes) std::atomic<int> num_asleep{0};
  std::atomic<uint32_t> wake_ups{0};
  alignas(kCacheLineBytes) std::atomic<uint32_t> caller_asleep{0};
  alignas(kCacheLineBytes) std::atomic<bool> busy{false};  // a cache line of the caller's own

  void wake_workers() {
    if (num_asleep.load(std::memory_order_relaxed) == 0) return;
    num_asleep.store(0, std::memory_order_seq_cst);
    wake_ups.fetch_add(1, std::memory_order_seq_cst);
    wake_ups.notify_all();
  }

  void run_piece(int share, int piece, Ticket job, int thread) {
    if (failed.load(std::memory_order_relaxed)) return;
    const int64_t first = units * share / job.shares();
    const int64_t size = units * (share + 1) / job.shares() - first;
    const int64_t begin = (first + size * piece / job.pieces()) * grain;
    const int64_t end = std::min((first + size * (piece + 1) / job.pieces()) * grain, count);
    try {
      if (begin < end) body(context, begin, end, thread);
    } catch (...) {
      const std::scoped_lock lock(error_mutex);
      if (!error) error = std::current_exception();
      failed.store(true, std::memory_order_relaxed);
    }
  }

  void empty_share(int share, Ticket job, int thread) {
    while (const std::optional<int> piece = shares[share].take(job)) {
      run_piece(share, *piece, job, thread);
    }
  }

  // Returns the ticket once it is no longer `seen`.
  Ticket await_job(Ticket seen) {
    for (;;) {
      const Clock::time_point start = Clock::now();
      Clock::duration patience{};
      do {
        for (int pauses = 0; pauses < kPausesPerLook; ++pauses) {
          const Ticket now(ticket.load(std::memory_order_acquire));
          if (now.word() != seen.word()) return now;
          pause_cpu();
        }
        patience = step_scopes.load(std::memory_order_relaxed) > 0 ? kSpinInStep : kSpinOutsideStep;
      } while (Clock::now() - start < patience);

      const uint32_t wake_up = wake_ups.load(std::memory_order_seq_cst);
      num_asleep.fetch_add(1, std::memory_order_seq_cst);
      if (ticket.load(std::memory_order_seq_cst) == seen.word()) {
        wake_ups.wait(wake_up, std::memory_order_acquire);
      }
    }
  }

  void worker_loop(int thread) {
    Share& own = shares[thread];
    Ticket job;
    for (;;) {
      job = await_job(job);
      if (stopping.load(std::memory_order_acquire)) return;
      if (thread >= job.shares()) continue;
      own.state.store(2 * job.epoch(), std::memory_order_relaxed);  // before any piece is taken
      empty_share(thread, job, thread);
      const int helped = std::min(kHelpedNeighbours, job.shares() - 1);
      for (int offset = 1; offset <= helped; ++offset) {
        empty_share((thread + offset) % job.shares(), job, thread);
      }
      own.state.exchange(2 * job.epoch() + 1, std::memory_order_seq_cst);
      if (caller_asleep.load(std::memory_order_seq_cst) != 0) {
        caller_asleep.exchange(0, std::memory_order_seq_cst);
        caller_asleep.notify_one();
      }
    }
  }

  bool is_inside(int thread, Ticket job) const {
    return shares[thread].state.load(std::memory_order_seq_cst) == 2 * job.epoch();
  }

  // Spins, then sleeps, because a worker may need this core to go on.
  void await_worker(int thread, Ticket job) {
    if (!is_inside(thread, job)) return;
    const Clock::time_point start = Clock::now();
    do {
      for (int pauses = 0; pauses < kPausesPerLook; ++pauses) {
        if (!is_inside(thread, job)) return;
        pause_cpu();
      }
    } while (Clock::now() - start < kSpinForOthers);
    for (;;) {
      caller_asleep.exchange(1, std::memory_order_seq_cst);
      if (!is_inside(thread, job)) break;
      caller_asleep.wait(1, std::memory_order_acquire);
    }
    caller_asleep.store(0, std::memory_order_relaxed);
  }

  // The caller's part of a job.
  void finish(Ticket job) {
    empty_share(0, job, 0);
    const uint64_t left = 2 * job.epoch() + 1;
    for (int thread = 1; thread < job.shares(); ++thread) {
      if (shares[thread].state.load(std::memory_order_acquire) == left) continue;
      empty_share(thread, job, 0);
    }
    for (int thread = 1; thread < job.shares(); ++thread) await_worker(thread, job);
  }

  void stop() {
    stopping.store(true, std::memory_order_release);
    ticket.store(Ticket(Ticket(ticket.load()).epoch() + 1, 0, 0).word(), std::memory_order_release);
    // stop() waits for every worker, so it looks at no count: a worker that has read the older
    // number of wake-ups does not sleep.
    wake_ups.fetch_add(1, std::memory_order_seq_cst);
    wake_ups.notify_all();
    for (std::thread& worker : workers) worker.join();
    workers.clear();
  }
};

ThreadPool::ThreadPool(int num_threads)
    : ThreadPool(num_threads, read_cpu_topology(allowed_cpus())) {}

ThreadPool::ThreadPool(int num_threads, const CpuTopology& topology) : num_threads_(num_threads) {
  SPECDEC_CHECK_GE(num_threads, 1);
  state_ = std::make_unique<State>(num_threads);
  const std::vector<int> nodes = assign_nodes(topology, num_threads);
  if (!nodes.empty()) state_->caller_cpus = topology.nodes[nodes[0]].cpus;
  try {
    for (int thread = 1; thread < num_threads; ++thread) {
      const std::vector<int> cpus =
          nodes.empty() ? std::vector<int>() : topology.nodes[nodes[thread]].cpus;
      state_->workers.emplace_back([state = state_.get(), thread, cpus] {
        const AffinityScope affinity(cpus);
        state->worker_loop(thread);
      });
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
  SPECDEC_CHECK(!state.busy.load(std::memory_order_relaxed));
  state.busy.store(true, std::memory_order_relaxed);
  struct Release {
    std::atomic<bool>& busy;
    ~Release() { busy.store(false, std::memory_order_relaxed); }
  } release{state.busy};
  if (num_threads_ == 1 || count <= grain) {
    body(context, 0, count, 0);
    return;
  }

  state.body = body;
  state.context = context;
  state.count = count;
  state.grain = grain;
  state.units = (count + grain - 1) / grain;  // ranges begin at multiples of grain
  const int64_t shares = std::min<int64_t>(num_threads_, state.units);
  const Ticket job(Ticket(state.ticket.load(std::memory_order_relaxed)).epoch() + 1, shares,
                   std::min(state.units / shares, kPiecesPerShare));
  state.ticket.store(job.word(), std::memory_order_release);
  state.wake_workers();
  state.finish(job);
  if (state.failed.load(std::memory_order_relaxed)) {
    state.failed.store(false, std::memory_order_relaxed);
    std::rethrow_exception(std::exchange(state.error, nullptr));
  }
}

ThreadPool::StepScope::StepScope(ThreadPool& pool)
    : pool_(pool), affinity_(pool.state_->caller_cpus) {
  pool_.state_->step_scopes.fetch_add(1, std::memory_order_seq_cst);
  pool_.state_->wake_workers();  // sleepers wake, find no job, and start to spin
}

ThreadPool::StepScope::~StepScope() {
  pool_.state_->step_scopes.fetch_sub(1, std::memory_order_relaxed);
}

int ThreadPool::default_num_threads() {
  const int cores = read_cpu_topology(allowed_cpus()).num_fast_cores();
  const int limit = cgroup_cpu_limit();
  return limit > 0 ? std::min(cores, limit) : cores;
}

}  // namespace specdec
