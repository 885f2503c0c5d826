// Tilings of a projection: all give the same bits. And rows that lie far apart in memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <vector>

#include "testing/cuda_projections.h"

namespace specdec::cuda::testing {
namespace {

using ::testing::ValuesIn;

class ProjectionTilingTest : public CudaDeviceTest {};

TEST_P(ProjectionTilingTest, TilingsGiveTheSameBits) {
  constexpr int kN = 200, kK = 608, kRows = 16;
  constexpr int kTiles = (kN + 15) / 16, kKBlocks = kK / 32;
  const Buffer source = upload(random_values(kN * kK, 60));
  Buffer packed = allocate<uint16_t>(kTiles * 16 * kK);
  kernels().projection.pack(stream(), {.source = source.data(),
                                       .num_rows = kN,
                                       .out_features = kN,
                                       .in_features = kK,
                                       .packed = packed.data()});
  const std::vector<uint16_t> bits = to_bits(random_values(kRows * kK, 61), DType::kBF16);
  const Buffer x = upload(bits);
  std::vector<float> floats;  // the same values in float32
  for (const uint16_t element : bits)
    floats.push_back(std::bit_cast<float>(uint32_t{element} << 16));
  const Buffer x_floats = upload(floats);
  Buffer partials = allocate<float>(2 * kNumSlices * partial_floats(8));
  Buffer arrivals = allocate<uint32_t>(2);
  Buffer exchanged = allocate<uint16_t>(kRows * kK);
  Buffer exchange_counts = allocate<uint32_t>(2);
  Buffer out = allocate<float>(kRows * kN);
  SliceParams slices = {.fold_order = fold_order_of(SliceRun{})};
  for (int i = 0; i <= kNumSlices; ++i) slices.bounds[i] = kKBlocks * i / kNumSlices;
  int num_rows = kRows;
  const auto run = [&](const ProjectionTiling& tiling) {
    kernels().projection.project(stream(),
                                 {.weights = packed.data(),
                                  .num_tiles = kTiles,
                                  .num_k_blocks = kKBlocks,
                                  .slices = slices,
                                  .rows = {.x = x_floats.data(), .num_rows = num_rows, .dim = kK},
                                  .records = x.data(),
                                  .exchanged = exchanged.data(),
                                  .exchange_counts = exchange_counts.as<uint32_t>(),
                                  .finish = {.out_features = kN, .out = out.data(), .heads = {}},
                                  .tiling = tiling,
                                  .partials = partials.as<float>(),
                                  .partial_arrivals = arrivals.as<uint32_t>()});
    std::vector<uint32_t> result = download<uint32_t>(out);
    result.resize(static_cast<size_t>(num_rows) * kN);
    return result;
  };
  const std::vector<uint32_t> expected = run({.few_rows = true, .num_blocks = 1});
  for (const int rows : {3, 8, kRows}) {
    num_rows = rows;
    const std::vector<uint32_t> of_rows(expected.begin(), expected.begin() + rows * kN);
    for (const int num_blocks : {1, 3, 4, kTiles}) {
      for (const int tiles : {1, 2}) {
        for (const RowSource source :
             {RowSource::kRecords, RowSource::kShared, RowSource::kExchanged}) {
          if (source == RowSource::kShared && rows > 8) continue;
          if (source == RowSource::kExchanged && num_blocks > 4) continue;  // more than SMs
          EXPECT_EQ(run({.few_rows = true,
                         .row_source = source,
                         .tiles_at_once = tiles,
                         .num_blocks = num_blocks}),
                    of_rows)
              << rows << " rows, " << num_blocks << " blocks, " << tiles
              << " tiles at once, source " << static_cast<int>(source);
        }
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

// Streams that are cut in every place, over slices of any length, with groups that are not whole.
TEST_P(ProjectionTilingTest, StreamsGiveTheSameBits) {
  if (device().properties().compute_capability != 90) GTEST_SKIP() << "compute capability 9.0";
  constexpr int kN = 200, kKBlocks = 19, kK = kKBlocks * 32, kMost = 64;
  constexpr int kTiles = (kN + 15) / 16;
  const Buffer source = upload(random_values(kN * kK, 60));
  Buffer packed = allocate<uint16_t>(kTiles * 16 * kK);
  kernels().projection.pack(stream(), {.source = source.data(),
                                       .num_rows = kN,
                                       .out_features = kN,
                                       .in_features = kK,
                                       .packed = packed.data()});
  const Buffer x = upload(to_bits(random_values(kMost * kK, 61), DType::kBF16));
  const int num_units = stream_groups(kTiles) * kNumSlices;
  Buffer partials = allocate<float>(num_units * kStreamNodes * stream_partial_floats(kMost));
  Buffer arrivals = allocate<uint32_t>(num_units);
  Buffer out = allocate<float>(kMost * kN);
  const std::vector<std::vector<int>> bounds = {{0, 2, 4, 7, 9, 11, 14, 16, 19},
                                                {0, 0, 1, 8, 8, 8, 9, 19, 19},
                                                {0, 0, 0, 0, 19, 19, 19, 19, 19}};
  for (const std::vector<int>& slice_bounds : bounds) {
    SliceParams slices = {.fold_order = fold_order_of(SliceRun{})};
    std::ranges::copy(slice_bounds, slices.bounds);
    const auto run = [&](int num_rows, const ProjectionTiling& tiling) {
      const ProjectionKernels& projection = kernels().projection;
      stream().fill(out.data(), 0xff, out.size_bytes());
      (tiling.stream_rows != 0 ? projection.project_stream : projection.project)(
          stream(), {.weights = packed.data(),
                     .num_tiles = kTiles,
                     .num_k_blocks = kKBlocks,
                     .slices = slices,
                     .rows = {.num_rows = num_rows, .dim = kK},
                     .records = x.data(),
                     .finish = {.out_features = kN, .out = out.data(), .heads = {}},
                     .tiling = tiling,
                     .partials = partials.as<float>(),
                     .partial_arrivals = arrivals.as<uint32_t>()});
      std::vector<uint32_t> result = download<uint32_t>(out);
      result.resize(static_cast<size_t>(num_rows) * kN);
      return result;
    };
    const std::vector<uint32_t> expected = run(kMost, {.column_tiles = 8});
    for (const int rows : {1, 8, 9, 16, 17, 32, 33, kMost}) {
      const std::vector<uint32_t> of_rows(expected.begin(), expected.begin() + rows * kN);
      int stream_rows = 8;
      while (stream_rows < rows) stream_rows *= 2;
      const bool is_some = rows % 8 == 1;
      for (int units = 1; units <= num_units; units += is_some ? 5 : 1) {
        ASSERT_EQ(run(rows, {.stream_rows = stream_rows, .stream_units = units}), of_rows)
            << rows << " rows, " << units << " units per block, bounds "
            << ::testing::PrintToString(slice_bounds);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, ProjectionTilingTest, ValuesIn(device_kinds()), test_name);

class ProjectorTest : public CudaDeviceTest {
 protected:
  static std::vector<ProjectionParams> launched;
};
std::vector<ProjectionParams> ProjectorTest::launched;

TEST_P(ProjectorTest, RowsLieBeyondTheFirstFourGigabytes) {
  // The down projection of a large model over long prompts. Nothing is read; only the addresses are
  // checked.
  constexpr int kIn = 28672, kOut = 16, kRows = 300'000;
  constexpr uint64_t kInputAt = uint64_t{1} << 40, kOutputAt = uint64_t{1} << 44;
  const ProjectionKernels kernels = {
      .project = [](Stream&, const ProjectionParams& params) { launched.push_back(params); }};
  const PeerKernels peers;
  RehearsalStream stream(device().make_stream());
  RankExchange rank_exchange(device(), stream, peers);
  Projector projector(device(), stream, kernels, rank_exchange, DType::kBF16,
                      /*deterministic=*/true, {});
  const CudaPackedLinear weight({.out_features = kOut, .in_features = kIn}, {});
  launched.clear();
  projector.run(
      weight,
      {.x = reinterpret_cast<const void*>(kInputAt), .dtype = DType::kBF16, .num_rows = kRows},
      {.out_features = kOut, .out = reinterpret_cast<void*>(kOutputAt), .heads = {}});
  uint64_t row = 0;
  for (const ProjectionParams& params : launched) {
    EXPECT_EQ(reinterpret_cast<uint64_t>(params.records), kInputAt + row * kIn * 2);
    EXPECT_EQ(reinterpret_cast<uint64_t>(params.finish.out), kOutputAt + row * kOut * 4);
    row += static_cast<uint64_t>(params.rows.num_rows);
  }
  EXPECT_EQ(row, uint64_t{kRows});
}

INSTANTIATE_TEST_SUITE_P(Devices, ProjectorTest, ValuesIn(device_kinds()), test_name);

}  // namespace
}  // namespace specdec::cuda::testing
