// Matrix products and embeddings of every kernel set this machine runs, against double loops.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "cpu/cpu_backend.h"
#include "cpu/kernels/linear_amx.h"
#include "cpu/packed_linear.h"
#include "specdec/error.h"
#include "testing/clusters.h"
#include "testing/cpu_isas.h"
#include "testing/few_shapes.h"
#include "testing/stored_matrix.h"
#include "testing/values.h"

namespace specdec::cpu {
namespace {

using specdec::testing::random_values;
using specdec::testing::supported_isas;
using Matrix = specdec::testing::StoredMatrix;

struct Expected {
  std::vector<double> values;
  std::vector<double> scale;  // sum of magnitudes, what rounding errors are relative to
};

Expected multiply(const std::vector<float>& x, const std::vector<float>& w, int64_t rows,
                  int64_t num_n, int64_t num_k) {
  Expected out{std::vector<double>(rows * num_n), std::vector<double>(rows * num_n)};
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t n = 0; n < num_n; ++n) {
      double sum = 0;
      double magnitude = 0;
      for (int64_t k = 0; k < num_k; ++k) {
        const double product = double{x[r * num_k + k]} * w[n * num_k + k];
        sum += product;
        magnitude += std::abs(product);
      }
      out.values[r * num_n + n] = sum;
      out.scale[r * num_n + n] = magnitude;
    }
  }
  return out;
}

// Bound on a float32 sum of num_k products taken in order.
double tolerance(double scale, int64_t num_k) { return scale * (num_k + 4) * 0x1p-24 + 1e-30; }

struct Params {
  Isa isa;
  DType dtype;
};

class CpuLinearTest : public ::testing::TestWithParam<Params> {
 protected:
  CpuBackend make_backend(int num_threads) const {
    return CpuBackend(GetParam().isa, num_threads, GetParam().dtype);
  }
  static std::vector<float> run(CpuBackend& backend, const PackedLinear& weight, const void* x,
                                int rows, const float* bias = nullptr,
                                const std::vector<float>* residual = nullptr) {
    std::vector<float> out =
        residual != nullptr ? *residual : std::vector<float>(rows * weight.out_features(), NAN);
    backend.linear({.weight = &weight,
                    .in = {.x = x, .dtype = GetParam().dtype, .num_rows = rows},
                    .bias = bias,
                    .out = out.data(),
                    .accumulate = residual != nullptr});
    return out;
  }
  static void expect_close(const std::vector<float>& out, const Expected& expected, int64_t num_k) {
    ASSERT_EQ(out.size(), expected.values.size());
    for (size_t i = 0; i < out.size(); ++i) {
      ASSERT_NEAR(out[i], expected.values[i], tolerance(expected.scale[i], num_k)) << "at " << i;
    }
  }
};

struct Shape {
  int64_t n, k;
};
constexpr Shape kShapes[] = {{1, 1},   {16, 2},   {17, 3},    {15, 31},  {33, 32},  {64, 33},
                             {48, 64}, {100, 65}, {20, 1000}, {65, 577}, {50, 6144}};

TEST_P(CpuLinearTest, MatchesDoubleLoops) {
  CpuBackend backend = make_backend(2);
  for (const auto& [n, k] : kShapes) {
    const Matrix weight(n, k, GetParam().dtype, 1);
    const WeightView view = weight.view();
    const auto packed = backend.pack_linear({.parts = {&view, 1}});
    for (int rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 15, 16, 17, 31, 33, 70}) {
      if (specdec::testing::is_left_out(rows, k)) continue;
      SCOPED_TRACE(::testing::Message() << "n " << n << " k " << k << " rows " << rows);
      const Matrix x(rows, k, GetParam().dtype, 2);
      expect_close(run(backend, *packed, x.bytes.data(), rows),
                   multiply(x.values, weight.values, rows, n, k), k);
    }
  }
}

TEST_P(CpuLinearTest, AddsBiasAndResidual) {
  CpuBackend backend = make_backend(2);
  const int64_t n = 53;
  const int64_t k = 77;
  const int rows = 19;
  const Matrix weight(n, k, GetParam().dtype, 1);
  const Matrix x(rows, k, GetParam().dtype, 2);
  const std::vector<float> bias = random_values(n, 3);
  const std::vector<float> residual = random_values(rows * n, 4);
  const WeightView view = weight.view();
  const auto packed = backend.pack_linear({.parts = {&view, 1}});
  Expected expected = multiply(x.values, weight.values, rows, n, k);
  for (int64_t i = 0; i < rows * n; ++i) {
    expected.values[i] += double{bias[i % n]} + residual[i];
    expected.scale[i] += std::abs(bias[i % n]) + std::abs(residual[i]);
  }
  expect_close(run(backend, *packed, x.bytes.data(), rows, bias.data(), &residual), expected, k);
}

