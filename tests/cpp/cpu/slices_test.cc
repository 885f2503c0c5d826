// Sums over k in slices, and weights that ranks share: the definition written out, and that no bit
// depends on the number of ranks, rows or threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <iterator>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "core/k_slices.h"
#include "cpu/cpu_backend.h"
#include "testing/cpu_int_formats.h"
#include "testing/few_shapes.h"
#include "testing/on_ranks.h"
#include "testing/stored_matrix.h"

namespace specdec::cpu {
namespace {

using specdec::testing::on_ranks;
using specdec::testing::random_values;
using specdec::testing::rows_of;
using specdec::testing::runs_of;
using specdec::testing::sum_of_slices;
using specdec::testing::supported_isas;
using Matrix = specdec::testing::StoredMatrix;

constexpr int kRowCounts[] = {1, 3, 16, 17, 70};

struct Format {
  DType act;
  WeightFormat weight;
};
constexpr Format kFormats[] = {{DType::kF32, WeightFormat::kAct},
                               {DType::kBF16, WeightFormat::kAct},
                               {DType::kF32, WeightFormat::kInt8},
                               {DType::kF32, WeightFormat::kInt8Grouped},
                               {DType::kF32, WeightFormat::kInt8GroupedMin},
                               {DType::kF32, WeightFormat::kInt4Grouped},
                               {DType::kF32, WeightFormat::kInt4GroupedMin},
                               {DType::kF32, WeightFormat::kInt4GroupedZero},
                               {DType::kF32, WeightFormat::kInt4Table},
                               {DType::kF32, WeightFormat::kInt8Grouped16}};

// A random matrix that can be stored in a format: floats of the act dtype, or codes.
class Weight {
 public:
  Weight(const Format& format, int64_t n, int64_t k, uint32_t seed) {
    if (takes_codes_alone(format.weight)) {
      codes_.emplace(codes_for(format.weight, n, k, seed));
    } else {
      floats_.emplace(n, k, format.act, seed);
    }
  }
  WeightView view() const { return codes_.has_value() ? codes_->view() : floats_->view(); }
  const Matrix& floats() const { return *floats_; }

 private:
  std::optional<Matrix> floats_;
  std::optional<specdec::testing::QuantizedMatrix> codes_;
};

struct Params {
  Isa isa;
  Format format;
};
std::string params_name(const ::testing::TestParamInfo<Params>& info) {
  const Format& format = info.param.format;
  const std::string weight(format.weight == WeightFormat::kAct ? name_of(format.act)
                                                               : name_of(format.weight));
  return std::string(name_of(info.param.isa)) + "_" + weight;
}
auto all_params() {
  std::vector<Params> params;
  for (const Isa isa : supported_isas()) {
    for (const Format& format : kFormats) params.push_back({isa, format});
  }
  return ::testing::ValuesIn(params);
}

struct Shape {
  int64_t n, k, unit;
};
// One short unit; fewer units than slices; several parts of k in a kernel; heads of 192.
constexpr Shape kShapes[] = {{20, 40, 64}, {33, 500, 192}, {17, 1100, 64}, {50, 6144, 64}};

class CpuSlices : public ::testing::TestWithParam<Params> {
 protected:
  CpuBackend make_backend(int num_threads) const {
    return CpuBackend(GetParam().isa, num_threads, GetParam().format.act);
  }
  WeightFormat format() const { return GetParam().format.weight; }
  bool is_integer() const { return format() != WeightFormat::kAct; }
  DType act() const { return GetParam().format.act; }
  int64_t inputs(int64_t k) const { return inputs_for(format(), k); }
  Weight make_weight(int64_t n, int64_t k, uint32_t seed) const {
    return Weight(GetParam().format, n, k, seed);
  }

  std::unique_ptr<PackedLinear> pack(CpuBackend& backend, const WeightView& view,
                                     const KSlices& slices) const {
    return backend.pack_linear({.parts = {&view, 1}, .format = format(), .k_slices = &slices});
  }
  std::vector<float> product(CpuBackend& backend, const PackedLinear& weight, const Matrix& x,
                             int rows, const float* bias = nullptr,
                             const std::vector<float>* residual = nullptr) const {
    std::vector<float> out =
        residual != nullptr ? *residual : std::vector<float>(rows * weight.out_features(), NAN);
    backend.linear({.weight = &weight,
                    .in = {.x = x.bytes.data(), .dtype = act(), .num_rows = rows},
                    .bias = bias,
                    .out = out.data(),
                    .accumulate = residual != nullptr,
                    .scale = residual != nullptr ? 0.37f : 1.0f});
    return out;
  }

