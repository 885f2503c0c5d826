// What the CUDA backend asks of a GPU: memory, work in order, graphs. gpu/runtime_device.cc is a
// GPU; emulation/ runs the same kernels on the CPU, one fibre a CUDA thread, for tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "core/buffer.h"
#include "specdec/device.h"
#include "specdec/error.h"

namespace specdec::cuda {

// RuntimeError: the device refused work or failed at it, which is a bug of ours. Names the kernel
// where one is known. A device on which a kernel failed goes on failing.
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
  bool cooperative = false;  // all blocks are resident at once and may wait for each other
};

// What a kernel may hold in static __shared__ arrays, for which nobody asks the device: more
// belongs into the dynamic one. scripts/cuda_gates.py sees to it, where kernels are compiled.
inline constexpr int kMaxStaticSharedBytes = 1024;

// One kernel launch. A GPU uses function and arguments, the emulation the body; it looks at the
// arguments for pointers to memory that a GPU would not reach.
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

// Work done in order, asynchronously to the host: what a call is given (host memory included) must
// stay as it is until the work is done. Errors are thrown by the call that finds them. While a
// stream captures, its thread must not wait, record events, allocate or free device memory.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual void submit(const KernelLaunch& launch) = 0;
  // Loads the kernel, which its first launch would do otherwise: not to be done in a capture.
  virtual void prepare(const KernelLaunch& launch) = 0;
  virtual void copy_to_device(void* to, const void* from, size_t size_bytes) = 0;
  virtual void copy_to_host(void* to, const void* from, size_t size_bytes) = 0;
  virtual void copy(void* to, const void* from, size_t size_bytes) = 0;  // device to device
  virtual void fill(void* to, uint8_t value, size_t size_bytes) = 0;

  // Work that a library of the device's maker queues itself: `call` is run at once, with the device
  // current, and gets what such libraries take for the stream, a cudaStream_t. Throws DeviceError
  // where there are none for the device.
  virtual void call_library(const char* name, const std::function<void(void* stream)>& call) = 0;

  // Between the two, work is recorded instead of done. Copies read host memory when the graph
  // runs, so it must be pinned and stay where it is.
  virtual void begin_capture() = 0;
  virtual std::unique_ptr<Graph> end_capture() = 0;
  virtual bool is_capturing() const = 0;
  virtual void launch(Graph& graph) = 0;
  // Work is dropped: see RehearsalStream.
  virtual bool is_rehearsing() const { return false; }

  virtual void record(Event& event) = 0;
  virtual void synchronize() = 0;
};

struct DeviceProperties {
  int num_multiprocessors = 0;
  int max_shared_bytes_per_block = 0;  // static and dynamic, when asked for
  int compute_capability = 0;          // 80, 90, ...
  int64_t l2_bytes = 0;
};

// How kernels are launched. Anything but the defaults is for comparisons, and slower.
struct LaunchSettings {
  bool overlap = true;  // LaunchConfig::overlaps_previous has its effect
  // All kernels divide a multiprocessor's memory into L1 cache and shared memory alike: it must be
  // empty before it can be divided anew, and no kernel could start early.
  bool same_carveout = true;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceInfo info() const = 0;
  virtual const DeviceProperties& properties() const = 0;
  // Before the first launch.
  virtual void set_launch_settings(const LaunchSettings& settings) = 0;
  // How kernels were launched so far, in words.
  virtual std::string launch_note() const = 0;
  virtual int64_t free_bytes() const = 0;  // of device memory

  // Zeroed device memory. Throws OutOfMemory naming `purpose`.
  virtual Buffer allocate(size_t size_bytes, const char* purpose) = 0;
  // Host memory the device reads and writes directly, at the same address.
  virtual Buffer allocate_pinned(size_t size_bytes, const char* purpose) = 0;

  virtual std::unique_ptr<Stream> make_stream() = 0;
  virtual std::unique_ptr<Event> make_event() = 0;
  // Seconds between two events of done work.
  virtual double seconds_between(Event& begin, Event& end) = 0;
};

// The GPU with this index. Throws Unavailable when there is none.
std::unique_ptr<Device> make_cuda_device(int index);

}  // namespace specdec::cuda
