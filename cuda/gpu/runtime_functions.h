// A device's kernels in the CUDA runtime: loads them and sets their attributes.
#pragma once

#include <cstddef>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "cuda/gpu/device.h"
#include "cuda/gpu/launch_settings.h"

namespace specdec::cuda {

// Shared by a device's streams.
class Functions {
 public:
  explicit Functions(int num_multiprocessors) : num_multiprocessors_(num_multiprocessors) {}

  // Call before the first launch.
  void set(const LaunchSettings& settings);
  std::string note() const;
  // Loads the function, allows it the launch's dynamic shared memory, and checks that all blocks
  // that meet fit on the device together. Returns whether it may start before the previous kernel
  // has ended (LaunchConfig::overlaps_previous). Code compiled for GPUs before 9.0 has no wait and
  // must not, even on later GPUs.
  bool prepare(const KernelLaunch& launch);
  std::optional<KernelResources> resources_of(const void* function) const;

 private:
  struct Entry {
    size_t allowed_bytes = 0;  // of dynamic shared memory
    int ptx_version = 0;
    KernelResources resources;
    int meeting_blocks = 0;    // most blocks that were found to fit, with at most
    size_t meeting_bytes = 0;  // so much dynamic shared memory
  };

  void check_resident(const KernelLaunch& launch, int num_blocks) const;

  mutable std::mutex mutex_;
  LaunchSettings settings_;
  int num_multiprocessors_;
  std::unordered_map<const void*, Entry> entries_;
};

}  // namespace specdec::cuda
