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
    const bool starts = config.overlaps_previous && previous_is_kernel_ && !is_too_early;
    previous_is_kernel_ = true;
    previous_lets_start_early_ = config.lets_next_start_early;
    return starts;
  }

  // After copies, fills, graphs and the kernels of libraries. The CUDA documentation does not say
  // of each of them that a kernel which may start early waits for its end, and a library's kernel
  // may let the next one start whenever it likes: the next kernel of ours starts when all is done.
  void note_other_work() { previous_is_kernel_ = false; }

 private:
  bool previous_is_kernel_ = false;
  bool previous_lets_start_early_ = false;
};

}  // namespace specdec::cuda
