// Products with integer weights on every kernel set this machine runs, against double precision,
// and that no bit depends on batch or machine.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "testing/cpu_int_formats.h"
#include "testing/few_shapes.h"
#include "testing/oracle/operations.h"
#include "testing/quantized_matrix.h"
#include "testing/quantized_products.h"
#include "testing/values.h"

namespace specdec::cpu {
namespace {

using specdec::testing::QuantizedMatrix;
using specdec::testing::random_values;
using specdec::testing::supported_isas;
using specdec::testing::view_of;

class CpuIntLinearTest : public IntFormatTest {
 protected:
  static std::vector<double> rows_of(const std::vector<float>& x, int64_t num_k) {
    return reference::quantized_rows(x, num_k, group_of(format()));
  }
  static void expect_products(const std::vector<float>& out, const std::vector<float>& x,
                              const std::vector<float>& weights, int64_t num_k) {
    // Beside the sums of groups of kQuantGroup.
    const int64_t more_sums = num_k / group_of(format()) - num_k / kQuantGroup;
    specdec::testing::expect_products(out, rows_of(x, num_k), weights, num_k, 8.0 + more_sums);
  }
};

struct Shape {
  int64_t n, k;
};
constexpr Shape kShapes[] = {{1, 1},   {16, 2},  {17, 31},  {33, 32},   {64, 33},  {48, 64},
                             {15, 65}, {31, 96}, {20, 100}, {65, 1000}, {35, 3000}};

TEST_P(CpuIntLinearTest, ProductsMatchDoubleLoops) {
  CpuBackend backend = make_backend(2);
  for (const auto& [n, num_k] : kShapes) {
    const int64_t k = inputs(num_k);
    const auto packed = pack(backend, n, k);
    EXPECT_EQ(packed->format(), format());
    EXPECT_EQ(packed->out_features(), n);
    EXPECT_EQ(packed->in_features(), k);
    const std::vector<float> stored = unpacked(*packed);
    for (int rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 31, 33, 70}) {
      if (specdec::testing::is_left_out(rows, k)) continue;
      SCOPED_TRACE(::testing::Message() << "n " << n << " k " << k << " rows " << rows);
      const std::vector<float> x = random_values(rows * k, 2);
      expect_products(run(backend, *packed, x.data(), rows), x, stored, k);
    }
  }
}

// Kernels sum the products of a group's 4-bit codes in 16 bits, which just hold them.
TEST_P(CpuIntLinearTest, GroupsOfTheLargestCodesDoNotOverflow) {
  constexpr int64_t kN = 17;
  constexpr int64_t kK = 96;
  CpuBackend backend = make_backend(1);
  for (const int code : is_int4(format()) ? std::vector{0x00, 0xff} : std::vector{0x80, 0x7f}) {
    QuantizedMatrix weight = codes_for(format(), kN, kK, 1);
    std::ranges::fill(weight.codes, static_cast<uint8_t>(code));
    const auto packed = pack(backend, weight.view());
    const std::vector<float> stored = unpacked(*packed);
    for (int rows : {1, 3, 4, 6, 8, 17}) {
      for (const float value : {-1.0f, 1.0f}) {
        const std::vector<float> x(static_cast<size_t>(rows * kK), value);
        expect_products(run(backend, *packed, x.data(), rows), x, stored, kK);
      }
    }
  }
}

// A table of small values has kernels of its own, where products of bytes are widened. The same
// values as 8-bit codes have the same products, also where sums are the largest.
TEST(CpuIntTables, SmallValuesHaveTheProductsOfEightBitCodes) {
  constexpr int64_t kN = 37, kK = 192;
  constexpr int kMostRows = 17;
  std::vector<float> x = random_values(kMostRows * kK, 2);
  std::fill_n(x.begin(), 2 * kK, -1.0f);
  std::fill_n(x.begin() + kK, kK, 1.0f);
  for (const int8_t edge : {-15, 15}) {
    for (const bool is_uniform : {false, true}) {
      QuantizedMatrix small(kN, kK, 4, false, 1);
      for (int i = 0; i < 16; ++i) small.table.push_back(static_cast<int8_t>(i * 2 - 15));
      small.table[15] = edge;
      if (is_uniform) std::ranges::fill(small.codes, uint8_t{0xff});
      QuantizedMatrix wide(kN, kK, 8, false, 1);
      wide.scales = small.scales;
      for (size_t i = 0; i < wide.codes.size(); ++i) {
        const int code = small.codes[i / 2] >> (i % 2 * 4) & 15;
        wide.codes[i] = static_cast<uint8_t>(small.table[static_cast<size_t>(code)]);
      }
      const WeightView views[] = {small.view(), wide.view()};
      for (const Isa isa : supported_isas()) {
        CpuBackend backend(isa, 2, DType::kF32);
        const auto packed =
            backend.pack_linear({.parts = {&views[0], 1}, .format = WeightFormat::kInt4Table});
        const auto expected =
            backend.pack_linear({.parts = {&views[1], 1}, .format = WeightFormat::kInt8Grouped});
        EXPECT_EQ(unpacked(*packed), unpacked(*expected));
        for (int rows : {1, 2, 3, 4, 5, 8, kMostRows}) {
          EXPECT_EQ(run(backend, *packed, x.data(), rows), run(backend, *expected, x.data(), rows))
              << name_of(isa) << ", " << rows << " rows";
        }
      }
    }
  }
}

TEST_P(CpuIntLinearTest, PartsOfAnyKindLieInOneMatrix) {
  CpuBackend backend = make_backend(2);
  const int64_t k = 160;
  const QuantizedMatrix small(21, k, 4, false, 1);
  const QuantizedMatrix large(9, k, 8, false, 2);
  const QuantizedMatrix shifted(18, k, 4, true, 3);
  const QuantizedMatrix fine(3, k, 8, false, 6, 16);
  const QuantizedMatrix with_zeros = QuantizedMatrix(5, k, 4, false, 7, 160).add_zeros(8);
  const QuantizedMatrix with_table = QuantizedMatrix(11, k, 4, false, 9).add_table(10);
  const QuantizedMatrix of_rows = QuantizedMatrix(2, k, 8, false, 11).use_row_scales(12);
  const std::vector<float> floats = random_values(14 * k, 4);
  std::vector<WeightView> views = {small.view(),   large.view(),       shifted.view(),
                                   fine.view(),    with_zeros.view(),  with_table.view(),
                                   of_rows.view(), view_of(floats, 14)};
  if (format() == WeightFormat::kInt4GroupedZero) views = {small.view(), with_zeros.view()};
  QuantizedMatrix same_table(20, k, 4, false, 13, 160);
  same_table.table = with_table.table;
  if (format() == WeightFormat::kInt4Table) views = {with_table.view(), same_table.view()};
  const auto packed = backend.pack_linear({.parts = views, .format = format()});
  const std::vector<float> stored = unpacked(*packed);
  // Each part is stored as it would be alone.
  int64_t row = 0;
  for (const WeightView& view : views) {
    const std::vector<float> alone = unpacked(*pack(backend, view));
    ASSERT_EQ(0, std::memcmp(alone.data(), stored.data() + row * k, alone.size() * sizeof(float)));
    row += view.rows();
  }
  ASSERT_EQ(packed->out_features(), row);
  const std::vector<float> x = random_values(5 * k, 5);
  expect_products(run(backend, *packed, x.data(), 5), x, stored, k);
}

// A row alone, and the same row anywhere in batches of every size and on any number of threads.
TEST_P(CpuIntLinearTest, RowsAreBitEqualWhateverTheBatch) {
  const int64_t n = 70;
  const int64_t k = inputs(1703);
  constexpr int kRows = 70;
  const std::vector<float> x = random_values(kRows * k, 2);
  CpuBackend single = make_backend(1);
  const auto single_weight = pack(single, n, k);
  std::vector<float> alone;
  for (int row = 0; row < kRows; ++row) {
    const auto out = run(single, *single_weight, x.data() + row * k, 1);
    alone.insert(alone.end(), out.begin(), out.end());
  }
  for (int num_threads : {1, 2, 5}) {
    if (specdec::testing::few_shapes() && num_threads != 2) continue;
    CpuBackend backend = make_backend(num_threads);
    const auto packed = pack(backend, n, k);
    for (int rows = 1; rows <= kRows; ++rows) {
      if ((num_threads != 2 || specdec::testing::few_shapes()) && rows > 18 && rows % 7 != 0) {
        continue;
      }
      const int first = (rows * 7) % (kRows - rows + 1);
      const auto out = run(backend, *packed, x.data() + first * k, rows);
      ASSERT_EQ(0, std::memcmp(out.data(), alone.data() + first * n, out.size() * sizeof(float)))
          << rows << " rows from " << first << " on " << num_threads << " threads";
    }
  }
}

TEST_P(CpuIntLinearTest, LongBatchesAreBitEqualToSingleRows) {
  const int64_t n = 40;
  const int64_t k = 96;
  constexpr int kRows = 1100;
  const std::vector<float> x = random_values(kRows * k, 2);
  CpuBackend backend = make_backend(3);
  const auto packed = pack(backend, n, k);
  const auto all = run(backend, *packed, x.data(), kRows);
  for (int row : {0, 1, 127, 128, 511, 512, 700, 1099}) {
    const auto out = run(backend, *packed, x.data() + row * k, 1);
    ASSERT_EQ(0, std::memcmp(out.data(), all.data() + row * n, n * sizeof(float))) << row;
  }
}

// Steps that are fused into the preparation of rows give the bits of the separate steps.
TEST_P(CpuIntLinearTest, NormsGathersAndBfloat16RowsEqualPreparedRows) {
  CpuBackend backend = make_backend(2);
  const int64_t n = 33;
  const int64_t k = inputs(90);
  const int rows = 5;
  const auto packed = pack(backend, n, k);
  const std::vector<float> x = random_values(rows * k, 2);
  const std::vector<float> gain = random_values(k, 3);
  const std::vector<float> shift = random_values(k, 4);
  for (NormKind kind : {NormKind::kRms, NormKind::kLayer}) {
    const NormParams norm{.kind = kind, .weight = gain.data(), .bias = shift.data()};
    std::vector<float> normal(rows * k);
    backend.norm({.norm = norm,
                  .x = x.data(),
                  .out = normal.data(),
                  .num_rows = rows,
                  .dim = static_cast<int>(k)});
    std::vector<float> fused(rows * n);
    backend.linear({.weight = packed.get(),
                    .in = {.x = x.data(), .norm = &norm, .num_rows = rows},
                    .out = fused.data()});
    EXPECT_EQ(fused, run(backend, *packed, normal.data(), rows));
  }

  const std::vector<int32_t> ids = {3, 0, 3};
  std::vector<float> gathered(3 * n);
  backend.linear({.weight = packed.get(),
                  .in = {.x = x.data(), .row_ids = ids.data(), .num_rows = 3},
                  .out = gathered.data()});
  const std::vector<float> all = run(backend, *packed, x.data(), rows);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(0, std::memcmp(&gathered[i * n], &all[ids[i] * n], n * sizeof(float)));
  }

