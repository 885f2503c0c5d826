// Products of many rows by wgmma against double loops, and when a backend uses them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "testing/cuda_products.h"

namespace specdec::cuda::testing {
namespace {

using ::testing::Combine;
using ::testing::TestParamInfo;
using ::testing::Values;
using ::testing::ValuesIn;

// How often wide_product ran: KernelTable has plain functions.
int num_wide_products = 0;
void (*counted_product)(Stream& stream, const ProductParams& params) = nullptr;
void count_product(Stream& stream, const ProductParams& params) {
  ++num_wide_products;
  counted_product(stream, params);
}

class WideProjectionTest : public ProductsTest {
 protected:
  void SetUp() override {
    if (make_device(kind())->properties().compute_capability != 90) {
      GTEST_SKIP() << "compute capability 9.0";
    }
    num_wide_products = 0;
    backend_ = make_backend(false);
  }

  std::unique_ptr<CudaBackend> make_backend(bool deterministic) const {
    KernelTable kernels = kernels_for(kind());
    counted_product = kernels.projection.wide_product;
    kernels.projection.wide_product = count_product;
    return std::make_unique<CudaBackend>(make_device(kind()), kernels, act_,
                                         CudaOptions{.deterministic = deterministic});
  }
  // Fewest outputs for which blocks of so many rows fill the device.
  int outputs_for(int num_rows, int block_rows) const {
    const int row_tiles = (num_rows + block_rows - 1) / block_rows;
    const int num_processors = backend_->device().properties().num_multiprocessors;
    const int tile_blocks = (num_processors + row_tiles - 1) / row_tiles;
    return (tile_blocks - 1) * wide_tiles(block_rows) * kTileOutputs + 1;
  }
};

double dot(const float* a, const float* b, int count) {
  double sum = 0;
  for (int i = 0; i < count; ++i) sum += double{a[i]} * b[i];
  return sum;
}

TEST_P(WideProjectionTest, LinearEqualsADoubleLoop) {
  struct Case {
    int num_rows, num_k, block_rows;
  };
  const Case cases[] = {
      {65, 96, 128}, {128, 75, 128}, {200, 352, 256}, {257, 33, 256}, {257, 128, 128}};
  uint32_t seed = 1;
  for (const auto& [num_rows, num_k, block_rows] : cases) {
    const int num_n = outputs_for(num_rows, block_rows);
    SCOPED_TRACE(::testing::Message() << num_rows << " rows, " << num_n << "x" << num_k);
    const std::vector<float> matrix = act_values(static_cast<size_t>(num_n * num_k), seed++);
    const std::vector<float> x = act_values(static_cast<size_t>(num_rows * num_k), seed++);
    const std::vector<float> bias = random_values(static_cast<size_t>(num_n), seed++);
    const std::vector<float> before = random_values(static_cast<size_t>(num_rows * num_n), seed++);
    const auto weight = pack(matrix, num_n, num_k);
    const Buffer bias_buffer = upload(bias);
    const Buffer x_act = upload(to_act(x));
    for (const bool accumulate : {false, true}) {
      Buffer out = upload(before);
      num_wide_products = 0;
      backend_->linear({.weight = weight.get(),
                        .in = {.x = x_act.data(), .dtype = act_, .num_rows = num_rows},
                        .bias = accumulate ? nullptr : bias_buffer.as<float>(),
                        .out = out.as<float>(),
                        .accumulate = accumulate});
      EXPECT_EQ(num_wide_products, 1);
      const std::vector<float> result = download<float>(out, num_rows * num_n);
      for (int row = 0; row < num_rows; ++row) {
        for (int n = 0; n < num_n; ++n) {
          const size_t place = static_cast<size_t>(row * num_n + n);
          const double expected = dot(&matrix[static_cast<size_t>(n * num_k)],
                                      &x[static_cast<size_t>(row * num_k)], num_k) +
                                  (accumulate ? before[place] : bias[static_cast<size_t>(n)]);
          ASSERT_NEAR(result[place], expected, 2e-4) << "row " << row << " output " << n;
        }
      }
    }
  }
}

TEST_P(WideProjectionTest, ActivationsAreAppliedToSumsAndGates) {
  constexpr int kRows = 129, kK = 70;
  const int dim = outputs_for(kRows, 128) + 4;
  const std::vector<float> x = random_values(static_cast<size_t>(kRows * kK), 10);
  const std::vector<float> matrix = act_values(static_cast<size_t>(2 * dim * kK), 11);
  const std::vector<float> bias = random_values(static_cast<size_t>(2 * dim), 12);
  const Buffer x_wide = upload(x);
  const Buffer bias_buffer = upload(bias);
  for (const bool gated : {false, true}) {
    const auto weight = pack(matrix, gated ? 2 * dim : dim, kK, gated);
    Buffer out = backend_->allocate(static_cast<size_t>(kRows * dim * 2), "test");
    num_wide_products = 0;
    backend_->activated_linear({.weight = weight.get(),
                                .in = {.x = x_wide.data(), .dtype = DType::kF32, .num_rows = kRows},
                                .bias = bias_buffer.as<float>(),
                                .activation = Activation::kRelu,
                                .gated = gated,
                                .out = out.data()});
    EXPECT_EQ(num_wide_products, 1);
    const std::vector<uint16_t> result = download<uint16_t>(out, kRows * dim);
    std::vector<float> rounded = x;
    for (float& value : rounded) value = from_bits(to_bits(value));
    for (int row = 0; row < kRows; ++row) {
      const float* input = &rounded[static_cast<size_t>(row * kK)];
      const auto sum = [&](int n) {
        return dot(&matrix[static_cast<size_t>(n * kK)], input, kK) + bias[static_cast<size_t>(n)];
      };
      for (int n = 0; n < dim; ++n) {
        const double expected = std::max(sum(n), 0.0) * (gated ? sum(dim + n) : 1.0);
        ASSERT_NEAR(from_bits(result[static_cast<size_t>(row * dim + n)]), expected,
                    std::abs(expected) / 256 + 1e-3)
            << "row " << row << " output " << n << (gated ? " gated" : "");
      }
    }
  }
}

TEST_P(WideProjectionTest, HeadsAreRotatedAndCached) {
  constexpr int kRows = 200, kK = 64, kDim = 24, kKvHeads = 2, kBlockSize = 16, kBlocks = 14;
  const int num_heads = outputs_for(kRows, 128) / kDim + 3;
  const int num_n = (num_heads + 2 * kKvHeads) * kDim;
  const std::vector<float> x = act_values(static_cast<size_t>(kRows * kK), 20);
  const std::vector<float> matrix = act_values(static_cast<size_t>(num_n * kK), 21);
  std::vector<int32_t> positions;
  std::vector<int64_t> slots;
  std::vector<float> cos, sin;
  for (int row = 0; row < kRows; ++row) {
    positions.push_back(kRows - 1 - row);
    slots.push_back(kBlockSize + (row * 7) % (kBlocks * kBlockSize - kBlockSize));
    for (int i = 0; i < kDim / 2; ++i) {
      cos.push_back(std::cos(static_cast<float>(row) / static_cast<float>(1 + i)));
      sin.push_back(std::sin(static_cast<float>(row) / static_cast<float>(1 + i)));
    }
  }
  const auto weight = pack(matrix, num_n, kK);
  const Buffer x_act = upload(to_act(x)), position_buffer = upload(positions),
               slot_buffer = upload(slots), cos_buffer = upload(cos), sin_buffer = upload(sin);
  Buffer keys = backend_->allocate(size_t{kBlocks} * kBlockSize * kKvHeads * kDim * 2, "test");
  Buffer values = backend_->allocate(keys.size_bytes(), "test");
  Buffer q = backend_->allocate(static_cast<size_t>(kRows * num_heads * kDim * 2), "test");
  const BatchView batch = {.num_rows = kRows,
                           .positions = position_buffer.as<int32_t>(),
                           .slot_mapping = slot_buffer.as<int64_t>()};
  for (int run = 0; run < 2; ++run) {  // heads are counted again each time
    num_wide_products = 0;
    backend_->project_qkv({.weight = weight.get(),
                           .in = {.x = x_act.data(), .dtype = act_, .num_rows = kRows},
                           .rope_cos = cos_buffer.as<float>(),
                           .rope_sin = sin_buffer.as<float>(),
                           .rotary_dim = kDim,
                           .num_heads = num_heads,
                           .batch = &batch,
                           .kv = {.keys = keys.data(),
                                  .values = values.data(),
                                  .dtype = act_,
                                  .num_blocks = kBlocks,
                                  .block_size = kBlockSize,
                                  .num_kv_heads = kKvHeads,
                                  .head_dim = kDim},
                           .q = q.data()});
    EXPECT_EQ(num_wide_products, 1);
  }
  const auto all_q = download<uint16_t>(q, kRows * num_heads * kDim);
  const int cache_size = kBlocks * kBlockSize * kKvHeads * kDim;
  const auto all_keys = download<uint16_t>(keys, cache_size);
  const auto all_values = download<uint16_t>(values, cache_size);
  for (int row = 0; row < kRows; ++row) {
    for (int head = 0; head < num_heads + 2 * kKvHeads; ++head) {
      double sums[kDim];
      for (int i = 0; i < kDim; ++i) {
        sums[i] = dot(&matrix[static_cast<size_t>((head * kDim + i) * kK)],
                      &x[static_cast<size_t>(row * kK)], kK);
      }
      const bool is_value = head >= num_heads + kKvHeads;
      for (int i = 0; !is_value && i < kDim / 2; ++i) {
        const size_t entry = static_cast<size_t>((kRows - 1 - row) * (kDim / 2) + i);
        const double rotated = sums[i] * cos[entry] - sums[kDim / 2 + i] * sin[entry];
        sums[kDim / 2 + i] = sums[kDim / 2 + i] * cos[entry] + sums[i] * sin[entry];
        sums[i] = rotated;
      }
      const uint16_t* place = &all_q[static_cast<size_t>((row * num_heads + head) * kDim)];
      if (head >= num_heads) {
        const int64_t slot = slots[static_cast<size_t>(row)];
        const int kv_head = (head - num_heads) % kKvHeads;
        const int64_t token =
            (slot / kBlockSize * kKvHeads + kv_head) * kBlockSize + slot % kBlockSize;
        place = (is_value ? all_values : all_keys).data() + token * kDim;
      }
      for (int i = 0; i < kDim; ++i) {
        ASSERT_NEAR(from_bits(place[i]), sums[i], std::abs(sums[i]) / 256 + 1e-3)
            << "row " << row << " head " << head << " element " << i;
      }
    }
  }
}

TEST_P(WideProjectionTest, RunsOnlyForManyRowsWhereResultsMayDependOnThem) {
  constexpr int kK = 64, kMost = 130;
  const int num_n = outputs_for(65, 128);
  const std::vector<float> matrix = act_values(static_cast<size_t>(num_n * kK), 30);
  const std::vector<float> x = act_values(size_t{kMost} * kK, 31);
  for (const bool deterministic : {true, false}) {
    backend_ = make_backend(deterministic);
    const auto weight = pack(matrix, num_n, kK);
    const Buffer x_act = upload(to_act(x));
    Buffer out = backend_->allocate(static_cast<size_t>(kMost * num_n) * sizeof(float), "test");
    for (const int num_rows : {1, 16, 64, 65, kMost}) {
      num_wide_products = 0;
      backend_->linear({.weight = weight.get(),
                        .in = {.x = x_act.data(), .dtype = act_, .num_rows = num_rows},
                        .out = out.as<float>()});
      EXPECT_EQ(num_wide_products, !deterministic && num_rows > 64 ? 1 : 0)
          << num_rows << (deterministic ? " rows, deterministic" : " rows");
    }
  }
}

TEST_P(WideProjectionTest, ARowDoesNotDependOnTheOthers) {
  constexpr int kK = 160, kMost = 140;
  const int num_n = outputs_for(65, 128);
  const auto weight = pack(act_values(static_cast<size_t>(num_n * kK), 40), num_n, kK);
  std::vector<float> x = act_values(size_t{kMost} * kK, 41);
  const auto run = [&](int num_rows) {
    const Buffer x_act = upload(to_act(x));
    Buffer out = backend_->allocate(static_cast<size_t>(kMost * num_n) * sizeof(float), "test");
    backend_->linear({.weight = weight.get(),
                      .in = {.x = x_act.data(), .dtype = act_, .num_rows = num_rows},
                      .out = out.as<float>()});
    return download<uint32_t>(out, num_rows * num_n);
  };
  const std::vector<uint32_t> all = run(kMost);
  std::fill(x.begin() + 70 * kK, x.end(), 1000.0f);
  const std::vector<uint32_t> some = run(70);
  EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin()));
  const std::vector<uint32_t> others = run(kMost);
  EXPECT_TRUE(std::equal(some.begin(), some.end(), others.begin()));
  EXPECT_EQ(num_wide_products, 3);
}

std::string param_name(const TestParamInfo<std::tuple<DeviceKind, DType>>& info) {
  return name_of(std::get<0>(info.param)) + "_" +
         std::string(specdec::name_of(std::get<1>(info.param)));
}

INSTANTIATE_TEST_SUITE_P(Devices, WideProjectionTest,
                         Combine(ValuesIn(device_kinds()), Values(DType::kBF16, DType::kF16)),
                         param_name);

}  // namespace
}  // namespace specdec::cuda::testing
