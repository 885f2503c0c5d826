// What the CUDA backend asks of a GPU: memory, work in order, graphs. gpu/runtime_device.cc is a
// GPU; emulation/ runs the same kernels on the CPU, one fibre a CUDA thread, for tests.
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

// RuntimeError: the device refused work or failed at it, which is a bug of ours. The message names
// the kernel where it is known. A device on which a kernel has failed fails at all later work.
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
  // Programmatic dependent launch: the kernel may start while the one before it still runs, and
  // calls ptx::wait_for_previous() before it reads or writes anything that earlier work touches.
  // Only for kernels in which every thread makes that call.
  bool overlaps_previous = false;
  // It calls ptx::let_next_start() before ptx::wait_for_previous(), so that the kernel after it may
  // run beside the one before it.
  bool lets_next_start_early = false;
  // It reads, before it waits, what was written before the kernel before it. A stream starts it
  // late where that kernel lets it start early.
  bool reads_before_wait = false;
  bool cooperative = false;  // all blocks are resident at once and may wait for each other
  // Its blocks wait for kernels of other ranks, which may be late.
  bool waits_for_peers = false;
  // Blocks wait for each other, too, but there are no more than multiprocessors, and each fits on
  // one beside whatever else is there at last: all get to run without a promise of the device. A
  // launch with more blocks than the device has room for is refused.
  bool blocks_meet = false;
};

// Largest size of a kernel's static __shared__ arrays: launches keep this much free without asking
// the device. Larger arrays belong in dynamic shared memory; scripts/cuda_gates.py checks it.
inline constexpr int kMaxStaticSharedBytes = 1024;

// Shared memory of a multiprocessor of compute capability 9.0, and what a block takes of it beside
// its dynamic array: the static ones and what the system has.
inline constexpr int kMultiprocessorSharedBytes = 228 * 1024;
inline constexpr int kBlockExtraSharedBytes = kMaxStaticSharedBytes + 1024;

// One kernel launch. A GPU uses function and arguments. The emulation uses the body, and searches
// the arguments for pointers to memory that a GPU could not reach.
struct KernelLaunch {
  const char* name = "";
  LaunchConfig config;
  const void* function = nullptr;
  void** arguments = nullptr;              // [num_arguments]
  const size_t* argument_bytes = nullptr;  // [num_arguments]
  int num_arguments = 0;
  std::function<void()> body{};  // what one thread of the grid runs
};

// A point in a stream's work.
class Event {
 public:
  virtual ~Event() = default;
  virtual void wait() = 0;  // the host waits until the work before it is done
  virtual bool is_done() = 0;
};

// Captured work, ready to be launched again and again.
class Graph {
 public:
  virtual ~Graph() = default;
  virtual int num_nodes() const = 0;
};

// Runs work in order, while the host goes on. Memory passed to a call, host memory included, must
// not change until the work is done. The call that finds an error throws it. While a stream
// captures, its thread must not wait, record events, or allocate or free device memory.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual void submit(const KernelLaunch& launch) = 0;
  // Loads the kernel, as its first launch would otherwise do. Not allowed in a capture.
  virtual void prepare(const KernelLaunch& launch) = 0;
  virtual void copy_to_device(void* to, const void* from, size_t size_bytes) = 0;
  virtual void copy_to_host(void* to, const void* from, size_t size_bytes) = 0;
  virtual void copy(void* to, const void* from, size_t size_bytes) = 0;  // device to device
  virtual void fill(void* to, uint8_t value, size_t size_bytes) = 0;

  // For libraries that queue work themselves: runs `call` at once, with the device current, and
  // passes it the stream's handle, a cudaStream_t. Throws DeviceError on a device that has no such
  // libraries.
  virtual void call_library(const char* name, const std::function<void(void* stream)>& call) = 0;

  // Between the two, work is recorded instead of done. Copies read host memory when the graph runs,
  // so that memory must be pinned and must not move.
  virtual void begin_capture() = 0;
  virtual std::unique_ptr<Graph> end_capture() = 0;
  virtual bool is_capturing() const = 0;
  virtual void launch(Graph& graph) = 0;
  // Work is dropped: see RehearsalStream.
  virtual bool is_rehearsing() const { return false; }

  virtual void record(Event& event) = 0;
  virtual void synchronize() = 0;
  // Called before the host waits for another rank. A GPU works by itself; the emulation does what
  // was queued, because the other rank may wait for that.
  virtual void flush() {}
};

struct DeviceProperties {
  int num_multiprocessors = 0;
  int max_shared_bytes_per_block = 0;  // static and dynamic, when asked for
  int compute_capability = 0;          // 80, 90, ...
  int64_t l2_bytes = 0;
};

// What a compiled kernel takes of a multiprocessor, beside its launch's threads and dynamic shared
// memory.
struct KernelResources {
  int registers = 0;            // of a thread
  int static_shared_bytes = 0;  // of a block
};

// How kernels are launched. Anything but the defaults is for comparisons, and slower.
struct LaunchSettings {
  bool overlap = true;  // LaunchConfig::overlaps_previous has its effect
  // Per cent of a multiprocessor's memory that are shared memory and not L1 cache, for all kernels:
  // a new division would first need an empty multiprocessor, and no kernel could start early. None:
  // the driver decides for each kernel.
  std::optional<int> carveout = 100;
  // Ranks write to each other's memory where devices can (Device::share_peer_memory).
  bool peer_memory = true;
  bool meeting = true;  // blocks of a kernel may wait for each other (LaunchConfig::blocks_meet)
  bool plans = true;    // attention reads a plan that the pass's first layer made (AttentionPlans)
};

// Device memory that the devices of other ranks write to. It lasts until the rank that shares it
// and, if they are of the same process, all that opened it have let it go.
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
  // Before the first launch.
  virtual void set_launch_settings(const LaunchSettings& settings) = 0;
  virtual const LaunchSettings& launch_settings() const = 0;
  // How kernels were launched so far, in words.
  virtual std::string launch_note() const = 0;
  // Of a kernel that has been prepared; none on a device for which nothing is compiled.
  virtual std::optional<KernelResources> resources_of(const void* function) const = 0;
  // Whether Stream::call_library() works.
  virtual bool has_libraries() const = 0;
  virtual int64_t free_bytes() const = 0;  // of device memory

  // Zeroed device memory. Throws OutOfMemory naming `purpose`.
  virtual Buffer allocate(size_t size_bytes, const char* purpose) = 0;
  // Host memory the device reads and writes directly, at the same address.
  virtual Buffer allocate_pinned(size_t size_bytes, const char* purpose) = 0;

  // Zeroed device memory for open_peer_memory() of other ranks' devices, which need the handle.
  // Throws Unavailable where LaunchSettings::peer_memory is off.
  struct SharedPeerMemory {
    std::shared_ptr<PeerMemory> memory;
    std::vector<std::byte> handle;
  };
  virtual SharedPeerMemory share_peer_memory(size_t size_bytes, const char* purpose) = 0;
  // Throws Unavailable where this device cannot reach the other one's memory.
  virtual std::shared_ptr<PeerMemory> open_peer_memory(std::span<const std::byte> handle) = 0;
  virtual bool is_on_this_device(std::span<const std::byte> handle) const = 0;

  virtual std::unique_ptr<Stream> make_stream() = 0;
  virtual std::unique_ptr<Event> make_event() = 0;
  // Seconds between two events of done work.
  virtual double seconds_between(Event& begin, Event& end) = 0;
};

// The GPU with this index. Throws Unavailable when there is none.
std::unique_ptr<Device> make_cuda_device(int index);

}  // namespace specdec::cuda