  // A rank's share of a weight whose sums ranks share.
  std::unique_ptr<PackedLinear> share_of(CpuBackend& backend, const WeightView& view,
                                         const KSlices& own, Communicator* ranks,
                                         std::span<const SliceRun> runs) const {
    return backend.pack_linear({.parts = {&view, 1},
                                .format = format(),
                                .k_slices = &own,
                                .ranks = ranks,
                                .rank_runs = runs});
  }
  // The rank's own inputs of the first rows.
  Matrix own_inputs(const Matrix& x, int rows, int64_t k, const KSlices& own) const {
    const int64_t bytes = static_cast<int64_t>(size_of(act()));
    Matrix mine(rows, std::max<int64_t>(own.in_features(), 1), act(), 9);
    for (int row = 0; row < rows; ++row) {
      std::memcpy(mine.bytes.data() + row * own.in_features() * bytes,
                  x.bytes.data() + (row * k + own.begin()) * bytes, own.in_features() * bytes);
    }
    return mine;
  }
  // The plain product of every slice. Inputs outside of the slice are zeros, which add nothing: +0
  // to every sum.
  std::vector<std::vector<float>> sums_of_slices(CpuBackend& backend, const WeightView& view,
                                                 const KSlices& slices, const Matrix& x, int rows) {
    const auto plain = backend.pack_linear({.parts = {&view, 1}, .format = format()});
    const int64_t k = plain->in_features();
    const int64_t bytes = static_cast<int64_t>(size_of(act()));
    std::vector<std::vector<float>> sums;
    for (int s = 0; s < kNumSlices; ++s) {
      Matrix only = x;
      for (int row = 0; row < rows; ++row) {
        uint8_t* at = only.bytes.data() + row * k * bytes;
        std::memset(at, 0, slices.bounds[s] * bytes);
        std::memset(at + slices.bounds[s + 1] * bytes, 0, (k - slices.bounds[s + 1]) * bytes);
      }
      sums.push_back(product(backend, *plain, only, rows));
    }
    return sums;
  }

