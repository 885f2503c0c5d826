// A GPU through the CUDA runtime. Every call sets the device first, because a thread may use
// several.
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "core/check.h"
#include "core/str_cat.h"
#include "cuda/gpu/device.h"
#include "cuda/gpu/launch_settings.h"
#include "cuda/gpu/peer_handles.h"
#include "cuda/gpu/runtime_calls.h"
#include "cuda/gpu/runtime_stream.h"
#include "specdec/error.h"

namespace specdec::cuda {
namespace {

// Memory that this process allocated.
class OwnPeerMemory final : public PeerMemory {
 public:
  explicit OwnPeerMemory(Buffer buffer)
      : buffer_(std::move(buffer)), data_(buffer_.as<std::byte>()) {}
  std::byte* data() const override { return data_; }

 private:
  Buffer buffer_;
  std::byte* data_;
};

// Memory of another process, opened by its IPC handle.
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
    // Waits for this stream only: waiting for the device would break other threads' captures.
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
    // Without an IPC handle other processes cannot open the memory; threads of this one can.
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

  std::unique_ptr<Stream> make_stream() override { return make_cuda_stream(index_, functions_); }
  std::unique_ptr<Event> make_event() override { return make_cuda_event(index_); }
  double seconds_between(Event& begin, Event& end) override {
    return seconds_between_cuda_events(begin, end);
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
  Owned<cudaStream_t, cudaStreamDestroy> clearing_;  // zeroes new memory
  DeviceInfo info_;
  DeviceProperties properties_;
};

}  // namespace

std::unique_ptr<Device> make_cuda_device(int index) { return std::make_unique<CudaDevice>(index); }

}  // namespace specdec::cuda
