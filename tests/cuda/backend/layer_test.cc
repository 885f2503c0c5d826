// The number of launches of a layer.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <numeric>
#include <vector>

#include "testing/device_kinds.h"
#include "testing/values.h"

namespace specdec::cuda::testing {
namespace {

using specdec::testing::random_values;

constexpr int kHidden = 64, kHeads = 2, kHeadDim = 32, kInner = 96, kBlockSize = 16, kRows = 17;

class LayerTest : public ::testing::TestWithParam<DeviceKind> {
 protected:
  LayerTest() : world_(GetParam(), DType::kBF16) {}

  std::unique_ptr<PackedLinear> pack(int num_n, int num_k, int num_parts = 1) {
    const std::vector<float> values = random_values(num_n * num_k, 1);
    std::vector<WeightView> parts(num_parts);
    for (int i = 0; i < num_parts; ++i) {
      parts[i].values = {.data = values.data() + int64_t{i} * num_n / num_parts * num_k,
                         .dtype = DType::kF32,
                         .shape = {num_n / num_parts, num_k}};
    }
    return world_.backend->pack_linear({.parts = parts, .gated = num_parts == 2});
  }

  BackendWorld world_;
};

// Qkv, attention, o, gate and up, down, with both kinds of norm. More rows have launches of their
// own for the norms.
TEST_P(LayerTest, IsFiveLaunchesForFewRows) {
  CudaBackend& backend = *world_.backend;
  const auto qkv = pack(3 * kHeads * kHeadDim, kHidden);
  const auto o = pack(kHidden, kHeads * kHeadDim);
  const auto gate_up = pack(2 * kInner, kHidden, 2);
  const auto down = pack(kHidden, kInner);
  Buffer x = world_.upload(random_values(kRows * kHidden, 2));
  const Buffer norm_weight = world_.upload(random_values(kHidden, 3));
  Buffer q = world_.allocate<uint16_t>(kRows * kHeads * kHeadDim);
  Buffer attention = world_.allocate<uint16_t>(kRows * kHeads * kHeadDim);
  Buffer inner = world_.allocate<uint16_t>(kRows * kInner);
  Buffer keys = world_.allocate<uint16_t>(3 * kBlockSize * kHeads * kHeadDim);
  Buffer values = world_.allocate<uint16_t>(3 * kBlockSize * kHeads * kHeadDim);
  std::vector<int32_t> positions(kRows);
  std::iota(positions.begin(), positions.end(), 0);
  std::vector<int64_t> slots(kRows);
  std::iota(slots.begin(), slots.end(), kBlockSize);
  const Buffer device_positions = world_.upload(positions), device_slots = world_.upload(slots);
  const Buffer base_lens = world_.upload(std::vector<int32_t>{0});
  const Buffer tables = world_.upload(std::vector<int32_t>{1, 2});
  const NormParams rms_norm = {.weight = norm_weight.as<float>()};
  const NormParams layer_norm = {
      .kind = NormKind::kLayer, .weight = norm_weight.as<float>(), .bias = norm_weight.as<float>()};
  const PagedKvView kv = {.keys = keys.data(),
                          .values = values.data(),
                          .dtype = DType::kBF16,
                          .num_blocks = 3,
                          .block_size = kBlockSize,
                          .num_kv_heads = kHeads,
                          .head_dim = kHeadDim};
  for (const int num_rows : {1, 2, 3, 8, 9, 16, kRows}) {
    const Buffer cu_rows = world_.upload(std::vector<int32_t>{0, num_rows});
    const BatchView batch = {.num_requests = 1,
                             .num_rows = num_rows,
                             .positions = device_positions.as<int32_t>(),
                             .slot_mapping = device_slots.as<int64_t>(),
                             .cu_rows = cu_rows.as<int32_t>(),
                             .base_lens = base_lens.as<int32_t>(),
                             .block_tables = tables.as<int32_t>(),
                             .max_blocks_per_request = 2};
    const auto run = [&](const NormParams& norm) {
      const ProjectionInput normed = {.x = x.data(), .norm = &norm, .num_rows = num_rows};
      backend.project_qkv({.weight = qkv.get(),
                           .in = normed,
                           .num_heads = kHeads,
                           .batch = &batch,
                           .kv = kv,
                           .q = q.data()});
      backend.tree_attention(
          {.q = q.data(), .batch = &batch, .kv = kv, .num_heads = kHeads, .out = attention.data()});
      backend.linear({.weight = o.get(),
                      .in = {.x = attention.data(), .dtype = DType::kBF16, .num_rows = num_rows},
                      .out = x.as<float>(),
                      .accumulate = true});
      backend.activated_linear({.weight = gate_up.get(), .in = normed, .out = inner.data()});
      backend.linear({.weight = down.get(),
                      .in = {.x = inner.data(), .dtype = DType::kBF16, .num_rows = num_rows},
                      .out = x.as<float>(),
                      .accumulate = true});
    };
    for (const NormParams& norm : {rms_norm, layer_norm}) {
      run(norm);
      backend.stream().synchronize();
      backend.stream().begin_capture();
      run(norm);
      // Norms of rows for a stream of weights are launches of their own.
      const bool streams = backend.device().properties().compute_capability == 90;
      const int expected = num_rows <= (streams ? 8 : 16) ? 5 : 7;
      EXPECT_EQ(backend.stream().end_capture()->num_nodes(), expected)
          << num_rows << " rows, kind " << static_cast<int>(norm.kind);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, LayerTest, ::testing::ValuesIn(device_kinds()), test_name);

}  // namespace
}  // namespace specdec::cuda::testing
