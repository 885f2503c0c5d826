// Projections of many rows by every way, chosen by a fake clock: results equal double loops,
// whichever way was timed before.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cuda/backend/unpacked_gemm.h"
#include "cuda/gemm/gemms.h"
#include "testing/cuda_projections.h"
#include "testing/cuda_qkv.h"
#include "tests/cuda/gemm/plain_gemm_kernels.h"

namespace specdec::cuda::testing {
namespace {

// A library that refuses every product.
class BrokenGemm final : public Gemm {
 public:
  std::string name() const override { return "broken"; }
  int num_ways(Stream&, const GemmShape&) override { return 1; }
  std::string name_of(int) const override { return "broken"; }
  void run(Stream&, int, const GemmParams&) override { throw DeviceError("it does not work"); }
};

class ProjectionChooserTest : public ProjectionFixture {
 protected:
  static constexpr int kRows = 131;
  static constexpr int kK = 70;

  ProjectionChooserTest() { backend = make_backend(false); }

  std::unique_ptr<CudaBackend> make_backend(bool deterministic, bool with_broken = false) const {
    GemmList gemms = libraries();
    gemms.push_back(std::make_unique<PlainGemm>(SPECDEC_KERNELS_FOR(kind(), plain_gemm_kernels)));
    if (with_broken) gemms.push_back(std::make_unique<BrokenGemm>());
    std::unique_ptr<Device> device = make_device(kind());
    device->set_launch_settings({.wide_rows = true});
    return std::make_unique<CudaBackend>(std::move(device), kernels_for(kind()), act_,
                                         CudaOptions{.deterministic = deterministic},
                                         std::move(gemms));
  }
  // The GPU's libraries beside our own kernels.
  GemmList libraries() const {
#ifdef SPECDEC_HAS_CUDA
    if (kind() == DeviceKind::kGpu) return find_gemms(make_device(kind())->properties()).gemms;
#endif
    return {};
  }
  // All ways, in the order of timing.
  std::vector<std::string> ways() const {
    std::vector<std::string> ways = {"many_rows"};
    if (backend->device().properties().compute_capability == 90) {
      ways.push_back("wide_rows");
    }
    const GemmShape shape = {
        .dtype = act_, .num_rows = kRows, .num_outputs = 32, .num_inputs = 96, .ld = 32};
    for (const std::unique_ptr<Gemm>& gemm : libraries()) {
      const int num_ways = gemm->num_ways(backend->stream(), shape);
      for (int way = 0; way < num_ways; ++way) ways.push_back(gemm->name_of(way));
    }
    ways.push_back("plain");
    return ways;
  }
  // When timed, every way runs, and `way` is the fastest.
  void prefer(const std::string& way) {
    backend->projection_chooser().set_timer(
        [this, way](Device&, Stream&, const std::string& name, const std::function<void()>& run) {
          timed_.push_back(name);
          run();
          return name == way ? 1.0 : 2.0;
        });
  }

