// Mixtures of experts, against double loops and the CPU backend, each row against itself in other
// batches, and captured in a graph.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "cpu/cpu_backend.h"
#include "testing/cpu_int_formats.h"
#include "testing/device_kinds.h"
#include "testing/oracle/operations.h"
#include "testing/routers.h"
#include "testing/values.h"

namespace specdec::cuda {
namespace {

using specdec::testing::random_values;
using specdec::testing::rounded;
using specdec::testing::rows_of;
using specdec::testing::to_bits;
using testing::DeviceKind;

struct Shape {
  int num_experts, hidden, inner;
};

// A backend with the experts of one layer.
struct World : testing::BackendWorld {
  World(DeviceKind kind, DType dtype, const Shape& shape, WeightFormat format = WeightFormat::kAct)
      : BackendWorld(kind, dtype), dtype(dtype), shape(shape) {
    std::mt19937 random(5);
    const int64_t count = int64_t{shape.inner} * shape.hidden;
    for (int expert = 0; expert < shape.num_experts; ++expert) {
      gate_up_values.push_back(rounded(random_values(random, 2 * count, 0.2f), dtype));
      down_values.push_back(rounded(random_values(random, count, 0.2f), dtype));
      WeightView both = {
          .values = {gate_up_values.back().data(), DType::kF32, {2 * shape.inner, shape.hidden}}};
      WeightView down_view = {
          .values = {down_values.back().data(), DType::kF32, {shape.hidden, shape.inner}}};
      const cpu::Source gate_up_codes(format, 2 * shape.inner, shape.hidden, 2 * expert);
      const cpu::Source down_codes(format, shape.hidden, shape.inner, 2 * expert + 1);
      if (cpu::takes_codes_alone(format)) {
        both = gate_up_codes.view();
        down_view = down_codes.view();
      }
      const WeightView gate_up_views[] = {rows_of(both, 0, shape.inner),
                                          rows_of(both, shape.inner, shape.inner)};
      owned.push_back(
          backend->pack_linear({.parts = gate_up_views, .format = format, .gated = true}));
      gate_up.push_back(owned.back().get());
      owned.push_back(backend->pack_linear({.parts = {&down_view, 1}, .format = format}));
      down.push_back(owned.back().get());
    }
  }

  // What gpt-oss's experts have.
  void add_biases_and_limits() {
    gate_up_bias = random_values(int64_t{shape.num_experts} * 2 * shape.inner, 21, 0.5f);
    down_bias = random_values(int64_t{shape.num_experts} * shape.hidden, 22);
    activation = Activation::kClampedSwiglu;
    constants = {.alpha = 1.702f, .limit = 0.6f};
  }
  // With pointers to this host's memory.
  MoeArgs args(const Router& router, int num_rows) const {
    return {.router = router,
            .gate_up = gate_up,
            .down = down,
            .gate_up_bias = gate_up_bias.empty() ? nullptr : gate_up_bias.data(),
            .down_bias = down_bias.empty() ? nullptr : down_bias.data(),
            .activation = activation,
            .constants = constants,
            .accumulate = accumulate,
            .num_rows = num_rows};
  }
  // Returns the experts' results, which are added to `residual` or overwrite it.
  std::vector<float> run(const std::vector<float>& logits, const std::vector<float>& x,
                         const std::vector<float>& residual, const Router& router) {
    MoeArgs args = this->args(router, static_cast<int>(x.size()) / shape.hidden);
    Buffer biases[4];
    const auto move = [&](Buffer& buffer, const float*& bias, int64_t count) {
      if (bias == nullptr) return;
      buffer = upload(std::vector<float>(bias, bias + count));
      bias = buffer.as<float>();
    };
    move(biases[0], args.gate_up_bias, std::ssize(gate_up_bias));
    move(biases[1], args.down_bias, std::ssize(down_bias));
    move(biases[2], args.router.selection_bias, shape.num_experts);
    move(biases[3], args.router.expert_scales, shape.num_experts);
    const Buffer device_logits = upload(logits), device_x = upload(to_bits(x, dtype));
    Buffer out = upload(residual);
    args.router_logits = device_logits.as<float>();
    args.x = device_x.data();
    args.out = out.as<float>();
    backend->moe(args);
    return download<float>(out);
  }

