// Copies, barriers, conversions and operations on warps, blocks and bits as ptx.cuh wraps them,
// each against a plain loop from the PTX and CUDA documentation.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "core/dtype.h"
#include "tests/cuda/emulation/ptx_conformance.h"

namespace specdec::cuda::testing {
namespace {

using ::testing::ValuesIn;

class PtxOperationsTest : public PtxTest {
 protected:
  std::vector<uint32_t> random_words(size_t count) {
    std::vector<uint32_t> words(count);
    for (uint32_t& word : words) word = static_cast<uint32_t>(random_());
    return words;
  }

 private:
  std::mt19937 random_{7};
};

TEST_P(PtxOperationsTest, CopyAsync) {
  const std::vector<uint32_t> values = random_words(128 * 2 * 4);
  const Buffer input = upload(values);
  Buffer output = allocate<uint32_t>(values.size());
  run().copy_async(stream(), input.as<uint32_t>(), output.as<uint32_t>());
  const std::vector<uint32_t> result = download<uint32_t>(output);
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(result[i], i / 4 % 3 == 1 ? 0 : values[i]) << i;
  }
}

TEST_P(PtxOperationsTest, LoadStreaming) {
  const std::vector<uint32_t> values = random_words(128 * 4);
  const Buffer input = upload(values);
  Buffer output = allocate<uint32_t>(values.size());
  run().load_streaming(stream(), input.as<uint32_t>(), output.as<uint32_t>());
  EXPECT_EQ(download<uint32_t>(output), values);
}

TEST_P(PtxOperationsTest, NamedBarrier) {
  std::vector<int> values(256);
  for (int i = 0; i < 256; ++i) values[i] = i;
  const Buffer input = upload(values);
  Buffer output = allocate<int>(256);
  run().named_barrier(stream(), input.as<int>(), output.as<int>());
  const std::vector<int> result = download<int>(output);
  for (int i = 0; i < 256; ++i) EXPECT_EQ(result[i], i / 128 * 128 + 127 - i % 128);
}

TEST_P(PtxOperationsTest, Nanoseconds) {
  Buffer output = allocate<uint64_t>(2);
  run().nanoseconds(stream(), output.as<uint64_t>());
  const std::vector<uint64_t> times = download<uint64_t>(output);
  EXPECT_GT(times[0], 0u);
  EXPECT_GE(times[1], times[0]);
  EXPECT_LT(times[1] - times[0], uint64_t{10'000'000'000});
}

TEST_P(PtxOperationsTest, BulkCopiesAndMbarriers) {
  if (device().properties().compute_capability < 90) GTEST_SKIP() << "compute capability 9.0";
  constexpr int kTiles = 11;
  std::vector<float> values(kTiles * 256);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const Buffer input = upload(values);
  Buffer output = allocate<float>(values.size());
  run().bulk_ring(stream(), input.as<float>(), output.as<float>(), kTiles);
  EXPECT_EQ(download<float>(output), values);
}

TEST_P(PtxOperationsTest, Conversions) {
  for (const ElementType type : {ElementType::kBf16, ElementType::kHalf}) {
    std::vector<float> values(65536);
    const std::vector<uint32_t> words = random_words(values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      // Random bits, values near the type's, and ties.
      const uint32_t near = std::bit_cast<uint32_t>(widen(type, static_cast<uint16_t>(i)));
      values[i] = std::bit_cast<float>(i % 3 == 0   ? words[i]
                                       : i % 3 == 1 ? near ^ (words[i] & 0x1fff)
                                                    : near | (words[i] & 1 ? 0x1000u : 0x8000u));
    }
    Buffer floats = allocate<float>(65536);
    Buffer bits = allocate<uint16_t>(65536);
    const Buffer input = upload(values);
    run().convert(stream(), type, floats.as<float>(), bits.as<uint16_t>(), input.as<float>());
    const std::vector<float> widened = download<float>(floats);
    const std::vector<uint16_t> narrowed = download<uint16_t>(bits);
    int num_wrong = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      const float expected = widen(type, static_cast<uint16_t>(i));
      num_wrong += std::isnan(expected) ? !std::isnan(widened[i]) : widened[i] != expected;
      const uint16_t nearest =
          type == ElementType::kBf16 ? to_bfloat16(values[i]).bits : float_to_half(values[i]);
      const bool both_nan =
          std::isnan(widen(type, nearest)) && std::isnan(widen(type, narrowed[i]));
      num_wrong += !both_nan && nearest != narrowed[i];
    }
    EXPECT_EQ(num_wrong, 0);
  }
}

TEST_P(PtxOperationsTest, WarpOperations) {
  const std::vector<uint32_t> values = random_words(32);
  const Buffer input = upload(values);
  constexpr size_t kRows = ConformanceKernels::kNumWarpResults;
  Buffer output = allocate<uint32_t>(kRows * 32);
  run().warp_operations(stream(), input.as<uint32_t>(), output.as<uint32_t>());
  const std::vector<uint32_t> result = download<uint32_t>(output);
  uint32_t thirds = 0;
  uint32_t odd = 0;
  uint32_t sum = 0;
  for (int lane = 0; lane < 32; ++lane) {
    thirds |= static_cast<uint32_t>(values[lane] % 3 == 0) << lane;
    odd |= (values[lane] & 1) << lane;
    sum += values[lane];
  }
  for (int lane = 0; lane < 32; ++lane) {
    const auto first = values.begin() + lane / 16 * 16;
    const uint32_t half = lane < 16 ? 0xffffu : 0xffff0000u;
    const std::vector<uint32_t> expected = {
        values[5],
        values[lane / 8 * 8 + (lane + 3) % 8],
        values[lane < 2 ? lane : lane - 2],
        values[lane % 16 < 3 ? lane : lane - 3],
        values[lane + 7 > 31 ? lane : lane + 7],
        values[lane % 4 == 3 ? lane : lane + 1],
        values[lane ^ 16],
        values[lane ^ 5],
        thirds,
        1,
        odd == 0,
        odd & half,
        sum,
        *std::max_element(first, first + 16),
        *std::min_element(first, first + 16),
        values[lane ^ 1],
    };
    ASSERT_EQ(expected.size(), kRows);
    for (size_t row = 0; row < kRows; ++row) {
      EXPECT_EQ(result[row * 32 + lane], expected[row]) << "result " << row << ", lane " << lane;
    }
  }
}

TEST_P(PtxOperationsTest, BlockOperations) {
  Buffer votes = allocate<int>(4 * 96);
  Buffer cells = upload(std::vector<uint32_t>{0, 0, 1000, 0, 0, 0, 0, 1000});
  Buffer previous = allocate<uint32_t>(96);
  run().block_operations(stream(), votes.as<int>(), cells.as<uint32_t>(), previous.as<uint32_t>());
  const std::vector<int> voted = download<int>(votes);
  for (int thread = 0; thread < 96; ++thread) {
    EXPECT_EQ(voted[4 * thread], 20);
    EXPECT_EQ(voted[4 * thread + 1], 1);
    EXPECT_EQ(voted[4 * thread + 2], 0);
    EXPECT_EQ(voted[4 * thread + 3], 1);
  }
  const std::vector<uint32_t> cell = download<uint32_t>(cells);
  EXPECT_EQ(cell[0], 95u * 96 / 2);
  EXPECT_EQ(cell[1], 95u);
  EXPECT_EQ(cell[2], 0u);
  EXPECT_EQ(cell[3], 0xffffffffu);
  EXPECT_EQ(cell[4], 96u % 41);
  EXPECT_GE(cell[5], 1u);
  EXPECT_LE(cell[5], 96u);
  EXPECT_EQ(std::bit_cast<float>(cell[6]), 48.0f);
  // Every value that was put into the last cell came out once, except the one still there.
  std::vector<uint32_t> seen = download<uint32_t>(previous);
  seen.push_back(cell[7]);
  std::sort(seen.begin(), seen.end());
  for (uint32_t i = 0; i < 96; ++i) EXPECT_EQ(seen[i], i);
  EXPECT_EQ(seen[96], 1000u);
}

TEST_P(PtxOperationsTest, BitOperations) {
  std::vector<uint32_t> values = random_words(1000);
  values[3] = 0;
  values[4] = 0xffffffffu;
  values[5] = 0x80000000u;
  const Buffer input = upload(values);
  constexpr size_t kRows = ConformanceKernels::kNumBitResults;
  Buffer output = allocate<uint32_t>(kRows * values.size());
  run().bit_operations(stream(), input.as<uint32_t>(), output.as<uint32_t>(),
                       static_cast<int>(values.size()));
  const std::vector<uint32_t> result = download<uint32_t>(output);
  for (size_t i = 0; i < values.size(); ++i) {
    const uint32_t value = values[i];
    const uint32_t other = values[(i + 1) % values.size()];
    uint32_t reversed = 0;
    int lowest = 0;
    int highest = -1;
    for (int bit = 0; bit < 32; ++bit) {
      if ((value >> bit & 1) == 0) continue;
      reversed |= 1u << (31 - bit);
      if (lowest == 0) lowest = bit + 1;
      highest = bit;
    }
    const uint32_t selector = 0x9c35u ^ (value & 0x7777u);
    uint32_t permuted = 0;
    uint32_t sum = static_cast<uint32_t>(-5);
    for (int byte = 0; byte < 4; ++byte) {
      const uint32_t choice = selector >> (4 * byte) & 7;  // bit 3 is ignored
      const uint32_t word = choice < 4 ? value : other;
      permuted |= (word >> (8 * (choice & 3)) & 0xff) << (8 * byte);
      sum += static_cast<uint32_t>(static_cast<int8_t>(value >> (8 * byte)) *
                                   static_cast<int8_t>(other >> (8 * byte)));
    }
    const uint32_t shift = value >> 27;
    const std::vector<uint32_t> expected = {
        static_cast<uint32_t>(std::popcount(value)),
        static_cast<uint32_t>(31 - highest),
        static_cast<uint32_t>(lowest),
        reversed,
        permuted,
        shift == 0 ? other : other << shift | value >> (32 - shift),
        static_cast<uint32_t>(uint64_t{value} * other >> 32),
        sum,
    };
    for (size_t row = 0; row < kRows; ++row) {
      EXPECT_EQ(result[row * values.size() + i], expected[row]) << "result " << row << ", " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, PtxOperationsTest, ValuesIn(device_kinds()), test_name);

}  // namespace
}  // namespace specdec::cuda::testing
