// Tests of products with random matrices, on every device and at both dtypes of activations.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "testing/device_kinds.h"
#include "testing/oracle/operations.h"
#include "testing/values.h"

namespace specdec::cuda::testing {

using specdec::testing::from_bits;
using specdec::testing::random_values;
using specdec::testing::rounded;
using specdec::testing::rounding_unit;
using specdec::testing::to_bits;

// Param: the device, and the dtype of activations. The test makes the backend.
class ProjectionFixture : public ::testing::TestWithParam<std::tuple<DeviceKind, DType>>,
                          protected BackendWorld {
 protected:
  DeviceKind kind() const { return std::get<0>(GetParam()); }

  // Values that act has exactly.
  std::vector<float> act_values(int64_t count, uint32_t seed, float scale = 1.0f) const {
    return rounded(random_values(count, seed, scale), act_);
  }
  Buffer upload_act(const std::vector<float>& values) { return upload(to_bits(values, act_)); }

  // `values` [num_n, num_k]
  std::unique_ptr<PackedLinear> pack(const std::vector<float>& values, int num_n, int num_k,
                                     bool gated = false) {
    std::vector<WeightView> parts;
    const int part_n = gated ? num_n / 2 : num_n;
    for (int begin = 0; begin < num_n; begin += part_n) {
      parts.push_back(
          {.values = {values.data() + int64_t{begin} * num_k, DType::kF32, {part_n, num_k}}});
    }
    return backend->pack_linear({.parts = parts, .gated = gated});
  }

  // x [num_rows, num_k] times matrix [num_n, num_k], in double precision.
  static std::vector<double> products(const std::vector<float>& x, const std::vector<float>& matrix,
                                      int num_k) {
    return reference::linear(std::vector<double>(x.begin(), x.end()), matrix, num_k);
  }

  // `result` [num_rows, dim] at act, made of `sums` [num_rows, dim, or 2 * dim where the second
  // half are what gates multiply] and their bias [2 * dim], with kSomeConstants.
  void expect_activated(const std::vector<uint16_t>& result, const std::vector<double>& sums,
                        const std::vector<float>& bias, Activation activation, bool gated) const {
    const size_t dim = bias.size() / 2, num_n = gated ? 2 * dim : dim;
    ASSERT_EQ(result.size() / dim, sums.size() / num_n);
    for (size_t i = 0; i < result.size(); ++i) {
      const size_t n = i % dim;
      const double* row = &sums[i / dim * num_n];
      const double gate = row[n] + bias[n];
      const double up = gated ? row[dim + n] + bias[dim + n] : 1.0;
      const ActivationConstants& constants = reference::kSomeConstants;
      const double expected = gated ? reference::gated(activation, constants, gate, up)
                                    : reference::activate(activation, gate, constants);
      ASSERT_NEAR(from_bits(result[i], act_), expected,
                  std::abs(expected) * rounding_unit(act_) +
                      4e-6 * (1 + std::abs(gate)) * (1 + std::abs(up)))
          << "row " << i / dim << " output " << n << " activation " << static_cast<int>(activation)
          << (gated ? " gated" : "");
    }
  }

  const DType act_ = std::get<1>(GetParam());
};

inline std::string projection_test_name(
    const ::testing::TestParamInfo<std::tuple<DeviceKind, DType>>& info) {
  return name_of(std::get<0>(info.param)) + "_" +
         std::string(specdec::name_of(std::get<1>(info.param)));
}

// INSTANTIATE_TEST_SUITE_P(Devices, XTest, all_projections(), projection_test_name).
inline auto all_projections() {
  return ::testing::Combine(::testing::ValuesIn(device_kinds()),
                            ::testing::Values(DType::kBF16, DType::kF16));
}

}  // namespace specdec::cuda::testing
