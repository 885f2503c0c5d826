// The CUDA backend's interface to a device: memory, streams, graphs. gpu/runtime_device.cc
// implements it for a GPU; emulation/ runs the same kernels on the CPU, one fibre per CUDA thread,
// for tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/buffer.h"
#include "specdec/device.h"
#include "specdec/error.h"

namespace specdec::cuda {

// A bug of ours: the device refused work or failed at it. RuntimeError in Python. The message names
// the kernel if it is known. Once a kernel has failed, all later work on the device fails.
class DeviceError : public InternalError {
 public:
  using InternalError::InternalError;
};

struct Dim3 {
  unsigned x = 1;
  unsigned y = 1;
  unsigned z = 1;
};

struct LaunchConfig {
  Dim3 grid;
  Dim3 block;
  size_t shared_bytes = 0;  // dynamic shared memory
  // Programmatic dependent launch: the kernel may start while the kernel before it still runs.
  // Every thread must call ptx::wait_for_previous() before it reads or writes anything that earlier
  // work touches.
  bool overlaps_previous = false;
  // The kernel calls ptx::let_next_start() before ptx::wait_for_previous(), so the next kernel may
  // start while the previous one still runs.
  bool lets_next_start_early = false;
  // Before it waits, the kernel reads results of work before the previous kernel. A stream holds it
  // back until all is done if the previous kernel has lets_next_start_early.
  bool reads_before_wait = false;
  bool cooperative = false;  // launched cooperatively: blocks may wait for each other
  // Blocks wait for kernels of other ranks, which may be late.
  bool waits_for_peers = false;
  // Blocks wait for each other without a cooperative launch: the grid has at most one block per SM
  // and a block fits on any SM, so all become resident. A launch with more blocks than fit on the
  // device is refused.
  bool blocks_meet = false;
};

// Most bytes of a kernel's static __shared__ arrays: launches leave room for so many without asking
// the device. Larger arrays belong in dynamic shared memory; scripts/cuda_gates.py checks this.
inline constexpr int kMaxStaticSharedBytes = 1024;

// Most shared memory of a block beside its dynamic array: its static arrays and 1 KB that the
// system reserves.
inline constexpr int kBlockExtraSharedBytes = kMaxStaticSharedBytes + 1024;

// The per cent of an SM's shared memory that launches ask for, and what that is on a GPU of 9.0.
// Loads to registers pass through L1, which therefore bounds the bytes of weights in flight: this
// leaves 124 KB of L1, for two projections of 64 KB each. With the most shared memory 28 KB of L1
// are left, and a pass takes a quarter longer (bench/results/nvidia-h200).
inline constexpr int kStepCarveout = 58;
inline constexpr int kStepSharedBytes = 132 * 1024;

// One kernel launch. A GPU uses `function` and `arguments`. The emulation runs `body` and searches
// the arguments for pointers to memory that a GPU cannot reach.
struct KernelLaunch {
  const char* name = "";
  LaunchConfig config;
  const void* function = nullptr;
  void** arguments = nullptr;              // [num_arguments]
  const size_t* argument_bytes = nullptr;  // [num_arguments]
  int num_arguments = 0;
  std::function<void()> body{};  // run by each thread of the grid
};

// A point in a stream's order of work.
class Event {
 public:
  virtual ~Event() = default;
  virtual void wait() = 0;  // the host waits for all work before the event
  virtual bool is_done() = 0;
};

// Captured work, which can be launched repeatedly.
class Graph {
 public:
  virtual ~Graph() = default;
  virtual int num_nodes() const = 0;
};

// Runs work in order, asynchronously. Memory passed to a call, host memory included, must not
// change until the work is done. Errors of earlier work are thrown by the call that finds them.
// While a stream captures, its thread must not wait, record events, or allocate or free device
// memory.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual void submit(const KernelLaunch& launch) = 0;
  // Loads the kernel, which its first launch would do otherwise. Not allowed in a capture.
  virtual void prepare(const KernelLaunch& launch) = 0;
  virtual void copy_to_device(void* to, const void* from, size_t size_bytes) = 0;
  virtual void copy_to_host(void* to, const void* from, size_t size_bytes) = 0;
  virtual void copy(void* to, const void* from, size_t size_bytes) = 0;  // device to device
  virtual void fill(void* to, uint8_t value, size_t size_bytes) = 0;

  // For libraries that queue work themselves: calls `call` at once, with the device current and the
  // stream's cudaStream_t. Throws DeviceError on a device without such libraries.
  virtual void call_library(const char* name, const std::function<void(void* stream)>& call) = 0;

