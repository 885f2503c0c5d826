#include "cuda/gpu/peer_handles.h"

#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <random>
#include <string>

#include "core/check.h"

namespace specdec::cuda {
namespace {

struct Register {
  std::mutex mutex;
  uint64_t last_number = 0;
  std::map<uint64_t, std::weak_ptr<PeerMemory>> memories;
};

Register& peer_register() {
  static Register* const only = new Register;  // never destroyed: memory may outlive static objects
  return *only;
}

}  // namespace

void require_peer_memory(const LaunchSettings& settings) {
  if (!settings.peer_memory) throw Unavailable("SPECDEC_CUDA_LAUNCH says no_peer_memory");
}

uint64_t number_of_process() {
  static const uint64_t number = [] {
    std::random_device random;
    return uint64_t{random()} << 32 | random();
  }();
  return number;
}

uint64_t number_of_host() {
  static const uint64_t number = [] {
    std::ifstream file("/proc/sys/kernel/random/boot_id");
    std::string boot_id;
    file >> boot_id;
    return static_cast<uint64_t>(std::hash<std::string>()(boot_id));
  }();
  return number;
}

PeerHandle enter_peer_memory(const std::shared_ptr<PeerMemory>& memory, int device, uint64_t gpu) {
  Register& all = peer_register();
  const std::lock_guard lock(all.mutex);
  std::erase_if(all.memories, [](const auto& entry) { return entry.second.expired(); });
  const uint64_t number = ++all.last_number;
  all.memories[number] = memory;
  return {.process = number_of_process(),
          .host = number_of_host(),
          .number = number,
          .gpu = gpu,
          .device = device};
}

std::shared_ptr<PeerMemory> find_peer_memory(const PeerHandle& handle) {
  if (handle.process != number_of_process()) return nullptr;
  Register& all = peer_register();
  const std::lock_guard lock(all.mutex);
  const auto found = all.memories.find(handle.number);
  return found != all.memories.end() ? found->second.lock() : nullptr;
}

std::vector<std::byte> bytes_of(const PeerHandle& handle) {
  const auto* bytes = reinterpret_cast<const std::byte*>(&handle);
  return {bytes, bytes + sizeof(handle)};
}

PeerHandle handle_from(std::span<const std::byte> bytes) {
  SPECDEC_CHECK_EQ(bytes.size(), sizeof(PeerHandle));
  PeerHandle handle;
  std::memcpy(&handle, bytes.data(), sizeof(handle));
  return handle;
}

}  // namespace specdec::cuda
