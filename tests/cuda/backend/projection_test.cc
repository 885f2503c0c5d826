// Products with packed weights and what is fused with them, against double loops; and that no
// result depends on how many rows there are or how the work is cut up.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "testing/cuda_devices.h"

namespace specdec::cuda::testing {
namespace {

using ::testing::Combine;
using ::testing::TestParamInfo;
using ::testing::Values;
using ::testing::ValuesIn;

constexpr int kBlockSize = 16;

std::vector<float> random_values(size_t count, uint32_t seed, float scale = 1.0f) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> values(count);
  for (float& value : values) value = normal(generator);
  return values;
}

uint16_t to_bits(float value, DType dtype) {
  return dtype == DType::kBF16 ? to_bfloat16(value).bits : float_to_half(value);
}
float from_bits(uint16_t bits, DType dtype) {
  return dtype == DType::kBF16 ? to_float(BFloat16{bits}) : half_to_float(bits);
}
std::vector<uint16_t> to_act(const std::vector<float>& values, DType dtype) {
  std::vector<uint16_t> bits(values.size());
  for (size_t i = 0; i < values.size(); ++i) bits[i] = to_bits(values[i], dtype);
  return bits;
}
// Rounding unit of a dtype.
double unit_of(DType dtype) { return dtype == DType::kBF16 ? 0x1p-8 : 0x1p-11; }

// A matrix of a checkpoint: its bytes, and the exact values once they are stored as act.
struct Matrix {
  Matrix(int64_t num_rows, int64_t num_cols, DType stored, DType act, uint32_t seed)
      : rows(num_rows), cols(num_cols), dtype(stored) {
    values = random_values(static_cast<size_t>(rows * cols), seed);
    bytes.resize(values.size() * size_of(dtype));
    for (size_t i = 0; i < values.size(); ++i) {
      if (dtype == DType::kF64) {
        const double wide = values[i];
        std::memcpy(&bytes[i * 8], &wide, 8);
      } else if (dtype == DType::kF32) {
        std::memcpy(&bytes[i * 4], &values[i], 4);
      } else {
        const uint16_t bits = to_bits(values[i], dtype);
        std::memcpy(&bytes[i * 2], &bits, 2);
        values[i] = from_bits(bits, dtype);
      }
      values[i] = from_bits(to_bits(values[i], act), act);
    }
  }
  WeightView view() const { return {.values = {bytes.data(), dtype, {rows, cols}}}; }

  int64_t rows;
  int64_t cols;
  DType dtype;
  std::vector<float> values;
  std::vector<uint8_t> bytes;
};

struct Sum {
  double value = 0;
  double squares = 0;    // of the products: what rounding of the inputs makes
  double magnitude = 0;  // of the products: what rounding of sums makes
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

class ProjectionTest : public ::testing::TestWithParam<std::tuple<DeviceKind, DType>> {
 protected:
  ProjectionTest() : act_(std::get<1>(GetParam())) {
    backend_ = make_backend(std::get<0>(GetParam()), act_);
  }

  template <class T>
  Buffer upload(const std::vector<T>& values) {
    Buffer buffer = backend_->allocate(std::max<size_t>(1, values.size() * sizeof(T)), "test");
    backend_->stream().copy_to_device(buffer.data(), values.data(), values.size() * sizeof(T));
    backend_->stream().synchronize();
    return buffer;
  }
  template <class T>
  std::vector<T> download(const Buffer& buffer, size_t count) {
    std::vector<T> values(count);
    backend_->stream().copy_to_host(values.data(), buffer.data(), count * sizeof(T));
    backend_->stream().synchronize();
    return values;
  }
  std::unique_ptr<PackedLinear> pack(std::initializer_list<const Matrix*> parts,
                                     bool gated = false) {
    std::vector<WeightView> views;
    for (const Matrix* part : parts) views.push_back(part->view());
    return backend_->pack_linear({.parts = views, .gated = gated});
  }
  // Values as they are once rounded to act.
  std::vector<float> rounded(std::vector<float> values) const {
    for (float& value : values) value = from_bits(to_bits(value, act_), act_);
    return values;
  }

