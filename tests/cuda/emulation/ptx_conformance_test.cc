// Each wrapper of ptx.cuh, and what else kernels rely on, against a plain loop from the PTX and
// CUDA documentation: what must hold before anything else is believed on a new GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <optional>
#include <random>
#include <vector>

#include "core/dtype.h"
#include "testing/device_kinds.h"
#include "testing/fused_sum.h"
#include "tests/cuda/emulation/ptx_conformance_kernels.h"

namespace specdec::cuda::testing {
namespace {

using ::testing::ValuesIn;

class PtxConformanceTest : public CudaDeviceTest {
 protected:
  ConformanceKernels run() const { return SPECDEC_KERNELS_FOR(GetParam(), conformance_kernels); }

  std::vector<uint32_t> random_words(size_t count) {
    std::vector<uint32_t> words(count);
    for (uint32_t& word : words) word = static_cast<uint32_t>(random_());
    return words;
  }
  // Elements in [-1, 1] that a 16-bit type holds.
  std::vector<uint16_t> random_elements(ElementType type, size_t count) {
    std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
    std::vector<uint16_t> elements(count);
    for (uint16_t& element : elements) {
      const float value = uniform(random_);
      element = type == ElementType::kBf16 ? to_bfloat16(value).bits : float_to_half(value);
    }
    return elements;
  }
  // Of very different size, so that sums in another order or of other groups differ.
  std::vector<uint16_t> uneven_elements(ElementType type, size_t count);
  std::vector<float> multiply(ElementType type, const std::vector<uint16_t>& a,
                              const std::vector<uint16_t>& b, const std::vector<float>& d);