  std::vector<std::string> timed_;
};

TEST_P(ProjectionChooserTest, LinearAddsOnceWhateverIsTimed) {
  constexpr int kN = 36;
  backend = make_backend(false, true);
  const std::vector<float> matrix = act_values(kN * kK, 1);
  const std::vector<float> x = act_values(kRows * kK, 2);
  const std::vector<float> bias = random_values(kN, 3);
  const std::vector<float> before = random_values(kRows * kN, 4);
  const std::vector<double> sums = products(x, matrix, kK);
  const auto weight = pack(matrix, kN, kK);
  const Buffer x_act = upload_act(x), bias_buffer = upload(bias);
  for (const std::string& way : ways()) {
    SCOPED_TRACE(way);
    struct Case {
      bool has_bias, accumulate;
      float scale = 1.0f;
    };
    for (const auto& [has_bias, accumulate, scale] :
         {Case{false, false}, Case{false, true}, Case{true, false}, Case{true, true},
          Case{false, true, 0.5f}}) {
      SCOPED_TRACE(::testing::Message() << has_bias << accumulate);
      prefer(way);  // each case is timed again
      Buffer out = upload(before);
      backend->linear({.weight = weight.get(),
                       .in = {.x = x_act.data(), .dtype = act_, .num_rows = kRows},
                       .bias = has_bias ? bias_buffer.as<float>() : nullptr,
                       .out = out.as<float>(),
                       .accumulate = accumulate,
                       .scale = scale});
      const std::vector<float> result = download<float>(out);
      for (size_t i = 0; i < result.size(); ++i) {
        const double expected =
            scale * sums[i] + (has_bias ? bias[i % kN] : 0.0f) + (accumulate ? before[i] : 0.0f);
        ASSERT_NEAR(result[i], expected, 2e-4) << "row " << i / kN << " output " << i % kN;
      }
    }
  }
  const std::set<std::string> timed(timed_.begin(), timed_.end());
  EXPECT_TRUE(timed.contains("broken"));
  EXPECT_TRUE(timed.contains("plain"));
  for (const auto& gemm : libraries()) EXPECT_TRUE(timed.contains(gemm->name_of(0)));
}

TEST_P(ProjectionChooserTest, ActivationsAreAppliedToSumsAndGates) {
  constexpr int kDim = 20;
  const std::vector<float> x = random_values(kRows * kK, 10);
  const std::vector<float> all = act_values(2 * kDim * kK, 11);
  const std::vector<float> bias = random_values(2 * kDim, 12);
  const Buffer x_wide = upload(x), bias_buffer = upload(bias);
  for (const bool gated : {false, true}) {
    const int num_n = gated ? 2 * kDim : kDim;
    const std::vector<float> matrix(all.begin(), all.begin() + num_n * kK);
    const auto weight = pack(matrix, num_n, kK, gated);
    const std::vector<double> sums = products(rounded(x, act_), matrix, kK);
    for (const std::string& way : ways()) {
      SCOPED_TRACE(way + (gated ? ", gated" : ""));
      prefer(way);
      Buffer out = allocate<uint16_t>(kRows * kDim);
      backend->activated_linear(
          {.weight = weight.get(),
           .in = {.x = x_wide.data(), .dtype = DType::kF32, .num_rows = kRows},
           .bias = bias_buffer.as<float>(),
           .activation = Activation::kXielu,
           .constants = reference::kSomeConstants,
           .gated = gated,
           .out = out.data()});
      expect_activated(download<uint16_t>(out), sums, bias, Activation::kXielu, gated);
    }
  }
}

TEST_P(ProjectionChooserTest, HeadsAreNormalisedRotatedAndCached) {
  for (const int num_kv_heads : {2, 0}) {
    const QkvShape shape = {.num_heads = 3,
                            .num_kv_heads = num_kv_heads,
                            .head_dim = 12,
                            .rotary_dim = 12,
                            .has_norms = true,
                            .has_value_norms = true,
                            .has_bias = true};
    const QkvWorld world(shape, act_, kRows, kK);
    const auto weight = pack(world.matrix(), shape.num_outputs(), kK);
    for (const std::string& way : ways()) {
      SCOPED_TRACE(way);
      prefer(way);
      world.expect_matches(world.run(*this, *weight, kRows));
    }
  }
}

TEST_P(ProjectionChooserTest, CapturedWorkRunsWhatWasChosenBefore) {
  constexpr int kN = 20;
  const std::vector<float> matrix = act_values(kN * kK, 30);
  const std::vector<float> x = act_values(kRows * kK, 31);
  const std::vector<double> sums = products(x, matrix, kK);
  const auto weight = pack(matrix, kN, kK);
  const Buffer x_act = upload_act(x);
  Buffer out = upload(std::vector<float>(kRows * kN));
  const auto run = [&] {
    backend->linear({.weight = weight.get(),
                     .in = {.x = x_act.data(), .dtype = act_, .num_rows = kRows},
                     .out = out.as<float>()});
  };
  const auto nodes_captured = [&] {
    backend->stream().begin_capture();
    run();
    const std::unique_ptr<Graph> graph = backend->stream().end_capture();
    backend->stream().fill(out.data(), 0xff, out.size_bytes());
    backend->stream().launch(*graph);
    const std::vector<float> result = download<float>(out);
    for (size_t i = 0; i < result.size(); ++i) EXPECT_NEAR(result[i], sums[i], 2e-4) << i;
    return graph->num_nodes();
  };
  run();  // without a timer: allocates the default way's memory
  prefer("plain");
  const int untimed_nodes = nodes_captured();
  EXPECT_TRUE(timed_.empty());
  run();
  EXPECT_FALSE(timed_.empty());
  timed_.clear();
  EXPECT_EQ(nodes_captured(), untimed_nodes + 1) << "weights are unpacked first";
  EXPECT_TRUE(timed_.empty());
}

TEST_P(ProjectionChooserTest, NothingIsTimedWhereResultsMayNotDependOnIt) {
  constexpr int kN = 20;
  const std::vector<float> matrix = act_values(kN * kK, 40);
  const std::vector<float> x = act_values(kRows * kK, 41);
  for (const bool deterministic : {true, false}) {
    backend = make_backend(deterministic);
    prefer("plain");
    const auto weight = pack(matrix, kN, kK);
    const Buffer x_act = upload_act(x);
    Buffer out = upload(std::vector<float>(kRows * kN));
    for (const int num_rows : {64, kRows}) {
      timed_.clear();
      backend->linear({.weight = weight.get(),
                       .in = {.x = x_act.data(), .dtype = act_, .num_rows = num_rows},
                       .out = out.as<float>()});
      EXPECT_EQ(timed_.empty(), deterministic || num_rows == 64) << num_rows;
    }
    backend->stream().synchronize();
  }
}

TEST_P(ProjectionChooserTest, ARehearsalTakesTheMemoryOfAllThatIsTried) {
  constexpr int kN = 20;
  const auto weight = pack(act_values(kN * kK, 45), kN, kK);
  const Buffer x_act = upload_act(act_values(kRows * kK, 46));
  Buffer out = upload(std::vector<float>(kRows * kN));
  prefer("plain");
  const auto run = [&] {
    backend->linear({.weight = weight.get(),
                     .in = {.x = x_act.data(), .dtype = act_, .num_rows = kRows},
                     .out = out.as<float>(),
                     .accumulate = true});
  };
  const int64_t at_first = backend->memory().free_bytes;
  backend->rehearse(run);
  EXPECT_TRUE(timed_.empty());
  const int64_t rehearsed = backend->memory().free_bytes;
  run();
  EXPECT_FALSE(timed_.empty());
  if (kind() != DeviceKind::kGpu) {  // other processes take and free a GPU's memory, too
    EXPECT_LT(rehearsed, at_first);
    EXPECT_EQ(backend->memory().free_bytes, rehearsed);
  }
  backend->stream().synchronize();
}

TEST_P(ProjectionChooserTest, PiecesOfWeightsTogetherAreTheProduct) {
  // 40 tiles: pieces of 16, 16 and 8.
  constexpr int kN = 40 * kTileOutputs - 4, kBlocks = (kK + kBlockInputs - 1) / kBlockInputs;
  const std::vector<float> matrix = act_values(int64_t{kN} * kK, 50);
  const std::vector<float> x = act_values(kRows * kK, 51);
  const std::vector<float> bias = random_values(kN, 52);
  const std::vector<double> sums = products(x, matrix, kK);
  const auto weight = pack(matrix, kN, kK);
  std::vector<float> padded(size_t{kRows} * kBlocks * kBlockInputs);
  for (int row = 0; row < kRows; ++row) {
    std::copy_n(x.begin() + row * kK, kK, padded.begin() + row * kBlocks * kBlockInputs);
  }
  const Buffer records = upload_act(padded), bias_buffer = upload(bias);
  const ProjectionKernels kernels = kernels_for(kind()).projection;
  UnpackedGemm unpacked(backend->device(), backend->stream(), kernels, 1);
  PlainGemm gemm(SPECDEC_KERNELS_FOR(kind(), plain_gemm_kernels));
  for (const bool has_bias : {false, true}) {
    Buffer out = upload(std::vector<float>(static_cast<size_t>(kRows) * kN));
    const auto& packed = static_cast<const CudaPackedLinear&>(*weight);
    unpacked.run(gemm, 0,
                 {.act_dtype = act_,
                  .weights = packed.data(),
                  .num_tiles = packed.num_tiles(),
                  .num_k_blocks = packed.num_k_blocks(),
                  .rows = {.num_rows = kRows},
                  .records = records.data(),
                  .finish = {.bias = has_bias ? bias_buffer.as<float>() : nullptr,
                             .out_features = kN,
                             .out = out.data(),
                             .heads = {}},
                  .tiling = {}});
    const std::vector<float> result = download<float>(out);
    for (size_t i = 0; i < result.size(); ++i) {
      ASSERT_NEAR(result[i], sums[i] + (has_bias ? bias[i % kN] : 0.0f), 2e-4)
          << "row " << i / kN << " output " << i % kN;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, ProjectionChooserTest, all_projections(), projection_test_name);

}  // namespace
}  // namespace specdec::cuda::testing