  std::vector<BFloat16> rounded;
  std::vector<float> widened;
  for (float value : x) {
    rounded.push_back(to_bfloat16(value));
    widened.push_back(to_float(rounded.back()));
  }
  CpuBackend backend_bf16 = make_backend(2, DType::kBF16);
  std::vector<float> out(rows * n);
  backend_bf16.linear({.weight = packed.get(),
                       .in = {.x = rounded.data(), .dtype = DType::kBF16, .num_rows = rows},
                       .out = out.data()});
  EXPECT_EQ(out, run(backend, *packed, widened.data(), rows));
}

TEST_P(CpuIntLinearTest, UnusualGroupsAreQuantisedSafely) {
  CpuBackend backend = make_backend(1);
  const int64_t n = 20;
  const int64_t k = 4 * kQuantGroup;
  const auto packed = pack(backend, n, k);
  const std::vector<float> stored = unpacked(*packed);
  const auto scaled = [&](std::vector<float> scales) {  // one for each group
    std::vector<float> x = random_values(k, 2);
    for (int64_t i = 0; i < k; ++i) x[i] *= scales[i / kQuantGroup];
    return x;
  };
  std::vector<std::vector<float>> rows = {scaled({0, 1, 0, 1}), scaled({0, 0, 0, 0}),
                                          scaled({1e-42f, 1e-38f, 1e-30f, 1e-20f}),
                                          scaled({1e30f, 1, 1e-3f, 1e32f})};
  rows.push_back(scaled({1, 1, 1, 1}));
  rows.back()[40] = 1e4f;  // an outlier spoils its own group only
  std::vector<float> all;
  for (const std::vector<float>& x : rows) {
    expect_products(run(backend, *packed, x.data(), 1), x, stored, k);
    all.insert(all.end(), x.begin(), x.end());
  }
  // A row with a NaN or an infinity gives NaN, and the other rows do not change.
  std::vector<float> expected = run(backend, *packed, all.data(), 5);
  for (float bad : {NAN, INFINITY, -INFINITY}) {
    std::vector<float> spoilt = all;
    spoilt[4 * k + 77] = bad;
    const std::vector<float> out = run(backend, *packed, spoilt.data(), 5);
    EXPECT_EQ(0, std::memcmp(out.data(), expected.data(), 4 * n * sizeof(float)));
    for (int64_t i = 4 * n; i < 5 * n; ++i) EXPECT_TRUE(std::isnan(out[i]));
  }
}