TEST_P(CpuLinearTest, ScalesAndCapsBeforeItAdds) {
  CpuBackend backend = make_backend(2);
  const int64_t n = 53, k = 77;
  const int rows = 19;
  const Matrix weight(n, k, GetParam().dtype, 1);
  const Matrix x(rows, k, GetParam().dtype, 2);
  const std::vector<float> bias = random_values(n, 3);
  const std::vector<float> residual = random_values(rows * n, 4);
  const WeightView view = weight.view();
  const auto packed = backend.pack_linear({.parts = {&view, 1}});
  for (const float soft_cap : {0.0f, 0.5f, 30.0f}) {
    for (const bool accumulate : {false, true}) {
      const float scale = 0.22f;
      std::vector<float> out = residual;
      backend.linear({.weight = packed.get(),
                      .in = {.x = x.bytes.data(), .dtype = GetParam().dtype, .num_rows = rows},
                      .bias = bias.data(),
                      .out = out.data(),
                      .accumulate = accumulate,
                      .scale = scale,
                      .soft_cap = soft_cap});
      const Expected sums = multiply(x.values, weight.values, rows, n, k);
      for (int64_t i = 0; i < rows * n; ++i) {
        double expected = scale * (sums.values[i] + bias[i % n]);
        if (soft_cap != 0.0f) expected = soft_cap * std::tanh(expected / soft_cap);
        if (accumulate) expected += residual[i];
        const double rounding = std::abs(expected) * 0x1p-22 + soft_cap * 2e-7 + 1e-6;
        ASSERT_NEAR(out[i], expected, tolerance(sums.scale[i], k) + rounding)
            << i << " cap " << soft_cap;
      }
    }
  }
}

TEST_P(CpuLinearTest, ConcatenatesPartsOfAnyFloatType) {
  CpuBackend backend = make_backend(1);
  const int64_t k = 45;
  const Matrix parts[] = {Matrix(9, k, DType::kF32, 1), Matrix(23, k, DType::kBF16, 2),
                          Matrix(6, k, DType::kF16, 3)};
  std::vector<WeightView> views;
  std::vector<float> values;
  for (const Matrix& part : parts) {
    views.push_back(part.view());
    for (float value : part.values) {
      values.push_back(GetParam().dtype == DType::kBF16 ? to_float(to_bfloat16(value)) : value);
    }
  }
  const auto packed = backend.pack_linear({.parts = views});
  EXPECT_EQ(packed->out_features(), 38);
  EXPECT_EQ(packed->in_features(), k);
  const Matrix x(5, k, GetParam().dtype, 4);
  expect_close(run(backend, *packed, x.bytes.data(), 5), multiply(x.values, values, 5, 38, k), k);
}

TEST_P(CpuLinearTest, LogitsOfClustersAreThoseOfAll) {
  const int64_t k = 72;
  const std::vector<float> bias = random_values(96 * 48, 3);
  for (const auto& shape : specdec::testing::kClusterShapes) {
    const int64_t n = int64_t{shape.num_clusters} * shape.size;
    const Matrix weight(n, k, GetParam().dtype, 1);
    const WeightView view = weight.view();
    for (const int num_threads : {1, 2, 5}) {
      CpuBackend backend = make_backend(num_threads);
      const auto packed = backend.pack_linear({.parts = {&view, 1}});
      for (const int rows : {1, 3, 17, 40}) {
        SCOPED_TRACE(::testing::Message() << n << " outputs, " << rows << " rows");
        const Matrix x(rows, k, GetParam().dtype, 2);
        const std::vector<float> all = run(backend, *packed, x.bytes.data(), rows, bias.data());
        const std::vector<float> scores =
            specdec::testing::cluster_scores(rows, shape.num_clusters);
        std::vector<float> out(static_cast<size_t>(rows * n), NAN);
        backend.cluster_logits(
            {.linear = {.weight = packed.get(),
                        .in = {.x = x.bytes.data(), .dtype = GetParam().dtype, .num_rows = rows},
                        .bias = bias.data(),
                        .out = out.data()},
             .scores = scores.data(),
             .num_clusters = shape.num_clusters,
             .num_kept = shape.num_kept});
        for (int64_t i = 0; i < rows * n; ++i) {
          const bool is_kept = specdec::testing::is_kept(shape, scores, i);
          ASSERT_EQ(out[i], is_kept ? all[i] : -INFINITY) << i;
        }
      }
    }
  }
}