  // The sum of a slice of one output, in float32. The generic kernels round every product.
  static float slice_of_floats(const float* x, const float* w, int64_t begin, int64_t end) {
    float sum = 0.0f;
    for (int64_t k = begin; k < end; ++k) {
      const float product = w[k] * x[k];
      sum = GetParam().isa == Isa::kGeneric ? sum + product : std::fma(w[k], x[k], sum);
    }
    return sum;
  }
};

// A slice alone is a plain product of its inputs, so what slices add is the tree.
TEST_P(CpuSlices, TotalIsTheTreeOverPlainProductsOfTheSlices) {
  CpuBackend backend = make_backend(2);
  for (const auto& [n, num_k, unit] : kShapes) {
    const int64_t k = inputs(num_k);
    if (specdec::testing::is_left_out(1, k)) continue;
    const KSlices slices = KSlices::whole(k, unit);
    const Weight weight = make_weight(n, k, 1);
    // Codes of a whole row, so that a slice taken alone has the same.
    const WeightView view = weight.view();
    const auto packed = pack(backend, view, slices);
    const int rows = 19;
    const Matrix x(rows, k, act(), 2);
    const std::vector<float> out = product(backend, *packed, x, rows);
    const auto sums = sums_of_slices(backend, view, slices, x, rows);
    int num_rotated = 0;
    for (size_t i = 0; i < out.size(); ++i) {
      float s[kNumSlices];
      for (int slice = 0; slice < kNumSlices; ++slice) s[slice] = sums[slice][i];
      if (format() == WeightFormat::kInt8) {
        // Its scale is applied to the total, and here to every slice.
        ASSERT_NEAR(out[i], sum_of_slices(s), 1e-4f * std::sqrt(static_cast<float>(k)));
        continue;
      }
      ASSERT_EQ(out[i], sum_of_slices(s)) << "n " << n << " k " << k << " at " << i;
      std::rotate(s, s + 1, s + kNumSlices);
      num_rotated += out[i] != sum_of_slices(s);
    }
    // Another order shows.
    if (format() != WeightFormat::kInt8 && k > 1000) {
      EXPECT_GT(num_rotated, static_cast<int>(out.size() / 10));
    }
  }
}

// The oracle of float32 products needs nothing of the backend.
TEST_P(CpuSlices, Float32ProductsAreTheDefinition) {
  if (is_integer() || act() != DType::kF32) GTEST_SKIP() << "of float32";
  CpuBackend backend = make_backend(1);
  for (const auto& [n, num_k, unit] : kShapes) {
    const int64_t k = inputs(num_k);
    if (specdec::testing::is_left_out(1, k)) continue;
    const KSlices slices = KSlices::whole(k, unit);
    const Weight weight = make_weight(n, k, 1);
    const Matrix x(3, k, act(), 2);
    const std::vector<float> out = product(backend, *pack(backend, weight.view(), slices), x, 3);
    for (int64_t i = 0; i < 3 * n; ++i) {
      float s[kNumSlices];
      for (int slice = 0; slice < kNumSlices; ++slice) {
        s[slice] = slice_of_floats(&x.values[i / n * k], &weight.floats().values[i % n * k],
                                   slices.bounds[slice], slices.bounds[slice + 1]);
      }
      ASSERT_EQ(out[i], sum_of_slices(s)) << "n " << n << " k " << k << " at " << i;
    }
  }
}

TEST_P(CpuSlices, BitsDependOnNeitherRowsNorThreads) {
  for (const auto& [n, num_k, unit] : kShapes) {
    const int64_t k = inputs(num_k);
    if (specdec::testing::is_left_out(1, k)) continue;
    const KSlices slices = KSlices::whole(k, unit);
    const Weight weight = make_weight(n, k, 1);
    const Matrix x(70, k, act(), 2);
    CpuBackend single = make_backend(1);
    const std::vector<float> all = product(single, *pack(single, weight.view(), slices), x, 70);
    for (const int num_threads : {1, 3}) {
      CpuBackend backend = make_backend(num_threads);
      const auto packed = pack(backend, weight.view(), slices);
      for (const int rows : {1, 2, 5, 8, 9, 16, 17, 33, 70}) {
        const std::vector<float> out = product(backend, *packed, x, rows);
        ASSERT_EQ(0, std::memcmp(out.data(), all.data(), out.size() * sizeof(float)))
            << "k " << k << " rows " << rows << " threads " << num_threads;
      }
    }
  }
}

TEST_P(CpuSlices, BitsDoNotDependOnTheNumberOfRanks) {
  for (const auto& [n, num_k, unit] : kShapes) {
    const int64_t k = inputs(num_k);
    if (specdec::testing::is_left_out(1, k)) continue;
    const KSlices whole = KSlices::whole(k, unit);
    const Weight weight = make_weight(n, k, 1);
    const WeightView view = weight.view();
    const std::vector<float> bias = random_values(n, 3);
    std::vector<Matrix> inputs;
    std::vector<std::vector<float>> residuals, expected;
    CpuBackend single = make_backend(1);
    const auto packed = pack(single, view, whole);
    for (const int rows : kRowCounts) {
      inputs.emplace_back(rows, k, act(), 2);
      residuals.push_back(random_values(rows * n, 4));
      expected.push_back(
          product(single, *packed, inputs.back(), rows, bias.data(), &residuals.back()));
    }
    for (const int size : {1, 2, 3, 4, 6, 8}) {
      const std::vector<SliceRun> runs = runs_of(size);
      on_ranks(size, [&](Communicator& ranks) {
        const KSlices own = whole.cut(runs[ranks.rank()]);
        CpuBackend backend = make_backend(1);
        const auto share = share_of(backend, view, own, &ranks, runs);
        ASSERT_EQ(share->in_features(), own.in_features());
        for (size_t i = 0; i < inputs.size(); ++i) {
          const int rows = kRowCounts[i];
          const Matrix x = own_inputs(inputs[i], rows, k, own);
          const std::vector<float> out =
              product(backend, *share, x, rows, bias.data(), &residuals[i]);
          ASSERT_EQ(0, std::memcmp(out.data(), expected[i].data(), out.size() * sizeof(float)))
              << size << " ranks, rank " << ranks.rank() << ", k " << k << ", rows " << rows;
        }
      });
    }
  }
}

// Whoever comes first: products of few and of many rows by turns, as every rank is held up at
// random.
TEST_P(CpuSlices, RanksThatAreLateChangeNothing) {
  constexpr int64_t kOutputs = 20;
  const int64_t num_k = inputs(1100);
  constexpr int kRounds = 12;
  const KSlices whole = KSlices::whole(num_k, 64);
  const Weight weight = make_weight(kOutputs, num_k, 1);
  const WeightView view = weight.view();
  CpuBackend single = make_backend(1);
  const int most_rows = *std::ranges::max_element(kRowCounts);
  const Matrix x(most_rows, num_k, act(), 2);
  const auto sums = sums_of_slices(single, view, whole, x, most_rows);
  for (const int size : {2, 3, 8}) {
    const std::vector<SliceRun> runs = runs_of(size);
    on_ranks(size, [&](Communicator& ranks) {
      const KSlices own = whole.cut(runs[ranks.rank()]);
      CpuBackend backend = make_backend(1);
      const auto share = share_of(backend, view, own, &ranks, runs);
      const Matrix mine = own_inputs(x, most_rows, num_k, own);
      std::mt19937 random(ranks.rank());
      for (int round = 0; round < kRounds; ++round) {
        const int rows = kRowCounts[round % std::size(kRowCounts)];
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 400));
        const std::vector<float> out = product(backend, *share, mine, rows);
        for (size_t i = 0; i < out.size(); ++i) {
          float s[kNumSlices];
          for (int slice = 0; slice < kNumSlices; ++slice) s[slice] = sums[slice][i];
          // A scale of all of an output is applied to the total, and here to every slice.
          const float close = format() == WeightFormat::kInt8 ? 1e-4f * std::sqrt(1100.0f) : 0.0f;
          ASSERT_NEAR(out[i], sum_of_slices(s), close) << size << " ranks, round " << round;
        }
      }
    });
  }
}

