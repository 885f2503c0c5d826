// Sums over k in slices, and weights that ranks share, on the CUDA backend: against the tree
// written out; no bit depends on the number of ranks or rows.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "comm/communicator.h"
#include "core/k_slices.h"
#include "testing/cpu_int_formats.h"
#include "testing/device_kinds.h"
#include "testing/on_ranks.h"
#include "testing/values.h"

namespace specdec::cuda {
namespace {

using specdec::testing::on_ranks;
using specdec::testing::random_values;
using specdec::testing::rounded;
using specdec::testing::runs_of;
using specdec::testing::sum_of_slices;
using specdec::testing::to_bits;
using testing::DeviceKind;

constexpr WeightFormat kFormats[] = {WeightFormat::kAct,
                                     WeightFormat::kInt8,
                                     WeightFormat::kInt8Grouped,
                                     WeightFormat::kInt8GroupedMin,
                                     WeightFormat::kInt8Grouped16,
                                     WeightFormat::kInt4Grouped,
                                     WeightFormat::kInt4GroupedMin,
                                     WeightFormat::kInt4GroupedZero,
                                     WeightFormat::kInt4Table,
                                     WeightFormat::kFp8,
                                     WeightFormat::kFp8Grouped};
constexpr DType kAct = DType::kBF16;

// One backend, and projections of act rows by it.
struct World : testing::BackendWorld {
  explicit World(DeviceKind kind) : BackendWorld(kind, kAct) {}

