#include "cuda/common/target.cuh"
#include "cuda/kernels/kernel_table.h"

namespace specdec::cuda::SPECDEC_TARGET {

KernelTable kernel_table() {
  return {.attention = attention_kernels(),
          .moe = moe_kernels(),
          .peers = peer_kernels(),
          .pointwise = pointwise_kernels(),
          .projection = projection_kernels(),
          .quantize = quantize_kernels(),
          .recurrence = recurrence_kernels(),
          .sampling = sampling_kernels(),
          .step = step_kernels(),
          .verify = verify_kernels()};
}

}  // namespace specdec::cuda::SPECDEC_TARGET