// Columns in an order of their own: the product of a matrix without it and rows reordered.
class CpuInputOrder : public IntFormatTest {
 protected:
  static constexpr int kRows = 19;
  static constexpr int64_t kN = 37, kK = 640;

  CpuInputOrder() : order_(kK), x_(random_values(kRows * kK, 2)) {
    std::iota(order_.begin(), order_.end(), 0);
    std::shuffle(order_.begin(), order_.end(), std::mt19937(3));
  }
  std::vector<float> reordered(const std::vector<float>& x) const {
    std::vector<float> rows(x.size());
    for (size_t i = 0; i < x.size(); ++i) rows[i] = x[i / kK * kK + order_[i % kK]];
    return rows;
  }
  WeightView ordered(WeightView view) const {
    view.input_order = order_.data();
    return view;
  }

  std::vector<int32_t> order_;
  std::vector<float> x_;
};

TEST_P(CpuInputOrder, RowsAreReorderedOnAnyNumberOfRanks) {
  const auto codes = codes_for(format(), kN, kK, 1);
  const WeightView plain = codes.view(), view = ordered(plain);
  const KSlices whole = KSlices::whole(kK, 64);
  CpuBackend single = make_backend(2);
  const auto expected = run(
      single, *single.pack_linear({.parts = {&plain, 1}, .format = format(), .k_slices = &whole}),
      reordered(x_).data(), kRows);
  const auto packed =
      single.pack_linear({.parts = {&view, 1}, .format = format(), .k_slices = &whole});
  for (const int rows : {1, 3, kRows}) {
    const std::vector<float> out = run(single, *packed, x_.data(), rows);
    ASSERT_TRUE(std::equal(out.begin(), out.end(), expected.begin())) << rows << " rows";
  }
  for (const int size : {2, 3, 8}) {
    const std::vector<SliceRun> runs = runs_of(size);
    on_ranks(size, [&](Communicator& ranks) {
      const KSlices own = whole.cut(runs[ranks.rank()]);
      CpuBackend backend = make_backend(1);
      const auto share = backend.pack_linear({.parts = {&view, 1},
                                              .format = format(),
                                              .k_slices = &own,
                                              .ranks = &ranks,
                                              .rank_runs = runs});
      std::vector<float> mine;
      for (int row = 0; row < kRows; ++row) {
        const float* from = x_.data() + row * kK;
        mine.insert(mine.end(), from + own.begin(), from + own.end());
      }
      EXPECT_EQ(run(backend, *share, mine.data(), kRows), expected) << size << " ranks";
    });
  }
}

