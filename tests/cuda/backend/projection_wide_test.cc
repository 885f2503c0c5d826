// Projections of many rows by wgmma, against double loops; and when a backend uses them.
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
    backend = make_backend(false);
  }

  std::unique_ptr<CudaBackend> make_backend(bool deterministic) const {
    KernelTable kernels = kernels_for(kind());
    counted_projection = kernels.projection.project_wide;
    kernels.projection.project_wide = count_projection;
    return std::make_unique<CudaBackend>(make_device(kind()), kernels, act_,
                                         CudaOptions{.deterministic = deterministic});
  }
  // Fewest outputs with which blocks of so many rows fill the device.
  int outputs_for(int num_rows, int block_rows) const {
    const int row_tiles = (num_rows + block_rows - 1) / block_rows;
    const int num_processors = backend->device().properties().num_multiprocessors;
    const int tile_blocks = (num_processors + row_tiles - 1) / row_tiles;
    return (tile_blocks - 1) * wide_tiles(block_rows) * kTileOutputs + 1;
  }
};

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
  const int dim = outputs_for(kRows, 128) + 4;
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
    const QkvShape shape = {.num_heads = outputs_for(kRows, 128) / kDim + 3,
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

TEST_P(WideProjectionTest, RunsOnlyForManyRowsWhereResultsMayDependOnThem) {
  constexpr int kK = 64, kMost = 130;
  const int num_n = outputs_for(65, 128);
  const std::vector<float> matrix = act_values(num_n * kK, 30);
  const std::vector<float> x = act_values(size_t{kMost} * kK, 31);
  for (const bool deterministic : {true, false}) {
    backend = make_backend(deterministic);
    const auto weight = pack(matrix, num_n, kK);
    const Buffer x_act = upload_act(x);
    Buffer out = allocate<float>(size_t{kMost} * num_n);
    for (const int num_rows : {1, 16, 64, 65, kMost}) {
      num_wide_projections = 0;
      backend->linear({.weight = weight.get(),
                       .in = {.x = x_act.data(), .dtype = act_, .num_rows = num_rows},
                       .out = out.as<float>()});
      EXPECT_EQ(num_wide_projections, !deterministic && num_rows > 64 ? 1 : 0)
          << num_rows << (deterministic ? " rows, deterministic" : " rows");
    }
  }
}

TEST_P(WideProjectionTest, ARowDoesNotDependOnTheOthers) {
  constexpr int kK = 160, kMost = 140;
  const int num_n = outputs_for(65, 128);
  const auto weight = pack(act_values(num_n * kK, 40), num_n, kK);
  std::vector<float> x = act_values(size_t{kMost} * kK, 41);
  const auto run = [&](int num_rows) {
    const Buffer x_act = upload_act(x);
    Buffer out = allocate<float>(size_t{kMost} * num_n);
    backend->linear({.weight = weight.get(),
                     .in = {.x = x_act.data(), .dtype = act_, .num_rows = num_rows},
                     .out = out.as<float>()});
    std::vector<uint32_t> bits = download<uint32_t>(out);
    bits.resize(size_t(num_rows) * num_n);
    return bits;
  };
  const std::vector<uint32_t> all = run(kMost);
  std::fill(x.begin() + 70 * kK, x.end(), 1000.0f);
  const std::vector<uint32_t> some = run(70);
  EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin()));
  const std::vector<uint32_t> others = run(kMost);
  EXPECT_TRUE(std::equal(some.begin(), some.end(), others.begin()));
  EXPECT_EQ(num_wide_projections, 3);
}

INSTANTIATE_TEST_SUITE_P(Devices, WideProjectionTest, all_projections(), projection_test_name);

}  // namespace
}  // namespace specdec::cuda::testing
