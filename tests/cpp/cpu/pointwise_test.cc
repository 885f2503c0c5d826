// Norms, activations, row gathering and the QKV split, against double loops and against themselves
// in other batches.
#include <gtest/gtest.h>

#include <cmath>

#include "cpu/cpu_backend.h"
#include "runtime/kv_cache.h"
#include "testing/cpu_isas.h"
#include "testing/oracle/operations.h"
#include "testing/paged_world.h"
#include "testing/values.h"

namespace specdec {
namespace {

using testing::AttentionShape;
using testing::PagedWorld;
using testing::random_values;
using testing::Request;
using testing::rounded;

class CpuPointwise : public ::testing::TestWithParam<testing::IsaAndDType> {
 protected:
  DType dtype() const { return std::get<1>(GetParam()); }
  cpu::CpuBackend make_backend(int num_threads = 2) {
    return cpu::CpuBackend(std::get<0>(GetParam()), num_threads, dtype());
  }
  // `absolute` is the error allowed beside the rounding to the dtype and a few float32 roundings.
  void expect_near(const std::vector<uint8_t>& actual, const std::vector<double>& expected,
                   double absolute) {
    ASSERT_EQ(actual.size(), expected.size() * size_of(dtype()));
    const double relative = 2e-6 + (dtype() == DType::kBF16 ? 0x1p-8 : 0.0);
    for (size_t i = 0; i < expected.size(); ++i) {
      const double value = reference::element(actual.data(), dtype(), static_cast<int64_t>(i));
      ASSERT_LE(std::abs(value - expected[i]), relative * std::abs(expected[i]) + absolute)
          << "element " << i << ": " << value << ", expected " << expected[i];
    }
  }
  static void expect_near(std::span<const float> actual, const std::vector<double>& expected,
                          double relative, double absolute) {
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_NEAR(actual[i], expected[i], relative * std::abs(expected[i]) + absolute) << i;
    }
  }
  // Checks queries; returns the keys and values that there should be, NaN where there are none.
  reference::PlainKv expect_q(PagedWorld& world) {
    const PagedKvView view = world.kv();
    const auto num_elements =
        static_cast<size_t>(view.num_blocks) * view.block_size * view.num_kv_heads * view.head_dim;
    reference::PlainKv kv = {std::vector<double>(num_elements, NAN),
                             std::vector<double>(num_elements, NAN)};
    expect_near(world.q_bytes(), reference::split_qkv(world.qkv_args(), world.qkv(), kv), 2e-6);
    return kv;
  }
};

TEST_P(CpuPointwise, NormsMatchReference) {
  cpu::CpuBackend backend = make_backend();
  std::mt19937_64 random(1);
  for (int dim : {1, 15, 16, 17, 100, 576, 4096}) {
    for (const bool layer : {false, true}) {
      const int num_rows = 9;
      std::vector<float> x = random_values(random, int64_t{num_rows} * dim, 3.0f);
      if (layer) {
        for (float& value : x) value += 5.0f;
      }
      const std::vector<float> weight = random_values(random, dim),
                               bias = random_values(random, dim);
      std::vector<uint8_t> out(x.size() * size_of(dtype()));
      const NormArgs args = {.norm = {.kind = layer ? NormKind::kLayer : NormKind::kRms,
                                      .weight = weight.data(),
                                      .bias = layer ? bias.data() : nullptr,
                                      .eps = 1e-5f},
                             .x = x.data(),
                             .out = out.data(),
                             .out_dtype = dtype(),
                             .num_rows = num_rows,
                             .dim = dim};
      backend.norm(args);
      SCOPED_TRACE(dim);
      expect_near(out, reference::norm(args), 1e-5);
    }
  }
}

TEST_P(CpuPointwise, NormsMayBeAddedToWhatIsThere) {
  cpu::CpuBackend backend = make_backend();
  std::mt19937_64 random(5);
  const int num_rows = 9, dim = 100;
  const std::vector<float> x = random_values(random, num_rows * dim);
  const std::vector<float> before = random_values(random, num_rows * dim);
  const std::vector<float> weight = random_values(random, dim);
  for (const float scale : {1.0f, 0.7f}) {
    std::vector<float> out = before;
    NormArgs args = {.norm = {.weight = weight.data()},
                     .x = x.data(),
                     .out = out.data(),
                     .num_rows = num_rows,
                     .dim = dim,
                     .accumulate = true,
                     .scale = scale};
    const std::vector<double> expected = reference::norm(args);
    backend.norm(args);
    expect_near(out, expected, 0.0, 2e-6);
    std::vector<float> last(before.end() - dim, before.end());
    args.x += (num_rows - 1) * dim;
    args.out = last.data();
    args.num_rows = 1;
    backend.norm(args);
    EXPECT_TRUE(std::equal(last.begin(), last.end(), out.end() - dim));
  }
}

TEST_P(CpuPointwise, NormedRowsMayBeActivatedAndStandApart) {
  cpu::CpuBackend backend = make_backend();
  std::mt19937_64 random(6);
  const int num_rows = 7;
  const int64_t element_bytes = static_cast<int64_t>(size_of(dtype()));
  for (const int dim : {1, 16, 17, 100}) {
    const int stride = 2 * dim + 3;
    const std::vector<float> x = random_values(random, int64_t{num_rows} * dim, 2.0f);
    const std::vector<float> weight = random_values(random, dim), bias = random_values(random, dim);
    for (const Activation activation :
         {Activation::kSilu, Activation::kRelu, Activation::kGelu, Activation::kGeluTanh,
          Activation::kIdentity, Activation::kReluSquared}) {
      std::vector<uint8_t> out(num_rows * stride * element_bytes, 0x5a);
      NormArgs args = {.norm = {.weight = weight.data(), .bias = bias.data()},
                       .x = x.data(),
                       .out = out.data(),
                       .out_dtype = dtype(),
                       .num_rows = num_rows,
                       .dim = dim,
                       .out_stride = stride,
                       .activation = activation};
      backend.norm(args);
      std::vector<uint8_t> rows;
      for (int row = 0; row < num_rows; ++row) {
        const auto begin = out.begin() + row * stride * element_bytes;
        const auto end = begin + dim * element_bytes;
        rows.insert(rows.end(), begin, end);
        for (auto byte = end; byte < begin + stride * element_bytes; ++byte) {
          ASSERT_EQ(*byte, 0x5a) << "between rows";
        }
        std::vector<uint8_t> alone(dim * element_bytes);
        NormArgs one = args;
        one.x += int64_t{row} * dim;
        one.out = alone.data();
        one.num_rows = 1;
        one.out_stride = 0;
        backend.norm(one);
        ASSERT_EQ(alone, std::vector<uint8_t>(begin, end)) << row;
      }
      SCOPED_TRACE(dim);
      expect_near(rows, reference::norm(args), 1e-5);
    }
  }
}

TEST_P(CpuPointwise, NormRowsDoNotSeeEachOther) {
  std::mt19937_64 random(2);
  const int dim = 577, num_rows = 200;
  const std::vector<float> x = random_values(random, int64_t{num_rows} * dim);
  const std::vector<float> weight = random_values(random, dim);
  const size_t row_bytes = dim * size_of(dtype());
  const auto run = [&](int num_threads, int first, int count) {
    cpu::CpuBackend backend = make_backend(num_threads);
    std::vector<uint8_t> out(count * row_bytes);
    backend.norm({.norm = {.weight = weight.data()},
                  .x = x.data() + int64_t{first} * dim,
                  .out = out.data(),
                  .out_dtype = dtype(),
                  .num_rows = count,
                  .dim = dim});
    return out;
  };
  const std::vector<uint8_t> all = run(2, 0, num_rows);
  EXPECT_EQ(run(3, 0, num_rows), all);
  for (int row : {0, 1, 77, 199}) {
    const auto begin = all.begin() + static_cast<int64_t>(row * row_bytes);
    EXPECT_EQ(run(1, row, 1), std::vector<uint8_t>(begin, begin + static_cast<int64_t>(row_bytes)));
  }
}

TEST_P(CpuPointwise, ActivatedProjectionsMatchReference) {
  cpu::CpuBackend backend = make_backend();
  std::mt19937_64 random(3);
  const int num_rows = 5, num_in = 24;
  for (Activation activation :
       {Activation::kSilu, Activation::kRelu, Activation::kGelu, Activation::kGeluTanh,
        Activation::kIdentity, Activation::kReluSquared, Activation::kXielu,
        Activation::kClampedSwiglu}) {
    for (const bool gated : {false, true}) {
      if (activation == Activation::kClampedSwiglu && !gated) continue;
      for (int dim : {1, 17, 48, 250}) {
        const int num_out = gated ? 2 * dim : dim;
        const std::vector<float> x = random_values(random, num_rows * num_in);
        const std::vector<float> weight =
            rounded(random_values(random, int64_t{num_out} * num_in, 0.5f), dtype());
        const std::vector<float> bias = random_values(random, num_out);
        std::vector<WeightView> parts;
        for (int part = 0; part < (gated ? 2 : 1); ++part) {
          parts.push_back(
              {.values = {weight.data() + part * dim * num_in, DType::kF32, {dim, num_in}}});
        }
        const auto packed = backend.pack_linear({.parts = parts, .gated = gated});
        std::vector<uint8_t> out(int64_t{num_rows} * dim * size_of(dtype()));
        const ActivatedLinearArgs args = {
            .weight = packed.get(),
            .in = {.x = x.data(), .dtype = DType::kF32, .num_rows = num_rows},
            .bias = bias.data(),
            .activation = activation,
            .constants = reference::kSomeConstants,
            .gated = gated,
            .out = out.data()};
        backend.activated_linear(args);

        const std::vector<float> act = rounded(x, dtype());
        const std::vector<double> sums =
            reference::linear(std::vector<double>(act.begin(), act.end()), weight, num_in);
        std::vector<double> expected;
        for (int row = 0; row < num_rows; ++row) {
          for (int i = 0; i < dim; ++i) {
            const double* sum = &sums[int64_t{row} * num_out];
            const double gate = sum[i] + bias[i];
            expected.push_back(gated ? reference::gated(activation, args.constants, gate,
                                                        sum[dim + i] + bias[dim + i])
                                     : reference::activate(activation, gate, args.constants));
          }
        }
        SCOPED_TRACE(::testing::Message() << static_cast<int>(activation) << " dim " << dim);
        expect_near(out, expected, 5e-5);
        // The last row alone, on one thread.
        cpu::CpuBackend single = make_backend(1);
        std::vector<uint8_t> alone(dim * size_of(dtype()));
        const int32_t last_row = num_rows - 1;
        ActivatedLinearArgs last = args;
        last.in.row_ids = &last_row;
        last.in.num_rows = 1;
        last.out = alone.data();
        single.activated_linear(last);
        EXPECT_TRUE(
            std::equal(alone.begin(), alone.end(), out.end() - static_cast<int64_t>(alone.size())));
      }
    }
  }
}

// Where e^x - 1 is nearly x, and below and above the polynomial's range.
TEST_P(CpuPointwise, XieluLosesNoDigitsNearZero) {
  cpu::CpuBackend backend = make_backend();
  std::vector<float> x = {0.0f, 3.0f, -0.999f, -1.0f, -1.001f, -30.0f, -100.0f};
  for (float value = -4.0f; value < -1e-9f; value *= 0.7f) x.push_back(value);
  x = rounded(x, dtype());
  const int dim = static_cast<int>(x.size());
  std::vector<float> unit(dim * dim, 0.0f);
  for (int i = 0; i < dim; ++i) unit[i * dim + i] = 1.0f;
  const WeightView view = testing::view_of(unit, dim);
  const auto packed = backend.pack_linear({.parts = {&view, 1}});
  for (const float eps : {-1e-6f, 0.0f, -0.3f}) {
    const ActivationConstants constants = {.negative = 1.0f, .eps = eps};
    std::vector<uint8_t> out(dim * size_of(dtype()));
    backend.activated_linear({.weight = packed.get(),
                              .in = {.x = x.data(), .dtype = DType::kF32, .num_rows = 1},
                              .activation = Activation::kXielu,
                              .constants = constants,
                              .gated = false,
                              .out = out.data()});
    const double rounding = dtype() == DType::kBF16 ? 0x1p-8 : 0.0;
    for (int i = 0; i < dim; ++i) {
      const double expected = reference::activate(Activation::kXielu, x[i], constants);
      ASSERT_NEAR(reference::element(out.data(), dtype(), i), expected,
                  (1e-6 + rounding) * std::abs(expected))
          << "of " << x[i] << ", eps " << eps;
    }
  }
}

TEST_P(CpuPointwise, RowsAreScaledInPlace) {
  std::mt19937_64 random(7);
  const int num_rows = 50;
  std::vector<float> gates = random_values(random, num_rows, 3.0f);
  gates[3] = 80.0f;
  gates[4] = -80.0f;
  for (const int dim : {1, 17, 640}) {
    const std::vector<float> values = rounded(random_values(random, num_rows * dim), dtype());
    std::vector<uint8_t> rows(values.size() * size_of(dtype()));
    for (size_t i = 0; i < values.size(); ++i) {
      if (dtype() == DType::kF32) {
        reinterpret_cast<float*>(rows.data())[i] = values[i];
      } else {
        reinterpret_cast<BFloat16*>(rows.data())[i] = to_bfloat16(values[i]);
      }
    }
    const std::vector<uint8_t> before = rows;
    const std::vector<float> factors = random_values(random, num_rows * (dim + 3), 3.0f);
    // By gates, by factors, and by factors with other values between their rows, or by sigmoids of
    // these.
    for (const auto& [factor_stride, factors_are_gates] :
         {std::pair{-1, false}, {0, false}, {0, true}, {dim + 3, false}, {dim + 3, true}}) {
      rows = before;
      const bool gated = factor_stride < 0;
      const ScaleRowsArgs args = {.rows = rows.data(),
                                  .gates = gated ? gates.data() : nullptr,
                                  .factors = gated ? nullptr : factors.data(),
                                  .factor_stride = gated ? 0 : factor_stride,
                                  .factors_are_gates = factors_are_gates,
                                  .num_rows = num_rows,
                                  .dim = dim};
      const std::vector<double> expected = reference::scaled_rows(args, dtype());
      cpu::CpuBackend backend = make_backend();
      backend.scale_rows(args);
      SCOPED_TRACE(::testing::Message()
                   << dim << " factors " << factor_stride << " gates " << factors_are_gates);
      expect_near(rows, expected, 0.0);
      const int64_t row_bytes = dim * static_cast<int64_t>(size_of(dtype()));
      for (const int row : {0, 4, 49}) {
        const int64_t begin = row * row_bytes;
        std::vector<uint8_t> alone(before.begin() + begin, before.begin() + begin + row_bytes);
        ScaleRowsArgs one = args;
        one.rows = alone.data();
        one.num_rows = 1;
        if (gated) {
          one.gates += row;
        } else {
          one.factors += row * (factor_stride != 0 ? factor_stride : dim);
        }
        backend.scale_rows(one);
        EXPECT_TRUE(std::equal(alone.begin(), alone.end(), rows.begin() + begin)) << row;
      }
    }
  }
}

TEST_P(CpuPointwise, SparseGatesMatchReference) {
  std::mt19937_64 random(8);
  const int num_rows = 30;
  cpu::CpuBackend backend = make_backend(), single = make_backend(1);
  for (const int dim : {1, 17, 640}) {
    for (const Activation activation :
         {Activation::kSilu, Activation::kRelu, Activation::kGelu, Activation::kGeluTanh,
          Activation::kIdentity, Activation::kReluSquared}) {
      for (const float deviations : {1.645f, 0.0f, -0.5f}) {
        std::vector<float> gates = random_values(random, num_rows * dim, 2.0f);
        for (float& gate : gates) gate += 0.5f;
        const std::vector<float> before = gates;
        SparseGatesArgs args = {.gates = gates.data(),
                                .deviations = deviations,
                                .activation = activation,
                                .num_rows = num_rows,
                                .dim = dim};
        const std::vector<double> expected = reference::sparse_gates(args);
        backend.sparse_gates(args);
        SCOPED_TRACE(::testing::Message() << static_cast<int>(activation) << " dim " << dim);
        expect_near(gates, expected, 5e-6, 1e-5);
        for (const int row : {0, 29}) {
          std::vector<float> alone(before.begin() + row * dim, before.begin() + (row + 1) * dim);
          args.gates = alone.data();
          args.num_rows = 1;
          single.sparse_gates(args);
          EXPECT_TRUE(std::equal(alone.begin(), alone.end(), gates.begin() + row * dim)) << row;
        }
      }
    }
  }
}

TEST_P(CpuPointwise, StreamsArePredictedAndCorrected) {
  std::mt19937_64 random(9);
  const int num_rows = 30;
  cpu::CpuBackend backend = make_backend(), single = make_backend(1);
  for (const int num_streams : {1, 4, kMaxStreams}) {
    for (const int dim : {1, 17, 640}) {
      const int64_t stride = int64_t{num_rows} * dim + 5;
      const std::vector<float> before = random_values(random, num_streams * stride);
      const std::vector<float> modalities = random_values(random, num_rows * num_streams);
      const std::vector<float> activated = random_values(random, num_rows * dim);
      const std::vector<float> coefficients =
          random_values(random, num_streams * num_streams * num_streams, 0.3f);
      const int active = num_streams / 2;
      for (const bool predicts : {true, false}) {
        // Of rows from `first` on.
        const auto run = [&](cpu::CpuBackend& on, float* data, int first, int count,
                             std::vector<double>* expected) {
          const StreamsView streams = {.data = data + int64_t{first} * dim,
                                       .stride = stride,
                                       .num_streams = num_streams,
                                       .num_rows = count,
                                       .dim = dim};
          const float* const row_modalities = &modalities[first * num_streams];
          const PredictStreamsArgs predict = {.streams = streams,
                                              .modalities = row_modalities,
                                              .coefficients = coefficients.data()};
          const CorrectStreamsArgs correct = {.streams = streams,
                                              .active = active,
                                              .activated = &activated[first * dim],
                                              .modalities = row_modalities,
                                              .coefficients = coefficients.data()};
          if (expected != nullptr) {
            *expected = predicts ? reference::predicted_streams(predict)
                                 : reference::corrected_streams(correct);
          }
          return predicts ? on.predict_streams(predict) : on.correct_streams(correct);
        };
        std::vector<float> data = before;
        std::vector<double> expected;
        run(backend, data.data(), 0, num_rows, &expected);
        SCOPED_TRACE(::testing::Message() << num_streams << " streams, dim " << dim);
        std::vector<float> alone = before;
        for (int row = 0; row < num_rows; ++row) run(single, alone.data(), row, 1, nullptr);
        EXPECT_EQ(alone, data);
        for (int k = 0; k < num_streams; ++k) {
          const int64_t begin = k * stride, count = stride - 5;
          expect_near(std::span(data).subspan(begin, count),
                      {expected.begin() + k * count, expected.begin() + (k + 1) * count}, 2e-6,
                      1e-5);
          EXPECT_TRUE(std::equal(data.begin() + begin + count, data.begin() + begin + stride,
                                 before.begin() + begin + count))
              << "between streams";
        }
      }
    }
  }
}

TEST_P(CpuPointwise, MagnitudesAreMatched) {
  std::mt19937_64 random(10);
  const int num_rows = 30;
  cpu::CpuBackend backend = make_backend(), single = make_backend(1);
  for (const int dim : {1, 17, 640}) {
    std::vector<float> x = random_values(random, num_rows * dim, 2.0f);
    for (int i = 0; i < dim; ++i) {
      x[3 * dim + i] *= 1e-4f;  // a mean square below 1e-5
      x[4 * dim + i] = 0.0f;
    }
    const std::vector<float> reference = random_values(random, num_rows * dim, 3.0f);
    const std::vector<float> before = random_values(random, num_rows * dim);
    for (const auto& [accumulate, in_place, has_reference] : {std::tuple{false, false, true},
                                                              {false, true, true},
                                                              {true, false, true},
                                                              {true, true, true},
                                                              {false, false, false},
                                                              {true, false, false}}) {
      std::vector<float> out = in_place ? x : before;
      const std::vector<float> initial = out;
      MatchMagnitudeArgs args = {.x = in_place ? out.data() : x.data(),
                                 .reference = has_reference ? reference.data() : nullptr,
                                 .out = out.data(),
                                 .accumulate = accumulate,
                                 .scale = accumulate ? 0.7f : 1.0f,
                                 .num_rows = num_rows,
                                 .dim = dim};
      const std::vector<double> expected = reference::matched_magnitude(args);
      backend.match_magnitude(args);
      SCOPED_TRACE(dim);
      expect_near(out, expected, 2e-6, 1e-6);
      args.num_rows = 1;
      for (const int row : {0, 3, 29}) {
        const int64_t begin = int64_t{row} * dim;
        std::vector<float> alone(initial.begin() + begin, initial.begin() + begin + dim);
        args.x = in_place ? alone.data() : x.data() + begin;
        if (has_reference) args.reference = reference.data() + begin;
        args.out = alone.data();
        single.match_magnitude(args);
        EXPECT_TRUE(std::equal(alone.begin(), alone.end(), out.begin() + begin)) << row;
      }
    }
  }
}

// linear() with a norm gives the same bits as norm() followed by linear().
TEST_P(CpuPointwise, ProjectionsNormaliseAndGatherTheirRows) {
  std::mt19937_64 random(4);
  const int dim = 100, num_out = 33, num_rows = 50;
  const std::vector<float> x = random_values(random, num_rows * dim, 3.0f);
  const std::vector<float> norm_weight = random_values(random, dim);
  const std::vector<float> norm_bias = random_values(random, dim);
  const std::vector<float> weight = random_values(random, num_out * dim);
  const WeightView view = testing::view_of(weight, num_out);
  for (int num_threads : {1, 2}) {
    cpu::CpuBackend backend = make_backend(num_threads);
    const auto packed = backend.pack_linear({.parts = {&view, 1}});
    for (NormKind kind : {NormKind::kRms, NormKind::kLayer}) {
      for (const auto& ids :
           {std::vector<int32_t>{49, 0, 7, 7, 23}, std::vector<int32_t>(400, 11)}) {
        const NormParams norm = {.kind = kind,
                                 .weight = norm_weight.data(),
                                 .bias = kind == NormKind::kLayer ? norm_bias.data() : nullptr};
        const int count = static_cast<int>(ids.size());
        std::vector<uint8_t> normed(num_rows * dim * size_of(dtype()));
        backend.norm({.norm = norm,
                      .x = x.data(),
                      .out = normed.data(),
                      .out_dtype = dtype(),
                      .num_rows = num_rows,
                      .dim = dim});
        std::vector<float> apart(count * num_out), fused(count * num_out);
        backend.linear(
            {.weight = packed.get(),
             .in = {.x = normed.data(), .dtype = dtype(), .row_ids = ids.data(), .num_rows = count},
             .out = apart.data()});
        backend.linear({.weight = packed.get(),
                        .in = {.x = x.data(),
                               .dtype = DType::kF32,
                               .row_ids = ids.data(),
                               .norm = &norm,
                               .num_rows = count},
                        .out = fused.data()});
        EXPECT_EQ(apart, fused);
      }
    }
  }
}

TEST_P(CpuPointwise, ProjectedHeadsMatchReference) {
  cpu::CpuBackend backend = make_backend();
  enum class Norms { kNone, kEachHead, kRotatedHeads, kAllHeads };
  for (int head_dim : {8, 20, 64, 80, 128, 256, 512}) {
    for (const Norms norms :
         {Norms::kNone, Norms::kEachHead, Norms::kRotatedHeads, Norms::kAllHeads}) {
      const bool has_v_norm = norms == Norms::kEachHead || norms == Norms::kAllHeads;
      for (int rotary_dim : {0, head_dim / 4 * 2, head_dim}) {
        const AttentionShape shape = {.num_kv_heads = 2,
                                      .group_size = 3,
                                      .head_dim = head_dim,
                                      .block_size = 32,
                                      .rotary_dim = rotary_dim,
                                      .qk_norm = norms != Norms::kNone,
                                      .norm_all_heads = norms == Norms::kAllHeads,
                                      .norm_after_rope = norms == Norms::kRotatedHeads,
                                      .v_norm = has_v_norm,
                                      .has_query_scales = head_dim >= 64};
        PagedWorld world(backend, shape, 6);
        Request first = world.new_request(64), second = world.new_request(64);
        first.base_len = 13;
        first.rows = Request::chain({5, 6, 7, 8});
        second.base_len = 50;
        second.is_tree = true;
        second.rows = {{1, -1}, {2, 0}, {3, 0}, {4, 2}};
        world.build({&first, &second});
        world.project();
        SCOPED_TRACE(head_dim);
        const reference::PlainKv kv = expect_q(world);
        const double tolerance = dtype() == DType::kBF16 ? 0x1p-7 : 2e-6;
        for (int64_t i = 0; i < std::ssize(kv.keys); ++i) {
          const int64_t slot = i / (2 * head_dim);
          const int head = static_cast<int>(i / head_dim % 2), d = static_cast<int>(i % head_dim);
          const double key = world.key(slot, head, d), value = world.value(slot, head, d);
          if (std::isnan(kv.keys[i])) {  // slots of other tokens stay as they were
            ASSERT_TRUE(std::isnan(key) && std::isnan(value)) << slot;
            continue;
          }
          ASSERT_NEAR(key, kv.keys[i], tolerance * std::abs(kv.keys[i]) + 2e-6) << slot;
          ASSERT_NEAR(value, kv.values[i],
                      has_v_norm ? tolerance * std::abs(kv.values[i]) + 2e-6 : 0.0)
              << slot;
        }
      }
    }
  }
}

// Without KV heads; the cache is not given.
TEST_P(CpuPointwise, ProjectedQueriesMatchReference) {
  cpu::CpuBackend backend = make_backend();
  for (int head_dim : {8, 20, 64, 256, 512}) {
    for (const bool qk_norm : {false, true}) {
      PagedWorld world(
          backend, {.num_kv_heads = 1, .head_dim = head_dim, .qk_norm = qk_norm, .q_only = true},
          6);
      Request request = world.new_request(64);
      request.base_len = 13;
      request.rows = Request::chain({5, 6, 7, 8});
      world.build({&request});
      world.project();
      SCOPED_TRACE(head_dim);
      expect_q(world);
    }
  }
}

TEST_P(CpuPointwise, NormsOverAllHeadsDependOnTheirRowAlone) {
  const AttentionShape shape = {.head_dim = 48, .qk_norm = true, .norm_all_heads = true};
  const auto run = [&](int num_threads, int first, int count) {
    cpu::CpuBackend backend = make_backend(num_threads);
    PagedWorld world(backend, shape, 20);
    Request request = world.new_request(200);
    request.base_len = first;
    for (int i = first; i < first + count; ++i) {
      request.rows.push_back({static_cast<uint64_t>(i), i - first - 1});
    }
    world.build({&request});
    world.project();
    return world.q_bytes();
  };
  const std::vector<uint8_t> all = run(2, 0, 100);
  EXPECT_EQ(run(1, 0, 100), all);
  for (int row : {0, 17, 99}) {
    const int64_t row_bytes = static_cast<int64_t>(all.size()) / 100;
    const auto begin = all.begin() + row * row_bytes;
    EXPECT_EQ(run(1, row, 1), std::vector<uint8_t>(begin, begin + row_bytes)) << row;
  }
}

TEST_P(CpuPointwise, Int8KeysAndValuesMatchReference) {
  cpu::CpuBackend backend = make_backend();
  for (int head_dim : {8, 20, 64, 80}) {
    const AttentionShape shape = {.num_kv_heads = 2,
                                  .group_size = 1,
                                  .head_dim = head_dim,
                                  .qk_norm = true,
                                  .norm_after_rope = head_dim == 64,
                                  .v_norm = head_dim == 80,
                                  .int8_kv = true};
    PagedWorld world(backend, shape, 6);
    Request request = world.new_request(40);
    request.base_len = 5;
    for (int i = 0; i < 30; ++i) request.rows.push_back({static_cast<uint64_t>(7 * i), i - 1});
    world.build({&request});
    world.project();
    SCOPED_TRACE(head_dim);
    const reference::PlainKv kv = expect_q(world);
    int num_differing = 0;
    for (int64_t i = 0; i < std::ssize(kv.keys); ++i) {
      const int64_t slot = i / (2 * head_dim);
      const int head = static_cast<int>(i / head_dim % 2), d = static_cast<int>(i % head_dim);
      const double key = world.key(slot, head, d), value = world.value(slot, head, d);
      ASSERT_EQ(std::isnan(key), std::isnan(kv.keys[i])) << slot;
      ASSERT_EQ(std::isnan(value), std::isnan(kv.values[i])) << slot;
      if (std::isnan(key)) continue;
      const double* heads[] = {&kv.keys[i - d], &kv.values[i - d]};
      const double found[] = {key, value};
      for (int part = 0; part < 2; ++part) {
        double largest = 0.0;
        for (int j = 0; j < head_dim; ++j) largest = std::max(largest, std::abs(heads[part][j]));
        // Rounding may decide for the neighbouring code, which is rare.
        ASSERT_NEAR(found[part], heads[part][d], 1.0001 * largest / 127.0) << slot;
        num_differing += std::abs(found[part] - heads[part][d]) > 1e-5 * largest ? 1 : 0;
      }
    }
    EXPECT_LE(num_differing, 30 * 4 * head_dim / 200);
  }
}

TEST_P(CpuPointwise, Int8CachesTakeAByteAnElementAndAScaleAHead) {
  cpu::CpuBackend backend = make_backend();
  const KvCacheShape shape = {.layers = {3, {.num_kv_heads = 2, .head_dim = 64}},
                              .format = {.block_size = 32, .dtype = DType::kI8}};
  EXPECT_EQ(KvCache::block_bytes(backend, shape), 3 * 2 * 2 * 32 * (64 + 4));
}

TEST_P(CpuPointwise, KvCacheLayersAreDisjointAndCounted) {
  cpu::CpuBackend backend = make_backend();
  const KvCacheShape shape = {.layers = {3, {.num_kv_heads = 2, .head_dim = 64}},
                              .format = {.block_size = 16, .dtype = dtype()}};
  KvCache cache(backend, shape, 10);
  ASSERT_EQ(cache.layers().size(), 3u);
  const int64_t block_bytes = 3 * 2 * 2 * 64 * 16 * static_cast<int64_t>(size_of(dtype()));
  EXPECT_EQ(KvCache::block_bytes(backend, shape), block_bytes);
  EXPECT_GE(cache.size_bytes(), 11 * block_bytes);  // ten and the null block
  std::vector<std::pair<char*, char*>> ranges;
  for (const PagedKvView& layer : cache.layers()) {
    EXPECT_EQ(layer.num_blocks, 11);
    EXPECT_EQ(layer.dtype, dtype());
    for (void* part : {layer.keys, layer.values}) {
      char* begin = static_cast<char*>(part);
      ranges.emplace_back(begin, begin + backend.kv_layer_bytes(layer));
    }
  }
  std::sort(ranges.begin(), ranges.end());
  for (size_t i = 1; i < ranges.size(); ++i) EXPECT_LE(ranges[i - 1].second, ranges[i].first);
}

TEST_P(CpuPointwise, KvCacheLayersMayReadAnothers) {
  cpu::CpuBackend backend = make_backend();
  const KvLayerShape wide = {.num_kv_heads = 1, .head_dim = 128};
  const KvLayerShape narrow = {.num_kv_heads = 2, .head_dim = 32};
  KvCacheShape shape = {.layers = {narrow, wide, narrow, wide, narrow},
                        .format = {.block_size = 16, .dtype = dtype()}};
  shape.layers[3].source = 1;
  shape.layers[4].source = 2;
  const KvCache cache(backend, shape, 10);
  ASSERT_EQ(cache.layers().size(), 5u);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(cache.layers()[i].head_dim, shape.layers[i].head_dim);
  EXPECT_EQ(cache.layers()[3].keys, cache.layers()[1].keys);
  EXPECT_EQ(cache.layers()[4].values, cache.layers()[2].values);
  EXPECT_NE(cache.layers()[2].keys, cache.layers()[0].keys);
  std::vector<int> own_dims;
  for (const PagedKvView& layer : cache.own_layers()) own_dims.push_back(layer.head_dim);
  EXPECT_TRUE(own_dims == (std::vector{32, 32, 128}) || own_dims == (std::vector{128, 32, 32}));
  const int64_t token_elements = 2 * (2 * 2 * 32 + 128);
  EXPECT_EQ(KvCache::block_bytes(backend, shape),
            16 * token_elements * static_cast<int64_t>(size_of(dtype())));
}

INSTANTIATE_TEST_SUITE_P(Kernels, CpuPointwise, testing::all_isas_and_dtypes(),
                         testing::isa_and_dtype_name);

}  // namespace
}  // namespace specdec
