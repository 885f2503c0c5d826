// A running grid: its blocks and fibres, and which of them runs next. Used by fibres.cc and
// async_copies.cc.
#pragma once

#include <array>
#include <cstdint>
#include <exception>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cuda/emulation/context.h"
#include "cuda/emulation/fibres.h"
#include "cuda/emulation/matrices.h"

namespace specdec::cuda::emulation {

inline constexpr int kWarpSize = 32;
inline constexpr int kMaxWarps = 32;
inline constexpr int kNumBarriers = 16;

struct AsyncCopy {
  void* shared = nullptr;
  const void* global = nullptr;
  size_t size_bytes = 0;
  bool valid = true;
  uint64_t* barrier = nullptr;     // for a bulk copy, or with parts
  std::vector<AsyncCopy> parts{};  // a thread's copies, which land together before it arrives
  void land() const;
};

struct PendingWgmma {
  Wgmma instruction;
  std::vector<float> d_before;  // d's values; empty: an earlier pending wgmma has the same d
};

struct Block;

// Members that every switch touches come first, in two cache lines.
struct alignas(64) Fibre : ThreadView {
  Context context;
  Block* block = nullptr;
  int index = 0;                    // in the block
  uint32_t wait_mask = 0;           // for a warp operation
  const char* waits_for = nullptr;  // null: nothing
  bool finished = false;
  bool waited_for_previous = false;

  const uint64_t* wait_barrier = nullptr;
  std::vector<AsyncCopy> copies;     // not yet landed, in order
  std::vector<int> group_sizes;      // copies per committed group
  int open_copies = 0;               // not yet committed
  std::vector<PendingWgmma> wgmmas;  // likewise
  std::vector<int> wgmma_group_sizes;
  int open_wgmmas = 0;
};

// Lanes that wait for the other lanes of their mask.
struct Meeting {
  uint32_t mask = 0;
  uint32_t arrived = 0;  // 0: unused
  const char* operation = nullptr;
  Combine combine = nullptr;
  std::array<void*, kWarpSize> operands{};
};

struct Warp {
  uint32_t existing = 0;
  std::vector<Meeting> meetings;
};

struct Barrier {
  std::array<uint32_t, kMaxWarps> waiting{};  // lanes
  int num_waiting = 0;
  int num_threads = 0;  // 0: all that live
  int num_true = 0;
  Votes result;
};

struct Block {
  Index3 index;
  int num_threads = 0;
  int num_live = 0;
  bool let_next_start_early = false;  // a thread called it before wait_for_previous()
  std::vector<Fibre> fibres;
  std::vector<Warp> warps;
  std::array<Barrier, kNumBarriers> barriers;
  std::array<uint32_t, kMaxWarps> ready{};  // lanes
  uint32_t ready_warps = 0;
  std::vector<Fibre*> yielded;
  std::vector<Fibre*> waiting_for_previous;
  std::vector<Fibre*> waiting_for_mbarrier;
  std::vector<AsyncCopy> bulk_copies;
  std::unique_ptr<unsigned char, void (*)(void*)> shared{nullptr, nullptr};

  void make_ready(Fibre& fibre) { make_ready(fibre.index / kWarpSize, 1u << fibre.lane); }
  void make_ready(int warp, uint32_t lanes) {
    if (lanes == 0) return;
    ready[static_cast<size_t>(warp)] |= lanes;
    ready_warps |= 1u << warp;
  }
  // Releases the threads that wait at a barrier, with this many arrivals.
  void release(Barrier& barrier, int num_arrived);
};

class GridRun {
 public:
  GridRun(const KernelRecord& kernel, const EmulationConfig& config, const DeviceMemory& memory,
          uint64_t seed, StackPool& stacks);
  ~GridRun();
  GridRun(const GridRun&) = delete;
  GridRun& operator=(const GridRun&) = delete;

  const KernelRecord& kernel() const { return kernel_; }
  const DeviceMemory& memory() const { return memory_; }
  std::vector<Block>& blocks() { return blocks_; }
  void start();   // runs the first block until only earlier work can resume it
  void finish();  // runs the rest; earlier work is done

  // For the running fibre.
  Fibre& current() { return *current_; }
  void suspend(const char* waits_for);
  bool previous_is_done() const { return previous_is_done_; }
  Schedule schedule() const { return config_.schedule; }
  uint32_t random();
  std::string describe(const Fibre& fibre) const;
  [[noreturn]] void fault_at(const Fibre& fibre, const std::string& what) const;

 private:
  static void run_thread();
  void prepare_block(Block& block, size_t block_number);
  void run_ready();
  bool pick_next();
  bool go_on_when_stuck();
  void finish_blocks();
  void thread_finished();
  void check_shared(const Block& block) const;
  [[noreturn]] void report_deadlock() const;

  const KernelRecord& kernel_;
  EmulationConfig config_;
  const DeviceMemory& memory_;
  uint64_t random_state_;
  StackPool& stack_pool_;
  std::vector<Stack> stacks_;
  std::vector<Block> blocks_;          // running ones: one, or all if blocks wait for each other
  std::vector<uint32_t> block_order_;  // block numbers, in the order of running
  size_t num_blocks_begun_ = 0;
  size_t num_blocks_done_ = 0;
  Block* block_ = nullptr;  // of the running fibre
  Fibre* current_ = nullptr;
  Context main_;
  bool previous_is_done_ = false;
  int idle_rounds_ = 0;
  std::exception_ptr error_;
};

// The grid whose threads run on this host thread. Null outside of kernels.
extern constinit thread_local GridRun* this_grid;

}  // namespace specdec::cuda::emulation