  DType act_;
  std::unique_ptr<CudaBackend> backend_;
};

std::string param_name(const TestParamInfo<std::tuple<DeviceKind, DType>>& info) {
  return name_of(std::get<0>(info.param)) + "_" +
         std::string(specdec::name_of(std::get<1>(info.param)));
}

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
    const Matrix top(first, c.num_k, c.stored, act_, seed);
    const Matrix bottom(c.num_n - first, c.num_k, c.stored, act_, seed + 1);
    const std::vector<float> x =
        rounded(random_values(static_cast<size_t>(c.num_rows * c.num_k), seed + 2));
    const std::vector<float> bias = random_values(static_cast<size_t>(c.num_n), seed + 3);
    const std::vector<float> before =
        random_values(static_cast<size_t>(c.num_rows * c.num_n), seed + 4);
    seed += 5;
    const auto weight = pack({&top, &bottom});
    EXPECT_EQ(weight->out_features(), c.num_n);
    EXPECT_EQ(weight->in_features(), c.num_k);
    const Buffer x_act = upload(to_act(x, act_));
    const Buffer bias_buffer = upload(bias);
    for (const bool accumulate : {false, true}) {
      Buffer out = upload(before);
      backend_->linear({.weight = weight.get(),
                        .in = {.x = x_act.data(), .dtype = act_, .num_rows = c.num_rows},
                        .bias = accumulate ? nullptr : bias_buffer.as<float>(),
                        .out = out.as<float>(),
                        .accumulate = accumulate});
      const std::vector<float> result = download<float>(out, before.size());
      const float scale = 0.22f, soft_cap = 0.5f;
      backend_->linear({.weight = weight.get(),
                        .in = {.x = x_act.data(), .dtype = act_, .num_rows = c.num_rows},
                        .bias = bias_buffer.as<float>(),
                        .out = out.as<float>(),
                        .accumulate = accumulate,
                        .scale = scale,
                        .soft_cap = accumulate ? 0.0f : soft_cap});
      const std::vector<float> scaled = download<float>(out, before.size());
      for (int row = 0; row < c.num_rows; ++row) {
        const std::vector<double> input(x.begin() + row * c.num_k, x.begin() + (row + 1) * c.num_k);
        for (int n = 0; n < c.num_n; ++n) {
          const Matrix& part = n < first ? top : bottom;
          const Sum sum =
              dot(&part.values[static_cast<size_t>((n < first ? n : n - first) * c.num_k)],
                  input.data(), c.num_k);
          const size_t place = static_cast<size_t>(row * c.num_n + n);
          const double added = accumulate ? before[place] : bias[static_cast<size_t>(n)];
          ASSERT_NEAR(result[place], sum.value + added,
                      (sum.magnitude + std::abs(added)) * 0x1p-20 + 1e-6)
              << "row " << row << " output " << n;
          const double own = scale * (sum.value + bias[static_cast<size_t>(n)]);
          ASSERT_NEAR(scaled[place],
                      accumulate ? result[place] + own : soft_cap * std::tanh(own / soft_cap),
                      (sum.magnitude + std::abs(added)) * 0x1p-20 + 1e-6)
              << "scaled row " << row << " output " << n;
        }
      }
    }
  }
}

