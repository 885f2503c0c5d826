#include "cuda/emulation/emulated_device.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/str_cat.h"
#include "cuda/emulation/device_memory.h"
#include "cuda/emulation/fibres.h"
#include "cuda/gpu/launch_settings.h"
#include "cuda/gpu/peer_handles.h"
#include "cuda/gpu/start_rule.h"

namespace specdec::cuda {
namespace {

using emulation::DeviceMemory;
using emulation::Executor;
using emulation::KernelRecord;

// The same on compute capability 8.0 and 9.0.
constexpr unsigned kMaxGridX = 0x7fffffff;
constexpr unsigned kMaxGridYz = 65535;
constexpr uint64_t kMaxBlockThreads = 1024;
constexpr unsigned kMaxBlockZ = 64;
constexpr uint64_t kMaxResidentThreads = 2048;  // per SM
constexpr uint64_t kMaxResidentBlocks = 32;
constexpr int kReservedSharedBytes = 1024;  // per block, by the system

// Static and dynamic together.
int max_shared_bytes_per_block(int compute_capability) {
  if (compute_capability >= 90) return 227 * 1024;
  return (compute_capability == 80 ? 163 : 99) * 1024;
}

// Blocks that fit on an SM at once, as far as threads and shared memory tell: registers are
// unknown.
uint64_t resident_blocks(const LaunchConfig& config, uint64_t num_threads, int max_shared_bytes) {
  const uint64_t all_bytes = static_cast<uint64_t>(max_shared_bytes + kReservedSharedBytes);
  return std::min({kMaxResidentBlocks, kMaxResidentThreads / num_threads,
                   all_bytes / (config.shared_bytes + kReservedSharedBytes)});
}

// Refuses launches that a GPU would refuse.
void check_config(const char* name, const LaunchConfig& config, const DeviceProperties& device) {
  const auto refuse = [&](const auto&... what) {
    throw DeviceError(str_cat("kernel ", name, ": cannot launch ", what...));
  };
  const auto& [grid, block, shared_bytes, overlaps, early, reads, cooperative, peers, meet] =
      config;
  const uint64_t num_threads = uint64_t{block.x} * block.y * block.z;
  if (num_threads == 0 || num_threads > kMaxBlockThreads || block.z > kMaxBlockZ) {
    refuse("blocks of ", block.x, " x ", block.y, " x ", block.z, " threads; ", kMaxBlockThreads,
           " at most, ", kMaxBlockZ, " in z");
  }
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > kMaxGridX || grid.y > kMaxGridYz ||
      grid.z > kMaxGridYz) {
    refuse("a grid of ", grid.x, " x ", grid.y, " x ", grid.z, " blocks; ", kMaxGridX, " x ",
           kMaxGridYz, " x ", kMaxGridYz, " at most");
  }
  const int max_shared_bytes = device.max_shared_bytes_per_block;
  if (shared_bytes > static_cast<size_t>(max_shared_bytes - kMaxStaticSharedBytes)) {
    refuse("blocks with ", shared_bytes, " bytes of dynamic shared memory; of ", max_shared_bytes,
           " its static arrays may take ", kMaxStaticSharedBytes);
  }
  const uint64_t num_blocks = uint64_t{grid.x} * grid.y * grid.z;
  const uint64_t num_resident = static_cast<uint64_t>(device.num_multiprocessors) *
                                resident_blocks(config, num_threads, max_shared_bytes);
  if (cooperative && num_blocks > num_resident) {
    refuse(num_blocks, " blocks cooperatively: ", num_resident, " are resident at once");
  }
  if (meet && num_blocks > static_cast<uint64_t>(device.num_multiprocessors)) {
    refuse(num_blocks, " blocks that meet on ", device.num_multiprocessors, " multiprocessors");
  }
}

// Work in a stream: a kernel, or anything else.
struct Operation {
  KernelRecord kernel;           // if `action` is empty
  std::function<void()> action;  // otherwise
  bool reaches_memory = true;
};
using OperationRef = std::shared_ptr<const Operation>;

class Queue;

// Shared by a device, its streams, events and buffers; lives as long as any of them.
struct DeviceState {
  explicit DeviceState(const EmulationConfig& config)
      : properties{
            .num_multiprocessors = config.num_multiprocessors,
            .max_shared_bytes_per_block = max_shared_bytes_per_block(config.compute_capability),
            .compute_capability = config.compute_capability,
            .l2_bytes = int64_t{50} << 20},
        memory(config.memory_bytes),
        executor(config, memory) {}