 private:
  std::mt19937 random_{7};
};

float widen(ElementType type, uint16_t bits) {
  return type == ElementType::kBf16 ? to_float(BFloat16{bits}) : half_to_float(bits);
}

std::vector<uint16_t> PtxConformanceTest::uneven_elements(ElementType type, size_t count) {
  std::vector<uint16_t> elements = random_elements(type, count);
  for (uint16_t& element : elements) {
    const float value = std::ldexp(widen(type, element), static_cast<int>(random_() % 11) - 5);
    element = type == ElementType::kBf16 ? to_bfloat16(value).bits : float_to_half(value);
  }
  return elements;
}

// d + a b, with a [16 rows][16 k], b [16 k][8 columns] and d [16 rows][8 columns].
std::vector<float> PtxConformanceTest::multiply(ElementType type, const std::vector<uint16_t>& a,
                                                const std::vector<uint16_t>& b,
                                                const std::vector<float>& d) {
  // PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type".
  std::vector<uint32_t> a_registers(32 * 4);
  std::vector<uint32_t> b_registers(32 * 2);
  std::vector<float> d_registers(32 * 4);
  const auto place_of = [](int lane, int i) {
    const int row = i < 2 ? lane / 4 : lane / 4 + 8;
    return row * 8 + lane % 4 * 2 + (i & 1);
  };
  for (int lane = 0; lane < 32; ++lane) {
    const int group = lane / 4;
    const int thread = lane % 4;
    for (int i = 0; i < 8; ++i) {
      const int row = (i < 2 || (i >= 4 && i < 6)) ? group : group + 8;
      const int k = thread * 2 + (i & 1) + (i < 4 ? 0 : 8);
      a_registers[lane * 4 + i / 2] |= uint32_t{a[row * 16 + k]} << (16 * (i & 1));
    }
    for (int i = 0; i < 4; ++i) {
      const int k = thread * 2 + (i & 1) + (i < 2 ? 0 : 8);
      b_registers[lane * 2 + i / 2] |= uint32_t{b[k * 8 + group]} << (16 * (i & 1));
    }
    for (int i = 0; i < 4; ++i) d_registers[lane * 4 + i] = d[place_of(lane, i)];
  }
  Buffer device_d = upload(d_registers);
  const Buffer device_a = upload(a_registers);
  const Buffer device_b = upload(b_registers);
  run().mma(stream(), type, device_d.as<float>(), device_a.as<uint32_t>(), device_b.as<uint32_t>());
  const std::vector<float> registers = download<float>(device_d);
  std::vector<float> result(16 * 8);
  for (int i = 0; i < 32 * 4; ++i) result[place_of(i / 4, i % 4)] = registers[i];
  return result;
}

TEST_P(PtxConformanceTest, Mma) {
  for (const ElementType type : {ElementType::kBf16, ElementType::kHalf}) {
    const std::vector<uint16_t> a = random_elements(type, 16 * 16);
    const std::vector<uint16_t> b = random_elements(type, 16 * 8);
    std::vector<float> d(16 * 8);
    for (size_t i = 0; i < d.size(); ++i) d[i] = static_cast<float>(i % 35) / 8;
    const std::vector<float> result = multiply(type, a, b, d);
    for (int row = 0; row < 16; ++row) {
      for (int column = 0; column < 8; ++column) {
        double expected = d[row * 8 + column];
        for (int k = 0; k < 16; ++k) {
          expected += double{widen(type, a[row * 16 + k])} * widen(type, b[k * 8 + column]);
        }
        EXPECT_NEAR(result[row * 8 + column], expected, 1e-5) << row << ", " << column;
      }
    }
  }
}

// That a row's results do not depend on the rows beside it rests on this.
TEST_P(PtxConformanceTest, MmaRoundsAlikeInEveryPosition) {
  for (const ElementType type : {ElementType::kBf16, ElementType::kHalf}) {
    for (int draw = 0; draw < 4; ++draw) {
      const std::vector<uint16_t> row = uneven_elements(type, 16);
      const std::vector<uint16_t> column = uneven_elements(type, 16);
      const std::vector<uint16_t> a = uneven_elements(type, 16 * 16);
      const std::vector<uint16_t> b = uneven_elements(type, 16 * 8);
      std::optional<float> want;
      for (int at_row = 0; at_row < 16; ++at_row) {
        for (int at_column = 0; at_column < 8; ++at_column) {
          std::vector<uint16_t> left = a, right = b;
          std::ranges::copy(row, left.begin() + at_row * 16);
          for (int k = 0; k < 16; ++k) right[k * 8 + at_column] = column[k];
          std::vector<float> d(16 * 8, -1.0f);
          d[at_row * 8 + at_column] = 0.3f;
          const float got = multiply(type, left, right, d)[at_row * 8 + at_column];
          if (!want) want = got;
          ASSERT_EQ(std::bit_cast<uint32_t>(got), std::bit_cast<uint32_t>(*want))
              << "row " << at_row << ", column " << at_column;
        }
      }
    }
  }
}

// The products of a step are one sum: which 16 they are shows in its bits, and their order does
// not.
TEST_P(PtxConformanceTest, MmaAddsSixteenProductsInOneSum) {
  if (device().properties().compute_capability < 90) GTEST_SKIP() << "compute capability 9.0";
  for (const ElementType type : {ElementType::kBf16, ElementType::kHalf}) {
    int num_other_orders = 0;
    for (int draw = 0; draw < 16; ++draw) {
      const std::vector<uint16_t> a = uneven_elements(type, 16 * 16);
      const std::vector<uint16_t> b = uneven_elements(type, 16 * 8);
      std::vector<float> d(16 * 8);
      for (size_t i = 0; i < d.size(); ++i) d[i] = std::ldexp(0.3f, static_cast<int>(i % 9) - 4);
      const std::vector<float> got = multiply(type, a, b, d);
      for (int place = 0; place < 16 * 8; ++place) {
        float row[16];
        float column[16];
        float in_turn = d[place];
        for (int k = 0; k < 16; ++k) {
          row[k] = widen(type, a[static_cast<size_t>(place / 8 * 16 + k)]);
          column[k] = widen(type, b[static_cast<size_t>(k * 8 + place % 8)]);
          in_turn += row[k] * column[k];
        }
        const DType dtype = type == ElementType::kBf16 ? DType::kBF16 : DType::kF16;
        const float want = specdec::testing::fused_sum(row, column, d[place], dtype);
        ASSERT_EQ(std::bit_cast<uint32_t>(got[place]), std::bit_cast<uint32_t>(want))
            << "draw " << draw << ", place " << place << ": " << got[place] << ", not " << want;
        num_other_orders += in_turn != want;
      }
    }
    EXPECT_GT(num_other_orders, 100);  // the sums do tell
  }
}

TEST_P(PtxConformanceTest, Ldmatrix) {
  std::vector<uint16_t> matrices(32 * 8);  // [matrix][row][element]
  for (size_t i = 0; i < matrices.size(); ++i) matrices[i] = static_cast<uint16_t>(100 + i);
  const Buffer input = upload(matrices);
  Buffer output = allocate<uint32_t>(32 * 4);
  for (const bool transposed : {false, true}) {
    run().ldmatrix(stream(), transposed, output.as<uint32_t>(), input.as<uint16_t>());
    const std::vector<uint32_t> registers = download<uint32_t>(output);
    for (int lane = 0; lane < 32; ++lane) {
      for (int matrix = 0; matrix < 4; ++matrix) {
        const int row = lane / 4;
        const int element = lane % 4 * 2;
        const auto at = [&](int r, int c) {
          return uint32_t{matrices[static_cast<size_t>(64 * matrix + 8 * r + c)]};
        };
        const uint32_t expected = transposed ? at(element, row) | at(element + 1, row) << 16
                                             : at(row, element) | at(row, element + 1) << 16;
        EXPECT_EQ(registers[lane * 4 + matrix], expected) << lane << ", " << matrix;
      }
    }
  }
}

TEST_P(PtxConformanceTest, CopyAsync) {
  const std::vector<uint32_t> values = random_words(128 * 2 * 4);
  const Buffer input = upload(values);
  Buffer output = allocate<uint32_t>(values.size());
  run().copy_async(stream(), input.as<uint32_t>(), output.as<uint32_t>());
  const std::vector<uint32_t> result = download<uint32_t>(output);
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(result[i], i / 4 % 3 == 1 ? 0 : values[i]) << i;
  }
}

TEST_P(PtxConformanceTest, LoadStreaming) {
  const std::vector<uint32_t> values = random_words(128 * 4);
  const Buffer input = upload(values);
  Buffer output = allocate<uint32_t>(values.size());
  run().load_streaming(stream(), input.as<uint32_t>(), output.as<uint32_t>());
  EXPECT_EQ(download<uint32_t>(output), values);
}

TEST_P(PtxConformanceTest, NamedBarrier) {
  std::vector<int> values(256);
  for (int i = 0; i < 256; ++i) values[i] = i;
  const Buffer input = upload(values);
  Buffer output = allocate<int>(256);
  run().named_barrier(stream(), input.as<int>(), output.as<int>());
  const std::vector<int> result = download<int>(output);
  for (int i = 0; i < 256; ++i) EXPECT_EQ(result[i], i / 128 * 128 + 127 - i % 128);
}

TEST_P(PtxConformanceTest, Nanoseconds) {
  Buffer output = allocate<uint64_t>(2);
  run().nanoseconds(stream(), output.as<uint64_t>());
  const std::vector<uint64_t> times = download<uint64_t>(output);
  EXPECT_GT(times[0], 0u);
  EXPECT_GE(times[1], times[0]);
  EXPECT_LT(times[1] - times[0], uint64_t{10'000'000'000});
}

TEST_P(PtxConformanceTest, BulkCopiesAndMbarriers) {
  if (device().properties().compute_capability < 90) GTEST_SKIP() << "compute capability 9.0";
  constexpr int kTiles = 11;
  std::vector<float> values(kTiles * 256);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const Buffer input = upload(values);
  Buffer output = allocate<float>(values.size());
  run().bulk_ring(stream(), input.as<float>(), output.as<float>(), kTiles);
  EXPECT_EQ(download<float>(output), values);
}

// [tiles][rows][64] elements as wgmma wants them: piece c of row r at c ^ (r % 8).
std::vector<uint16_t> swizzled(const std::vector<uint16_t>& elements) {
  std::vector<uint16_t> result(elements.size());
  for (size_t i = 0; i < elements.size(); ++i) {
    const size_t row = i / 64;
    const size_t piece = i / 8 % 8;
    result[row * 64 + (piece ^ row % 8) * 8 + i % 8] = elements[i];
  }
  return result;
}

TEST_P(PtxConformanceTest, Wgmma) {
  if (device().properties().compute_capability != 90) GTEST_SKIP() << "compute capability 9.0";
  for (const ElementType type : {ElementType::kBf16, ElementType::kHalf}) {
    for (const int n : {8, 16, 32, 64, 128, 256}) {
      const std::vector<uint16_t> a = random_elements(type, 2 * 64 * 64);  // [pair][row][k]
      const std::vector<uint16_t> b = random_elements(type, static_cast<size_t>(2 * n * 64));
      const Buffer device_b = upload(swizzled(b));
      for (const bool from_registers : {false, true}) {
        if (from_registers && n < 128) continue;
        const Buffer device_a = upload(from_registers ? a : swizzled(a));
        Buffer device_d = allocate<float>(static_cast<size_t>(64 * n));
        (from_registers ? run().wgmma_registers : run().wgmma)(
            stream(), type, n, device_d.as<float>(), device_a.as<uint16_t>(),
            device_b.as<uint16_t>());
        const std::vector<float> d = download<float>(device_d);
        int num_wrong = 0;
        for (int thread = 0; thread < 128; ++thread) {
          for (int i = 0; i < n / 2; ++i) {
            // PTX ISA, "WGMMA .m64nNk16 register fragment layout for accumulator matrix D".
            const int row = thread / 32 * 16 + thread % 32 / 4 + (i % 4 < 2 ? 0 : 8);
            const int column = i / 4 * 8 + thread % 4 * 2 + i % 2;
            double expected = 0;
            for (int pair = 0; pair < 2; ++pair) {
              for (int k = 0; k < 64; ++k) {
                expected += double{widen(type, a[(pair * 64 + row) * 64 + k])} *
                            widen(type, b[(pair * n + column) * 64 + k]);
              }
            }
            num_wrong += !(std::fabs(d[thread * (n / 2) + i] - expected) < 1e-4);
          }
        }
        EXPECT_EQ(num_wrong, 0) << "n = " << n << (from_registers ? ", a in registers" : "");
      }
    }
  }
}

// What lets kernels of few rows and of many have the same bits: a chain of mma.sync, with inputs in
// the lanes where products have them (kernels/tiles.cuh), equals one of wgmma on the same groups.
TEST_P(PtxConformanceTest, WgmmaAddsAsMma) {
  if (device().properties().compute_capability != 90) GTEST_SKIP() << "compute capability 9.0";
  constexpr int kSteps = 8;
  constexpr int kColumns = 8;
  for (const ElementType type : {ElementType::kBf16, ElementType::kHalf}) {
    for (int draw = 0; draw < 4; ++draw) {
      const std::vector<uint16_t> a = uneven_elements(type, 2 * 64 * 64);  // [pair][row][k]
      const std::vector<uint16_t> b =
          uneven_elements(type, 2 * kColumns * 64);  // [pair][column][k]
      const Buffer device_a = upload(swizzled(a));
      const Buffer device_b = upload(swizzled(b));
      Buffer device_d = allocate<float>(64 * kColumns);
      run().wgmma(stream(), type, kColumns, device_d.as<float>(), device_a.as<uint16_t>(),
                  device_b.as<uint16_t>());
      const std::vector<float> sums = download<float>(device_d);
      for (int warp = 0; warp < 4; ++warp) {
        std::vector<float> chain(16 * kColumns);
        for (int step = 0; step < kSteps; ++step) {
          std::vector<uint16_t> left(16 * 16);
          std::vector<uint16_t> right(16 * kColumns);
          for (int k = 0; k < 16; ++k) {
            // Lane t has inputs 4t .. 4t + 3 where the instruction has 2t, 2t + 1, 2t + 8, 2t + 9.
            const int at = k % 4 / 2 * 8 + k / 4 * 2 + k % 2;
            const int from = step % 4 * 16 + k;
            for (int row = 0; row < 16; ++row) {
              left[row * 16 + at] = a[(step / 4 * 64 + warp * 16 + row) * 64 + from];
            }
            for (int column = 0; column < kColumns; ++column) {
              right[at * kColumns + column] = b[(step / 4 * kColumns + column) * 64 + from];
            }
          }
          chain = multiply(type, left, right, chain);
        }
        for (int place = 0; place < 16 * kColumns; ++place) {
          const int row = place / kColumns;
          const int column = place % kColumns;
          const int thread = warp * 32 + row % 8 * 4 + column / 2;
          const float got = sums[thread * 4 + row / 8 * 2 + column % 2];
          ASSERT_EQ(std::bit_cast<uint32_t>(got), std::bit_cast<uint32_t>(chain[place]))
              << "draw " << draw << ", warp " << warp << ", row " << row << ", column " << column;
        }
      }
    }
  }
}

TEST_P(PtxConformanceTest, Conversions) {
  for (const ElementType type : {ElementType::kBf16, ElementType::kHalf}) {
    std::vector<float> values(65536);
    const std::vector<uint32_t> words = random_words(values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      // Anything, values near those of the type, and ties.
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

TEST_P(PtxConformanceTest, WarpOperations) {
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

TEST_P(PtxConformanceTest, BlockOperations) {
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
  // Every value put into the last cell came out once, but for the one that stayed.
  std::vector<uint32_t> seen = download<uint32_t>(previous);
  seen.push_back(cell[7]);
  std::sort(seen.begin(), seen.end());
  for (uint32_t i = 0; i < 96; ++i) EXPECT_EQ(seen[i], i);
  EXPECT_EQ(seen[96], 1000u);
}

TEST_P(PtxConformanceTest, BitOperations) {
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
      const uint32_t choice = selector >> (4 * byte) & 15;
      const uint32_t word = (choice & 7) < 4 ? value : other;
      const auto chosen = static_cast<int8_t>(word >> (8 * (choice & 3)));
      const uint32_t made = choice & 8 ? (chosen < 0 ? 0xff : 0) : static_cast<uint8_t>(chosen);
      permuted |= made << (8 * byte);
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

INSTANTIATE_TEST_SUITE_P(Devices, PtxConformanceTest, ValuesIn(device_kinds()), test_name);

}  // namespace
}  // namespace specdec::cuda::testing