TEST_P(CpuIntLinearTest, GatedProductsMatchDoubleLoops) {
  CpuBackend backend = make_backend(2);
  const int64_t inner = 53;
  const int64_t k = 192;
  const int rows = 11;
  const QuantizedMatrix gate = codes_for(format(), inner, k, 1);
  const QuantizedMatrix up = codes_for(format(), inner, k, 2);
  const WeightView views[] = {gate.view(), up.view()};
  const auto packed = backend.pack_linear({.parts = views, .format = format(), .gated = true});
  const auto gate_alone = pack(backend, views[0]);
  const auto up_alone = pack(backend, views[1]);
  const std::vector<float> x = random_values(rows * k, 3);
  const std::vector<float> bias = random_values(2 * inner, 4);
  const std::vector<double> codes = rows_of(x, k);
  const std::vector<double> gates = reference::linear(codes, unpacked(*gate_alone), k);
  const std::vector<double> ups = reference::linear(codes, unpacked(*up_alone), k);
  for (const Activation activation : {Activation::kSilu, Activation::kClampedSwiglu}) {
    std::vector<float> out(rows * inner);
    backend.activated_linear({.weight = packed.get(),
                              .in = {.x = x.data(), .num_rows = rows},
                              .bias = bias.data(),
                              .activation = activation,
                              .constants = reference::kSomeConstants,
                              .gated = true,
                              .out = out.data()});
    for (size_t i = 0; i < out.size(); ++i) {
      const double gate = gates[i] + bias[i % inner];
      const double up = ups[i] + bias[inner + i % inner];
      const double expected = reference::gated(activation, reference::kSomeConstants, gate, up);
      ASSERT_NEAR(out[i], expected, 1e-4 * (1 + std::abs(gate)) * (1 + std::abs(up))) << i;
    }
  }
}