// A row alone, and the same row anywhere in batches of every size and on any number of threads.
TEST_P(CpuLinearTest, RowsAreBitEqualWhateverTheBatch) {
  const int64_t n = 70;  // several groups of blocks, the last block cut short
  constexpr int kRows = 70;
  // With the last two sizes of k, rows compete for one place in a cache, and k is taken in parts.
  for (const int64_t k : {1103, 2048, 6001}) {
    if (specdec::testing::is_left_out(1, k)) continue;
    const Matrix weight(n, k, GetParam().dtype, 1);
    const Matrix x(kRows, k, GetParam().dtype, 2);
    const WeightView view = weight.view();
    const size_t row_bytes = k * size_of(GetParam().dtype);

    CpuBackend single = make_backend(1);
    const auto single_weight = single.pack_linear({.parts = {&view, 1}});
    std::vector<float> alone;
    for (int row = 0; row < kRows; ++row) {
      const auto out = run(single, *single_weight, x.bytes.data() + row * row_bytes, 1);
      alone.insert(alone.end(), out.begin(), out.end());
    }
    for (int num_threads : {1, 2, 5}) {
      CpuBackend backend = make_backend(num_threads);
      const auto packed = backend.pack_linear({.parts = {&view, 1}});
      for (int rows = 1; rows <= kRows; rows += rows < 20 ? 1 : 7) {
        if (specdec::testing::few_shapes() && rows % 5 != 0) continue;
        const int first = (rows * 7) % (kRows - rows + 1);
        const auto out = run(backend, *packed, x.bytes.data() + first * row_bytes, rows);
        ASSERT_EQ(0, std::memcmp(out.data(), alone.data() + first * n, out.size() * sizeof(float)))
            << rows << " rows of " << k << " from " << first << " on " << num_threads << " threads";
      }
    }
  }
}

TEST_P(CpuLinearTest, LongBatchesAreBitEqualToSingleRows) {
  const int64_t n = 40;
  const int64_t k = 96;
  constexpr int kRows = 1100;
  const Matrix weight(n, k, GetParam().dtype, 1);
  const Matrix x(kRows, k, GetParam().dtype, 2);
  const WeightView view = weight.view();
  const size_t row_bytes = k * size_of(GetParam().dtype);
  CpuBackend backend = make_backend(3);
  const auto packed = backend.pack_linear({.parts = {&view, 1}});
  const auto all = run(backend, *packed, x.bytes.data(), kRows);
  for (int row : {0, 1, 127, 128, 511, 512, 700, 1099}) {
    const auto out = run(backend, *packed, x.bytes.data() + row * row_bytes, 1);
    ASSERT_EQ(0, std::memcmp(out.data(), all.data() + row * n, n * sizeof(float))) << row;
  }
}

TEST_P(CpuLinearTest, EmbeddingRowsEqualTheTable) {
  CpuBackend backend = make_backend(2);
  const Matrix table(51, 39, GetParam().dtype, 1);
  const WeightView view = table.view();
  const auto packed = backend.pack_linear({.parts = {&view, 1}});
  const auto tied = backend.embedding_from(*packed);
  const auto own = backend.make_embedding(view, WeightFormat::kAct);
  EXPECT_EQ(tied->size_bytes(), 0);
  EXPECT_GE(own->size_bytes(), static_cast<int64_t>(table.bytes.size()));
  const std::vector<int32_t> ids = {48, 0, 17, 15, 16, 48, 1};
  const int32_t offset = 2;
  for (const auto& embedding : {tied.get(), own.get()}) {
    EXPECT_EQ(embedding->num_embeddings(), 51);
    EXPECT_EQ(embedding->dim(), 39);
    EmbedArgs args{.table = embedding,
                   .token_ids = ids.data(),
                   .num_rows = static_cast<int>(ids.size()),
                   .index_offset = offset};
    std::vector<float> out(ids.size() * 39, NAN);
    args.out = out.data();
    backend.embed(args);
    for (size_t i = 0; i < out.size(); ++i) {
      ASSERT_EQ(out[i], table.values[(ids[i / 39] + offset) * 39 + i % 39]) << i;
    }
    const std::vector<float> once = out;
    args.accumulate = true;
    backend.embed(args);
    for (size_t i = 0; i < out.size(); ++i) ASSERT_EQ(out[i], 2 * once[i]);
    args.scale = 1.7f;
    backend.embed(args);
    for (size_t i = 0; i < out.size(); ++i) ASSERT_EQ(out[i], 2 * once[i] + 1.7f * once[i]);
    args.accumulate = false;
    backend.embed(args);
    for (size_t i = 0; i < out.size(); ++i) ASSERT_EQ(out[i], 1.7f * once[i]);
  }
}

