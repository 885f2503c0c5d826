// Projections with packed weights, their norms and epilogues, against double loops; no result
// depends on the number of rows.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "testing/cuda_projections.h"
#include "testing/cuda_qkv.h"
#include "testing/fused_sum.h"
#include "testing/stored_matrix.h"

namespace specdec::cuda::testing {
namespace {

using specdec::testing::StoredMatrix;

struct Sum {
  double value = 0;
  double squares = 0;    // sum of squared products: scales errors of rounded inputs
  double magnitude = 0;  // sum of products' magnitudes: scales errors of rounded sums
};

// `weights` [*, num_k], `x` [num_k]
Sum dot(const float* weights, const double* x, int64_t num_k) {
  Sum sum;
  for (int64_t k = 0; k < num_k; ++k) {
    const double product = weights[k] * x[k];
    sum.value += product;
    sum.squares += product * product;
    sum.magnitude += std::abs(product);
  }
  return sum;
}

class ProjectionTest : public ProjectionFixture {
 protected:
  using ProjectionFixture::pack;

  ProjectionTest() { backend = make_backend(kind(), act_); }

  std::unique_ptr<PackedLinear> pack(std::initializer_list<const StoredMatrix*> parts,
                                     bool gated = false) {
    std::vector<WeightView> views;
    for (const StoredMatrix* part : parts) views.push_back(part->view());
    return backend->pack_linear({.parts = views, .gated = gated});
  }
};

TEST_P(ProjectionTest, LinearEqualsADoubleLoop) {
  struct Case {
    int num_n, num_k, num_rows;
    DType stored;
  };
  const Case cases[] = {{48, 320, 1, DType::kBF16}, {37, 75, 3, DType::kF32},
                        {5, 8, 8, DType::kF16},     {130, 288, 9, DType::kF64},
                        {20, 100, 16, DType::kF32}, {40, 96, 17, DType::kF16},
                        {33, 70, 40, DType::kBF16}, {150, 300, 70, DType::kF32}};
  uint32_t seed = 1;
  for (const Case& c : cases) {
    SCOPED_TRACE(::testing::Message() << c.num_n << "x" << c.num_k << " rows " << c.num_rows);
    const int first = c.num_n / 3;
    const StoredMatrix top(first, c.num_k, c.stored, seed);
    const StoredMatrix bottom(c.num_n - first, c.num_k, c.stored, seed + 1);
    std::vector<float> matrix = top.values;
    matrix.insert(matrix.end(), bottom.values.begin(), bottom.values.end());
    matrix = rounded(std::move(matrix), act_);
    const std::vector<float> x = act_values(c.num_rows * c.num_k, seed + 2);
    const std::vector<float> bias = random_values(c.num_n, seed + 3);
    const std::vector<float> before = random_values(c.num_rows * c.num_n, seed + 4);
    seed += 5;
    const auto weight = pack({&top, &bottom});
    EXPECT_EQ(weight->out_features(), c.num_n);
    EXPECT_EQ(weight->in_features(), c.num_k);
    const Buffer x_act = upload_act(x);
    const Buffer bias_buffer = upload(bias);
    for (const bool accumulate : {false, true}) {
      Buffer out = upload(before);
      backend->linear({.weight = weight.get(),
                       .in = {.x = x_act.data(), .dtype = act_, .num_rows = c.num_rows},
                       .bias = accumulate ? nullptr : bias_buffer.as<float>(),
                       .out = out.as<float>(),
                       .accumulate = accumulate});
      const std::vector<float> result = download<float>(out);
      const float scale = 0.22f, soft_cap = 0.5f;
      backend->linear({.weight = weight.get(),
                       .in = {.x = x_act.data(), .dtype = act_, .num_rows = c.num_rows},
                       .bias = bias_buffer.as<float>(),
                       .out = out.as<float>(),
                       .accumulate = accumulate,
                       .scale = scale,
                       .soft_cap = accumulate ? 0.0f : soft_cap});
      const std::vector<float> scaled = download<float>(out);
      for (int row = 0; row < c.num_rows; ++row) {
        const std::vector<double> input(x.begin() + row * c.num_k, x.begin() + (row + 1) * c.num_k);
        for (int n = 0; n < c.num_n; ++n) {
          const Sum sum = dot(&matrix[static_cast<size_t>(n * c.num_k)], input.data(), c.num_k);
          const size_t index = static_cast<size_t>(row * c.num_n + n);
          const double added = accumulate ? before[index] : bias[static_cast<size_t>(n)];
          ASSERT_NEAR(result[index], sum.value + added,
                      (sum.magnitude + std::abs(added)) * 0x1p-20 + 1e-6)
              << "row " << row << " output " << n;
          const double own = scale * (sum.value + bias[static_cast<size_t>(n)]);
          ASSERT_NEAR(scaled[index],
                      accumulate ? result[index] + own : soft_cap * std::tanh(own / soft_cap),
                      (sum.magnitude + std::abs(added)) * 0x1p-20 + 1e-6)
              << "scaled row " << row << " output " << n;
        }
      }
    }
  }
}

TEST_P(ProjectionTest, RowsAreBitEqualWhateverTheirNumber) {
  constexpr int kN = 72, kK = 352, kMost = 130;
  const StoredMatrix matrix(kN, kK, DType::kF32, 7);
  const auto weight = pack({&matrix});
  const Buffer x = upload_act(random_values(kMost * kK, 8));
  const Buffer wide = upload(random_values(kMost * kK, 9));
  const Buffer norm_weight = upload(random_values(kK, 10));
  const NormParams norm = {.weight = norm_weight.as<float>()};
  const auto run = [&](int num_rows, bool normalised) {
    Buffer out = allocate<float>(num_rows * kN);
    ProjectionInput in = {.x = x.data(), .dtype = act_, .num_rows = num_rows};
    if (normalised) {
      in = {.x = wide.data(), .dtype = DType::kF32, .norm = &norm, .num_rows = num_rows};
    }
    backend->linear({.weight = weight.get(), .in = in, .out = out.as<float>()});
    return download<uint32_t>(out);
  };
  for (const bool normalised : {false, true}) {
    const std::vector<uint32_t> all = run(kMost, normalised);
    std::vector<int> counts = {1, 2, 7, 8, 9, 16, 17, 32, 33, 64, 65};
    if (std::get<0>(GetParam()) == DeviceKind::kEmulatedForward) {
      counts.resize(80);
      std::iota(counts.begin(), counts.end(), 1);
    }
    for (const int num_rows : counts) {
      const std::vector<uint32_t> some = run(num_rows, normalised);
      ASSERT_TRUE(std::equal(some.begin(), some.end(), all.begin()))
          << num_rows << (normalised ? " normalised" : "") << " rows";
    }
  }
}

// A step of the tensor cores sums 16 consecutive inputs in every kernel and for every format of
// weights, as wgmma must. For int8 the codes are integers with a scale of 1.
TEST_P(ProjectionTest, SumsAreThoseOfConsecutiveGroupsOfSixteen) {
  if (backend->device().properties().compute_capability < 90) GTEST_SKIP() << "adds otherwise";
  constexpr int kN = 16, kK = 32, kMost = 40;
  for (const WeightFormat format : {WeightFormat::kAct, WeightFormat::kInt8}) {
    std::vector<float> matrix(kN * kK);
    for (size_t i = 0; i < matrix.size(); ++i) {
      const bool is_first = i % kK == 0;
      matrix[i] = std::ldexp(is_first ? 127.0f : 1.0f, is_first ? 0 : static_cast<int>(i * 5 % 7));
    }
    std::vector<float> x = act_values(kMost * kK, 11);
    for (size_t i = 0; i < x.size(); ++i) {
      x[i] = std::ldexp(x[i], static_cast<int>(i * 7 % 11) - 5);
    }
    x = rounded(std::move(x), act_);  // float16 rounds some of the smallest to zero
    const WeightView part = specdec::testing::view_of(matrix, kN);
    const auto weight = backend->pack_linear({.parts = {&part, 1}, .format = format});
    const Buffer rows = upload_act(x);
    for (const int num_rows : {1, 3, 9, 17, kMost}) {
      Buffer out = allocate<float>(num_rows * kN);
      backend->linear({.weight = weight.get(),
                       .in = {.x = rows.data(), .dtype = act_, .num_rows = num_rows},
                       .out = out.as<float>()});
      const std::vector<float> got = download<float>(out);
      for (int i = 0; i < num_rows * kN; ++i) {
        const float* row = &x[static_cast<size_t>(i / kN * kK)];
        const float* output = &matrix[static_cast<size_t>(i % kN * kK)];
        float want = specdec::testing::fused_sum(output, row, 0.0f, act_);
        want = specdec::testing::fused_sum(output + 16, row + 16, want, act_);
        ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(want))
            << num_rows << " rows, row " << i / kN << ", output " << i % kN;
      }
    }
  }
}

// If blocks may not wait for each other, a launch of its own prepares the rows that they would
// exchange.
TEST_P(ProjectionTest, BitsAreTheSameWithoutBlocksThatMeet) {
  constexpr int kN = 64, kK = 1100, kRows = 11;
  const StoredMatrix matrix(kN, kK, DType::kF32, 60);
  const std::vector<float> x = random_values(kRows * kK, 61);
  const std::vector<float> gain = random_values(kK, 62);
  const auto run = [&](bool meeting) {
    backend = make_backend(kind(), act_);
    backend->device().set_launch_settings({.meeting = meeting});
    const auto weight = pack({&matrix});
    const Buffer rows = upload(x), norm_weight = upload(gain);
    const NormParams norm = {.weight = norm_weight.as<float>()};
    Buffer out = allocate<float>(kRows * kN), tokens = allocate<int32_t>(kRows);
    int num_meeting = 0;
    backend->stream().set_observer(
        [&](const KernelLaunch& launch) { num_meeting += launch.config.blocks_meet; });
    const LinearArgs args = {
        .weight = weight.get(),
        .in = {.x = rows.data(), .dtype = DType::kF32, .norm = &norm, .num_rows = kRows},
        .out = out.as<float>()};
    backend->linear(args);
    EXPECT_EQ(backend->best_tokens({.linear = args, .tokens = tokens.as<int32_t>()}), meeting);
    backend->stream().set_observer(nullptr);
    EXPECT_EQ(num_meeting, meeting ? 2 : 0);
    return download<uint32_t>(out);
  };
  EXPECT_EQ(run(true), run(false));
}

// Streamed and otherwise, with and without a launch that prepares rows.
TEST_P(ProjectionTest, StreamsGiveTheBitsOfOtherKernels) {
  if (backend->device().properties().compute_capability != 90) GTEST_SKIP() << "not built";
  constexpr int kDim = 76, kK = 608, kMost = 64;
  const std::vector<float> matrix = act_values(2 * kDim * kK, 63);
  const std::vector<float> x = random_values(kMost * kK, 64);
  const std::vector<float> gain = random_values(kK, 65), shift = random_values(2 * kDim, 66);
  const std::vector<float> before = random_values(kMost * 2 * kDim, 67);
  for (const WeightFormat format : {WeightFormat::kAct, WeightFormat::kInt8}) {
    const auto run = [&](int num_rows, bool streams) {
      backend = make_backend(kind(), act_);
      if (streams) backend->device().set_launch_settings({.fewest_stream_rows = 1});
      int num_streams = 0;
      backend->stream().set_observer([&](const KernelLaunch& launch) {
        num_streams += std::string(launch.name) == "stream_rows";
      });
      const WeightView whole = specdec::testing::view_of(matrix, 2 * kDim);
      const std::vector<float> upper(matrix.begin(), matrix.begin() + kDim * kK);
      const std::vector<float> lower(matrix.begin() + kDim * kK, matrix.end());
      const WeightView halves[] = {specdec::testing::view_of(upper, kDim),
                                   specdec::testing::view_of(lower, kDim)};
      const auto plain = backend->pack_linear({.parts = {&whole, 1}, .format = format});
      const auto gated = backend->pack_linear({.parts = halves, .format = format, .gated = true});
      const Buffer rows = upload(x), norm_weight = upload(gain), bias = upload(shift);
      const NormParams norm = {.weight = norm_weight.as<float>()};
      const ProjectionInput in = {
          .x = rows.data(), .dtype = DType::kF32, .norm = &norm, .num_rows = num_rows};
      std::vector<uint32_t> bits;
      for (const float soft_cap : {0.0f, 0.5f}) {
        Buffer out = upload(before);
        backend->linear({.weight = plain.get(),
                         .in = in,
                         .bias = bias.as<float>(),
                         .out = out.as<float>(),
                         .accumulate = soft_cap == 0.0f,
                         .scale = 0.3f,
                         .soft_cap = soft_cap});
        const std::vector<uint32_t> stored = download<uint32_t>(out);
        bits.insert(bits.end(), stored.begin(), stored.end());
      }
      for (const bool has_gates : {false, true}) {
        Buffer out = allocate<uint16_t>(num_rows * 2 * kDim);
        backend->activated_linear({.weight = (has_gates ? gated : plain).get(),
                                   .in = in,
                                   .bias = bias.as<float>(),
                                   .activation = Activation::kGelu,
                                   .gated = has_gates,
                                   .out = out.data()});
        const std::vector<uint16_t> activated = download<uint16_t>(out);
        bits.insert(bits.end(), activated.begin(), activated.end());
      }
      backend->stream().set_observer(nullptr);
      EXPECT_EQ(num_streams, streams ? 4 : 0);
      return bits;
    };
    for (const int num_rows : {1, 6, 9, 17, 64}) {
      ASSERT_EQ(run(num_rows, true), run(num_rows, false))
          << num_rows << " rows of " << name_of(format);
    }
  }
}

// With few rows the projection's kernel takes off means and adds biases itself, per block or in
// turns; with 17 a launch of its own does, which RowsAreGatheredNormalisedAndConverted compares
// with doubles.
TEST_P(ProjectionTest, LayerNormsHaveTheSameBitsWhereverTheyAreTaken) {
  constexpr int kDim = 40, kMost = 17;
  for (const int num_k : {64, 1280}) {
    const auto weight = pack(act_values(2 * kDim * num_k, 40), 2 * kDim, num_k, /*gated=*/true);
    const auto plain = pack(act_values(kDim * num_k, 41), kDim, num_k, /*gated=*/false);
    std::vector<float> values = random_values(kMost * num_k, 42, 3.0f);
    for (float& value : values) value += 2.0f;
    const Buffer x = upload(values);
    const Buffer gain = upload(random_values(num_k, 43)), shift = upload(random_values(num_k, 44));
    for (const bool has_bias : {false, true}) {
      const NormParams norm = {.kind = NormKind::kLayer,
                               .weight = gain.as<float>(),
                               .bias = has_bias ? shift.as<float>() : nullptr};
      for (const bool gated : {false, true}) {
        const auto run = [&](int num_rows) {
          Buffer out = allocate<uint16_t>(num_rows * kDim);
          backend->activated_linear(
              {.weight = (gated ? weight : plain).get(),
               .in = {.x = x.data(), .dtype = DType::kF32, .norm = &norm, .num_rows = num_rows},
               .activation = Activation::kGelu,
               .gated = gated,
               .out = out.data()});
          return download<uint16_t>(out);
        };
        const std::vector<uint16_t> all = run(kMost);
        for (const int num_rows : {1, 2, 5, 8, 9, 16}) {
          const std::vector<uint16_t> some = run(num_rows);
          ASSERT_TRUE(std::equal(some.begin(), some.end(), all.begin()))
              << num_k << " inputs, " << num_rows << " rows, gated " << gated;
        }
      }
    }
  }
}

TEST_P(ProjectionTest, ActivationsAreAppliedToSumsAndGates) {
  constexpr int kDim = 21, kK = 64;
  const std::vector<float> gates = act_values(kDim * kK, 20), ups = act_values(kDim * kK, 21);
  const std::vector<float> bias = random_values(2 * kDim, 22);
  const Buffer bias_buffer = upload(bias);
  for (const int num_rows : {1, 11, 20}) {
    const std::vector<float> x = act_values(num_rows * kK, 23, 0.25f);
    const Buffer x_act = upload_act(x);
    for (const bool gated : {false, true}) {
      std::vector<float> matrix = gates;
      if (gated) matrix.insert(matrix.end(), ups.begin(), ups.end());
      const auto weight = pack(matrix, gated ? 2 * kDim : kDim, kK, gated);
      const std::vector<double> sums = products(x, matrix, kK);
      for (const Activation activation :
           {Activation::kSilu, Activation::kRelu, Activation::kGelu, Activation::kGeluTanh,
            Activation::kIdentity, Activation::kReluSquared, Activation::kXielu,
            Activation::kClampedSwiglu}) {
        if (activation == Activation::kClampedSwiglu && !gated) continue;
        Buffer out = allocate<uint16_t>(num_rows * kDim);
        backend->activated_linear({.weight = weight.get(),
                                   .in = {.x = x_act.data(), .dtype = act_, .num_rows = num_rows},
                                   .bias = bias_buffer.as<float>(),
                                   .activation = activation,
                                   .constants = reference::kSomeConstants,
                                   .gated = gated,
                                   .out = out.data()});
        expect_activated(download<uint16_t>(out), sums, bias, activation, gated);
      }
    }
  }
}

// With bfloat16, whose values may be small: where e^x - 1 is nearly x.
TEST_P(ProjectionTest, XieluLosesNoDigitsNearZero) {
  if (act_ != DType::kBF16) GTEST_SKIP() << "results are too small";
  constexpr int kDim = 64;
  std::vector<float> x(kDim), unit(kDim * kDim, 0.0f);
  for (int i = 0; i < kDim; ++i) {
    x[i] = i == 0 ? -20.0f : 0.75f * x[i - 1];
    unit[i * kDim + i] = 1.0f;
  }
  x = rounded(x, act_);
  const auto weight = pack(unit, kDim, kDim);
  const Buffer in = upload_act(x);
  for (const float eps : {-1e-6f, -0.3f}) {
    const ActivationConstants constants = {.negative = 1.0f, .eps = eps};
    Buffer out = allocate<uint16_t>(kDim);
    backend->activated_linear({.weight = weight.get(),
                               .in = {.x = in.data(), .dtype = act_, .num_rows = 1},
                               .activation = Activation::kXielu,
                               .constants = constants,
                               .gated = false,
                               .out = out.data()});
    const std::vector<uint16_t> result = download<uint16_t>(out);
    for (int i = 0; i < kDim; ++i) {
      const double expected = reference::activate(Activation::kXielu, x[i], constants);
      ASSERT_NEAR(from_bits(result[i], act_), expected,
                  (2e-6 + rounding_unit(act_)) * std::abs(expected))
          << "of " << x[i] << ", eps " << eps;
    }
  }
}

TEST_P(ProjectionTest, RowsAreGatheredNormalisedAndConverted) {
  constexpr int kStored = 24, kN = 19;
  enum Kind { kPlain, kRms, kLayer, kLayerBias, kAct };
  for (const int num_k : {36, 75, 1280}) {
    const StoredMatrix matrix(kN, num_k, DType::kF32, 30);
    const std::vector<float> weights = rounded(matrix.values, act_);
    const auto weight = pack({&matrix});
    std::vector<float> x = random_values(kStored * num_k, 31, 3.0f);
    for (float& value : x) value += 1.0f;
    const std::vector<float> x_rounded = rounded(x, act_);
    const Buffer wide = upload(x);
    const Buffer act = upload_act(x);
    const std::vector<float> gain = random_values(num_k, 32);
    const std::vector<float> shift = random_values(num_k, 33);
    const Buffer gain_buffer = upload(gain);
    const Buffer shift_buffer = upload(shift);
    for (const int num_rows : {1, 9, 18}) {
      std::vector<int32_t> ids(static_cast<size_t>(num_rows));
      for (int i = 0; i < num_rows; ++i) ids[static_cast<size_t>(i)] = (i * 7 + 5) % kStored;
      const Buffer id_buffer = upload(ids);
      for (const Kind kind : {kPlain, kRms, kLayer, kLayerBias, kAct}) {
        if (num_k == 1280 && num_rows == 9 && kind != kLayerBias) continue;
        SCOPED_TRACE(::testing::Message() << num_k << " inputs, " << num_rows << " rows, kind "
                                          << static_cast<int>(kind));
        const NormParams norm = {.kind = kind == kRms ? NormKind::kRms : NormKind::kLayer,
                                 .weight = gain_buffer.as<float>(),
                                 .bias = kind == kLayerBias ? shift_buffer.as<float>() : nullptr,
                                 .eps = 1e-3f};
        const bool has_norm = kind != kPlain && kind != kAct;
        Buffer out = allocate<float>(num_rows * kN);
        backend->linear({.weight = weight.get(),
                         .in = {.x = kind == kAct ? act.data() : wide.data(),
                                .dtype = kind == kAct ? act_ : DType::kF32,
                                .row_ids = id_buffer.as<int32_t>(),
                                .norm = has_norm ? &norm : nullptr,
                                .num_rows = num_rows},
                         .out = out.as<float>()});
        const std::vector<float> result = download<float>(out);
        for (int row = 0; row < num_rows; ++row) {
          const int64_t begin = int64_t{ids[static_cast<size_t>(row)]} * num_k;
          const std::vector<float>& source = kind == kAct ? x_rounded : x;
          std::vector<double> input(source.begin() + begin, source.begin() + begin + num_k);
          if (has_norm) {
            input = reference::norm({.norm = {.kind = norm.kind,
                                              .weight = gain.data(),
                                              .bias = kind == kLayerBias ? shift.data() : nullptr,
                                              .eps = norm.eps},
                                     .x = &x[static_cast<size_t>(begin)],
                                     .num_rows = 1,
                                     .dim = num_k});
          }
          for (int n = 0; n < kN; ++n) {
            const Sum sum = dot(&weights[static_cast<size_t>(n * num_k)], input.data(), num_k);
            const double rounding =
                kind == kAct ? 0 : 3 * rounding_unit(act_) * std::sqrt(sum.squares);
            ASSERT_NEAR(result[static_cast<size_t>(row * kN + n)], sum.value,
                        rounding + sum.magnitude * 0x1p-20 + 1e-6)
                << "row " << row << " output " << n;
          }
        }
      }
    }
  }
}

TEST_P(ProjectionTest, IntegersOfACheckpointMayBeStoredAsAct) {
  constexpr int kN = 6, kK = 64, kGroup = 16;
  std::mt19937 generator(40);
  std::vector<uint8_t> codes(kN * kK / 2);
  for (uint8_t& code : codes) code = static_cast<uint8_t>(generator());
  std::vector<uint16_t> scales(kN * kK / kGroup), mins(scales.size());
  for (size_t i = 0; i < scales.size(); ++i) {
    scales[i] = float_to_half(0.25f * static_cast<float>(1 + i % 3));
    mins[i] = float_to_half(-0.5f * static_cast<float>(i % 5));
  }
  const std::vector<float> x = act_values(kK, 41);
  const Buffer x_act = upload_act(x);
  for (const bool has_mins : {false, true}) {
    const WeightView view = {.values = {codes.data(), DType::kU8, {kN, kK / 2}},
                             .scales = scales.data(),
                             .mins = has_mins ? mins.data() : nullptr,
                             .group_size = kGroup};
    const auto weight = backend->pack_linear({.parts = {&view, 1}});
    Buffer out = allocate<float>(kN);
    backend->linear({.weight = weight.get(),
                     .in = {.x = x_act.data(), .dtype = act_, .num_rows = 1},
                     .out = out.as<float>()});
    const std::vector<float> result = download<float>(out);
    for (int n = 0; n < kN; ++n) {
      double expected = 0;
      for (int k = 0; k < kK; ++k) {
        const size_t group = static_cast<size_t>((n * kK + k) / kGroup);
        const int code = codes[static_cast<size_t>((n * kK + k) / 2)] >> (k % 2 * 4) & 15;
        const float value =
            half_to_float(scales[group]) * static_cast<float>(code - (has_mins ? 0 : 8)) +
            (has_mins ? half_to_float(mins[group]) : 0.0f);
        expected += from_bits(to_bits(value, act_), act_) * x[static_cast<size_t>(k)];
      }
      EXPECT_NEAR(result[static_cast<size_t>(n)], expected, 1e-3);
    }
  }
}

class QkvTest : public ProjectionTest {};

TEST_P(QkvTest, HeadsAreNormalisedRotatedAndCached) {
  constexpr int kK = 96;
  const QkvShape shapes[] = {
      {.num_heads = 4,
       .num_kv_heads = 2,
       .head_dim = 16,
       .rotary_dim = 16,
       .has_query_scales = true,
       .has_bias = true},
      {.num_heads = 3,
       .num_kv_heads = 1,
       .head_dim = 40,
       .rotary_dim = 24,
       .has_norms = true,
       .norm_after_rope = true,
       .has_value_norms = true},
      {.num_heads = 2,
       .num_kv_heads = 2,
       .head_dim = 64,
       .rotary_dim = 64,
       .has_norms = true,
       .norm_after_rope = true,
       .has_value_norms = true,
       .has_query_scales = true,
       .has_bias = true,
       .int8_kv = true},
      {.num_heads = 2, .num_kv_heads = 1, .head_dim = 6, .rotary_dim = 0},
      {.num_heads = 2, .num_kv_heads = 2, .head_dim = 24, .has_value_norms = true},
      {.num_heads = 3,
       .num_kv_heads = 0,
       .head_dim = 40,
       .rotary_dim = 24,
       .has_norms = true,
       .has_query_scales = true,
       .has_bias = true},
      {.num_heads = 5, .num_kv_heads = 0, .head_dim = 8, .rotary_dim = 8, .int8_kv = true},
      {.num_heads = 3,
       .num_kv_heads = 0,
       .head_dim = 16,
       .rotary_dim = 16,
       .has_norms = true,
       .norm_all_heads = true},
      {.num_heads = 2, .num_kv_heads = 1, .head_dim = 256, .rotary_dim = 256, .has_norms = true},
      {.num_heads = 2, .num_kv_heads = 1, .head_dim = 512, .rotary_dim = 128, .has_norms = true},
      {.num_heads = 1,
       .num_kv_heads = 1,
       .head_dim = 512,
       .rotary_dim = 512,
       .has_norms = true,
       .int8_kv = true},
      {.num_heads = 5,
       .num_kv_heads = 2,
       .head_dim = 40,
       .rotary_dim = 24,
       .has_norms = true,
       .norm_all_heads = true,
       .has_value_norms = true,
       .has_query_scales = true,
       .has_bias = true},
      {.num_heads = 3,
       .num_kv_heads = 1,
       .head_dim = 64,
       .rotary_dim = 64,
       .has_norms = true,
       .norm_all_heads = true,
       .int8_kv = true}};
  for (const QkvShape& shape : shapes) {
    for (const int num_rows : {1, 6, 21, 70, 130}) {
      SCOPED_TRACE(::testing::Message()
                   << "head_dim " << shape.head_dim << ", " << shape.num_kv_heads << " KV heads, "
                   << num_rows << " rows");
      const QkvWorld world(shape, act_, num_rows, kK);
      const auto weight = pack(world.matrix(), shape.num_outputs(), kK);
      world.expect_matches(world.run(*this, *weight, num_rows));
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(QkvTest, RowsAreBitEqualWhateverTheirNumber) {
  constexpr int kMost = 66, kK = 96;
  enum class Norms { kEachHead, kRotatedHeads, kAllHeads };
  const auto rows_are_equal = [&](Norms norms, int head_dim) {
    const QkvShape shape = {.num_heads = 3,
                            .num_kv_heads = 1,
                            .head_dim = head_dim,
                            .rotary_dim = head_dim,
                            .has_norms = true,
                            .norm_all_heads = norms == Norms::kAllHeads,
                            .norm_after_rope = norms == Norms::kRotatedHeads,
                            .has_value_norms = true,
                            .has_query_scales = true,
                            .has_bias = true,
                            .int8_kv = true};
    const QkvWorld world(shape, act_, kMost, kK);
    const auto weight = pack(world.matrix(), shape.num_outputs(), kK);
    const QkvResult all = world.run(*this, *weight, kMost);
    for (const int num_rows : {1, 5, 16, 33}) {
      world.expect_same_rows(world.run(*this, *weight, num_rows), all, num_rows);
    }
  };
  rows_are_equal(Norms::kEachHead, 32);
  rows_are_equal(Norms::kRotatedHeads, 32);
  rows_are_equal(Norms::kAllHeads, 32);
  rows_are_equal(Norms::kEachHead, 512);
}

TEST_P(ProjectionTest, RecordedProductsCountAgainEachTime) {
  // Heads and slices meet by counters, so a graph must leave these at zero.
  constexpr int kN = 40, kK = 300, kRows = 20;
  const StoredMatrix matrix(kN, kK, DType::kF32, 70);
  const auto weight = pack({&matrix});
  const std::vector<float> x = random_values(kRows * kK, 71);
  Buffer input = upload(x);
  Buffer out = allocate<float>(kRows * kN);
  const LinearArgs args = {.weight = weight.get(),
                           .in = {.x = input.data(), .dtype = DType::kF32, .num_rows = kRows},
                           .out = out.as<float>()};
  backend->linear(args);
  const std::vector<uint32_t> expected = download<uint32_t>(out);
  Stream& stream = backend->stream();
  stream.begin_capture();
  backend->linear(args);
  const std::unique_ptr<Graph> graph = stream.end_capture();
  for (int run = 0; run < 2; ++run) {
    stream.fill(out.data(), 0, out.size_bytes());
    stream.launch(*graph);
    EXPECT_EQ(download<uint32_t>(out), expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, ProjectionTest, all_projections(), projection_test_name);
INSTANTIATE_TEST_SUITE_P(Devices, QkvTest, all_projections(), projection_test_name);

}  // namespace
}  // namespace specdec::cuda::testing