  // Between begin and end, work is recorded, not run. Copies read host memory when the graph runs,
  // so that memory must be pinned and must not move.
  virtual void begin_capture() = 0;
  virtual std::unique_ptr<Graph> end_capture() = 0;
  virtual bool is_capturing() const = 0;
  virtual void launch(Graph& graph) = 0;
  // Whether work is dropped: see RehearsalStream.
  virtual bool is_rehearsing() const { return false; }

  virtual void record(Event& event) = 0;
  virtual void synchronize() = 0;
  // Called before the host waits for another rank, which may wait for work queued here. A GPU runs
  // this work by itself; the emulation runs it now.
  virtual void flush() {}
};

struct DeviceProperties {
  int num_multiprocessors = 0;
  int max_shared_bytes_per_block = 0;  // static and dynamic, opt-in
  int compute_capability = 0;          // 80, 90, ...
  int64_t l2_bytes = 0;
};

// A compiled kernel's resources, beside the threads and dynamic shared memory of its launch.
struct KernelResources {
  int registers = 0;            // per thread
  int static_shared_bytes = 0;  // per block
};

// How kernels are launched. Other values than the defaults are for comparisons, and slower.
struct LaunchSettings {
  bool overlap = true;  // LaunchConfig::overlaps_previous is honoured
  // Per cent of an SM's memory that is shared memory, not L1 cache, for all kernels. One value for
  // all, because an SM must be empty to change it, and then no kernel could start early. None: the
  // driver decides per kernel.
  std::optional<int> carveout = kStepCarveout;
  // Ranks write to each other's memory if their devices can (Device::share_peer_memory).
  bool peer_memory = true;
  bool meeting = true;  // blocks of a kernel may wait for each other (LaunchConfig::blocks_meet)
  // Kernels that no GPU has run yet, where they serve: projections of 65 rows and more run by
  // project_wide, and those of so many rows, up to kMostStreamRows, by project_stream.
  bool wide_rows = false;
  std::optional<int> fewest_stream_rows = {};
  bool work_lists =
      true;  // attention reads the work list of the pass's first layer (AttentionWorkLists)
};

// Device memory that other ranks' devices write to. It is freed when the rank that shares it, and
// all ranks of the same process that opened it, have released it.
class PeerMemory {
 public:
  virtual ~PeerMemory() = default;
  virtual std::byte* data() const = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceInfo info() const = 0;
  virtual const DeviceProperties& properties() const = 0;
  // Call before the first launch.
  virtual void set_launch_settings(const LaunchSettings& settings) = 0;
  virtual const LaunchSettings& launch_settings() const = 0;
  // A description, for the log, of how kernels were launched so far.
  virtual std::string launch_note() const = 0;
  // For a kernel that has been prepared; none on the emulated device, which compiles nothing.
  virtual std::optional<KernelResources> resources_of(const void* function) const = 0;
  // Whether Stream::call_library() works.
  virtual bool has_libraries() const = 0;
  virtual int64_t free_bytes() const = 0;  // of device memory

  // Zeroed device memory. Throws OutOfMemory naming `purpose`.
  virtual Buffer allocate(size_t size_bytes, const char* purpose) = 0;
  // Pinned host memory, which the device reads and writes at the same address.
  virtual Buffer allocate_pinned(size_t size_bytes, const char* purpose) = 0;

  // Zeroed device memory that other ranks open by its handle (open_peer_memory). Throws Unavailable
  // without LaunchSettings::peer_memory.
  struct SharedPeerMemory {
    std::shared_ptr<PeerMemory> memory;
    std::vector<std::byte> handle;
  };
  virtual SharedPeerMemory share_peer_memory(size_t size_bytes, const char* purpose) = 0;
  // Throws Unavailable if this device cannot reach the other's memory.
  virtual std::shared_ptr<PeerMemory> open_peer_memory(std::span<const std::byte> handle) = 0;
  virtual bool is_on_this_device(std::span<const std::byte> handle) const = 0;

  virtual std::unique_ptr<Stream> make_stream() = 0;
  virtual std::unique_ptr<Event> make_event() = 0;
  // Seconds between two events, both of work that is done.
  virtual double seconds_between(Event& begin, Event& end) = 0;
};

// The GPU with this index. Throws Unavailable if there is none.
std::unique_ptr<Device> make_cuda_device(int index);

}  // namespace specdec::cuda
