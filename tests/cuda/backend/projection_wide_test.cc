// Projections of many rows by wgmma: the bits of the other kernels, double loops, and when a
// backend uses them.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "testing/cuda_projections.h"
#include "testing/cuda_qkv.h"

namespace specdec::cuda::testing {
namespace {

// Calls of project_wide. Global, because KernelTable has plain function pointers.
int num_wide_projections = 0;
void (*counted_projection)(Stream& stream, const ProjectionParams& params) = nullptr;
void count_projection(Stream& stream, const ProjectionParams& params) {
  ++num_wide_projections;
  counted_projection(stream, params);
}

class WideProjectionTest : public ProjectionFixture {
 protected:
  void SetUp() override {
    if (make_device(kind())->properties().compute_capability != 90) {
      GTEST_SKIP() << "compute capability 9.0";
    }
    num_wide_projections = 0;
    KernelTable kernels = kernels_for(kind());
    counted_projection = kernels.projection.project_wide;
    kernels.projection.project_wide = count_projection;
    backend = std::make_unique<CudaBackend>(make_device(kind()), kernels, act_, CudaOptions{});
    backend->device().set_launch_settings({.wide_rows = true});
  }
};

TEST_P(WideProjectionTest, LinearEqualsADoubleLoop) {
  struct Case {
    int num_rows, num_k, num_n;
  };
  const Case cases[] = {{65, 96, 130}, {128, 75, 16}, {129, 1100, 257}, {257, 33, 40}};
  uint32_t seed = 1;
  for (const auto& [num_rows, num_k, num_n] : cases) {
    SCOPED_TRACE(::testing::Message() << num_rows << " rows, " << num_n << "x" << num_k);
    const std::vector<float> matrix = act_values(num_n * num_k, seed++);
    const std::vector<float> x = act_values(num_rows * num_k, seed++);
    const std::vector<float> bias = random_values(num_n, seed++);
    const std::vector<float> before = random_values(num_rows * num_n, seed++);
    const std::vector<double> sums = products(x, matrix, num_k);
    const auto weight = pack(matrix, num_n, num_k);
    const Buffer bias_buffer = upload(bias);
    const Buffer x_act = upload_act(x);
    for (const bool accumulate : {false, true}) {
      Buffer out = upload(before);
      num_wide_projections = 0;
      backend->linear({.weight = weight.get(),
                       .in = {.x = x_act.data(), .dtype = act_, .num_rows = num_rows},
                       .bias = accumulate ? nullptr : bias_buffer.as<float>(),
                       .out = out.as<float>(),
                       .accumulate = accumulate});
      EXPECT_EQ(num_wide_projections, 1);
      const std::vector<float> result = download<float>(out);
      for (size_t i = 0; i < result.size(); ++i) {
        const double expected = sums[i] + (accumulate ? before[i] : bias[i % bias.size()]);
        ASSERT_NEAR(result[i], expected, 2e-4)
            << "row " << i / bias.size() << " output " << i % bias.size();
      }
    }
  }
}

TEST_P(WideProjectionTest, ActivationsAreAppliedToSumsAndGates) {
  constexpr int kRows = 129, kK = 70;
  constexpr int dim = 132;
  const std::vector<float> x = random_values(kRows * kK, 10);
  const std::vector<float> matrix = act_values(2 * dim * kK, 11);
  const std::vector<float> bias = random_values(2 * dim, 12);
  const Buffer x_wide = upload(x);
  const Buffer bias_buffer = upload(bias);
  for (const bool gated : {false, true}) {
    const int num_n = gated ? 2 * dim : dim;
    const std::vector<float> used(matrix.begin(), matrix.begin() + num_n * kK);
    const auto weight = pack(used, num_n, kK, gated);
    Buffer out = allocate<uint16_t>(kRows * dim);
    num_wide_projections = 0;
    backend->activated_linear({.weight = weight.get(),
                               .in = {.x = x_wide.data(), .dtype = DType::kF32, .num_rows = kRows},
                               .bias = bias_buffer.as<float>(),
                               .activation = Activation::kXielu,
                               .constants = reference::kSomeConstants,
                               .gated = gated,
                               .out = out.data()});
    EXPECT_EQ(num_wide_projections, 1);
    expect_activated(download<uint16_t>(out), products(rounded(x, act_), used, kK), bias,
                     Activation::kXielu, gated);
  }
}

TEST_P(WideProjectionTest, HeadsAreRotatedAndCached) {
  constexpr int kRows = 200, kK = 64, kDim = 24;
  for (const int num_kv_heads : {2, 0}) {
    const QkvShape shape = {.num_heads = 7,
                            .num_kv_heads = num_kv_heads,
                            .head_dim = kDim,
                            .rotary_dim = kDim,
                            .has_norms = true,
                            .norm_after_rope = true,
                            .has_value_norms = true,
                            .has_query_scales = true};
    const QkvWorld world(shape, act_, kRows, kK);
    const auto weight = pack(world.matrix(), shape.num_outputs(), kK);
    for (int run = 0; run < 2; ++run) {  // counters of heads start at zero again
      num_wide_projections = 0;
      world.expect_matches(world.run(*this, *weight, kRows));
      EXPECT_EQ(num_wide_projections, 1);
    }
  }
}

TEST_P(WideProjectionTest, ManyRowsHaveTheBitsOfFewOnes) {
  constexpr int kK = 1100, kN = 72, kMost = 140;
  const auto weight = pack(act_values(kN * kK, 40), kN, kK);
  std::vector<float> x = act_values(size_t{kMost} * kK, 41);
  const auto run = [&](int num_rows) {
    const Buffer x_act = upload_act(x);
    Buffer out = allocate<float>(size_t{kMost} * kN);
    num_wide_projections = 0;
    backend->linear({.weight = weight.get(),
                     .in = {.x = x_act.data(), .dtype = act_, .num_rows = num_rows},
                     .out = out.as<float>()});
    EXPECT_EQ(num_wide_projections, num_rows > 64 ? 1 : 0) << num_rows;
    std::vector<uint32_t> bits = download<uint32_t>(out);
    bits.resize(size_t(num_rows) * kN);
    return bits;
  };
  const std::vector<uint32_t> all = run(kMost);
  std::fill(x.begin() + 70 * kK, x.end(), 1000.0f);
  const std::vector<uint32_t> others = run(kMost);
  EXPECT_TRUE(std::equal(all.begin(), all.begin() + 70 * kN, others.begin()));
  for (const int num_rows : {1, 16, 64, 65, 70}) {
    const std::vector<uint32_t> some = run(num_rows);
    EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin())) << num_rows;
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, WideProjectionTest, all_projections(), projection_test_name);

class WideTilingTest : public CudaDeviceTest {};

TEST_P(WideTilingTest, EveryTilingHasTheBitsOfTheOtherKernels) {
  if (device().properties().compute_capability != 90) GTEST_SKIP() << "compute capability 9.0";
  struct Case {
    int num_rows, num_k_blocks, num_n;
    SliceRun run = {};
    FinishParams finish = {.heads = {}};
  };
  const Buffer bias_buffer = upload(random_values(256, 99));
  const auto* bias = bias_buffer.as<float>();
  const Case cases[] = {
      {.num_rows = 150, .num_k_blocks = 53, .num_n = 200},
      {.num_rows = 16,
       .num_k_blocks = 64,
       .num_n = 120,
       .finish = {.accumulate = true, .heads = {}}},
      {.num_rows = 140,
       .num_k_blocks = 16,
       .num_n = 140,
       .finish = {.bias = bias, .accumulate = true, .scale = 0.7f, .heads = {}}},
      {.num_rows = 9,
       .num_k_blocks = 16,
       .num_n = 60,
       .finish = {.bias = bias, .soft_cap = 20.0f, .heads = {}}},
      {.num_rows = 135,
       .num_k_blocks = 17,
       .num_n = 148,
       .finish = {.kind = Finish::kActivateGated,
                  .bias = bias,
                  .activation = Activation::kSilu,
                  .heads = {}}},
      {.num_rows = 11,
       .num_k_blocks = 17,
       .num_n = 150,
       .finish = {.kind = Finish::kActivateGated, .activation = Activation::kGelu, .heads = {}}},
      {.num_rows = 30,
       .num_k_blocks = 24,
       .num_n = 36,
       .finish = {.kind = Finish::kActivate, .activation = Activation::kSilu, .heads = {}}},
      {.num_rows = 7, .num_k_blocks = 3, .num_n = 130},  // empty slices
      {.num_rows = 70, .num_k_blocks = 27, .num_n = 40, .run = {0, 4}},
      {.num_rows = 130, .num_k_blocks = 19, .num_n = 136, .run = {2, 3}},
      {.num_rows = 20, .num_k_blocks = 30, .num_n = 33, .run = {5, 3}}};
  uint32_t seed = 1;
  for (const Case& each : cases) {
    const int num_k = each.num_k_blocks * kBlockInputs;
    const int num_tiles = (each.num_n + kTileOutputs - 1) / kTileOutputs;
    const Buffer source = upload(random_values(each.num_n * num_k, seed++));
    Buffer packed = allocate<uint16_t>(int64_t{num_tiles} * kTileOutputs * num_k);
    kernels().projection.pack(stream(), {.source = source.data(),
                                         .num_rows = each.num_n,
                                         .out_features = each.num_n,
                                         .in_features = num_k,
                                         .packed = packed.data()});
    const Buffer x = upload(to_bits(random_values(each.num_rows * num_k, seed++), DType::kBF16));
    SliceParams slices = {.fold_order = fold_order_of(each.run)};
    const int num_slices = slices.fold_order.num_entries;
    for (int i = 0; i <= num_slices; ++i) slices.bounds[i] = each.num_k_blocks * i / num_slices;
    const int64_t plane = int64_t{each.num_rows} * each.num_n;
    const std::vector<float> before = random_values(plane * slices.fold_order.num_left, seed++);
    Buffer partials = allocate<float>(2 * 2 * kNumSlices * partial_floats(kWideRows / 8));
    Buffer arrivals = allocate<uint32_t>(64);
    const auto run = [&](const ProjectionTiling& tiling) {
      Buffer out = upload(before);
      FinishParams finish = each.finish;
      finish.out_features = each.num_n;
      finish.out = out.data();
      finish.plane_stride = plane;
      const auto project = tiling.wide_splits != 0 ? kernels().projection.project_wide
                                                   : kernels().projection.project;
      project(stream(), {.weights = packed.data(),
                         .num_tiles = num_tiles,
                         .num_k_blocks = each.num_k_blocks,
                         .slices = slices,
                         .rows = {.num_rows = each.num_rows, .dim = num_k},
                         .records = x.data(),
                         .finish = finish,
                         .tiling = tiling,
                         .partials = partials.as<float>(),
                         .partial_arrivals = arrivals.as<uint32_t>()});
      return download<uint32_t>(out);
    };
    const std::vector<uint32_t> expected = run({});
    if (each.num_rows <= kFewRows) {
      EXPECT_EQ(run({.few_rows = true}), expected);
    }
    for (const int splits : {1, 2, 4, 8}) {
      if (splits > 1 && !slices.fold_order.is_whole()) break;
      for (const int num_blocks : {1, 3, 20}) {
        EXPECT_EQ(run({.num_blocks = num_blocks, .wide_splits = splits}), expected)
            << each.num_rows << " rows, " << splits << " splits, " << num_blocks << " blocks";
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, WideTilingTest, ::testing::ValuesIn(device_kinds()), test_name);

}  // namespace
}  // namespace specdec::cuda::testing
