// Products of many rows on every way there is, chosen by a clock that is made up: results are those
// of double loops whatever was timed before.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cuda/backend/plain_product.h"
#include "cuda/gemm/gemms.h"
#include "testing/cuda_products.h"
#include "tests/cuda/gemm/plain_gemm_kernels.h"

namespace specdec::cuda::testing {
namespace {

using ::testing::Combine;
using ::testing::TestParamInfo;
using ::testing::Values;
using ::testing::ValuesIn;

// A library that refuses everything.
class BrokenGemm final : public Gemm {
 public:
  std::string name() const override { return "broken"; }
  int num_ways(Stream&, const GemmShape&) override { return 1; }
  std::string name_of(int) const override { return "broken"; }
  void run(Stream&, int, const GemmParams&) override { throw DeviceError("it does not work"); }
};

class ProductChooserTest : public ProductsTest {
 protected:
  static constexpr int kRows = 131;
  static constexpr int kK = 70;

  ProductChooserTest() { backend_ = make_backend(false); }

  std::unique_ptr<CudaBackend> make_backend(bool deterministic, bool with_broken = false) const {
    GemmList gemms = libraries();
    gemms.push_back(std::make_unique<PlainGemm>(SPECDEC_KERNELS_FOR(kind(), plain_gemm_kernels)));
    if (with_broken) gemms.push_back(std::make_unique<BrokenGemm>());
    return std::make_unique<CudaBackend>(make_device(kind()), kernels_for(kind()), act_,
                                         CudaOptions{.deterministic = deterministic},
                                         std::move(gemms));
  }
  // What a GPU has beside our own kernels.
  GemmList libraries() const {
#ifdef SPECDEC_HAS_CUDA
    if (kind() == DeviceKind::kGpu) return find_gemms(make_device(kind())->properties()).gemms;
#endif
    return {};
  }
  // In the order in which they are timed.
  std::vector<std::string> ways() const {
    std::vector<std::string> ways = {"many_rows"};
    if (backend_->device().properties().compute_capability == 90) {
      ways.insert(ways.end(), {"wide_rows 128", "wide_rows 256"});
    }
    const GemmShape shape = {
        .dtype = act_, .num_rows = kRows, .num_outputs = 32, .num_inputs = 96, .ld = 32};
    for (const std::unique_ptr<Gemm>& gemm : libraries()) {
      const int num_ways = gemm->num_ways(backend_->stream(), shape);
      for (int way = 0; way < num_ways; ++way) ways.push_back(gemm->name_of(way));
    }
    ways.push_back("plain");
    return ways;
  }
  // Runs every way when it times, and finds `way` to be the fastest.
  void prefer(const std::string& way) {
    backend_->product_chooser().set_timer(
        [this, way](Device&, Stream&, const std::string& name, const std::function<void()>& run) {
          timed_.push_back(name);
          run();
          return name == way ? 1.0 : 2.0;
        });
  }