TEST_P(ProjectionTest, RowsAreBitEqualWhateverTheirNumber) {
  constexpr int kN = 72, kK = 352, kMost = 130;
  const Matrix matrix(kN, kK, DType::kF32, act_, 7);
  const auto weight = pack({&matrix});
  const Buffer x = upload(to_act(random_values(kMost * kK, 8), act_));
  const Buffer wide = upload(random_values(kMost * kK, 9));
  const Buffer norm_weight = upload(random_values(kK, 10));
  const NormParams norm = {.weight = norm_weight.as<float>()};
  const auto run = [&](int num_rows, bool normalised) {
    Buffer out = backend_->allocate(sizeof(float) * kMost * kN, "test");
    ProjectionInput in = {.x = x.data(), .dtype = act_, .num_rows = num_rows};
    if (normalised) {
      in = {.x = wide.data(), .dtype = DType::kF32, .norm = &norm, .num_rows = num_rows};
    }
    backend_->linear({.weight = weight.get(), .in = in, .out = out.as<float>()});
    return download<uint32_t>(out, static_cast<size_t>(num_rows * kN));
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

double activated(Activation activation, double x) {
  switch (activation) {
    case Activation::kSilu:
      return x / (1 + std::exp(-x));
    case Activation::kRelu:
      return std::max(x, 0.0);
    case Activation::kGelu:
      return x * 0.5 * std::erfc(-x / std::sqrt(2.0));
    case Activation::kGeluTanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::kIdentity:
      return x;
  }
  return 0;
}

TEST_P(ProjectionTest, ActivationsAreAppliedToSumsAndGates) {
  constexpr int kDim = 21, kK = 64;
  const Matrix gate(kDim, kK, DType::kF32, act_, 20);
  const Matrix up(kDim, kK, DType::kF32, act_, 21);
  const std::vector<float> bias = random_values(2 * kDim, 22);
  const Buffer bias_buffer = upload(bias);
  for (const int num_rows : {1, 11, 20}) {
    const std::vector<float> x =
        rounded(random_values(static_cast<size_t>(num_rows * kK), 23, 0.25f));
    const Buffer x_act = upload(to_act(x, act_));
    for (const bool gated : {false, true}) {
      const auto weight = gated ? pack({&gate, &up}, true) : pack({&gate});
      for (const Activation activation : {Activation::kSilu, Activation::kRelu, Activation::kGelu,
                                          Activation::kGeluTanh, Activation::kIdentity}) {
        Buffer out = backend_->allocate(static_cast<size_t>(num_rows * kDim * 2), "test");
        backend_->activated_linear({.weight = weight.get(),
                                    .in = {.x = x_act.data(), .dtype = act_, .num_rows = num_rows},
                                    .bias = bias_buffer.as<float>(),
                                    .activation = activation,
                                    .gated = gated,
                                    .out = out.data()});
        const std::vector<uint16_t> result =
            download<uint16_t>(out, static_cast<size_t>(num_rows * kDim));
        for (int row = 0; row < num_rows; ++row) {
          const std::vector<double> input(x.begin() + row * kK, x.begin() + (row + 1) * kK);
          for (int n = 0; n < kDim; ++n) {
            const double a = dot(&gate.values[static_cast<size_t>(n * kK)], input.data(), kK).value;
            const double b = dot(&up.values[static_cast<size_t>(n * kK)], input.data(), kK).value;
            double expected = activated(activation, a + bias[static_cast<size_t>(n)]);
            if (gated) expected *= b + bias[static_cast<size_t>(kDim + n)];
            ASSERT_NEAR(from_bits(result[static_cast<size_t>(row * kDim + n)], act_), expected,
                        std::abs(expected) * unit_of(act_) + 2e-5)
                << "row " << row << " output " << n << " activation "
                << static_cast<int>(activation) << (gated ? " gated" : "");
          }
        }
      }
    }
  }
}

// A row as the norm leaves it.
std::vector<double> normalised(const std::vector<double>& x, NormKind kind,
                               const std::vector<float>& weight, const std::vector<float>& bias,
                               double eps) {
  const double dim = static_cast<double>(x.size());
  const double mean =
      kind == NormKind::kLayer ? std::accumulate(x.begin(), x.end(), 0.0) / dim : 0.0;
  double squares = 0;
  for (const double value : x) squares += (value - mean) * (value - mean);
  const double scale = 1 / std::sqrt(squares / dim + eps);
  std::vector<double> out(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    out[i] = (x[i] - mean) * scale * weight[i] + (bias.empty() ? 0.0f : bias[i]);
  }
  return out;
}

TEST_P(ProjectionTest, RowsAreGatheredNormalisedAndConverted) {
  constexpr int kStored = 24, kN = 19;
  enum Kind { kPlain, kRms, kLayer, kLayerBias, kAct };
  for (const int num_k : {36, 75, 1280}) {
    const Matrix matrix(kN, num_k, DType::kF32, act_, 30);
    const auto weight = pack({&matrix});
    std::vector<float> x = random_values(static_cast<size_t>(kStored * num_k), 31, 3.0f);
    for (float& value : x) value += 1.0f;
    const std::vector<float> x_rounded = rounded(x);
    const Buffer wide = upload(x);
    const Buffer act = upload(to_act(x, act_));
    const std::vector<float> gain = random_values(static_cast<size_t>(num_k), 32);
    const std::vector<float> shift = random_values(static_cast<size_t>(num_k), 33);
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
        Buffer out = backend_->allocate(sizeof(float) * num_rows * kN, "test");
        backend_->linear({.weight = weight.get(),
                          .in = {.x = kind == kAct ? act.data() : wide.data(),
                                 .dtype = kind == kAct ? act_ : DType::kF32,
                                 .row_ids = id_buffer.as<int32_t>(),
                                 .norm = has_norm ? &norm : nullptr,
                                 .num_rows = num_rows},
                          .out = out.as<float>()});
        const std::vector<float> result = download<float>(out, static_cast<size_t>(num_rows * kN));
        for (int row = 0; row < num_rows; ++row) {
          const int64_t begin = int64_t{ids[static_cast<size_t>(row)]} * num_k;
          const std::vector<float>& source = kind == kAct ? x_rounded : x;
          std::vector<double> input(source.begin() + begin, source.begin() + begin + num_k);
          if (has_norm) {
            input = normalised(input, norm.kind, gain,
                               kind == kLayerBias ? shift : std::vector<float>(), norm.eps);
          }
          for (int n = 0; n < kN; ++n) {
            const Sum sum =
                dot(&matrix.values[static_cast<size_t>(n * num_k)], input.data(), num_k);
            const double rounding = kind == kAct ? 0 : 3 * unit_of(act_) * std::sqrt(sum.squares);
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
  const std::vector<float> x = rounded(random_values(kK, 41));
  const Buffer x_act = upload(to_act(x, act_));
  for (const bool has_mins : {false, true}) {
    const WeightView view = {.values = {codes.data(), DType::kU8, {kN, kK / 2}},
                             .scales = scales.data(),
                             .mins = has_mins ? mins.data() : nullptr,
                             .group_size = kGroup};
    const auto weight = backend_->pack_linear({.parts = {&view, 1}});
    Buffer out = backend_->allocate(sizeof(float) * kN, "test");
    backend_->linear({.weight = weight.get(),
                      .in = {.x = x_act.data(), .dtype = act_, .num_rows = 1},
                      .out = out.as<float>()});
    const std::vector<float> result = download<float>(out, kN);
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

// --- q, k and v ---

struct QkvCase {
  int num_heads, num_kv_heads, head_dim, rotary_dim;
  bool has_norms, has_bias;
  DType cache;  // kF32 stands for act
  bool norm_all_heads = false;
};

class QkvWorld {
 public:
  static constexpr int kK = 96, kNumBlocks = 18, kPositions = 160;

  QkvWorld(const QkvCase& shape, DType act, int num_rows)
      : shape_(shape),
        num_n_((shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim),
        matrix(num_n_, kK, DType::kF32, act, 50),
        x(random_values(static_cast<size_t>(num_rows * kK), 51)),
        bias(random_values(static_cast<size_t>(num_n_), 52)),
        q_norm(random_values(static_cast<size_t>(shape.num_heads * shape.head_dim), 53)),
        k_norm(random_values(static_cast<size_t>(shape.num_kv_heads * shape.head_dim), 54)) {
    for (int row = 0; row < num_rows; ++row) {
      positions.push_back(row * 11 % kPositions);
      // The last row is padding.
      slots.push_back(row == num_rows - 1 && num_rows > 1
                          ? 0
                          : kBlockSize + (row * 5) % ((kNumBlocks - 1) * kBlockSize));
    }
    for (int position = 0; position < kPositions; ++position) {
      for (int i = 0; i < shape.rotary_dim / 2; ++i) {
        cos.push_back(std::cos(static_cast<float>(position) / static_cast<float>(1 + i)));
        sin.push_back(std::sin(static_cast<float>(position) / static_cast<float>(1 + i)));
      }
    }
  }

  int num_n() const { return num_n_; }

  // Head `head` of all (q, k, v) of a row, finished, in double.
  std::vector<double> head_of(int row, int head) const {
    const int dim = shape_.head_dim;
    const bool is_query = head < shape_.num_heads;
    std::vector<double> out = outputs_of(row, head * dim, dim);
    if (head >= shape_.num_heads + shape_.num_kv_heads) return out;
    if (shape_.norm_all_heads) {
      const int first = is_query ? 0 : shape_.num_heads;
      const int count = is_query ? shape_.num_heads : shape_.num_kv_heads;
      out = normalised(outputs_of(row, first * dim, count * dim), NormKind::kRms,
                       is_query ? q_norm : k_norm, {}, 1e-5);
      const auto begin = out.begin() + (head - first) * dim;
      out = std::vector<double>(begin, begin + dim);
    } else if (shape_.has_norms) {
      const std::vector<float>& weight = is_query ? q_norm : k_norm;
      out = normalised(out, NormKind::kRms, {weight.begin(), weight.begin() + dim}, {}, 1e-5);
    }
    const int half = shape_.rotary_dim / 2;
    for (int i = 0; i < half; ++i) {
      const size_t entry = static_cast<size_t>(positions[static_cast<size_t>(row)] * half + i);
      double& a = out[static_cast<size_t>(i)];
      double& b = out[static_cast<size_t>(half + i)];
      const double rotated = a * cos[entry] - b * sin[entry];
      b = b * cos[entry] + a * sin[entry];
      a = rotated;
    }
    return out;
  }

 private:
  // What the product gives a row, with its bias.
  std::vector<double> outputs_of(int row, int first, int count) const {
    const std::vector<double> input(x.begin() + row * kK, x.begin() + (row + 1) * kK);
    std::vector<double> out;
    for (int i = first; i < first + count; ++i) {
      const size_t n = static_cast<size_t>(i);
      out.push_back(dot(&matrix.values[n * kK], input.data(), kK).value +
                    (shape_.has_bias ? bias[n] : 0.0f));
    }
    return out;
  }

  QkvCase shape_;
  int num_n_;

 public:
  Matrix matrix;
  std::vector<float> x, bias, q_norm, k_norm, cos, sin;
  std::vector<int32_t> positions;
  std::vector<int64_t> slots;
};

class QkvTest : public ProjectionTest {
 protected:
  struct Result {
    std::vector<uint16_t> q;
    std::vector<uint8_t> keys, values;
  };

  Result run(const QkvCase& shape, const QkvWorld& world, int num_rows) {
    const auto weight = pack({&world.matrix});
    PagedKvView kv = {.dtype = shape.cache == DType::kI8 ? DType::kI8 : act_,
                      .num_blocks = QkvWorld::kNumBlocks,
                      .block_size = kBlockSize,
                      .num_kv_heads = shape.num_kv_heads,
                      .head_dim = shape.head_dim};
    const size_t num_tokens = static_cast<size_t>(kv.num_blocks * kv.block_size * kv.num_kv_heads);
    const size_t cache_bytes =
        num_tokens * static_cast<size_t>(shape.head_dim) * size_of(kv.dtype) +
        (kv.dtype == DType::kI8 ? num_tokens * 4 : 0);
    Buffer keys = backend_->allocate(cache_bytes, "test");
    Buffer values = backend_->allocate(cache_bytes, "test");
    kv.keys = keys.data();
    kv.values = values.data();
    const Buffer x = upload(world.x), bias = upload(world.bias), q_norm = upload(world.q_norm),
                 k_norm = upload(world.k_norm), cos = upload(world.cos), sin = upload(world.sin),
                 positions = upload(world.positions), slots = upload(world.slots);
    const size_t num_q = static_cast<size_t>(num_rows * shape.num_heads * shape.head_dim);
    Buffer q = backend_->allocate(num_q * 2, "test");
    const BatchView batch = {.num_rows = num_rows,
                             .positions = positions.as<int32_t>(),
                             .slot_mapping = slots.as<int64_t>()};
    backend_->project_qkv({.weight = weight.get(),
                           .in = {.x = x.data(), .dtype = DType::kF32, .num_rows = num_rows},
                           .bias = shape.has_bias ? bias.as<float>() : nullptr,
                           .q_norm = shape.has_norms ? q_norm.as<float>() : nullptr,
                           .k_norm = shape.has_norms ? k_norm.as<float>() : nullptr,
                           .norm_all_heads = shape.norm_all_heads,
                           .norm_eps = 1e-5f,
                           .rope_cos = shape.rotary_dim > 0 ? cos.as<float>() : nullptr,
                           .rope_sin = shape.rotary_dim > 0 ? sin.as<float>() : nullptr,
                           .rotary_dim = shape.rotary_dim,
                           .num_heads = shape.num_heads,
                           .batch = &batch,
                           .kv = kv,
                           .q = q.data()});
    return {download<uint16_t>(q, num_q), download<uint8_t>(keys, cache_bytes),
            download<uint8_t>(values, cache_bytes)};
  }

  // A token's key or value of a head, as the cache has it.
  std::vector<double> cached(const QkvCase& shape, const std::vector<uint8_t>& cache, int64_t slot,
                             int head, double* resolution) const {
    const int dim = shape.head_dim;
    const int64_t row =
        (slot / kBlockSize * shape.num_kv_heads + head) * kBlockSize + slot % kBlockSize;
    std::vector<double> out(static_cast<size_t>(dim));
    if (shape.cache != DType::kI8) {
      for (int i = 0; i < dim; ++i) {
        uint16_t bits;
        std::memcpy(&bits, &cache[static_cast<size_t>((row * dim + i) * 2)], 2);
        out[static_cast<size_t>(i)] = from_bits(bits, act_);
      }
      *resolution = 0;
      return out;
    }
    const int64_t num_rows = int64_t{QkvWorld::kNumBlocks} * kBlockSize * shape.num_kv_heads;
    float scale;
    std::memcpy(&scale, &cache[static_cast<size_t>(num_rows * dim + row * 4)], 4);
    for (int i = 0; i < dim; ++i) {
      const int8_t code = static_cast<int8_t>(cache[static_cast<size_t>(row * dim + i)]);
      out[static_cast<size_t>(i)] = double{scale} * code;
    }
    *resolution = scale / 2;
    return out;
  }

  void expect_head(const std::vector<double>& result, const std::vector<double>& expected,
                   double resolution, const char* what) {
    for (size_t i = 0; i < result.size(); ++i) {
      ASSERT_NEAR(result[i], expected[i],
                  std::abs(expected[i]) * unit_of(act_) + resolution * 1.01 + 2e-4)
          << what << " element " << i;
    }
  }
};

TEST_P(QkvTest, HeadsAreNormalisedRotatedAndCached) {
  const QkvCase cases[] = {
      {4, 2, 16, 16, false, true, DType::kF32},     {3, 1, 40, 24, true, false, DType::kF32},
      {2, 2, 64, 64, true, true, DType::kI8},       {2, 1, 6, 0, false, false, DType::kF32},
      {2, 1, 256, 256, true, false, DType::kF32},   {5, 2, 40, 24, true, true, DType::kF32, true},
      {3, 1, 64, 64, true, false, DType::kI8, true}};
  for (const QkvCase& shape : cases) {
    for (const int num_rows : {1, 6, 21, 70, 130}) {
      SCOPED_TRACE(::testing::Message()
                   << "head_dim " << shape.head_dim << ", " << num_rows << " rows");
      QkvWorld world(shape, act_, num_rows);
      world.x = rounded(world.x);
      const Result result = run(shape, world, num_rows);
      for (int row = 0; row < num_rows; ++row) {
        for (int head = 0; head < shape.num_heads; ++head) {
          std::vector<double> q(static_cast<size_t>(shape.head_dim));
          for (size_t i = 0; i < q.size(); ++i) {
            q[i] = from_bits(
                result.q[static_cast<size_t>((row * shape.num_heads + head) * shape.head_dim) + i],
                act_);
          }
          expect_head(q, world.head_of(row, head), 0, "q");
        }
        for (int head = 0; head < shape.num_kv_heads; ++head) {
          double resolution = 0;
          const int64_t slot = world.slots[static_cast<size_t>(row)];
          const std::vector<double> key = cached(shape, result.keys, slot, head, &resolution);
          expect_head(key, world.head_of(row, shape.num_heads + head), resolution, "key");
          const std::vector<double> value = cached(shape, result.values, slot, head, &resolution);
          expect_head(value, world.head_of(row, shape.num_heads + shape.num_kv_heads + head),
                      resolution, "value");
        }
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(QkvTest, RowsAreBitEqualWhateverTheirNumber) {
  constexpr int kMost = 66;
  for (const bool norm_all_heads : {false, true}) {
    const QkvCase shape = {3, 1, 32, 32, true, true, DType::kI8, norm_all_heads};
    const QkvWorld world(shape, act_, kMost);
    const Result all = run(shape, world, kMost);
    for (const int num_rows : {1, 5, 16, 33}) {
      const Result some = run(shape, world, num_rows);
      ASSERT_TRUE(std::equal(some.q.begin(), some.q.end(), all.q.begin())) << num_rows;
      for (int row = 0; row < num_rows; ++row) {
        double resolution = 0;
        const int64_t slot = world.slots[static_cast<size_t>(row)];
        ASSERT_EQ(cached(shape, some.keys, slot, 0, &resolution),
                  cached(shape, all.keys, slot, 0, &resolution))
            << num_rows << " rows, row " << row;
      }
    }
  }
}

TEST_P(ProjectionTest, RecordedProductsCountAgainEachTime) {
  // Heads and slices meet by counting, so a graph must leave the counts as it found them.
  constexpr int kN = 40, kK = 300, kRows = 20;
  const Matrix matrix(kN, kK, DType::kF32, act_, 70);
  const auto weight = pack({&matrix});
  const std::vector<float> x = random_values(kRows * kK, 71);
  Buffer input = upload(x);
  Buffer out = backend_->allocate(sizeof(float) * kRows * kN, "test");
  const LinearArgs args = {.weight = weight.get(),
                           .in = {.x = input.data(), .dtype = DType::kF32, .num_rows = kRows},
                           .out = out.as<float>()};
  backend_->linear(args);
  const std::vector<uint32_t> expected = download<uint32_t>(out, kRows * kN);
  Stream& stream = backend_->stream();
  stream.begin_capture();
  backend_->linear(args);
  const std::unique_ptr<Graph> graph = stream.end_capture();
  for (int run = 0; run < 2; ++run) {
    stream.fill(out.data(), 0, out.size_bytes());
    stream.launch(*graph);
    EXPECT_EQ(download<uint32_t>(out, kRows * kN), expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, ProjectionTest,
                         Combine(ValuesIn(device_kinds()), Values(DType::kBF16, DType::kF16)),
                         param_name);
INSTANTIATE_TEST_SUITE_P(Devices, QkvTest,
                         Combine(ValuesIn(device_kinds()), Values(DType::kBF16, DType::kF16)),
                         param_name);

// --- how the work is cut up ---

class ProductPlanTest : public CudaDeviceTest {};

TEST_P(ProductPlanTest, PlansGiveTheSameBits) {
  constexpr int kN = 200, kK = 608, kRows = 16;
  constexpr int kTiles = (kN + 15) / 16, kKBlocks = kK / 32;
  const Buffer source = upload(random_values(kN * kK, 60));
  Buffer packed = allocate<uint16_t>(kTiles * 16 * kK);
  kernels().projection.pack(stream(), {.source = source.data(),
                                       .num_rows = kN,
                                       .out_features = kN,
                                       .in_features = kK,
                                       .packed = packed.data()});
  const Buffer x = upload(to_act(random_values(kRows * kK, 61), DType::kBF16));
  Buffer partials = allocate<float>(2 * kPartialSlices * partial_floats(8));
  Buffer arrivals = allocate<uint32_t>(2);
  Buffer out = allocate<float>(kRows * kN);
  const auto run = [&](const ProductPlan& plan) {
    kernels().projection.product(
        stream(), {.weights = packed.data(),
                   .num_tiles = kTiles,
                   .num_k_blocks = kKBlocks,
                   .rows = {.x = x.data(), .is_float = false, .num_rows = kRows, .dim = kK},
                   .records = x.data(),
                   .finish = {.out_features = kN, .out = out.data(), .heads = {}},
                   .plan = plan,
                   .partials = partials.as<float>(),
                   .partial_arrivals = arrivals.as<uint32_t>()});
    return download<uint32_t>(out);
  };
  const std::vector<uint32_t> expected = run({.few_rows = true, .num_blocks = 1});
  for (const int num_blocks : {2, 3, 5, kTiles}) {
    for (const int tiles : {1, 2}) {
      for (const bool fused : {false, true}) {
        EXPECT_EQ(run({.few_rows = true,
                       .fused_rows = fused,
                       .tiles_at_once = tiles,
                       .num_blocks = num_blocks}),
                  expected)
            << num_blocks << " blocks, " << tiles << " tiles at once" << (fused ? ", fused" : "");
      }
    }
  }
  for (const int column_tiles : {4, 8}) {
    for (const bool split : {false, true}) {
      EXPECT_EQ(run({.column_tiles = column_tiles, .split_slices = split}), expected)
          << column_tiles << " column tiles" << (split ? ", split" : "");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, ProductPlanTest, ValuesIn(device_kinds()), test_name);

class ProjectorTest : public CudaDeviceTest {
 protected:
  static std::vector<ProductParams> launched;
};
std::vector<ProductParams> ProjectorTest::launched;

TEST_P(ProjectorTest, RowsLieBeyondTheFirstFourGigabytes) {
  // Down projection of a large model over long prompts. Nothing is read: only where it would be.
  constexpr int kIn = 28672, kOut = 16, kRows = 300'000;
  constexpr uint64_t kInputAt = uint64_t{1} << 40, kOutputAt = uint64_t{1} << 44;
  const ProjectionKernels kernels = {
      .product = [](Stream&, const ProductParams& params) { launched.push_back(params); }};
  Projector projector(device(), stream(), kernels, DType::kBF16, /*deterministic=*/true, {});
  const CudaPackedLinear weight({.out_features = kOut, .in_features = kIn}, {});
  launched.clear();
  projector.run(
      weight,
      {.x = reinterpret_cast<const void*>(kInputAt), .dtype = DType::kBF16, .num_rows = kRows},
      {.out_features = kOut, .out = reinterpret_cast<void*>(kOutputAt), .heads = {}});
  uint64_t row = 0;
  for (const ProductParams& params : launched) {
    EXPECT_EQ(reinterpret_cast<uint64_t>(params.records), kInputAt + row * kIn * 2);
    EXPECT_EQ(reinterpret_cast<uint64_t>(params.finish.out), kOutputAt + row * kOut * 4);
    row += static_cast<uint64_t>(params.rows.num_rows);
  }
  EXPECT_EQ(row, uint64_t{kRows});
}

INSTANTIATE_TEST_SUITE_P(Devices, ProjectorTest, ValuesIn(device_kinds()), test_name);

}  // namespace
}  // namespace specdec::cuda::testing