// Rows of magnitude 1, whose scale no order of the sum of squares changes.
TEST_P(CpuInputOrder, RowsAreChosenAndNormalisedFirst) {
  std::vector<float> x = x_;
  for (float& value : x) value = value < 0 ? -1.0f : 1.0f;
  const std::vector<float> weight = random_values(kK, 4), bias = random_values(kK, 5);
  const NormParams norm = {.weight = weight.data(), .bias = bias.data()};
  const std::vector<int32_t> row_ids = {7, 0, 7, 18};
  const int num_rows = static_cast<int>(row_ids.size());
  const auto first = codes_for(format(), 16, kK, 6), second = codes_for(format(), 21, kK, 6);
  CpuBackend backend = make_backend(3);
  std::vector<float> normed(x.size());
  backend.norm({.norm = norm, .x = x.data(), .out = normed.data(), .num_rows = kRows, .dim = kK});
  std::vector<float> rows;
  for (const int32_t id : row_ids) {
    rows.insert(rows.end(), normed.begin() + id * kK, normed.begin() + (id + 1) * kK);
  }
  const std::vector<WeightView> in_order = {first.view(), second.view()};
  const auto expected = run(backend, *backend.pack_linear({.parts = in_order, .format = format()}),
                            reordered(rows).data(), num_rows);
  const std::vector<WeightView> views = {ordered(first.view()), ordered(second.view())};
  const auto packed = backend.pack_linear({.parts = views, .format = format()});
  std::vector<float> out(expected.size());
  backend.linear(
      {.weight = packed.get(),
       .in = {.x = x.data(), .row_ids = row_ids.data(), .norm = &norm, .num_rows = num_rows},
       .out = out.data()});
  EXPECT_EQ(out, expected);
}

std::vector<IntFormatParams> grouped_formats() {
  std::vector<IntFormatParams> params;
  for (const Isa isa : supported_isas()) {
    for (const WeightFormat format : kIntFormats) {
      if (format != WeightFormat::kInt8) params.push_back({isa, format});
    }
  }
  return params;
}
INSTANTIATE_TEST_SUITE_P(KernelSets, CpuInputOrder, ::testing::ValuesIn(grouped_formats()),
                         int_format_name);

TEST_P(CpuSlices, OutputsThatRanksShareAreGathered) {
  const int64_t n = 101;
  const int64_t k = inputs(130);
  const Weight weight = make_weight(n, k, 1);
  const WeightView view = weight.view();
  const std::vector<float> bias = random_values(n, 3);
  const Matrix x(17, k, act(), 2);
  const std::vector<float> residual = random_values(17 * n, 4);
  const std::vector<int32_t> ids = {100, 0, 33, 34, 33, 99, 50};
  CpuBackend single = make_backend(1);
  const auto packed = single.pack_linear({.parts = {&view, 1}, .format = format()});
  const auto table = single.embedding_from(*packed);
  const std::vector<float> expected = product(single, *packed, x, 17, bias.data(), &residual);
  const auto embed = [&](CpuBackend& backend, const EmbeddingTable& rows, bool accumulate) {
    std::vector<float> out(ids.size() * k, 0.25f);
    backend.embed({.table = &rows,
                   .token_ids = ids.data(),
                   .out = out.data(),
                   .num_rows = static_cast<int>(ids.size()),
                   .accumulate = accumulate,
                   .scale = 1.7f});
    return out;
  };
  const std::vector<float> embedded = embed(single, *table, false);
  const std::vector<float> added = embed(single, *table, true);
  for (const int size : {1, 2, 3}) {
    std::vector<int64_t> outputs;
    for (int rank = 0; rank <= size; ++rank) outputs.push_back(n * rank / size);
    on_ranks(size, [&](Communicator& ranks) {
      const int64_t first = outputs[ranks.rank()];
      const WeightView own = rows_of(view, first, outputs[ranks.rank() + 1] - first);
      CpuBackend backend = make_backend(2);
      const auto share = backend.pack_linear(
          {.parts = {&own, 1}, .format = format(), .ranks = &ranks, .rank_outputs = outputs});
      ASSERT_EQ(share->out_features(), n);
      EXPECT_EQ(product(backend, *share, x, 17, bias.data(), &residual), expected);
      const auto shared_table = backend.embedding_from(*share);
      EXPECT_EQ(shared_table->num_embeddings(), n);
      EXPECT_EQ(embed(backend, *shared_table, false), embedded);
      EXPECT_EQ(embed(backend, *shared_table, true), added);
    });
  }
}