  std::vector<std::string> timed_;
};

// [rows, outputs]
std::vector<double> products(const std::vector<float>& x, const std::vector<float>& matrix,
                             int num_k) {
  const size_t k = static_cast<size_t>(num_k);
  std::vector<double> sums;
  for (size_t row = 0; row < x.size() / k; ++row) {
    for (size_t n = 0; n < matrix.size() / k; ++n) {
      double sum = 0;
      for (size_t i = 0; i < k; ++i) sum += double{x[row * k + i]} * matrix[n * k + i];
      sums.push_back(sum);
    }
  }
  return sums;
}

TEST_P(ProductChooserTest, LinearAddsOnceWhateverIsTimed) {
  constexpr int kN = 36;
  backend_ = make_backend(false, true);
  const std::vector<float> matrix = act_values(kN * kK, 1);
  const std::vector<float> x = act_values(kRows * kK, 2);
  const std::vector<float> bias = random_values(kN, 3);
  const std::vector<float> before = random_values(kRows * kN, 4);
  const std::vector<double> sums = products(x, matrix, kK);
  const auto weight = pack(matrix, kN, kK);
  const Buffer x_act = upload(to_act(x)), bias_buffer = upload(bias);
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
      prefer(way);  // again: each case is timed
      Buffer out = upload(before);
      backend_->linear({.weight = weight.get(),
                        .in = {.x = x_act.data(), .dtype = act_, .num_rows = kRows},
                        .bias = has_bias ? bias_buffer.as<float>() : nullptr,
                        .out = out.as<float>(),
                        .accumulate = accumulate,
                        .scale = scale});
      const std::vector<float> result = download<float>(out, kRows * kN);
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

TEST_P(ProductChooserTest, ActivationsAreAppliedToSumsAndGates) {
  constexpr int kDim = 20;
  const std::vector<float> x = random_values(kRows * kK, 10);
  const std::vector<float> all = act_values(2 * kDim * kK, 11);
  const std::vector<float> bias = random_values(2 * kDim, 12);
  std::vector<float> rounded = x;
  for (float& value : rounded) value = from_bits(to_bits(value));
  const Buffer x_wide = upload(x), bias_buffer = upload(bias);
  for (const bool gated : {false, true}) {
    const int num_n = gated ? 2 * kDim : kDim;
    const std::vector<float> matrix(all.begin(), all.begin() + num_n * kK);
    const auto weight = pack(matrix, num_n, kK, gated);
    const std::vector<double> sums = products(rounded, matrix, kK);
    for (const std::string& way : ways()) {
      SCOPED_TRACE(way + (gated ? ", gated" : ""));
      prefer(way);
      Buffer out = backend_->allocate(kRows * kDim * 2, "test");
      backend_->activated_linear(
          {.weight = weight.get(),
           .in = {.x = x_wide.data(), .dtype = DType::kF32, .num_rows = kRows},
           .bias = bias_buffer.as<float>(),
           .activation = Activation::kRelu,
           .gated = gated,
           .out = out.data()});
      const std::vector<uint16_t> result = download<uint16_t>(out, kRows * kDim);
      for (int row = 0; row < kRows; ++row) {
        const auto sum = [&](int n) {
          return sums[static_cast<size_t>(row * num_n + n)] + bias[static_cast<size_t>(n)];
        };
        for (int n = 0; n < kDim; ++n) {
          const double expected = std::max(sum(n), 0.0) * (gated ? sum(kDim + n) : 1.0);
          ASSERT_NEAR(from_bits(result[static_cast<size_t>(row * kDim + n)]), expected,
                      std::abs(expected) / 256 + 1e-3)
              << "row " << row << " output " << n;
        }
      }
    }
  }
}

TEST_P(ProductChooserTest, HeadsAreNormalisedRotatedAndCached) {
  constexpr int kHeads = 3, kKvHeads = 2, kAll = kHeads + 2 * kKvHeads, kDim = 12;
  constexpr int kBlockSize = 16, kBlocks = 10, kN = kAll * kDim;
  const std::vector<float> x = act_values(kRows * kK, 20);
  const std::vector<float> matrix = act_values(kN * kK, 21);
  const std::vector<float> bias = random_values(kN, 22);
  const std::vector<float> norms = random_values(2 * kDim, 23);
  const std::vector<double> sums = products(x, matrix, kK);
  std::vector<int32_t> positions;
  std::vector<int64_t> slots;
  std::vector<float> cos, sin;
  for (int row = 0; row < kRows; ++row) {
    positions.push_back(kRows - 1 - row);
    slots.push_back(kBlockSize + (row * 7) % (kBlocks * kBlockSize - kBlockSize));
    for (int i = 0; i < kDim / 2; ++i) {
      const float angle = static_cast<float>(row) / static_cast<float>(1 + i);
      cos.push_back(std::cos(angle));
      sin.push_back(std::sin(angle));
    }
  }
  // What row `row` has for a head.
  const auto expected_head = [&](int row, int head) {
    std::vector<double> values(kDim);
    double squares = 0;
    for (int i = 0; i < kDim; ++i) {
      const int n = head * kDim + i;
      values[static_cast<size_t>(i)] =
          sums[static_cast<size_t>(row * kN + n)] + bias[static_cast<size_t>(n)];
      squares += values[static_cast<size_t>(i)] * values[static_cast<size_t>(i)];
    }
    if (head >= kHeads + kKvHeads) return values;
    const float* weight = &norms[head < kHeads ? 0 : kDim];
    for (int i = 0; i < kDim; ++i) {
      values[static_cast<size_t>(i)] *= weight[i] / std::sqrt(squares / kDim + 1e-5);
    }
    for (int i = 0; i < kDim / 2; ++i) {
      const size_t entry = static_cast<size_t>((kRows - 1 - row) * (kDim / 2) + i);
      double& a = values[static_cast<size_t>(i)];
      double& b = values[static_cast<size_t>(kDim / 2 + i)];
      const double rotated = a * cos[entry] - b * sin[entry];
      b = b * cos[entry] + a * sin[entry];
      a = rotated;
    }
    return values;
  };
  const auto weight = pack(matrix, kN, kK);
  const Buffer x_act = upload(to_act(x)), position_buffer = upload(positions),
               slot_buffer = upload(slots), cos_buffer = upload(cos), sin_buffer = upload(sin),
               norm_buffer = upload(norms), bias_buffer = upload(bias);
  const BatchView batch = {.num_rows = kRows,
                           .positions = position_buffer.as<int32_t>(),
                           .slot_mapping = slot_buffer.as<int64_t>()};
  for (const std::string& way : ways()) {
    SCOPED_TRACE(way);
    prefer(way);
    const int cache_size = kBlocks * kBlockSize * kKvHeads * kDim;
    Buffer keys = backend_->allocate(static_cast<size_t>(cache_size) * 2, "test");
    Buffer values = backend_->allocate(static_cast<size_t>(cache_size) * 2, "test");
    Buffer q = backend_->allocate(kRows * kHeads * kDim * 2, "test");
    backend_->project_qkv({.weight = weight.get(),
                           .in = {.x = x_act.data(), .dtype = act_, .num_rows = kRows},
                           .bias = bias_buffer.as<float>(),
                           .q_norm = norm_buffer.as<float>(),
                           .k_norm = norm_buffer.as<float>() + kDim,
                           .norm_eps = 1e-5f,
                           .rope_cos = cos_buffer.as<float>(),
                           .rope_sin = sin_buffer.as<float>(),
                           .rotary_dim = kDim,
                           .num_heads = kHeads,
                           .batch = &batch,
                           .kv = {.keys = keys.data(),
                                  .values = values.data(),
                                  .dtype = act_,
                                  .num_blocks = kBlocks,
                                  .block_size = kBlockSize,
                                  .num_kv_heads = kKvHeads,
                                  .head_dim = kDim},
                           .q = q.data()});
    const auto all_q = download<uint16_t>(q, kRows * kHeads * kDim);
    const auto all_keys = download<uint16_t>(keys, cache_size);
    const auto all_values = download<uint16_t>(values, cache_size);
    for (int row = 0; row < kRows; ++row) {
      for (int head = 0; head < kAll; ++head) {
        const uint16_t* place = all_q.data() + (row * kHeads + head) * kDim;
        if (head >= kHeads) {
          const bool is_value = head >= kHeads + kKvHeads;
          const int64_t slot = slots[static_cast<size_t>(row)];
          const int64_t token =
              (slot / kBlockSize * kKvHeads + (head - kHeads) % kKvHeads) * kBlockSize +
              slot % kBlockSize;
          place = (is_value ? all_values : all_keys).data() + token * kDim;
        }
        const std::vector<double> expected = expected_head(row, head);
        for (int i = 0; i < kDim; ++i) {
          const double value = expected[static_cast<size_t>(i)];
          ASSERT_NEAR(from_bits(place[i]), value, std::abs(value) / 256 + 1e-3)
              << "row " << row << " head " << head << " element " << i;
        }
      }
    }
  }
}

TEST_P(ProductChooserTest, CapturedWorkRunsWhatWasChosenBefore) {
  constexpr int kN = 20;
  const std::vector<float> matrix = act_values(kN * kK, 30);
  const std::vector<float> x = act_values(kRows * kK, 31);
  const std::vector<double> sums = products(x, matrix, kK);
  const auto weight = pack(matrix, kN, kK);
  const Buffer x_act = upload(to_act(x));
  Buffer out = upload(std::vector<float>(kRows * kN));
  const auto run = [&] {
    backend_->linear({.weight = weight.get(),
                      .in = {.x = x_act.data(), .dtype = act_, .num_rows = kRows},
                      .out = out.as<float>()});
  };
  const auto nodes_captured = [&] {
    backend_->stream().begin_capture();
    run();
    const std::unique_ptr<Graph> graph = backend_->stream().end_capture();
    backend_->stream().fill(out.data(), 0xff, out.size_bytes());
    backend_->stream().launch(*graph);
    const std::vector<float> result = download<float>(out, kRows * kN);
    for (size_t i = 0; i < result.size(); ++i) EXPECT_NEAR(result[i], sums[i], 2e-4) << i;
    return graph->num_nodes();
  };
  run();  // without a timer: takes what memory the default needs
  prefer("plain");
  const int untimed_nodes = nodes_captured();
  EXPECT_TRUE(timed_.empty());
  run();
  EXPECT_FALSE(timed_.empty());
  timed_.clear();
  EXPECT_EQ(nodes_captured(), untimed_nodes + 1) << "weights are unpacked first";
  EXPECT_TRUE(timed_.empty());
}

TEST_P(ProductChooserTest, NothingIsTimedWhereResultsMayNotDependOnIt) {
  constexpr int kN = 20;
  const std::vector<float> matrix = act_values(kN * kK, 40);
  const std::vector<float> x = act_values(kRows * kK, 41);
  for (const bool deterministic : {true, false}) {
    backend_ = make_backend(deterministic);
    prefer("plain");
    const auto weight = pack(matrix, kN, kK);
    const Buffer x_act = upload(to_act(x));
    Buffer out = upload(std::vector<float>(kRows * kN));
    for (const int num_rows : {64, kRows}) {
      timed_.clear();
      backend_->linear({.weight = weight.get(),
                        .in = {.x = x_act.data(), .dtype = act_, .num_rows = num_rows},
                        .out = out.as<float>()});
      EXPECT_EQ(timed_.empty(), deterministic || num_rows == 64) << num_rows;
    }
    backend_->stream().synchronize();
  }
}

TEST_P(ProductChooserTest, ARehearsalTakesTheMemoryOfAllThatIsTried) {
  constexpr int kN = 20;
  const auto weight = pack(act_values(kN * kK, 45), kN, kK);
  const Buffer x_act = upload(to_act(act_values(kRows * kK, 46)));
  Buffer out = upload(std::vector<float>(kRows * kN));
  prefer("plain");
  const auto run = [&] {
    backend_->linear({.weight = weight.get(),
                      .in = {.x = x_act.data(), .dtype = act_, .num_rows = kRows},
                      .out = out.as<float>(),
                      .accumulate = true});
  };
  const int64_t at_first = backend_->memory().free_bytes;
  backend_->rehearse(run);
  EXPECT_TRUE(timed_.empty());
  const int64_t rehearsed = backend_->memory().free_bytes;
  EXPECT_LT(rehearsed, at_first);
  run();
  EXPECT_FALSE(timed_.empty());
  EXPECT_EQ(backend_->memory().free_bytes, rehearsed);
  backend_->stream().synchronize();
}

TEST_P(ProductChooserTest, PiecesOfWeightsTogetherAreTheProduct) {
  // 40 tiles are pieces of 16, 16 and 8.
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
  const Buffer records = upload(to_act(padded)), bias_buffer = upload(bias);
  const ProjectionKernels kernels = kernels_for(kind()).projection;
  PlainProduct product(backend_->device(), backend_->stream(), kernels, 1);
  PlainGemm gemm(SPECDEC_KERNELS_FOR(kind(), plain_gemm_kernels));
  for (const bool has_bias : {false, true}) {
    Buffer out = upload(std::vector<float>(static_cast<size_t>(kRows) * kN));
    const auto& packed = static_cast<const CudaPackedLinear&>(*weight);
    product.run(gemm, 0,
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
                 .plan = {}});
    const std::vector<float> result = download<float>(out, kRows * kN);
    for (size_t i = 0; i < result.size(); ++i) {
      ASSERT_NEAR(result[i], sums[i] + (has_bias ? bias[i % kN] : 0.0f), 2e-4)
          << "row " << i / kN << " output " << i % kN;
    }
  }
}

std::string param_name(const TestParamInfo<std::tuple<DeviceKind, DType>>& info) {
  return name_of(std::get<0>(info.param)) + "_" +
         std::string(specdec::name_of(std::get<1>(info.param)));
}

INSTANTIATE_TEST_SUITE_P(Devices, ProductChooserTest,
                         Combine(ValuesIn(device_kinds()), Values(DType::kBF16, DType::kF16)),
                         param_name);

}  // namespace
}  // namespace specdec::cuda::testing
