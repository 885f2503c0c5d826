// Random weights, made on the device in place of filling and copying them on the host. Plain
// version: fill_random in core/random_weights.cc;
// CudaQuantized.WeightsMadeOnTheDeviceAreThoseOfTheHost (tests/cuda/backend/quantized_test.cc)
// compares them.
#include <cstdint>

#include "core/check.h"
#include "cuda/common/numeric.cuh"
#include "cuda/common/philox.cuh"
#include "cuda/common/target.cuh"
#include "cuda/kernels/quantize.h"

namespace specdec::cuda::SPECDEC_TARGET {
namespace {

constexpr int kThreads = 256;
constexpr int kEach = 8;  // elements per Philox counter

__device__ void store(float* to, float value) { *to = value; }
template <class T>
__device__ void store(T* to, float value) {
  *to = from_float<T>(value);
}

// A thread makes the elements of one counter that lie among the `count` wanted.
template <class T>
__global__ void __launch_bounds__(kThreads)
    random_weights_kernel(const RandomWeightsParams params) {
  const RandomSource& source = params.source;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t counter = (source.first / kEach + index) * kEach;
  if (counter >= source.first + params.count) return;
  const PhiloxWords words =
      philox4x32_10({static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0},
                    static_cast<uint32_t>(source.key), static_cast<uint32_t>(source.key >> 32));
  const uint32_t drawn[] = {words.w0, words.w1, words.w2, words.w3};
  T* values = static_cast<T*>(params.values);
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int64_t at = counter + i - source.first;
    if (at < 0 || at >= params.count) continue;
    const auto bits = static_cast<int16_t>(drawn[i / 2] >> (i % 2 * 16));
    store(values + at, static_cast<float>(bits) * source.unit);
  }
}

template <class T>
void launch_random_weights(Stream& stream, const RandomWeightsParams& params) {
  const int64_t first_counter = params.source.first / kEach;
  const int64_t last_counter = (params.source.first + params.count - 1) / kEach;
  const int64_t num_blocks = (last_counter - first_counter) / kThreads + 1;
  launch("random_weights", stream, random_weights_kernel<T>,
         {.grid = {static_cast<unsigned>(num_blocks)}, .block = {kThreads}}, params);
}

}  // namespace

void random_weights(Stream& stream, const RandomWeightsParams& params);  // for quantize.cu

void random_weights(Stream& stream, const RandomWeightsParams& params) {
  if (params.count == 0) return;
  switch (params.dtype) {
    case DType::kF32:
      return launch_random_weights<float>(stream, params);
    case DType::kBF16:
      return launch_random_weights<Bf16>(stream, params);
    case DType::kF16:
      return launch_random_weights<Half>(stream, params);
    default:
      SPECDEC_CHECK(is_floating(params.dtype));
  }
}

}  // namespace specdec::cuda::SPECDEC_TARGET
