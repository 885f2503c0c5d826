#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "cpu/cpu_backend.h"
#include "testing/cpu_isas.h"
#include "testing/oracle/operations.h"
#include "testing/quantized_matrix.h"
#include "testing/routers.h"
#include "testing/values.h"

namespace specdec {
namespace {

constexpr int kHidden = 48;
constexpr int kInner = 80;

class CpuMoe : public ::testing::TestWithParam<testing::IsaAndDType> {
 protected:
  DType dtype() const { return std::get<1>(GetParam()); }

  void make_experts(int num_experts) {
    std::mt19937_64 random(5);
    gate_up_values_.clear();
    down_values_.clear();
    gate_up_.clear();
    down_.clear();
    for (int expert = 0; expert < num_experts; ++expert) {
      gate_up_values_.push_back(act_values(random, 2 * kInner * kHidden, 0.2f));
      down_values_.push_back(act_values(random, kHidden * kInner, 0.2f));
      const float* gate = gate_up_values_.back().data();
      const WeightView gate_up[] = {
          {.values = {gate, DType::kF32, {kInner, kHidden}}},
          {.values = {gate + kInner * kHidden, DType::kF32, {kInner, kHidden}}}};
      const WeightView down = {
          .values = {down_values_.back().data(), DType::kF32, {kHidden, kInner}}};
      owned_.push_back(backend_.pack_linear({.parts = gate_up, .gated = true}));
      gate_up_.push_back(owned_.back().get());
      owned_.push_back(backend_.pack_linear({.parts = {&down, 1}}));
      down_.push_back(owned_.back().get());
    }
  }
  // Values the dtype can represent, so that storing them changes nothing.
  std::vector<float> act_values(std::mt19937_64& random, int64_t count, float scale) {
    return testing::rounded(testing::random_values(random, count, scale), dtype());
  }
  std::vector<uint8_t> as_act(const std::vector<float>& values) {
    std::vector<uint8_t> bytes(values.size() * size_of(dtype()));
    for (size_t i = 0; i < values.size(); ++i) {
      if (dtype() == DType::kF32) {
        reinterpret_cast<float*>(bytes.data())[i] = values[i];
      } else {
        reinterpret_cast<BFloat16*>(bytes.data())[i] = to_bfloat16(values[i]);
      }
    }
    return bytes;
  }
  MoeArgs make_args(const std::vector<float>& logits, const std::vector<uint8_t>& x,
                    const Router& router, int num_rows) {
    return {.router_logits = logits.data(),
            .router = router,
            .x = x.data(),
            .gate_up = gate_up_,
            .down = down_,
            .num_rows = num_rows};
  }
  // What gpt-oss's experts have.
  void add_biases_and_limits(MoeArgs& args) {
    if (gate_up_bias_.empty()) {
      gate_up_bias_ = testing::random_values(std::ssize(gate_up_) * 2 * kInner, 21, 0.5f);
      down_bias_ = testing::random_values(std::ssize(gate_up_) * kHidden, 22);
    }
    args.gate_up_bias = gate_up_bias_.data();
    args.down_bias = down_bias_.data();
    args.activation = Activation::kClampedSwiglu;
    args.constants = {.alpha = 1.702f, .limit = 0.6f};
  }

