// A GPU through the CUDA runtime. Every call sets the device first, because a thread may use
// several.
#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "core/check.h"
#include "core/log.h"
#include "core/str_cat.h"
#include "cuda/gpu/device.h"
#include "cuda/gpu/launch_settings.h"
#include "cuda/gpu/peer_handles.h"
#include "cuda/gpu/start_rule.h"
#include "specdec/error.h"

namespace specdec::cuda {
namespace {

// Static and dynamic shared memory together. A function that needs more must ask for it.
constexpr size_t kSharedBytesForAll = 48 * 1024;
constexpr int kFirstThatWaits = 90;  // compute capability: ptx::wait_for_previous

void check(cudaError_t status, const std::string& what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // an error that is not sticky must not show up in a later call
  throw DeviceError(
      str_cat(what, ": ", cudaGetErrorName(status), ": ", cudaGetErrorString(status)));
}

// For destructors. Objects left at the end of the process are gone with the runtime already. After
// a kernel has failed every call fails in the same way, so only the first failure is logged.
void log_failure(cudaError_t status, const char* what) {
  if (status == cudaSuccess || status == cudaErrorCudartUnloading) return;
  static std::atomic<cudaError_t> last = cudaSuccess;
  if (last.exchange(status) == status) return;
  log_warning(str_cat(what, ": ", cudaGetErrorString(status)));
}

// A handle of the runtime and the function that destroys it.
template <class Handle, cudaError_t (*kDestroy)(Handle)>
class Owned {
 public:
  Owned() = default;
  ~Owned() {
    if (handle_ != nullptr) log_failure(kDestroy(handle_), "destroying a CUDA object");
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;

  Handle get() const { return handle_; }
  Handle* out() { return &handle_; }

 private:
  Handle handle_ = nullptr;
};

// Shared by the streams of a device.
class Functions {
 public:
  explicit Functions(int num_multiprocessors) : num_multiprocessors_(num_multiprocessors) {}

  void set(const LaunchSettings& settings) {
    const std::lock_guard lock(mutex_);
    SPECDEC_CHECK(entries_.empty());
    settings_ = settings;
  }

  std::string note() const {
    const std::lock_guard lock(mutex_);
    if (entries_.empty()) return "nothing was launched";
    const int version = entries_.begin()->second.ptx_version;  // all are compiled for the same
    LaunchSettings settings = settings_;
    settings.overlap = settings.overlap && version >= kFirstThatWaits;
    return str_cat("kernels compiled for ", version / 10, ".", version % 10, ", ",
                   describe(settings));
  }

  // Loads the function, lets it have this much dynamic shared memory, beside its static one, and
  // sees that blocks which meet fit on the device together. Returns whether it may start before the
  // kernel before it has ended, as LaunchConfig::overlaps_previous wants: what was compiled for
  // GPUs before 9.0 does not wait, on later ones neither.
  bool prepare(const KernelLaunch& launch) {
    const auto& [name, config, function, arguments, argument_bytes, num_arguments, body] = launch;
    const size_t shared_bytes = config.shared_bytes;
    const std::lock_guard lock(mutex_);
    auto entry = entries_.find(function);
    if (entry == entries_.end()) {
      cudaFuncAttributes attributes{};
      check(cudaFuncGetAttributes(&attributes, function), str_cat("kernel ", name));
      if (settings_.carveout) {
        check(cudaFuncSetAttribute(function, cudaFuncAttributePreferredSharedMemoryCarveout,
                                   *settings_.carveout),
              str_cat("kernel ", name, ": carveout"));
      }
      entry = entries_.try_emplace(function).first;
      entry->second.ptx_version = attributes.ptxVersion;
      entry->second.resources = {
          .registers = attributes.numRegs,
          .static_shared_bytes = static_cast<int>(attributes.sharedSizeBytes)};
      entry->second.allowed_bytes =
          kSharedBytesForAll - std::min(kSharedBytesForAll, attributes.sharedSizeBytes);
    }
    Entry& found = entry->second;
    if (shared_bytes > found.allowed_bytes) {
      check(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(shared_bytes)),
            str_cat("kernel ", name, ": ", shared_bytes, " bytes of shared memory"));
      found.allowed_bytes = shared_bytes;
    }
    const int num_blocks = static_cast<int>(config.grid.x * config.grid.y * config.grid.z);
    if (config.blocks_meet &&
        (num_blocks > found.meeting_blocks || shared_bytes > found.meeting_bytes)) {
      check_resident(launch, num_blocks);
      found.meeting_blocks = std::max(found.meeting_blocks, num_blocks);
      found.meeting_bytes = std::max(found.meeting_bytes, shared_bytes);
    }
    return settings_.overlap && found.ptx_version >= kFirstThatWaits;
  }