  DeviceProperties properties;
  LaunchSettings launch_settings;
  DeviceMemory memory;
  Executor executor;
  std::vector<Queue*> queues;
  std::set<const void*> loaded;  // kernels
  int num_capturing = 0;
  std::exception_ptr error;  // the first error; all later calls throw it again

  void throw_if_failed() const {
    if (error != nullptr) std::rethrow_exception(error);
  }
  void fail(std::exception_ptr first) {
    if (error == nullptr) error = std::move(first);
  }
  void refuse_capture(const char* call) const {
    if (num_capturing > 0) throw DeviceError(str_cat(call, " while a stream captures"));
  }
};

// A stream's pending work. Nothing runs until the host waits or asks whether work is done, so a
// host that reads results or reuses memory too early gets wrong data.
class Queue {
 public:
  explicit Queue(std::shared_ptr<DeviceState> device) : device_(std::move(device)) {
    device_->queues.push_back(this);
  }
  ~Queue() { std::erase(device_->queues, this); }
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  void push(OperationRef operation) {
    operations_.push_back(std::move(operation));
    ++num_pushed_;
  }
  uint64_t num_pushed() const { return num_pushed_; }
  uint64_t num_done() const { return num_pushed_ - operations_.size(); }

  // Runs until `count` operations are done, counted from the stream's start.
  void run_until(uint64_t count) {
    device_->throw_if_failed();
    if (num_done() >= count) return;
    std::optional<DeviceMemory::Access> access;
    while (num_done() < count) {
      if (operations_.front()->reaches_memory && !access) access.emplace(device_->memory);
      run_one();
    }
  }

  // Runs everything; an error waits for the next call on the device.
  void drain() noexcept {
    try {
      run_until(num_pushed_);
    } catch (...) {  // the device keeps the error
    }
  }

 private:
  void run_one() {
    const OperationRef operation = operations_.front();
    try {
      if (operation->action) {
        operation->action();
      } else {
        run_kernel(operation->kernel);
      }
    } catch (...) {
      device_->fail(std::current_exception());
      operations_.clear();
      throw;
    }
    operations_.pop_front();
  }

  void run_kernel(const KernelRecord& kernel) {
    std::vector<const KernelRecord*> following;
    bool goes_on = true;
    for (size_t i = 1; goes_on && i < operations_.size(); ++i) {
      if (operations_[i]->action || !operations_[i]->kernel.starts_early) break;
      following.push_back(&operations_[i]->kernel);
      goes_on = following.back()->config.lets_next_start_early;
    }
    device_->executor.run(kernel, following);
    const std::string piece = device_->memory.find_overrun();
    if (!piece.empty()) {
      throw DeviceError(str_cat("kernel ", kernel.name, ": wrote before or past ", piece));
    }
  }

  std::shared_ptr<DeviceState> device_;
  std::deque<OperationRef> operations_;
  uint64_t num_pushed_ = 0;
};

class EmulatedEvent final : public Event {
 public:
  using Clock = std::chrono::steady_clock;

  explicit EmulatedEvent(std::shared_ptr<DeviceState> device) : device_(std::move(device)) {}

  void wait() override {
    device_->refuse_capture("Event::wait");
    if (queue_ != nullptr) queue_->run_until(ticket_);
  }
  // Every call lets the device run one more operation.
  bool is_done() override {
    if (queue_ == nullptr) return true;
    device_->throw_if_failed();
    if (queue_->num_done() < ticket_) queue_->run_until(queue_->num_done() + 1);
    return queue_->num_done() >= ticket_;
  }

