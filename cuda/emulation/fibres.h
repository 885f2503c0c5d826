// Runs the threads of CUDA blocks on the CPU, one fibre (a stack and saved registers) per thread. A
// fibre runs until it must wait for other threads. All fibres of a grid run on the host thread that
// runs the grid. If a kernel breaks a rule, a DeviceError names kernel, block and thread.
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

// A CUDA thread's built-in variables.
struct ThreadView {
  Index3 thread_index;
  Index3 block_index;
  Dim3 block_dim;
  Dim3 grid_dim;
  unsigned char* shared_bytes = nullptr;  // the block's dynamic shared memory
  int lane = 0;                           // within its warp
};

// The running CUDA thread. Null outside of kernels.
extern constinit thread_local const ThreadView* this_thread;

// Ends the kernel with a DeviceError that names the block and thread.
[[noreturn]] void fault(const std::string& what);

// A warp operation: waits until every lane in `mask` has called it. The last lane runs `combine` on
// all lanes' operands, which lie on the waiting lanes' stacks (only entries of lanes in the mask
// are set). Different operations for one mask are a fault.
using Combine = void (*)(void* const* operands, uint32_t mask);
void meet_warp(uint32_t mask, const char* operation, Combine combine, void* operands);

// A block barrier for num_threads threads (0: all that have not finished).
struct Votes {
  int num_true = 0;
  int num_threads = 0;
};
Votes meet_block(int barrier, int num_threads, bool vote, const char* operation);

// Lets all other threads run first. For loops that wait for a change in memory.
void yield();

// Programmatic dependent launch. Calling let_next_start() before wait_for_previous() must agree
// with LaunchConfig::lets_next_start_early, which StartRule relies on: without the flag it is a
// fault to do so, and with the flag it is a fault for a block not to.
void wait_for_previous();
void let_next_start();

// Copies 16 bytes (zeros if not valid). The copy happens when a wait asks for it; until then the
// target is poison.
void copy_async_16(void* shared, const void* global, bool valid);
void copy_async_commit();
void copy_async_wait(int num_pending_groups);

// A prefetch does nothing, but its range must be 16-byte aligned and within one allocation of the
// device.
void check_prefetch(const void* global, size_t size_bytes);

// An mbarrier keeps its state in the kernel's 64-bit word.
void mbarrier_init(uint64_t* barrier, int num_arrivals);
void mbarrier_arrive(uint64_t* barrier, int expected_bytes);
void copy_async_arrive(uint64_t* barrier);
void mbarrier_wait(uint64_t* barrier, int parity);
// Lands when no thread of the block can run, or at a random switch; until then the target is
// poison.
void bulk_copy(void* shared, const void* global, int size_bytes, uint64_t* barrier);

class DeviceMemory;

// The run of one launch. If the kernel overlaps earlier work, start() runs its first block until
// every thread waits for that work, and finish() runs the rest once that work is done.
class GridRun;
class StackPool;

struct KernelRecord {  // a copy of a KernelLaunch, which outlives the call
  std::string name;
  LaunchConfig config;
  const void* function = nullptr;
  std::function<void()> body;
  bool starts_early = false;  // before earlier work on the stream
};

class Executor {
 public:
  // `memory` is the device's and must outlive the executor.
  Executor(const EmulationConfig& config, const DeviceMemory& memory);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Runs a kernel. `following` are the kernels after it on the stream, up to other work. Before
  // this kernel runs, the first block of the next one runs up to wait_for_previous(), if that one
  // starts early. Later kernels do likewise, as long as each predecessor calls let_next_start()
  // before wait_for_previous().
  void run(const KernelRecord& kernel, std::span<const KernelRecord* const> following);

 private:
  std::unique_ptr<GridRun> make_run(const KernelRecord& kernel);
  void start_ahead(const KernelRecord& kernel, std::span<const KernelRecord* const> following);
  bool is_live(const void* function) const;

  EmulationConfig config_;
  const DeviceMemory& memory_;
  uint64_t num_runs_ = 0;  // varies the random order
  std::unique_ptr<StackPool> stacks_;
  std::deque<std::unique_ptr<GridRun>> started_;  // in stream order
};

}  // namespace specdec::cuda::emulation
