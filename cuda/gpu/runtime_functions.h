// The kernels of a device as the CUDA runtime has them: loaded, and with the settings they need.
#pragma once

#include <cstddef>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "cuda/gpu/device.h"
#include "cuda/gpu/launch_settings.h"

namespace specdec::cuda {

// Shared by the streams of a device.
class Functions {
 public:
  explicit Functions(int num_multiprocessors) : num_multiprocessors_(num_multiprocessors) {}

  // Before the first launch.
  void set(const LaunchSettings& settings);
  std::string note() const;
  // Loads the function, lets it have this much dynamic shared memory, beside its static one, and
  // sees that blocks which meet fit on the device together. Returns whether it may start before the
  // kernel before it has ended, as LaunchConfig::overlaps_previous wants: what was compiled for
  // GPUs before 9.0 does not wait, on later ones neither.
  bool prepare(const KernelLaunch& launch);
  std::optional<KernelResources> resources_of(const void* function) const;

 private:
  struct Entry {
    size_t allowed_bytes = 0;  // of dynamic shared memory
    int ptx_version = 0;
    KernelResources resources;
    int meeting_blocks = 0;    // the most that have been found to fit, with
    size_t meeting_bytes = 0;  // the most dynamic shared memory
  };

  void check_resident(const KernelLaunch& launch, int num_blocks) const;

  mutable std::mutex mutex_;
  LaunchSettings settings_;
  int num_multiprocessors_;
  std::unordered_map<const void*, Entry> entries_;
};

}  // namespace specdec::cuda