  void record(std::shared_ptr<Queue> queue) {
    queue_ = std::move(queue);
    time_ = std::make_shared<Clock::time_point>();
    auto operation = std::make_shared<Operation>();
    operation->action = [time = time_]() { *time = Clock::now(); };
    operation->reaches_memory = false;
    queue_->push(std::move(operation));
    ticket_ = queue_->num_pushed();
  }
  Clock::time_point time() const { return time_ == nullptr ? Clock::time_point() : *time_; }

 private:
  std::shared_ptr<DeviceState> device_;
  std::shared_ptr<Queue> queue_;  // null: never recorded
  uint64_t ticket_ = 0;           // operations of the queue that must be done
  std::shared_ptr<Clock::time_point> time_;
};

class EmulatedGraph final : public Graph {
 public:
  explicit EmulatedGraph(std::vector<OperationRef> operations)
      : operations_(std::move(operations)) {}
  int num_nodes() const override { return static_cast<int>(operations_.size()); }
  const std::vector<OperationRef>& operations() const { return operations_; }

 private:
  std::vector<OperationRef> operations_;
};

class EmulatedStream final : public Stream {
 public:
  explicit EmulatedStream(std::shared_ptr<DeviceState> device)
      : device_(std::move(device)), queue_(std::make_shared<Queue>(device_)) {}
  ~EmulatedStream() override {
    if (capturing_) --device_->num_capturing;
    queue_->drain();
  }

  void submit(const KernelLaunch& launch) override {
    check_arguments(launch);
    prepare(launch);
    Operation operation;
    const bool starts_early = start_rule_.starts_early(launch.config);
    operation.kernel = {.name = launch.name,
                        .config = launch.config,
                        .function = launch.function,
                        .body = launch.body,
                        .starts_early = starts_early && device_->launch_settings.overlap};
    push(std::move(operation));
  }

  // A GPU loads a kernel at its first launch, and may have to wait for running work to do so.
  void prepare(const KernelLaunch& launch) override {
    check_config(launch.name, launch.config, device_->properties);
    if (!device_->loaded.contains(launch.function)) {
      device_->refuse_capture(str_cat("first launch of kernel ", launch.name).c_str());
      device_->loaded.insert(launch.function);
    }
  }

  void copy_to_device(void* to, const void* from, size_t size_bytes) override {
    check_device(to, size_bytes, "copy_to_device");
    check_pinned(from, size_bytes, "copy_to_device");
    push_copy(to, from, size_bytes);
  }
  void copy_to_host(void* to, const void* from, size_t size_bytes) override {
    check_device(from, size_bytes, "copy_to_host");
    check_pinned(to, size_bytes, "copy_to_host");
    push_copy(to, from, size_bytes);
  }
  void copy(void* to, const void* from, size_t size_bytes) override {
    check_device(to, size_bytes, "copy");
    check_device(from, size_bytes, "copy");
    push_copy(to, from, size_bytes);
  }
  void fill(void* to, uint8_t value, size_t size_bytes) override {
    check_device(to, size_bytes, "fill");
    if (size_bytes == 0) return;
    start_rule_.note_other_work();
    push({.kernel = {}, .action = [=] { std::memset(to, value, size_bytes); }});
  }

  void call_library(const char* name, const std::function<void(void*)>&) override {
    throw DeviceError(str_cat(name, " does not run on the emulated device"));
  }