TEST_P(CpuIntLinearTest, HeadsAreTheProductsOfTheWholeMatrix) {
  CpuBackend backend = make_backend(2);
  constexpr int kHeads = 3, kKvHeads = 1, kDim = 24, kRows = 9;
  const int64_t n = (kHeads + 2 * kKvHeads) * kDim;
  const int64_t k = inputs(100);
  const auto packed = pack(backend, n, k);
  const std::vector<float> x = random_values(kRows * k, 2);
  std::vector<int32_t> positions;
  std::vector<int64_t> slots;
  for (int i = 0; i < kRows; ++i) positions.push_back(i), slots.push_back(16 + i);
  const BatchView batch{.num_requests = 1,
                        .num_rows = kRows,
                        .positions = positions.data(),
                        .slot_mapping = slots.data()};
  PagedKvView kv{.dtype = DType::kF32,
                 .num_blocks = 2,
                 .block_size = 16,
                 .num_kv_heads = kKvHeads,
                 .head_dim = kDim};
  Buffer keys = Buffer::host(backend.kv_layer_bytes(kv), "test");
  Buffer values = Buffer::host(backend.kv_layer_bytes(kv), "test");
  kv.keys = keys.data();
  kv.values = values.data();
  std::vector<float> q(kRows * kHeads * kDim);
  backend.project_qkv({.weight = packed.get(),
                       .in = {.x = x.data(), .num_rows = kRows},
                       .num_heads = kHeads,
                       .batch = &batch,
                       .kv = kv,
                       .q = q.data()});
  const std::vector<float> all = run(backend, *packed, x.data(), kRows);
  for (int row = 0; row < kRows; ++row) {
    const float* expected = all.data() + row * n;
    EXPECT_EQ(0, std::memcmp(&q[row * kHeads * kDim], expected, kHeads * kDim * sizeof(float)));
    // Values lie [block][head][slot][dim].
    EXPECT_EQ(0, std::memcmp(values.as<float>() + (16 + row) * kDim,
                             expected + (kHeads + kKvHeads) * kDim, kDim * sizeof(float)));
  }
}