TEST_P(CpuSlices, ExpertsThatRanksShareGiveTheBitsOfWholeOnes) {
  constexpr int kExperts = 5;
  constexpr int kTopK = 2;
  const int64_t hidden = inputs(40);
  const int64_t inner = inputs(1000);
  const int rows = 13;
  const KSlices whole = KSlices::whole(inner, 64);
  std::vector<Weight> gate_up, down;
  for (int expert = 0; expert < kExperts; ++expert) {
    gate_up.push_back(make_weight(2 * inner, hidden, 10 + expert));
    down.push_back(make_weight(hidden, inner, 20 + expert));
  }
  const Matrix x(rows, hidden, act(), 1);
  const std::vector<float> logits = random_values(rows * kExperts, 2);
  const std::vector<float> residual = random_values(rows * hidden, 3);
  const std::vector<float> gate_up_bias = random_values(kExperts * 2 * inner, 4);
  const std::vector<float> down_bias = random_values(kExperts * hidden, 5);
  // Null ranks: all of it.
  const auto run = [&](Communicator* ranks, std::span<const SliceRun> runs) {
    const KSlices own = ranks != nullptr ? whole.cut(runs[ranks->rank()]) : whole;
    CpuBackend backend = make_backend(ranks != nullptr ? 1 : 2);
    std::vector<std::unique_ptr<PackedLinear>> owned;
    std::vector<const PackedLinear*> firsts, seconds;
    std::vector<float> own_bias;
    for (int expert = 0; expert < kExperts; ++expert) {
      for (const int64_t part : {2 * expert, 2 * expert + 1}) {
        const auto begin = gate_up_bias.begin() + part * inner + own.begin();
        own_bias.insert(own_bias.end(), begin, begin + own.in_features());
      }
      const WeightView both = gate_up[expert].view();
      const WeightView parts[] = {rows_of(both, own.begin(), own.in_features()),
                                  rows_of(both, inner + own.begin(), own.in_features())};
      owned.push_back(backend.pack_linear({.parts = parts, .format = format(), .gated = true}));
      firsts.push_back(owned.back().get());
      const WeightView view = down[expert].view();
      owned.push_back(share_of(backend, view, own, ranks, runs));
      seconds.push_back(owned.back().get());
    }
    std::vector<float> out = residual;
    backend.moe({.router_logits = logits.data(),
                 .router = {.top_k = kTopK},
                 .x = x.bytes.data(),
                 .gate_up = firsts,
                 .down = seconds,
                 .gate_up_bias = own_bias.data(),
                 .down_bias = down_bias.data(),
                 .out = out.data(),
                 .num_rows = rows});
    return out;
  };
  const std::vector<float> expected = run(nullptr, {});
  for (const int size : {2, 3, 8}) {
    const std::vector<SliceRun> runs = runs_of(size);
    on_ranks(size, [&](Communicator& ranks) {
      EXPECT_EQ(run(&ranks, runs), expected) << size << " ranks, rank " << ranks.rank();
    });
  }
}

INSTANTIATE_TEST_SUITE_P(KernelSets, CpuSlices, all_params(), params_name);

}  // namespace
}  // namespace specdec::cpu