  DType dtype;
  Shape shape;
  std::vector<std::vector<float>> gate_up_values, down_values;
  std::vector<float> gate_up_bias, down_bias;
  Activation activation = Activation::kSilu;
  ActivationConstants constants;
  bool accumulate = true;
  std::vector<std::unique_ptr<PackedLinear>> owned;
  std::vector<const PackedLinear*> gate_up, down;
};

class CudaMoe : public ::testing::TestWithParam<DeviceKind> {};

// Few and many rows; inputs that are multiples of a block and not; without and with biases.
TEST_P(CudaMoe, MatchesReferenceAndAddsToTheResidualOrOverwrites) {
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    for (const Shape& shape : {Shape{6, 48, 80}, {3, 64, 32}, {5, 48, 72}}) {
      World world(GetParam(), dtype, shape);
      if (shape.num_experts == 5) world.add_biases_and_limits();
      std::mt19937 random(6);
      for (int num_rows : {1, 11, 37}) {
        for (int top_k : {1, 2, shape.num_experts}) {
          const Router router = {.top_k = top_k, .renormalize = num_rows != 11};
          const std::vector<float> logits =
              random_values(random, num_rows * shape.num_experts, 2.0f);
          const std::vector<float> x =
              rounded(random_values(random, num_rows * shape.hidden), dtype);
          std::vector<float> residual = random_values(random, x.size(), 1.0f);
          world.accumulate = top_k != 2;
          std::vector<float> before = residual;
          if (!world.accumulate) {
            residual.assign(x.size(), 0.0f);
            before.assign(x.size(), NAN);
          }
          MoeArgs args = world.args(router, num_rows);
          args.router_logits = logits.data();
          args.x = x.data();
          const std::vector<double> expected = reference::moe(
              args, world.gate_up_values, world.down_values, shape.hidden, DType::kF32);
          const std::vector<float> out = world.run(logits, x, before, router);
          // Each of the `inner` activations is rounded: random errors that add up.
          const double tolerance = dtype == DType::kBF16 ? 0.05 : 0.007;
          for (size_t i = 0; i < out.size(); ++i) {
            ASSERT_NEAR(out[i], residual[i] + expected[i], tolerance)
                << i << " of " << num_rows << " rows, top " << top_k << ' ' << name_of(dtype);
          }
        }
      }
    }
  }
}

TEST_P(CudaMoe, ExpertsOfCodesMatchTheirProducts) {
  std::mt19937 random(7);
  const std::vector<float> x = random_values(random, 20 * 64, 0.1f);
  const std::vector<float> logits = random_values(random, 20 * 4, 2.0f);
  for (WeightFormat format :
       {WeightFormat::kInt8, WeightFormat::kInt8GroupedMin, WeightFormat::kInt8Grouped,
        WeightFormat::kInt8Grouped16, WeightFormat::kInt4Grouped, WeightFormat::kInt4GroupedMin,
        WeightFormat::kInt4GroupedZero, WeightFormat::kInt4Table, WeightFormat::kFp8,
        WeightFormat::kFp8Grouped}) {
    const Shape shape = {4, 64, static_cast<int>(cpu::inputs_for(format, 40))};
    World world(GetParam(), DType::kF16, shape, format);
    world.add_biases_and_limits();
    const Buffer gate_up_bias = world.upload(world.gate_up_bias);
    const Buffer down_bias = world.upload(world.down_bias);
    for (int num_rows : {3, 20}) {
      const std::vector<float> rows(x.begin(), x.begin() + num_rows * shape.hidden);
      const std::vector<float> out =
          world.run({logits.begin(), logits.begin() + num_rows * shape.num_experts}, rows,
                    std::vector<float>(rows.size(), 0.0f), {.top_k = 1});
      // With one expert per row, of weight 1, the result is that expert's product.
      for (int row = 0; row < num_rows; ++row) {
        const float* mine = logits.data() + row * shape.num_experts;
        const int64_t expert = std::max_element(mine, mine + shape.num_experts) - mine;
        const Buffer in = world.upload(
            to_bits({rows.begin() + row * shape.hidden, rows.begin() + (row + 1) * shape.hidden},
                    world.dtype));
        Buffer act = world.allocate<uint16_t>(shape.inner);
        Buffer alone = world.allocate<float>(shape.hidden);
        world.backend->activated_linear(
            {.weight = world.gate_up[expert],
             .in = {.x = in.data(), .dtype = DType::kF16, .num_rows = 1},
             .bias = gate_up_bias.as<float>() + expert * 2 * shape.inner,
             .activation = world.activation,
             .constants = world.constants,
             .out = act.data()});
        world.backend->linear({.weight = world.down[expert],
                               .in = {.x = act.data(), .dtype = DType::kF16, .num_rows = 1},
                               .bias = down_bias.as<float>() + expert * shape.hidden,
                               .out = alone.as<float>()});
        const std::vector<float> expected = world.download<float>(alone);
        ASSERT_EQ(0, std::memcmp(expected.data(), &out[row * shape.hidden],
                                 expected.size() * sizeof(float)))
            << "row " << row << " of " << num_rows << ' ' << name_of(format);
      }
    }
  }
}

TEST_P(CudaMoe, RoutersMatchReference) {
  for (const int num_experts : {8, 40, 256}) {
    const Shape shape = {num_experts, num_experts, 32};
    World world(GetParam(), DType::kBF16, shape);
    const specdec::testing::RouterWorld routers(num_experts, shape.hidden);
    world.down_bias = routers.down_bias();
    const std::vector<float> zeros(specdec::testing::RouterWorld::kRows * shape.hidden, 0.0f);
    std::vector<Router> tried = routers.routers();
    if (num_experts == 256) tried = {tried.back()};  // of sigmoids, with groups and a bias
    std::vector<float> scales = random_values(num_experts, 3);
    for (float& scale : scales) scale = std::exp(scale);
    tried.push_back(tried.back());
    tried.back().expert_scales = scales.data();
    tried.push_back({.top_k = 3, .scale = 0.5f, .expert_scales = scales.data()});
    for (const Router& router : tried) {
      routers.expect_weights(router, world.run(routers.logits(), zeros, zeros, router));
    }
  }
}

TEST_P(CudaMoe, EqualLogitsChooseTheLowerIndex) {
  const Shape shape = {4, 48, 32};
  World world(GetParam(), DType::kBF16, shape);
  std::mt19937 random(7);
  const std::vector<float> x = random_values(random, shape.hidden, 1.0f);
  const std::vector<float> zeros(shape.hidden, 0.0f);
  const auto run = [&](const std::vector<float>& logits) {
    return world.run(logits, x, zeros, {.top_k = 2});
  };
  EXPECT_EQ(run({1.0f, 3.0f, 3.0f, 3.0f}), run({1.0f, 3.0f, 3.0f, -9.0f}));
  EXPECT_EQ(run({-1.0f, -0.0f, 0.0f, 0.0f}), run({-1.0f, 0.0f, 0.0f, -9.0f}));
  EXPECT_NE(run({1.0f, 3.0f, 3.0f, 3.0f}), run({1.0f, 3.0f, -9.0f, 3.0f}));
}

TEST_P(CudaMoe, RowsDoNotSeeTheirBatchMates) {
  const Shape shape = {40, 40, 24};  // more experts than lanes
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    World world(GetParam(), dtype, shape);
    std::mt19937 random(8);
    Router router = {.top_k = 3};
    const std::vector<float> bias = random_values(random, shape.num_experts, 0.2f);
    if (dtype == DType::kF16) {
      world.add_biases_and_limits();
      router = {.scores = RouterScores::kSigmoid,
                .selection_bias = bias.data(),
                .num_groups = 4,
                .top_groups = 2,
                .top_k = 3,
                .scale = 2.5f};
    }
    const int num_rows = 21;
    const std::vector<float> logits = random_values(random, num_rows * shape.num_experts, 2.0f);
    const std::vector<float> x = random_values(random, num_rows * shape.hidden, 1.0f);
    const auto rows = [&](int begin, int count) {
      return world.run(
          {logits.begin() + begin * shape.num_experts,
           logits.begin() + (begin + count) * shape.num_experts},
          {x.begin() + begin * shape.hidden, x.begin() + (begin + count) * shape.hidden},
          std::vector<float>(count * shape.hidden, 0.5f), router);
    };
    const std::vector<float> all = rows(0, num_rows);
    for (const auto& [begin, count] : {std::pair{0, 1}, {20, 1}, {3, 9}, {5, 16}}) {
      const std::vector<float> some = rows(begin, count);
      EXPECT_EQ(0,
                std::memcmp(some.data(), &all[begin * shape.hidden], some.size() * sizeof(float)))
          << count << " rows from " << begin;
    }
  }
}

