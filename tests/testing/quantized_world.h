// A CUDA backend whose matrices are codes, and what their products should be.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "backend/op_args.h"
#include "testing/device_kinds.h"
#include "testing/quantized_products.h"
#include "testing/values.h"

namespace specdec::cuda::testing {

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
    Buffer out = allocate<float>(count);
    backend->embed({.table = table.get(),
                    .token_ids = device_ids.as<int32_t>(),
                    .out = out.as<float>(),
                    .num_rows = static_cast<int>(ids.size())});
    return download<float>(out);
  }
  // Products of float32 rows.
  std::vector<float> linear(const PackedLinear& weight, const float* x, int rows) {
    const size_t count = rows * weight.out_features();
    const Buffer in = upload(std::vector<float>(x, x + rows * weight.in_features()));
    Buffer out = upload(std::vector<float>(count, NAN));
    backend->linear(
        {.weight = &weight, .in = {.x = in.data(), .num_rows = rows}, .out = out.as<float>()});
    return download<float>(out);
  }
  // The activated products of float32 rows with a gated matrix, at act.
  std::vector<uint16_t> gated(const PackedLinear& weight, const std::vector<float>& x, int rows,
                              Activation activation) {
    const Buffer in = upload(x);
    Buffer out = allocate<uint16_t>(rows * weight.out_features() / 2);
    backend->activated_linear({.weight = &weight,
                               .in = {.x = in.data(), .num_rows = rows},
                               .activation = activation,
                               .out = out.data()});
    return download<uint16_t>(out);
  }
};

// Products of float32 rows, which the device rounds to act, with the weights as stored.
inline void expect_products(const std::vector<float>& out, const std::vector<float>& x, DType act,
                            const std::vector<float>& weights, int64_t num_k) {
  const std::vector<float> at_act = specdec::testing::rounded(x, act);
  const std::vector<double> rows(at_act.begin(), at_act.end());
  specdec::testing::expect_products(out, rows, weights, num_k, 40.0);
}

}  // namespace specdec::cuda::testing