  cpu::CpuBackend backend_{std::get<0>(GetParam()), 2, std::get<1>(GetParam())};
  std::vector<std::vector<float>> gate_up_values_, down_values_;
  std::vector<float> gate_up_bias_, down_bias_;
  std::vector<std::unique_ptr<PackedLinear>> owned_;
  std::vector<const PackedLinear*> gate_up_, down_;
};

TEST_P(CpuMoe, MatchesReferenceAndAddsToTheResidualOrOverwritesIt) {
  make_experts(6);
  std::mt19937_64 random(6);
  for (int top_k : {1, 2, 6}) {
    for (const auto& [has_biases, accumulate] :
         {std::pair{false, true}, {true, true}, {false, false}}) {
      const int num_rows = 23;
      const std::vector<float> logits = act_values(random, num_rows * 6, 2.0f);
      const std::vector<uint8_t> x = as_act(act_values(random, num_rows * kHidden, 1.0f));
      MoeArgs args = make_args(logits, x, {.top_k = top_k, .renormalize = top_k == 2}, num_rows);
      if (has_biases) add_biases_and_limits(args);
      const std::vector<double> expected =
          reference::moe(args, gate_up_values_, down_values_, kHidden, dtype());
      const std::vector<float> residual = accumulate ? act_values(random, num_rows * kHidden, 1.0f)
                                                     : std::vector<float>(num_rows * kHidden, 0.0f);
      std::vector<float> out = accumulate ? residual : std::vector<float>(residual.size(), NAN);
      args.out = out.data();
      args.accumulate = accumulate;
      backend_.moe(args);
      // In bfloat16 each of the kInner activations is rounded: errors of 2^-9 add up at random.
      const double tolerance = dtype() == DType::kBF16 ? 0.05 : 2e-5;
      for (size_t i = 0; i < out.size(); ++i) {
        ASSERT_NEAR(out[i], residual[i] + expected[i], tolerance) << i << ", top " << top_k;
      }
    }
  }
}

TEST_P(CpuMoe, RoutersMatchReference) {
  for (const int num_experts : {8, 40}) {
    make_experts(num_experts);
    const testing::RouterWorld world(num_experts, kHidden);
    const int num_rows = testing::RouterWorld::kRows;
    const std::vector<float> down_bias = world.down_bias();
    const std::vector<uint8_t> zeros(num_rows * kHidden * size_of(dtype()), 0);
    std::vector<float> scales = testing::random_values(num_experts, 4, 0.5f);
    for (float& scale : scales) scale = std::exp(scale);
    std::vector<Router> routers = world.routers();
    routers.push_back({.top_k = 3, .scale = 0.5f, .expert_scales = scales.data()});
    routers.push_back(routers.front());
    routers.back().expert_scales = scales.data();
    for (const Router& router : routers) {
      std::vector<float> out(num_rows * kHidden, 0.0f);
      MoeArgs args = make_args(world.logits(), zeros, router, num_rows);
      args.down_bias = down_bias.data();
      args.out = out.data();
      backend_.moe(args);
      world.expect_weights(router, out);
    }
  }
}

TEST_P(CpuMoe, EqualLogitsChooseTheLowerIndex) {
  make_experts(4);
  std::mt19937_64 random(7);
  const std::vector<uint8_t> x = as_act(act_values(random, kHidden, 1.0f));
  const std::vector<float> tied = {1.0f, 3.0f, 3.0f, 3.0f}, clear = {1.0f, 3.0f, 3.0f, -9.0f};
  std::vector<float> tied_out(kHidden, 0.0f), clear_out(kHidden, 0.0f);
  MoeArgs args = make_args(tied, x, {.top_k = 2}, 1);
  args.out = tied_out.data();
  backend_.moe(args);
  args = make_args(clear, x, {.top_k = 2}, 1);
  args.out = clear_out.data();
  backend_.moe(args);
  EXPECT_EQ(tied_out, clear_out);
}

TEST_P(CpuMoe, RowsDoNotSeeTheirBatchMates) {
  make_experts(8);
  std::mt19937_64 random(8);
  const int num_rows = 40;
  const std::vector<float> logits = act_values(random, num_rows * 8, 2.0f);
  const std::vector<float> x = act_values(random, num_rows * kHidden, 1.0f);
  const std::vector<uint8_t> act = as_act(x);
  const std::vector<float> bias = act_values(random, 8, 0.2f);
  const std::vector<float> scales = {0.5f, 2.0f, 1.1f, 0.9f, 3.0f, 0.2f, 1.0f, 0.7f};
  const Router plain = {.top_k = 2, .expert_scales = scales.data()};
  const Router of_groups = {.scores = RouterScores::kSigmoid,
                            .selection_bias = bias.data(),
                            .num_groups = 4,
                            .top_groups = 2,
                            .top_k = 3,
                            .scale = 2.5f};
  for (const Router& router : {plain, of_groups}) {
    std::vector<float> all(num_rows * kHidden, 0.5f);
    MoeArgs args = make_args(logits, act, router, num_rows);
    if (router.restricts_groups()) add_biases_and_limits(args);
    args.accumulate = router.restricts_groups();
    args.out = all.data();
    backend_.moe(args);
    args.num_rows = 1;
    for (int row = 0; row < num_rows; ++row) {
      std::vector<float> alone(kHidden, 0.5f);
      args.router_logits = logits.data() + row * 8;
      args.x = act.data() + row * kHidden * size_of(dtype());
      args.out = alone.data();
      backend_.moe(args);
      EXPECT_TRUE(std::equal(alone.begin(), alone.end(), all.begin() + row * kHidden)) << row;
    }
  }
}

// Experts whose codes stand for different values: each uses its own table.
TEST_P(CpuMoe, ExpertsHaveTablesOfTheirOwn) {
  constexpr int kExperts = 3;
  constexpr int kDim = 64;
  for (int expert = 0; expert < kExperts; ++expert) {
    for (const bool is_gated : {true, false}) {
      const uint32_t seed = 2 * expert + is_gated;
      const auto codes = testing::QuantizedMatrix(kDim, kDim, 4, false, 9).add_table(seed);
      const WeightView parts[] = {codes.view(), codes.view()};
      owned_.push_back(backend_.pack_linear({.parts = {parts, is_gated ? 2u : 1u},
                                             .format = WeightFormat::kInt4Table,
                                             .gated = is_gated}));
      (is_gated ? gate_up_ : down_).push_back(owned_.back().get());
    }
  }
  std::mt19937_64 random(9);
  const std::vector<uint8_t> x = as_act(act_values(random, kDim, 0.01f));
  std::vector<std::vector<float>> results;
  for (int expert = 0; expert < kExperts; ++expert) {
    std::vector<float> logits(kExperts, 0.0f);
    logits[expert] = 1.0f;
    std::vector<float>& out = results.emplace_back(kDim, 0.0f);
    MoeArgs args = make_args(logits, x, {.top_k = 1}, 1);
    args.out = out.data();
    backend_.moe(args);

    std::vector<float> act(kDim), expected(kDim);
    backend_.activated_linear({.weight = gate_up_[expert],
                               .in = {.x = x.data(), .dtype = dtype(), .num_rows = 1},
                               .activation = args.activation,
                               .out = act.data()});
    backend_.linear({.weight = down_[expert],
                     .in = {.x = act.data(), .dtype = dtype(), .num_rows = 1},
                     .out = expected.data()});
    EXPECT_EQ(out, expected) << expert;
  }
  EXPECT_NE(results[0], results[1]);
  EXPECT_NE(results[1], results[2]);
}

INSTANTIATE_TEST_SUITE_P(Kernels, CpuMoe, testing::all_isas_and_dtypes(),
                         testing::isa_and_dtype_name);

}  // namespace
}  // namespace specdec