  void begin_capture() override {
    if (capturing_) throw DeviceError("begin_capture on a stream that captures");
    start_rule_.note_other_work();  // a graph's first kernel starts when all before is done
    device_->throw_if_failed();
    capturing_ = true;
    ++device_->num_capturing;
  }
  std::unique_ptr<Graph> end_capture() override {
    if (!capturing_) throw DeviceError("end_capture on a stream that does not capture");
    capturing_ = false;
    --device_->num_capturing;
    return std::make_unique<EmulatedGraph>(std::exchange(captured_, {}));
  }
  bool is_capturing() const override { return capturing_; }
  void launch(Graph& graph) override {
    if (capturing_) throw DeviceError("launch of a graph on a stream that captures");
    device_->throw_if_failed();
    start_rule_.note_other_work();
    for (const OperationRef& operation : static_cast<EmulatedGraph&>(graph).operations()) {
      queue_->push(operation);
    }
  }

  void record(Event& event) override {
    if (capturing_) throw DeviceError("record of an event on a stream that captures");
    device_->throw_if_failed();
    static_cast<EmulatedEvent&>(event).record(queue_);
  }
  void synchronize() override {
    device_->refuse_capture("Stream::synchronize");
    flush();
  }
  void flush() override { queue_->run_until(queue_->num_pushed()); }

 private:
  // Finds host pointers among the arguments, which would work here but not on a GPU.
  void check_arguments(const KernelLaunch& launch) const {
    for (int i = 0; i < launch.num_arguments; ++i) {
      const auto* bytes = static_cast<const unsigned char*>(launch.arguments[i]);
      for (size_t at = 0; at + sizeof(void*) <= launch.argument_bytes[i]; at += sizeof(void*)) {
        void* pointer;
        std::memcpy(&pointer, bytes + at, sizeof(pointer));
        if (device_->memory.is_host_pointer(pointer)) {
          throw DeviceError(str_cat("kernel ", launch.name, ": argument ", i, " holds ", pointer,
                                    " at byte ", at, ", neither device nor pinned memory"));
        }
      }
    }
  }
  void check_device(const void* data, size_t size_bytes, const char* call) const {
    if (size_bytes == 0 || device_->memory.contains(data, size_bytes)) return;
    throw DeviceError(str_cat(call, ": ", size_bytes, " bytes at ", data,
                              " are not in one piece of device memory"));
  }
  // A graph's copies need host memory that stays in place.
  void check_pinned(const void* data, size_t size_bytes, const char* call) const {
    if (!capturing_ || size_bytes == 0 || device_->memory.is_pinned(data, size_bytes)) return;
    throw DeviceError(
        str_cat(call, ": captured with host memory at ", data, " that is not pinned"));
  }
  void push_copy(void* to, const void* from, size_t size_bytes) {
    if (size_bytes == 0) return;
    start_rule_.note_other_work();
    push({.kernel = {}, .action = [=] { std::memmove(to, from, size_bytes); }});
  }
  void push(Operation operation) {
    device_->throw_if_failed();
    auto shared = std::make_shared<const Operation>(std::move(operation));
    if (capturing_) {
      captured_.push_back(std::move(shared));
    } else {
      queue_->push(std::move(shared));
    }
  }

  std::shared_ptr<DeviceState> device_;
  std::shared_ptr<Queue> queue_;
  bool capturing_ = false;
  std::vector<OperationRef> captured_;
  StartRule start_rule_;
};

// Memory that ranks share, as one device sees it.
class EmulatedPeerMemory final : public PeerMemory {
 public:
  EmulatedPeerMemory(std::shared_ptr<DeviceState> device, std::shared_ptr<std::byte> data,
                     size_t size_bytes)
      : device_(std::move(device)), data_(std::move(data)), size_bytes_(size_bytes) {
    device_->memory.enter_peer(data_.get(), size_bytes_);
  }
  ~EmulatedPeerMemory() override {
    for (Queue* queue : device_->queues) queue->drain();
    device_->memory.leave_peer(data_.get());
  }
  std::byte* data() const override { return data_.get(); }
  std::shared_ptr<PeerMemory> opened_by(const std::shared_ptr<DeviceState>& device) const {
    return std::make_shared<EmulatedPeerMemory>(device, data_, size_bytes_);
  }