  std::vector<float> project(const PackedLinear& weight, const std::vector<float>& x, int rows,
                             const std::vector<float>& bias, const std::vector<float>& residual) {
    const Buffer rows_buffer = upload(to_bits(x, kAct));
    const Buffer bias_buffer = upload(bias);
    Buffer out = residual.empty()
                     ? upload(std::vector<float>(static_cast<size_t>(rows * weight.out_features())))
                     : upload(residual);
    backend->linear({.weight = &weight,
                     .in = {.x = rows_buffer.data(), .dtype = kAct, .num_rows = rows},
                     .bias = bias.empty() ? nullptr : bias_buffer.as<float>(),
                     .out = out.as<float>(),
                     .accumulate = !residual.empty(),
                     .scale = residual.empty() ? 1.0f : 0.37f});
    return download<float>(out);
  }
};

WeightView view_of(const std::vector<float>& values, int64_t rows) {
  return {
      .values = {values.data(), DType::kF32, {rows, static_cast<int64_t>(values.size()) / rows}}};
}

// Columns [begin, end) of x [rows, k].
std::vector<float> columns(const std::vector<float>& x, int64_t k, int64_t begin, int64_t end) {
  std::vector<float> cut;
  for (size_t row = 0; row < x.size(); row += static_cast<size_t>(k)) {
    cut.insert(cut.end(), x.begin() + static_cast<int64_t>(row) + begin,
               x.begin() + static_cast<int64_t>(row) + end);
  }
  return cut;
}

class CudaSlices : public ::testing::TestWithParam<DeviceKind> {};

TEST_P(CudaSlices, TotalIsTheTreeOfItsSlices) {
  constexpr int64_t kN = 40, kK = 1100;
  constexpr int kRows = 20;
  const KSlices slices = KSlices::whole(kK, 64);
  const std::vector<float> weight = rounded(random_values(kN * kK, 1), kAct);
  const std::vector<float> x = rounded(random_values(kRows * kK, 2), kAct);
  const WeightView view = view_of(weight, kN);
  World world(GetParam());
  const auto packed = world.backend->pack_linear({.parts = {&view, 1}, .k_slices = &slices});
  for (const int rows : {3, kRows}) {
    const std::vector<float> some(x.begin(), x.begin() + rows * kK);
    const std::vector<float> out = world.project(*packed, some, rows, {}, {});
    std::vector<std::vector<float>> sums;
    for (int s = 0; s < kNumSlices; ++s) {
      std::vector<float> only = some;
      for (int64_t i = 0; i < rows * kK; ++i) {
        if (i % kK < slices.bounds[s] || i % kK >= slices.bounds[s + 1]) only[i] = 0.0f;
      }
      sums.push_back(world.project(*packed, only, rows, {}, {}));
    }
    int num_rotated = 0;
    for (size_t i = 0; i < out.size(); ++i) {
      float s[kNumSlices];
      for (int slice = 0; slice < kNumSlices; ++slice) s[slice] = sums[slice][i];
      ASSERT_EQ(out[i], sum_of_slices(s)) << rows << " rows, at " << i;
      std::rotate(s, s + 1, s + kNumSlices);
      num_rotated += out[i] != sum_of_slices(s);
    }
    EXPECT_GT(num_rotated, static_cast<int>(out.size() / 10));  // another order gives other bits
  }
}

TEST_P(CudaSlices, BitsDependOnNeitherRanksNorRows) {
  constexpr int64_t kN = 35;
  const std::vector<float> bias = random_values(kN, 3);
  const std::vector<float> residual = random_values(70 * kN, 4);
  const std::vector<int> row_counts = {1, 3, 16, 17, 70};
  World single(GetParam());
  for (const WeightFormat format : kFormats) {
    const int64_t k = cpu::inputs_for(format, 600);
    const KSlices whole = KSlices::whole(k, 64);
    const std::vector<float> x = rounded(random_values(70 * k, 2), kAct);
    const cpu::Source source(format, kN, k, 1);
    const WeightView view = source.view();
    const auto packed =
        single.backend->pack_linear({.parts = {&view, 1}, .format = format, .k_slices = &whole});
    const std::vector<float> expected = single.project(*packed, x, 70, bias, residual);
    const auto expect_rows = [&](World& world, const PackedLinear& share,
                                 const std::vector<float>& own, int rows, const char* what) {
      const std::vector<float> some(own.begin(), own.begin() + rows * share.in_features());
      const std::vector<float> out =
          world.project(share, some, rows, bias, {residual.begin(), residual.begin() + rows * kN});
      ASSERT_TRUE(std::equal(out.begin(), out.end(), expected.begin()))
          << what << ", " << rows << " rows of " << name_of(format);
    };
    for (const int rows : row_counts) expect_rows(single, *packed, x, rows, "one rank");
    for (const int size : testing::group_sizes(GetParam(), {1, 2, 3, 8})) {
      const std::vector<SliceRun> runs = runs_of(size);
      on_ranks(size, [&](Communicator& ranks) {
        const KSlices own = whole.cut(runs[ranks.rank()]);
        World world(GetParam());
        const auto share = world.backend->pack_linear({.parts = {&view, 1},
                                                       .format = format,
                                                       .k_slices = &own,
                                                       .ranks = &ranks,
                                                       .rank_runs = runs});
        const std::vector<float> inputs = columns(x, k, own.begin(), own.end());
        for (const int rows : row_counts) {
          expect_rows(world, *share, inputs, rows, "several ranks");
        }
      });
    }
  }
}

// Columns in an order of their own: the product of a matrix without it and rows reordered.
TEST_P(CudaSlices, RowsAreReorderedForAnOrderOfInputs) {
  constexpr int64_t kN = 35, kK = 640;
  constexpr int kRows = 19;
  std::vector<int32_t> order(kK);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(3));
  const auto reordered = [&](const std::vector<float>& x) {
    std::vector<float> rows(x.size());
    for (size_t i = 0; i < x.size(); ++i) rows[i] = x[i / kK * kK + order[i % kK]];
    return rows;
  };
  const std::vector<float> x = rounded(random_values(kRows * kK, 2), kAct);
  const std::vector<float> bias = random_values(kN, 4);
  // Rows of magnitude 1, whose scale no order of the sum of squares changes.
  std::vector<float> ones = x;
  for (float& value : ones) value = value < 0 ? -1.0f : 1.0f;
  const std::vector<float> norm_weight = random_values(kK, 5);
  const std::vector<int32_t> row_ids = {7, 0, 7, 18};
  const KSlices whole = KSlices::whole(kK, 64);
  World single(GetParam());
  for (const WeightFormat format : kFormats) {
    const bool has_groups =
        std::ranges::find(cpu::kIntFormats, format) != std::end(cpu::kIntFormats) &&
        format != WeightFormat::kInt8;
    if (!has_groups) continue;
    SCOPED_TRACE(name_of(format));
    const auto codes = cpu::codes_for(format, kN, kK, 1);
    const WeightView plain = codes.view();
    WeightView view = plain;
    view.input_order = order.data();
    const auto in_order =
        single.backend->pack_linear({.parts = {&plain, 1}, .format = format, .k_slices = &whole});
    const auto packed =
        single.backend->pack_linear({.parts = {&view, 1}, .format = format, .k_slices = &whole});
    const std::vector<float> expected = single.project(*in_order, reordered(x), kRows, bias, {});
    EXPECT_EQ(single.project(*packed, x, kRows, bias, {}), expected);
    EXPECT_EQ(single.project(*packed, {x.begin(), x.begin() + kK}, 1, bias, {}),
              std::vector<float>(expected.begin(), expected.begin() + kN));
    for (const int size : testing::group_sizes(GetParam(), {2, 3, 8})) {
      const std::vector<SliceRun> runs = runs_of(size);
      on_ranks(size, [&](Communicator& ranks) {
        const KSlices own = whole.cut(runs[ranks.rank()]);
        World world(GetParam());
        const auto share = world.backend->pack_linear({.parts = {&view, 1},
                                                       .format = format,
                                                       .k_slices = &own,
                                                       .ranks = &ranks,
                                                       .rank_runs = runs});
        EXPECT_EQ(world.project(*share, columns(x, kK, own.begin(), own.end()), kRows, bias, {}),
                  expected)
            << size << " ranks";
      });
    }
    std::vector<float> rows;
    for (const int32_t id : row_ids) {
      for (int64_t i = 0; i < kK; ++i) rows.push_back(ones[id * kK + i] * norm_weight[i]);
    }
    const Buffer device_x = single.upload(ones), device_weight = single.upload(norm_weight);
    const Buffer device_ids = single.upload(row_ids);
    Buffer out = single.upload(std::vector<float>(row_ids.size() * kN));
    const NormParams norm = {.weight = device_weight.as<float>(), .eps = 0.0f};
    single.backend->linear({.weight = packed.get(),
                            .in = {.x = device_x.data(),
                                   .row_ids = device_ids.as<int32_t>(),
                                   .norm = &norm,
                                   .num_rows = static_cast<int>(row_ids.size())},
                            .out = out.as<float>()});
    EXPECT_EQ(single.download<float>(out),
              single.project(*in_order, reordered(rounded(rows, kAct)),
                             static_cast<int>(row_ids.size()), {}, {}));
  }
}

TEST_P(CudaSlices, OutputsThatRanksShareAreGathered) {
  constexpr int64_t kN = 101, kK = 96;
  const std::vector<float> weight = random_values(kN * kK, 1);
  const std::vector<float> x = rounded(random_values(17 * kK, 2), kAct);
  const std::vector<float> bias = random_values(kN, 3);
  const std::vector<int32_t> ids = {100, 0, 33, 34, 33, 99, 50};
  const auto embed = [&](World& world, const EmbeddingTable& table) {
    const Buffer device_ids = world.upload(ids);
    Buffer out = world.upload(std::vector<float>(ids.size() * kK));
    world.backend->embed({.table = &table,
                          .token_ids = device_ids.as<int32_t>(),
                          .out = out.as<float>(),
                          .num_rows = static_cast<int>(ids.size()),
                          .scale = 1.7f});
    return world.download<float>(out);
  };
  World single(GetParam());
  for (const WeightFormat format : {WeightFormat::kAct, WeightFormat::kInt8}) {
    const WeightView view = view_of(weight, kN);
    const auto packed = single.backend->pack_linear({.parts = {&view, 1}, .format = format});
    const std::vector<float> expected = single.project(*packed, x, 17, bias, {});
    const std::vector<float> rows = embed(single, *single.backend->embedding_from(*packed));
    for (const int size : testing::group_sizes(GetParam(), {1, 3})) {
      std::vector<int64_t> outputs;
      for (int rank = 0; rank <= size; ++rank) outputs.push_back(kN * rank / size);
      on_ranks(size, [&](Communicator& ranks) {
        const int64_t first = outputs[ranks.rank()];
        WeightView own = view;
        own.values.data = weight.data() + first * kK;
        own.values.shape = {outputs[ranks.rank() + 1] - first, kK};
        World world(GetParam());
        const auto share = world.backend->pack_linear(
            {.parts = {&own, 1}, .format = format, .ranks = &ranks, .rank_outputs = outputs});
        ASSERT_EQ(share->out_features(), kN);
        EXPECT_EQ(world.project(*share, x, 17, bias, {}), expected);
        EXPECT_EQ(embed(world, *world.backend->embedding_from(*share)), rows);
      });
    }
  }
}

TEST_P(CudaSlices, ExpertsThatRanksShareGiveTheBitsOfWholeOnes) {
  constexpr int kExperts = 4, kRows = 21;
  constexpr int64_t kHidden = 64, kInner = 640;
  const KSlices whole = KSlices::whole(kInner, 64);
  std::vector<std::vector<float>> gate_up, down;
  for (int expert = 0; expert < kExperts; ++expert) {
    gate_up.push_back(random_values(2 * kInner * kHidden, 10 + expert, 0.2f));
    down.push_back(random_values(kHidden * kInner, 20 + expert, 0.2f));
  }
  const std::vector<float> x = rounded(random_values(kRows * kHidden, 1), kAct);
  const std::vector<float> logits = random_values(kRows * kExperts, 2);
  const std::vector<float> residual = random_values(kRows * kHidden, 3);
  const std::vector<float> gate_up_bias = random_values(kExperts * 2 * kInner, 4);
  const std::vector<float> down_bias = random_values(kExperts * kHidden, 5);
  for (const WeightFormat format : {WeightFormat::kAct, WeightFormat::kInt8}) {
    const auto run = [&](Communicator* ranks, std::span<const SliceRun> runs, int rows) {
      const KSlices own = ranks != nullptr ? whole.cut(runs[ranks->rank()]) : whole;
      World world(GetParam());
      std::vector<std::unique_ptr<PackedLinear>> owned;
      std::vector<const PackedLinear*> firsts, seconds;
      std::vector<float> own_bias;
      for (int expert = 0; expert < kExperts; ++expert) {
        for (const int64_t part : {2 * expert, 2 * expert + 1}) {
          const auto begin = gate_up_bias.begin() + part * kInner + own.begin();
          own_bias.insert(own_bias.end(), begin, begin + own.in_features());
        }
        const auto part = [&](int64_t first) {
          return WeightView{.values = {gate_up[expert].data() + first * kHidden,
                                       DType::kF32,
                                       {own.in_features(), kHidden}}};
        };
        const WeightView parts[] = {part(own.begin()), part(kInner + own.begin())};
        const WeightView view = view_of(down[expert], kHidden);
        owned.push_back(
            world.backend->pack_linear({.parts = parts, .format = format, .gated = true}));
        firsts.push_back(owned.back().get());
        owned.push_back(world.backend->pack_linear({.parts = {&view, 1},
                                                    .format = format,
                                                    .k_slices = &own,
                                                    .ranks = ranks,
                                                    .rank_runs = runs}));
        seconds.push_back(owned.back().get());
      }
      const Buffer device_logits = world.upload(logits);
      const Buffer device_x = world.upload(to_bits(x, kAct));
      const Buffer first_bias = world.upload(own_bias), second_bias = world.upload(down_bias);
      Buffer out = world.upload(residual);
      world.backend->moe({.router_logits = device_logits.as<float>(),
                          .router = {.top_k = 2},
                          .x = device_x.data(),
                          .gate_up = firsts,
                          .down = seconds,
                          .gate_up_bias = first_bias.as<float>(),
                          .down_bias = second_bias.as<float>(),
                          .out = out.as<float>(),
                          .num_rows = rows});
      return world.download<float>(out);
    };
    for (const int rows : {5, kRows}) {
      const std::vector<float> expected = run(nullptr, {}, rows);
      for (const int size : testing::group_sizes(GetParam(), {2, 3})) {
        const std::vector<SliceRun> runs = runs_of(size);
        on_ranks(size, [&](Communicator& ranks) {
          EXPECT_EQ(run(&ranks, runs, rows), expected) << size << " ranks, " << rows << " rows";
        });
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, CudaSlices, ::testing::ValuesIn(testing::device_kinds()),
                         testing::test_name);

}  // namespace
}  // namespace specdec::cuda
