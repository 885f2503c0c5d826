#include "cuda/gpu/runtime_functions.h"

#include <algorithm>

#include "core/check.h"
#include "cuda/gpu/runtime_calls.h"

namespace specdec::cuda {
namespace {

// Static and dynamic shared memory that every function may use; more must be requested.
constexpr size_t kSharedBytesForAll = 48 * 1024;
constexpr int kFirstThatWaits = 90;  // compute capability that has griddepcontrol

}  // namespace

void Functions::set(const LaunchSettings& settings) {
  const std::lock_guard lock(mutex_);
  SPECDEC_CHECK(entries_.empty());
  settings_ = settings;
}

std::string Functions::note() const {
  const std::lock_guard lock(mutex_);
  if (entries_.empty()) return "nothing was launched";
  const int version = entries_.begin()->second.ptx_version;  // the same for all kernels
  LaunchSettings settings = settings_;
  settings.overlap = settings.overlap && version >= kFirstThatWaits;
  return str_cat("kernels compiled for ", version / 10, ".", version % 10, ", ",
                 describe(settings));
}

bool Functions::prepare(const KernelLaunch& launch) {
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
    entry->second.resources = {.registers = attributes.numRegs,
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

std::optional<KernelResources> Functions::resources_of(const void* function) const {
  const std::lock_guard lock(mutex_);
  const auto entry = entries_.find(function);
  if (entry == entries_.end()) return std::nullopt;
  return entry->second.resources;
}

void Functions::check_resident(const KernelLaunch& launch, int num_blocks) const {
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

}  // namespace specdec::cuda