 private:
  std::shared_ptr<DeviceState> device_;
  std::shared_ptr<std::byte> data_;
  size_t size_bytes_;
};

class EmulatedDevice final : public Device {
 public:
  explicit EmulatedDevice(const EmulationConfig& config)
      : state_(std::make_shared<DeviceState>(config)) {}

  DeviceInfo info() const override {
    return {.name = "emulated",
            .model = "CUDA kernels on the CPU",
            .memory_bytes = state_->memory.capacity_bytes(),
            .num_threads = properties().num_multiprocessors,
            .isa = str_cat(properties().compute_capability / 10, ".",
                           properties().compute_capability % 10),
            .unusable = {}};
  }
  const DeviceProperties& properties() const override { return state_->properties; }
  void set_launch_settings(const LaunchSettings& settings) override {
    state_->launch_settings = settings;
  }
  const LaunchSettings& launch_settings() const override { return state_->launch_settings; }
  std::string launch_note() const override {
    return str_cat("emulated kernels, ", describe(state_->launch_settings));
  }
  std::optional<KernelResources> resources_of(const void*) const override { return std::nullopt; }
  bool has_libraries() const override { return false; }
  int64_t free_bytes() const override { return state_->memory.free_bytes(); }

  Buffer allocate(size_t size_bytes, const char* purpose) override {
    state_->refuse_capture("Device::allocate");
    state_->throw_if_failed();
    if (size_bytes == 0) return {};
    void* data = state_->memory.allocate(size_bytes, purpose);
    return Buffer(data, size_bytes, [state = state_](void* allocated, size_t) {
      if (state->num_capturing > 0) {
        state->fail(std::make_exception_ptr(
            DeviceError("device memory was freed while a stream captured")));
      }
      for (Queue* queue : state->queues) queue->drain();  // cudaFree waits, too
      state->memory.free(allocated);
    });
  }
  Buffer allocate_pinned(size_t size_bytes, const char* purpose) override {
    state_->refuse_capture("Device::allocate_pinned");
    state_->throw_if_failed();
    if (size_bytes == 0) return {};
    void* data = state_->memory.allocate_pinned(size_bytes, purpose);
    return Buffer(data, size_bytes, [state = state_](void* allocated, size_t) {
      for (Queue* queue : state->queues) queue->drain();
      state->memory.free_pinned(allocated);
    });
  }

  SharedPeerMemory share_peer_memory(size_t size_bytes, const char* purpose) override {
    require_peer_memory(state_->launch_settings);
    auto memory = std::make_shared<EmulatedPeerMemory>(
        state_, emulation::DeviceMemory::allocate_for_peers(size_bytes, purpose), size_bytes);
    return {memory, bytes_of(enter_peer_memory(memory, /*device=*/0, own_number()))};
  }
  std::shared_ptr<PeerMemory> open_peer_memory(std::span<const std::byte> handle) override {
    const auto shared =
        std::static_pointer_cast<EmulatedPeerMemory>(find_peer_memory(handle_from(handle)));
    if (shared == nullptr) {
      throw Unavailable("emulated devices reach the memory of ranks in their own process alone");
    }
    return shared->opened_by(state_);
  }

  bool is_on_this_device(std::span<const std::byte> handle) const override {
    return handle_from(handle).gpu == own_number();
  }

  std::unique_ptr<Stream> make_stream() override {
    return std::make_unique<EmulatedStream>(state_);
  }
  std::unique_ptr<Event> make_event() override { return std::make_unique<EmulatedEvent>(state_); }
  double seconds_between(Event& begin, Event& end) override {
    return std::chrono::duration<double>(static_cast<EmulatedEvent&>(end).time() -
                                         static_cast<EmulatedEvent&>(begin).time())
        .count();
  }

 private:
  uint64_t own_number() const { return reinterpret_cast<uintptr_t>(state_.get()); }

  std::shared_ptr<DeviceState> state_;
};

}  // namespace

std::unique_ptr<Device> make_emulated_device(const EmulationConfig& config) {
  return std::make_unique<EmulatedDevice>(config);
}

}  // namespace specdec::cuda
