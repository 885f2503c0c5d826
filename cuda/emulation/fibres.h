// Runs the threads of CUDA blocks on the CPU, one fibre (a stack and what a context switch saves) a
// thread. A fibre runs until it has to wait for others; all fibres of a grid run on the host thread
// that runs the grid. Where a kernel breaks a rule, a DeviceError names kernel, block and thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>

#include "cuda/emulation/emulated_device.h"
#include "cuda/gpu/device.h"

namespace specdec::cuda::emulation {

struct Index3 {
  unsigned x = 0;
  unsigned y = 0;
  unsigned z = 0;
};

// What a CUDA thread can ask about itself.
struct ThreadView {
  Index3 thread_index;
  Index3 block_index;
  Dim3 block_dim;
  Dim3 grid_dim;
  unsigned char* shared_bytes = nullptr;  // the block's dynamic shared memory
  int lane = 0;                           // of its warp
};

// The thread that runs now. Null outside of kernels.
extern constinit thread_local const ThreadView* this_thread;

// Ends the kernel with a DeviceError that says where it happened.
[[noreturn]] void fault(const std::string& what);

// A warp operation: waits until every lane in `mask` has called it; the last one runs `combine` on
// the operands of all, which lie on the stacks of those that wait (of lanes in the mask only).
// Lanes that name different operations for one mask are a fault.
using Combine = void (*)(void* const* operands, uint32_t mask);
void meet_warp(uint32_t mask, const char* operation, Combine combine, void* operands);

// A block barrier: waits for num_threads threads (0: all that have not finished).
struct Votes {
  int num_true = 0;
  int num_threads = 0;
};
Votes meet_block(int barrier, int num_threads, bool vote, const char* operation);

// Lets all other threads run first; for loops that wait for a change in memory.
void yield();

// Programmatic dependent launch. A thread that lets the next kernel start before it has waited
// itself does what LaunchConfig::lets_next_start_early says, which StartRule relies on: without
// that word it is a fault, and so is a block that was launched with it and does not.
void wait_for_previous();
void let_next_start();

// Copies 16 bytes (zeros when not valid) when a wait asks for them; until then the target is
// poison.
void copy_async_16(void* shared, const void* global, bool valid);
void copy_async_commit();
void copy_async_wait(int num_pending_groups);

// A prefetch does nothing, but its range has to be 16-byte aligned and within one piece of the
// device's memory.
void check_prefetch(const void* global, size_t size_bytes);

// mbarriers keep their state in the kernel's 64-bit word.
void mbarrier_init(uint64_t* barrier, int num_arrivals);
void mbarrier_arrive(uint64_t* barrier, int expected_bytes);
void mbarrier_wait(uint64_t* barrier, int parity);
// Lands when no thread of the block can run, or at a random switch; poison until then.
void bulk_copy(void* shared, const void* global, int size_bytes, uint64_t* barrier);

class DeviceMemory;

// The launch of one kernel. For kernels that overlap earlier work, start() runs the first block
// until every thread waits for that earlier work; finish() runs the rest once it is done.
class GridRun;
class StackPool;

struct KernelRecord {  // a KernelLaunch that outlives the call
  std::string name;
  LaunchConfig config;
  const void* function = nullptr;
  std::function<void()> body;
  bool starts_early = false;  // before what is ahead of it on the stream is done
};

class Executor {
 public:
  // `memory` is the device's, and outlives the executor.
  Executor(const EmulationConfig& config, const DeviceMemory& memory);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Runs a kernel. `following` are those after it on the stream, as far as there is nothing else
  // between them. The first block of the next one runs up to wait_for_previous() before this kernel
  // runs, if it starts early; and so does that of each further one whose predecessor lets the next
  // start before it has waited itself.
  void run(const KernelRecord& kernel, std::span<const KernelRecord* const> following);

 private:
  std::unique_ptr<GridRun> make_run(const KernelRecord& kernel);
  void start_ahead(const KernelRecord& kernel, std::span<const KernelRecord* const> following);
  bool is_live(const void* function) const;

  EmulationConfig config_;
  const DeviceMemory& memory_;
  uint64_t num_runs_ = 0;  // varies the random order
  std::unique_ptr<StackPool> stacks_;
  std::deque<std::unique_ptr<GridRun>> started_;  // in their order on the stream
};

}  // namespace specdec::cuda::emulation
