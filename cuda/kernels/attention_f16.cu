#include "cuda/kernels/attention_launch.cuh"
#include "cuda/kernels/attention_launch.h"

namespace specdec::cuda::SPECDEC_TARGET {

void attend_f16(Stream& stream, const AttentionParams& params) {
  launch_attention_for<Half>(stream, params);
}

}  // namespace specdec::cuda::SPECDEC_TARGET