  std::optional<KernelResources> resources_of(const void* function) const {
    const std::lock_guard lock(mutex_);
    const auto entry = entries_.find(function);
    if (entry == entries_.end()) return std::nullopt;
    return entry->second.resources;
  }

 private:
  struct Entry {
    size_t allowed_bytes = 0;  // of dynamic shared memory
    int ptx_version = 0;
    KernelResources resources;
    int meeting_blocks = 0;    // the most that have been found to fit, with
    size_t meeting_bytes = 0;  // the most dynamic shared memory
  };

  void check_resident(const KernelLaunch& launch, int num_blocks) const {
    const LaunchConfig& config = launch.config;
    const int num_threads = static_cast<int>(config.block.x * config.block.y * config.block.z);
    int each = 0;
    check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, launch.function, num_threads,
                                                        config.shared_bytes),
          str_cat("kernel ", launch.name, ": blocks that fit"));
    if (each * num_multiprocessors_ >= num_blocks) return;
    throw DeviceError(str_cat("kernel ", launch.name, ": ", num_blocks, " blocks wait for each ",
                              "other, and this device has room for ", each * num_multiprocessors_,
                              " at once; ", kLaunchVariable, "=no_meeting does without"));
  }

  mutable std::mutex mutex_;
  LaunchSettings settings_;
  int num_multiprocessors_;
  std::unordered_map<const void*, Entry> entries_;
};

class CudaEvent final : public Event {
 public:
  explicit CudaEvent(int device) : device_(device) {
    check(cudaSetDevice(device_), "cudaSetDevice");
    check(cudaEventCreate(event_.out()), "cudaEventCreate");
  }
  void wait() override { check(cudaEventSynchronize(event_.get()), "waiting for the GPU"); }
  bool is_done() override {
    const cudaError_t status = cudaEventQuery(event_.get());
    if (status == cudaErrorNotReady) {
      cudaGetLastError();
      return false;
    }
    check(status, "asking the GPU whether it is done");
    return true;
  }
  cudaEvent_t get() const { return event_.get(); }

 private:
  int device_;
  Owned<cudaEvent_t, cudaEventDestroy> event_;
};

class CudaGraph final : public Graph {
 public:
  // Takes over the captured graph.
  explicit CudaGraph(cudaGraph_t captured) {
    *graph_.out() = captured;
    size_t num_nodes = 0;
    check(cudaGraphGetNodes(graph_.get(), nullptr, &num_nodes), "cudaGraphGetNodes");
    num_nodes_ = static_cast<int>(num_nodes);
    check(cudaGraphInstantiate(executable_.out(), graph_.get(), 0), "cudaGraphInstantiate");
  }
  int num_nodes() const override { return num_nodes_; }
  cudaGraphExec_t executable() const { return executable_.get(); }

 private:
  Owned<cudaGraph_t, cudaGraphDestroy> graph_;
  Owned<cudaGraphExec_t, cudaGraphExecDestroy> executable_;
  int num_nodes_ = 0;
};

class CudaStream final : public Stream {
 public:
  CudaStream(int device, std::shared_ptr<Functions> functions)
      : device_(device), functions_(std::move(functions)) {
    select();
    check(cudaStreamCreateWithFlags(stream_.out(), cudaStreamNonBlocking), "cudaStreamCreate");
  }
  ~CudaStream() override {
    if (!capturing_) return;
    cudaGraph_t unfinished = nullptr;
    cudaStreamEndCapture(stream_.get(), &unfinished);
    if (unfinished != nullptr) cudaGraphDestroy(unfinished);
  }