TEST_P(CpuLinearTest, EmbeddingOutsideTheTableIsRefused) {
  CpuBackend backend = make_backend(1);
  const Matrix table(4, 8, GetParam().dtype, 1);
  const auto embedding = backend.make_embedding(table.view(), WeightFormat::kAct);
  std::vector<float> out(8);
  for (int32_t id : {-1, 4}) {
    const EmbedArgs args{
        .table = embedding.get(), .token_ids = &id, .out = out.data(), .num_rows = 1};
    EXPECT_THROW(backend.embed(args), InternalError);
  }
}

TEST_P(CpuLinearTest, VectorsAreConcatenatedAsFloat) {
  CpuBackend backend = make_backend(1);
  const Matrix a(1, 5, DType::kBF16, 1);
  const Matrix b(1, 7, DType::kF16, 2);
  const TensorView parts[] = {{a.bytes.data(), a.dtype, {5}}, {b.bytes.data(), b.dtype, {7}}};
  const Buffer vector = backend.make_vector(parts);
  ASSERT_EQ(vector.size_bytes(), 12 * sizeof(float));
  for (int i = 0; i < 12; ++i) {
    EXPECT_EQ(vector.as<float>()[i], i < 5 ? a.values[i] : b.values[i - 5]);
  }
}

std::vector<Params> all_params() {
  std::vector<Params> params;
  for (Isa isa : supported_isas()) {
    params.push_back({isa, DType::kF32});
    params.push_back({isa, DType::kBF16});
  }
  return params;
}

INSTANTIATE_TEST_SUITE_P(KernelSets, CpuLinearTest, ::testing::ValuesIn(all_params()),
                         [](const auto& info) {
                           return std::string(name_of(info.param.isa)) + "_" +
                                  std::string(name_of(info.param.dtype));
                         });

// The tile unit as plain loops: what the architecture manual says of each instruction, with the
// faults it would raise as test failures.
class EmulatedTiles {
 public:
  void configure(int rows0, int rows1) {
    const int rows[] = {rows0, rows0, rows1, rows1, rows0, rows1, 16, 16};
    for (int tile = 0; tile < 8; ++tile) {
      rows_[tile] = rows[tile];
      std::memset(data_[tile], 0, sizeof(data_[tile]));
    }
  }
  template <AmxTile kTile>
  void zero() {
    require<kTile>();
    std::memset(data_[kTile], 0, sizeof(data_[kTile]));
  }
  template <AmxTile kTile>
  void load(const void* data, int64_t stride_bytes) {
    require<kTile>();
    for (int row = 0; row < rows_[kTile]; ++row) {
      std::memcpy(data_[kTile][row], static_cast<const char*>(data) + row * stride_bytes, 64);
    }
  }
  template <AmxTile kTile>
  void store(float* data, int64_t stride_bytes) {
    require<kTile>();
    for (int row = 0; row < rows_[kTile]; ++row) {
      std::memcpy(reinterpret_cast<char*>(data) + row * stride_bytes, data_[kTile][row], 64);
    }
  }
  template <AmxTile kSums, AmxTile kRows, AmxTile kWeights>
  void multiply() {
    require<kSums>();
    require<kRows>();
    require<kWeights>();
    ASSERT_EQ(rows_[kSums], rows_[kRows]);
    for (int row = 0; row < rows_[kRows]; ++row) {
      for (int pair = 0; pair < rows_[kWeights]; ++pair) {
        for (int n = 0; n < 16; ++n) {
          float sum;
          std::memcpy(&sum, &data_[kSums][row][4 * n], 4);
          for (int i = 0; i < 2; ++i) {
            sum += bf16(kRows, row, 2 * pair + i) * bf16(kWeights, pair, 2 * n + i);
          }
          std::memcpy(&data_[kSums][row][4 * n], &sum, 4);
        }
      }
    }
  }