// One expert may have all rows, and the others none.
TEST_P(CudaMoe, AllRowsMayGoToOneExpert) {
  const Shape shape = {5, 32, 32};
  World world(GetParam(), DType::kBF16, shape);
  std::mt19937 random(9);
  for (int num_rows : {10, 40}) {
    std::vector<float> logits(num_rows * shape.num_experts, 0.0f);
    for (int row = 0; row < num_rows; ++row) logits[row * shape.num_experts + 3] = 4.0f;
    const std::vector<float> x = random_values(random, num_rows * shape.hidden, 1.0f);
    const std::vector<float> zeros(x.size(), 0.0f);
    const std::vector<float> all = world.run(logits, x, zeros, {.top_k = 1});
    for (int row : {0, 8, num_rows - 1}) {
      const std::vector<float> alone =
          world.run({logits.begin(), logits.begin() + shape.num_experts},
                    {x.begin() + row * shape.hidden, x.begin() + (row + 1) * shape.hidden},
                    std::vector<float>(shape.hidden, 0.0f), {.top_k = 1});
      EXPECT_EQ(0,
                std::memcmp(alone.data(), &all[row * shape.hidden], alone.size() * sizeof(float)));
    }
  }
}

TEST_P(CudaMoe, CapturedStepsFollowTheRouting) {
  const Shape shape = {6, 48, 40};
  World world(GetParam(), DType::kBF16, shape);
  std::mt19937 random(10);
  const int num_rows = 7;
  const auto values = [&](int width, float scale) {
    return random_values(random, num_rows * width, scale);
  };
  const std::vector<float> first_logits = values(shape.num_experts, 2.0f);
  const std::vector<float> x = values(shape.hidden, 1.0f);
  const std::vector<float> zeros(x.size(), 0.0f);
  world.run(first_logits, x, zeros, {.top_k = 2});  // allocates workspaces

  Buffer logits = world.upload(first_logits);
  const Buffer device_x = world.upload(to_bits(x, world.dtype));
  Buffer out = world.upload(zeros);
  MoeArgs args = world.args({.top_k = 2}, num_rows);
  args.router_logits = logits.as<float>();
  args.x = device_x.data();
  args.out = out.as<float>();
  Stream& stream = world.backend->stream();
  stream.begin_capture();
  world.backend->moe(args);
  const std::unique_ptr<Graph> graph = stream.end_capture();
  for (int replay = 0; replay < 2; ++replay) {
    const std::vector<float> new_logits = values(shape.num_experts, 2.0f);
    stream.copy_to_device(logits.data(), new_logits.data(), logits.size_bytes());
    stream.copy_to_device(out.data(), zeros.data(), out.size_bytes());
    stream.launch(*graph);
    const std::vector<float> captured = world.download<float>(out);
    EXPECT_EQ(captured, world.run(new_logits, x, zeros, {.top_k = 2})) << replay;
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, CudaMoe, ::testing::ValuesIn(testing::device_kinds()),
                         testing::test_name);

}  // namespace
}  // namespace specdec::cuda
