// A CUDA backend whose matrices are codes, and what their products should be.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "backend/op_args.h"
#include "testing/cuda_devices.h"

namespace specdec::cuda::testing {

inline std::vector<float> random_values(int64_t count, uint32_t seed, float scale = 1.0f) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> values(count);
  for (float& value : values) value = normal(generator);
  return values;
}

inline WeightView view_of(const std::vector<float>& values, int64_t rows) {
  return {.values = {values.data(), DType::kF32, {rows, std::ssize(values) / rows}}};
}

inline std::vector<uint16_t> to_act(const std::vector<float>& values, DType dtype) {
  std::vector<uint16_t> bits;
  for (float value : values) {
    bits.push_back(dtype == DType::kBF16 ? to_bfloat16(value).bits : float_to_half(value));
  }
  return bits;
}
inline float from_act(uint16_t bits, DType dtype) {
  return dtype == DType::kBF16 ? to_float(BFloat16{bits}) : half_to_float(bits);
}

// A backend that packs, and shows what it packed.
struct QuantizedWorld : BackendWorld {
  using BackendWorld::BackendWorld;

  std::unique_ptr<PackedLinear> pack(const WeightView& view, WeightFormat format) {
    return backend->pack_linear({.parts = {&view, 1}, .format = format});
  }
  // The matrix as stored.
  std::vector<float> unpacked(const PackedLinear& weight) {
    const auto table = backend->embedding_from(weight);
    std::vector<int32_t> ids(weight.out_features());
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
    const size_t count = ids.size() * weight.in_features();
    const Buffer device_ids = upload(ids);
    Buffer out = backend->allocate(count * sizeof(float), "test");
    backend->embed({.table = table.get(),
                    .token_ids = device_ids.as<int32_t>(),
                    .out = out.as<float>(),
                    .num_rows = static_cast<int>(ids.size())});
    return download<float>(out, count);
  }
  // Products of float32 rows.
  std::vector<float> linear(const PackedLinear& weight, const float* x, int rows) {
    const size_t count = rows * weight.out_features();
    const Buffer in = upload(std::vector<float>(x, x + rows * weight.in_features()));
    Buffer out = upload(std::vector<float>(count, NAN));
    backend->linear(
        {.weight = &weight, .in = {.x = in.data(), .num_rows = rows}, .out = out.as<float>()});
    return download<float>(out, count);
  }
};

// Of act-rounded rows with the weights as stored. Per block of k a float sum is rounded a few
// times, and so is the product with the scale; the terms (of a format with mins, both) are bounded
// by the block's largest weight.
inline void expect_products(const std::vector<float>& out, const std::vector<float>& x, DType act,
                            const std::vector<float>& weights, int64_t num_k) {
  const int64_t num_n = std::ssize(weights) / num_k;
  for (int64_t i = 0; i < std::ssize(out); ++i) {
    const float* row = x.data() + i / num_n * num_k;
    const float* weight = weights.data() + i % num_n * num_k;
    double expected = 0.0, magnitude = 0.0;
    for (int64_t begin = 0; begin < num_k; begin += kQuantGroup) {
      double inputs = 0.0, largest = 0.0;
      for (int64_t k = begin; k < std::min(num_k, begin + kQuantGroup); ++k) {
        const double value = from_act(to_act({row[k]}, act)[0], act);
        expected += value * weight[k];
        inputs += std::abs(value);
        largest = std::max<double>(largest, std::abs(weight[k]));
      }
      magnitude += 3 * inputs * largest;
    }
    const double rounding = (num_k / kQuantGroup + 40.0) * 0x1p-24;
    ASSERT_NEAR(out[i], expected, magnitude * rounding) << "at " << i;
  }
}

}  // namespace specdec::cuda::testing