 private:
  template <AmxTile kTile>
  void require() const {
    ASSERT_GT(rows_[kTile], 0) << "tile " << kTile << " is not configured";
  }
  float bf16(int tile, int row, int index) const {
    BFloat16 value;
    std::memcpy(&value, &data_[tile][row][2 * index], 2);
    return to_float(value);
  }

  int rows_[8] = {};
  char data_[8][16][64] = {};
};

class AmxTilesTest : public ::testing::Test {
 protected:
  static std::vector<float> run(const CpuPackedLinear& weight, const uint8_t* x, int rows) {
    const int64_t row_bytes = weight.in_features() * 2;
    std::vector<uint16_t> padded(rows * weight.padded_k());
    for (int row = 0; row < rows; ++row) {
      std::memcpy(&padded[row * weight.padded_k()], x + row * row_bytes, row_bytes);
    }
    const int64_t stride = weight.num_blocks() * CpuPackedLinear::kBlockOutputs;
    std::vector<float> sums(rows * stride, NAN);
    std::vector<float> partials(rows * kMaxPartials * kMaxCellBlocks * 16);
    EmulatedTiles tiles;
    run_amx_tiles({.weights = weight.block(0),
                   .block_bytes = weight.block_bytes(),
                   .padded_k = weight.padded_k(),
                   .x = padded.data(),
                   .x_stride = weight.padded_k(),
                   .num_rows = rows,
                   .num_blocks = weight.num_blocks(),
                   .slices = weight.sum_slices().data(),
                   .num_slices = static_cast<int>(weight.sum_slices().size()),
                   .sums = sums.data(),
                   .sums_stride = stride,
                   .plane_stride = 0,
                   .partials = partials.data(),
                   .scales_outputs = true,
                   .table = nullptr},
                  tiles);
    std::vector<float> out;
    for (int row = 0; row < rows; ++row) {
      const auto begin = sums.begin() + row * stride;
      out.insert(out.end(), begin, begin + weight.out_features());
    }
    return out;
  }
  HostArena arena_;
  ThreadPool pool_{1};
};

TEST_F(AmxTilesTest, MatchDoubleLoops) {
  for (const auto& [n, k] : kShapes) {
    const Matrix weight(n, k, DType::kBF16, 1);
    const WeightView view = weight.view();
    const CpuPackedLinear packed({.parts = {&view, 1}}, DType::kBF16, kernel_table(Isa::kGeneric),
                                 arena_, pool_);
    for (int rows : {1, 15, 16, 17, 32, 33, 50, 131}) {
      if (specdec::testing::is_left_out(rows, k)) continue;
      SCOPED_TRACE(::testing::Message() << "n " << n << " k " << k << " rows " << rows);
      const Matrix x(rows, k, DType::kBF16, 2);
      const auto out = run(packed, x.bytes.data(), rows);
      const Expected expected = multiply(x.values, weight.values, rows, n, k);
      for (size_t i = 0; i < out.size(); ++i) {
        ASSERT_NEAR(out[i], expected.values[i], tolerance(expected.scale[i], k)) << "at " << i;
      }
    }
  }
}

TEST_F(AmxTilesTest, RowsAreBitEqualWhateverTheBatch) {
  const int64_t n = 37;
  const int64_t k = 119;
  constexpr int kRows = 133;
  const Matrix weight(n, k, DType::kBF16, 1);
  const Matrix x(kRows, k, DType::kBF16, 2);
  const WeightView view = weight.view();
  const CpuPackedLinear packed({.parts = {&view, 1}}, DType::kBF16, kernel_table(Isa::kGeneric),
                               arena_, pool_);
  std::vector<float> alone;
  for (int row = 0; row < kRows; ++row) {
    const auto out = run(packed, x.bytes.data() + row * k * 2, 1);
    alone.insert(alone.end(), out.begin(), out.end());
  }
  for (int rows = 1; rows <= kRows; rows += 3) {
    const auto out = run(packed, x.bytes.data(), rows);
    ASSERT_EQ(0, std::memcmp(out.data(), alone.data(), out.size() * sizeof(float))) << rows;
  }
}

}  // namespace
}  // namespace specdec::cpu