INSTANTIATE_TEST_SUITE_P(KernelSets, CpuIntLinearTest, all_int_formats(), int_format_name);

// Packed weights and products have the same bits on every kernel set.
TEST(CpuIntLinear, AllKernelSetsGiveTheSameBits) {
  const int64_t n = 61;
  constexpr int64_t k = 845;
  const int rows = 11;
  std::vector<float> weight = random_values(n * k, 1);
  for (int64_t i = 0; i < n * k; i += 97) weight[i] *= 1e-5f;
  for (int64_t i = 0; i < 64; ++i) weight[5 * k + i] = i < 40 ? 0.0f : 1e-7f;
  std::vector<uint16_t> halves;
  for (int64_t i = 0; i < n * k; ++i) {
    halves.push_back(static_cast<uint16_t>((i * 2654435761u >> 7) & 0xbbff));
  }
  for (WeightFormat format : kIntFormats) {
    const QuantizedMatrix codes = codes_for(format, n, 864, 1);
    std::vector<WeightView> views = {codes.view()};
    if (!takes_codes_alone(format)) {
      views = {view_of(weight, n), {.values = {halves.data(), DType::kF16, {n, k}}}};
    }
    const std::vector<float> x = random_values(rows * views[0].in_features(), 2);
    std::vector<float> weights, products;
    for (Isa isa : supported_isas()) {
      SCOPED_TRACE(::testing::Message() << name_of(format) << " on " << name_of(isa));
      CpuBackend backend(isa, 2, DType::kF32);
      const auto packed = backend.pack_linear({.parts = views, .format = format});
      const std::vector<float> stored = unpacked(*packed);
      const std::vector<float> out = run(backend, *packed, x.data(), rows);
      if (weights.empty()) {
        weights = stored;
        products = out;
      }
      ASSERT_EQ(0, std::memcmp(stored.data(), weights.data(), stored.size() * sizeof(float)));
      ASSERT_EQ(0, std::memcmp(out.data(), products.data(), out.size() * sizeof(float)));
    }
  }
}

}  // namespace
}  // namespace specdec::cpu
