// Decides which kernels may start before the previous kernel of their stream has ended.
#pragma once

#include "cuda/gpu/device.h"

namespace specdec::cuda {

// The rule for one stream, which asks about every launch, in order.
class StartRule {
 public:
  // A kernel that reads before it waits needs all kernels except the previous one to be done. They
  // are, unless the previous one lets it start before its own wait.
  bool starts_early(const LaunchConfig& config) {
    const bool is_too_early = config.reads_before_wait && previous_lets_start_early_;
    const bool starts = config.overlaps_previous && previous_is_kernel_ && !is_too_early;
    previous_is_kernel_ = true;
    previous_lets_start_early_ = config.lets_next_start_early;
    return starts;
  }

  // Call after copies, fills, graphs and libraries' kernels: the next kernel of ours then starts
  // when all is done. CUDA's documentation does not promise for each of these that
  // ptx::wait_for_previous() waits for its end, and a library's kernel may let the next one start
  // at any time.
  void note_other_work() { previous_is_kernel_ = false; }

 private:
  bool previous_is_kernel_ = false;
  bool previous_lets_start_early_ = false;
};

}  // namespace specdec::cuda