  void submit(const KernelLaunch& launch) override {
    select();
    const LaunchConfig& config = launch.config;
    const bool overlaps = functions_->prepare(launch);
    cudaLaunchAttribute attributes[2] = {};
    unsigned num_attributes = 0;
    if (start_rule_.starts_early(config) && overlaps) {
      cudaLaunchAttribute& attribute = attributes[num_attributes++];
      attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
      attribute.val.programmaticStreamSerializationAllowed = 1;
    }
    if (config.cooperative) {
      cudaLaunchAttribute& attribute = attributes[num_attributes++];
      attribute.id = cudaLaunchAttributeCooperative;
      attribute.val.cooperative = 1;
    }
    cudaLaunchConfig_t native{};
    native.gridDim = {config.grid.x, config.grid.y, config.grid.z};
    native.blockDim = {config.block.x, config.block.y, config.block.z};
    native.dynamicSmemBytes = config.shared_bytes;
    native.stream = stream_.get();
    native.attrs = attributes;
    native.numAttrs = num_attributes;
    check(cudaLaunchKernelExC(&native, launch.function, launch.arguments),
          str_cat("kernel ", launch.name));
    if (!capturing_) last_work_ = launch.name;
  }
  void prepare(const KernelLaunch& launch) override {
    select();
    functions_->prepare(launch);
  }

  void copy_to_device(void* to, const void* from, size_t size_bytes) override {
    copy(to, from, size_bytes, cudaMemcpyHostToDevice, "copying to the GPU");
  }
  void copy_to_host(void* to, const void* from, size_t size_bytes) override {
    copy(to, from, size_bytes, cudaMemcpyDeviceToHost, "copying from the GPU");
  }
  void copy(void* to, const void* from, size_t size_bytes) override {
    copy(to, from, size_bytes, cudaMemcpyDeviceToDevice, "copying on the GPU");
  }
  void fill(void* to, uint8_t value, size_t size_bytes) override {
    if (size_bytes == 0) return;
    select();
    start_rule_.note_other_work();
    check_with_work(cudaMemsetAsync(to, value, size_bytes, stream_.get()), "cudaMemsetAsync");
  }

  void call_library(const char* name, const std::function<void(void*)>& call) override {
    select();
    start_rule_.note_other_work();
    call(stream_.get());
    if (!capturing_) last_work_ = name;
  }

  void begin_capture() override {
    select();
    start_rule_.note_other_work();
    check_with_work(cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeThreadLocal),
                    "beginning a capture");
    capturing_ = true;
  }
  std::unique_ptr<Graph> end_capture() override {
    select();
    capturing_ = false;
    cudaGraph_t captured = nullptr;
    check_with_work(cudaStreamEndCapture(stream_.get(), &captured), "ending a capture");
    return std::make_unique<CudaGraph>(captured);
  }
  bool is_capturing() const override { return capturing_; }
  void launch(Graph& graph) override {
    if (capturing_) throw DeviceError("launch of a graph on a stream that captures");
    select();
    start_rule_.note_other_work();
    check_with_work(cudaGraphLaunch(static_cast<CudaGraph&>(graph).executable(), stream_.get()),
                    "launching a graph");
    last_work_ = "a graph";
  }

  void record(Event& event) override {
    if (capturing_) throw DeviceError("record of an event on a stream that captures");
    select();
    check_with_work(cudaEventRecord(static_cast<CudaEvent&>(event).get(), stream_.get()),
                    "cudaEventRecord");
  }
  void synchronize() override {
    select();
    check_with_work(cudaStreamSynchronize(stream_.get()), "waiting for the GPU");
  }

 private:
  void select() { check(cudaSetDevice(device_), "cudaSetDevice"); }
  void copy(void* to, const void* from, size_t size_bytes, cudaMemcpyKind kind, const char* what) {
    if (size_bytes == 0) return;
    select();
    start_rule_.note_other_work();
    check_with_work(cudaMemcpyAsync(to, from, size_bytes, kind, stream_.get()), what);
  }
  // Kernels fail some time after their launch, so the last launch is the best name there is.
  void check_with_work(cudaError_t status, const char* what) const {
    if (status == cudaSuccess) return;
    check(status, str_cat(what, " (launched last: ", last_work_, ")"));
  }

  int device_;
  std::shared_ptr<Functions> functions_;
  Owned<cudaStream_t, cudaStreamDestroy> stream_;
  bool capturing_ = false;
  StartRule start_rule_;
  const char* last_work_ = "nothing";  // not what a capture records
};

