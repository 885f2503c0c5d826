// When a kernel may start before the one before it on its stream has ended.
#pragma once

#include "cuda/gpu/device.h"

namespace specdec::cuda {

// The rule of one stream, which asks it about every launch, in order.
class StartRule {
 public:
  // A kernel that reads before it waits needs all kernels but the last to be done. They are, unless
  // the last one lets it start before it has waited itself.
  bool starts_early(const LaunchConfig& config) {
    const bool is_too_early = config.reads_before_wait && previous_lets_start_early_;
    previous_lets_start_early_ = config.lets_next_start_early;
    return config.overlaps_previous && !is_too_early;
  }

 private:
  bool previous_lets_start_early_ = false;
};

}  // namespace specdec::cuda
