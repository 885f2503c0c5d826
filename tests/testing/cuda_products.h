// Tests of products with random matrices, through a backend that the test makes.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <tuple>
#include <vector>

#include "testing/cuda_devices.h"

namespace specdec::cuda::testing {

inline std::vector<float> random_values(int64_t count, uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(generator);
  return values;
}

// Param: the device, and the dtype of activations.
class ProductsTest : public ::testing::TestWithParam<std::tuple<DeviceKind, DType>> {
 protected:
  ProductsTest() : act_(std::get<1>(GetParam())) {}

  DeviceKind kind() const { return std::get<0>(GetParam()); }

  uint16_t to_bits(float value) const {
    return act_ == DType::kBF16 ? to_bfloat16(value).bits : float_to_half(value);
  }
  float from_bits(uint16_t bits) const {
    return act_ == DType::kBF16 ? to_float(BFloat16{bits}) : half_to_float(bits);
  }
  std::vector<uint16_t> to_act(const std::vector<float>& values) const {
    std::vector<uint16_t> bits(values.size());
    std::ranges::transform(values, bits.begin(), [&](float value) { return to_bits(value); });
    return bits;
  }
  // Values that act has exactly.
  std::vector<float> act_values(int64_t count, uint32_t seed) const {
    std::vector<float> values = random_values(count, seed);
    for (float& value : values) value = from_bits(to_bits(value));
    return values;
  }

  template <class T>
  Buffer upload(const std::vector<T>& values) {
    Buffer buffer = backend_->allocate(values.size() * sizeof(T), "test");
    backend_->stream().copy_to_device(buffer.data(), values.data(), values.size() * sizeof(T));
    backend_->stream().synchronize();
    return buffer;
  }
  // Waits for the stream.
  template <class T>
  std::vector<T> download(const Buffer& buffer, int count) {
    std::vector<T> values(static_cast<size_t>(count));
    backend_->stream().copy_to_host(values.data(), buffer.data(), values.size() * sizeof(T));
    backend_->stream().synchronize();
    return values;
  }
  // `values` [num_n, num_k]
  std::unique_ptr<PackedLinear> pack(const std::vector<float>& values, int num_n, int num_k,
                                     bool gated = false) {
    std::vector<WeightView> parts;
    const int part_n = gated ? num_n / 2 : num_n;
    for (int begin = 0; begin < num_n; begin += part_n) {
      parts.push_back(
          {.values = {values.data() + int64_t{begin} * num_k, DType::kF32, {part_n, num_k}}});
    }
    return backend_->pack_linear({.parts = parts, .gated = gated});
  }

  DType act_;
  std::unique_ptr<CudaBackend> backend_;
};

}  // namespace specdec::cuda::testing