// Memory of a rank's own device.
class OwnPeerMemory final : public PeerMemory {
 public:
  explicit OwnPeerMemory(Buffer buffer)
      : buffer_(std::move(buffer)), data_(buffer_.as<std::byte>()) {}
  std::byte* data() const override { return data_; }

 private:
  Buffer buffer_;
  std::byte* data_;
};

// Of another process's.
class OpenedPeerMemory final : public PeerMemory {
 public:
  explicit OpenedPeerMemory(void* data) : data_(data) {}
  ~OpenedPeerMemory() override {
    log_failure(cudaIpcCloseMemHandle(data_), "cudaIpcCloseMemHandle");
  }
  std::byte* data() const override { return static_cast<std::byte*>(data_); }

 private:
  void* data_;
};

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(int index) : index_(index) {
    int count = 0;
    if (const cudaError_t status = cudaGetDeviceCount(&count);
        status != cudaSuccess || index >= count) {
      cudaGetLastError();
      throw Unavailable(str_cat("device cuda:", index, " is not there: ",
                                status == cudaSuccess ? str_cat("the machine has ", count, " GPUs")
                                                      : std::string(cudaGetErrorString(status))));
    }
    select();
    check(cudaStreamCreateWithFlags(clearing_.out(), cudaStreamNonBlocking), "cudaStreamCreate");
    cudaDeviceProp native{};
    check(cudaGetDeviceProperties(&native, index), "cudaGetDeviceProperties");
    functions_ = std::make_shared<Functions>(native.multiProcessorCount);
    gpu_ = std::hash<std::string_view>()({native.uuid.bytes, sizeof(native.uuid.bytes)});
    info_ = {.name = str_cat("cuda:", index),
             .model = native.name,
             .memory_bytes = static_cast<int64_t>(native.totalGlobalMem),
             .num_threads = native.multiProcessorCount,
             .isa = str_cat(native.major, ".", native.minor),
             .unusable = {}};
    properties_ = {.num_multiprocessors = native.multiProcessorCount,
                   .max_shared_bytes_per_block = static_cast<int>(native.sharedMemPerBlockOptin),
                   .compute_capability = 10 * native.major + native.minor,
                   .l2_bytes = native.l2CacheSize};
  }

  DeviceInfo info() const override { return info_; }
  const DeviceProperties& properties() const override { return properties_; }
  void set_launch_settings(const LaunchSettings& settings) override {
    launch_settings_ = settings;
    functions_->set(settings);
  }
  const LaunchSettings& launch_settings() const override { return launch_settings_; }
  std::string launch_note() const override { return functions_->note(); }
  std::optional<KernelResources> resources_of(const void* function) const override {
    return functions_->resources_of(function);
  }
  bool has_libraries() const override { return true; }
  int64_t free_bytes() const override {
    select();
    size_t free = 0;
    size_t total = 0;
    check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    return static_cast<int64_t>(free);
  }

  Buffer allocate(size_t size_bytes, const char* purpose) override {
    if (size_bytes == 0) return {};
    select();
    void* data = nullptr;
    check_memory(cudaMalloc(&data, size_bytes), size_bytes, purpose);
    Buffer buffer(data, size_bytes, [index = index_](void* allocated, size_t) {
      cudaSetDevice(index);
      log_failure(cudaFree(allocated), "cudaFree");
    });
    // Waits only for the zeros: waiting for the device would break captures of other threads.
    check(cudaMemsetAsync(data, 0, size_bytes, clearing_.get()), "cudaMemsetAsync");
    check(cudaStreamSynchronize(clearing_.get()), "waiting for the GPU");
    return buffer;
  }
  Buffer allocate_pinned(size_t size_bytes, const char* purpose) override {
    if (size_bytes == 0) return {};
    select();
    void* data = nullptr;
    check_memory(cudaHostAlloc(&data, size_bytes, cudaHostAllocMapped | cudaHostAllocPortable),
                 size_bytes, purpose);
    Buffer buffer(data, size_bytes, [index = index_](void* allocated, size_t) {
      cudaSetDevice(index);
      log_failure(cudaFreeHost(allocated), "cudaFreeHost");
    });
    void* on_device = nullptr;
    check(cudaHostGetDevicePointer(&on_device, data, 0), "cudaHostGetDevicePointer");
    SPECDEC_CHECK_EQ(on_device, data);
    std::memset(data, 0, size_bytes);
    return buffer;
  }

  SharedPeerMemory share_peer_memory(size_t size_bytes, const char* purpose) override {
    require_peer_memory(launch_settings_);
    auto memory = std::make_shared<OwnPeerMemory>(allocate(size_bytes, purpose));
    PeerHandle handle = enter_peer_memory(memory, index_, gpu_);
    // Without it other processes cannot open the memory; threads of this one can.
    cudaIpcMemHandle_t driver{};
    static_assert(sizeof(driver) == sizeof(handle.driver));
    if (cudaIpcGetMemHandle(&driver, memory->data()) != cudaSuccess) cudaGetLastError();
    std::memcpy(handle.driver, &driver, sizeof(driver));
    return {memory, bytes_of(handle)};
  }
  std::shared_ptr<PeerMemory> open_peer_memory(std::span<const std::byte> bytes) override {
    select();
    const PeerHandle handle = handle_from(bytes);
    if (std::shared_ptr<PeerMemory> memory = find_peer_memory(handle)) {
      if (handle.device != index_) reach(handle.device);
      return memory;
    }
    if (handle.host != number_of_host()) throw Unavailable("the other rank is on another host");
    cudaIpcMemHandle_t driver{};
    std::memcpy(&driver, handle.driver, sizeof(driver));
    void* data = nullptr;
    const cudaError_t status = cudaIpcOpenMemHandle(&data, driver, cudaIpcMemLazyEnablePeerAccess);
    if (status != cudaSuccess) {
      cudaGetLastError();
      throw Unavailable(str_cat(
          info_.name, " cannot open another process's memory: ", cudaGetErrorString(status)));
    }
    return std::make_shared<OpenedPeerMemory>(data);
  }

  bool is_on_this_device(std::span<const std::byte> handle) const override {
    return handle_from(handle).gpu == gpu_;
  }

  std::unique_ptr<Stream> make_stream() override {
    return std::make_unique<CudaStream>(index_, functions_);
  }
  std::unique_ptr<Event> make_event() override { return std::make_unique<CudaEvent>(index_); }
  double seconds_between(Event& begin, Event& end) override {
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, static_cast<CudaEvent&>(begin).get(),
                               static_cast<CudaEvent&>(end).get()),
          "cudaEventElapsedTime");
    return 1e-3 * milliseconds;
  }

 private:
  void select() const { check(cudaSetDevice(index_), "cudaSetDevice"); }
  void reach(int device) {
    int can_reach = 0;
    check(cudaDeviceCanAccessPeer(&can_reach, index_, device), "cudaDeviceCanAccessPeer");
    if (can_reach == 0) {
      throw Unavailable(str_cat(info_.name, " cannot reach the memory of cuda:", device));
    }
    const cudaError_t status = cudaDeviceEnablePeerAccess(device, 0);
    if (status == cudaErrorPeerAccessAlreadyEnabled) {
      cudaGetLastError();
    } else {
      check(status, "cudaDeviceEnablePeerAccess");
    }
  }
  void check_memory(cudaError_t status, size_t size_bytes, const char* purpose) const {
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      throw OutOfMemory(str_cat("cannot allocate ", size_bytes, " bytes for ", purpose, " on ",
                                info_.name, ": ", free_bytes(), " of ", info_.memory_bytes,
                                " are free"));
    }
    check(status, str_cat("allocating for ", purpose));
  }

  int index_;
  uint64_t gpu_ = 0;  // the hash of its UUID
  LaunchSettings launch_settings_;
  std::shared_ptr<Functions> functions_;
  Owned<cudaStream_t, cudaStreamDestroy> clearing_;  // zeroes what is allocated
  DeviceInfo info_;
  DeviceProperties properties_;
};

}  // namespace

std::unique_ptr<Device> make_cuda_device(int index) { return std::make_unique<CudaDevice>(index); }

}  // namespace specdec::cuda
