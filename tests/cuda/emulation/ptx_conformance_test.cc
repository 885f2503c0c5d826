// Matrix instructions as ptx.cuh wraps them, and the properties that kernels rely on, against plain
// loops written from the PTX and CUDA documentation. On a new GPU these tests must pass before any
// other result counts.
#include "tests/cuda/emulation/ptx_conformance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>
#include <random>
#include <vector>

#include "core/dtype.h"
#include "testing/fused_sum.h"

namespace specdec::cuda::testing {
namespace {

using ::testing::ValuesIn;

class PtxConformanceTest : public PtxTest {
 protected:
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
  // Elements of very different size, so that sums in another order or of other groups differ.
  std::vector<uint16_t> uneven_elements(ElementType type, size_t count);
  std::vector<float> multiply(ElementType type, const std::vector<uint16_t>& a,
                              const std::vector<uint16_t>& b, const std::vector<float>& d);

 private:
  std::mt19937 random_{7};
};

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
  const auto index_of = [](int lane, int i) {
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
    for (int i = 0; i < 4; ++i) d_registers[lane * 4 + i] = d[index_of(lane, i)];
  }
  Buffer device_d = upload(d_registers);
  const Buffer device_a = upload(a_registers);
  const Buffer device_b = upload(b_registers);
  run().mma(stream(), type, device_d.as<float>(), device_a.as<uint32_t>(), device_b.as<uint32_t>());
  const std::vector<float> registers = download<float>(device_d);
  std::vector<float> result(16 * 8);
  for (int i = 0; i < 32 * 4; ++i) result[index_of(i / 4, i % 4)] = registers[i];
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

// Row-invariance rests on this.
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

// The 16 products of a step are one sum: its bits show which 16 they are, but not their order.
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
      for (int index = 0; index < 16 * 8; ++index) {
        float row[16];
        float column[16];
        float in_turn = d[index];
        for (int k = 0; k < 16; ++k) {
          row[k] = widen(type, a[static_cast<size_t>(index / 8 * 16 + k)]);
          column[k] = widen(type, b[static_cast<size_t>(k * 8 + index % 8)]);
          in_turn += row[k] * column[k];
        }
        const DType dtype = type == ElementType::kBf16 ? DType::kBF16 : DType::kF16;
        const float want = specdec::testing::fused_sum(row, column, d[index], dtype);
        ASSERT_EQ(std::bit_cast<uint32_t>(got[index]), std::bit_cast<uint32_t>(want))
            << "draw " << draw << ", place " << index << ": " << got[index] << ", not " << want;
        num_other_orders += in_turn != want;
      }
    }
    EXPECT_GT(num_other_orders, 100);  // the sums tell groups apart
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

// [tiles][rows][64] elements in wgmma's layout: piece c of row r at c ^ (r % 8).
std::vector<uint16_t> swizzled(const std::vector<uint16_t>& elements) {
  std::vector<uint16_t> result(elements.size());
  for (size_t i = 0; i < elements.size(); ++i) {
    const size_t row = i / 64;
    const size_t piece = i / 8 % 8;
    result[row * 64 + (piece ^ row % 8) * 8 + i % 8] = elements[i];
  }
  return result;
}

// Tiles [rows][64], two of 32 elements a row each: piece c of row r at c ^ (r / 2 % 4).
std::vector<uint16_t> swizzled_narrow(const std::vector<uint16_t>& elements, size_t num_rows) {
  std::vector<uint16_t> result(elements.size());
  for (size_t i = 0; i < elements.size(); ++i) {
    const size_t row = i / 64 % num_rows;
    const size_t half = i / (64 * num_rows) * 2 + i % 64 / 32;
    const size_t piece = i / 8 % 4;
    result[(half * num_rows + row) * 32 + (piece ^ row / 2 % 4) * 8 + i % 8] = elements[i];
  }
  return result;
}

TEST_P(PtxConformanceTest, Wgmma) {
  if (device().properties().compute_capability != 90) GTEST_SKIP() << "compute capability 9.0";
  for (const ElementType type : {ElementType::kBf16, ElementType::kHalf}) {
    for (const int n : {8, 16, 32, 64, 128, 256}) {
      const std::vector<uint16_t> a = random_elements(type, 2 * 64 * 64);  // [pair][row][k]
      const std::vector<uint16_t> b = random_elements(type, static_cast<size_t>(2 * n * 64));
      enum class Way { kShared, kRegisters, kNarrow };
      for (const Way way : {Way::kShared, Way::kRegisters, Way::kNarrow}) {
        const Buffer device_a = upload(way == Way::kShared ? swizzled(a) : a);
        const Buffer device_b =
            upload(way == Way::kNarrow ? swizzled_narrow(b, static_cast<size_t>(n)) : swizzled(b));
        Buffer device_d = allocate<float>(static_cast<size_t>(64 * n));
        auto* const d_data = device_d.as<float>();
        const auto* const a_data = device_a.as<uint16_t>();
        const auto* const b_data = device_b.as<uint16_t>();
        if (way == Way::kShared) {
          run().wgmma(stream(), type, n, d_data, a_data, b_data);
        } else {
          run().wgmma_registers(stream(), type, n, way == Way::kNarrow, d_data, a_data, b_data);
        }
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
        EXPECT_EQ(num_wrong, 0) << "n = " << n << ", way " << static_cast<int>(way);
      }
    }
  }
}

// Few-rows and many-rows kernels can have the same bits because a chain of mma.sync, with inputs in
// the lanes where kernels/tiles.cuh puts them, equals a chain of wgmma on the same groups.
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
        for (int index = 0; index < 16 * kColumns; ++index) {
          const int row = index / kColumns;
          const int column = index % kColumns;
          const int thread = warp * 32 + row % 8 * 4 + column / 2;
          const float got = sums[thread * 4 + row / 8 * 2 + column % 2];
          ASSERT_EQ(std::bit_cast<uint32_t>(got), std::bit_cast<uint32_t>(chain[index]))
              << "draw " << draw << ", warp " << warp << ", row " << row << ", column " << column;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, PtxConformanceTest, ValuesIn(device_kinds()), test_name);

}  // namespace
}  // namespace specdec::cuda::testing
