// How integer weights are stored: codes of a checkpoint as they are, floats quantised.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "testing/cpu_int_formats.h"
#include "testing/oracle/operations.h"
#include "testing/quantized_matrix.h"
#include "testing/values.h"

namespace specdec::cpu {
namespace {

using specdec::testing::QuantizedMatrix;
using specdec::testing::random_values;
using specdec::testing::view_of;

class CpuIntPackingTest : public IntFormatTest {};

TEST_P(CpuIntPackingTest, StoredWeightsAreNearTheOriginal) {
  if (takes_codes_alone(format())) GTEST_SKIP() << "takes no floats";
  CpuBackend backend = make_backend(2);
  const int64_t n = 37;
  const int64_t k = 500;
  std::vector<float> weight = random_values(n * k, 1);
  for (int64_t i = 0; i < n * k; ++i) weight[i] += 0.3f * static_cast<float>(i / k % 3);
  const std::vector<float> stored = unpacked(*pack(backend, view_of(weight, n)));
  double squares = 0;
  double plain_squares = 0;  // of the textbook placement of 16 levels
  for (int64_t row = 0; row < n; ++row) {
    const auto row_begin = weight.begin() + row * k;
    for (int64_t begin = 0; begin < k; begin += group_of(format())) {
      const int64_t end = std::min(k, begin + group_of(format()));
      auto first = row_begin + begin;
      auto last = row_begin + end;
      if (format() == WeightFormat::kInt8) first = row_begin, last = row_begin + k;
      const double low = *std::min_element(first, last);
      const double high = *std::max_element(first, last);
      const double largest = std::max(-low, high);
      const double step = has_mins(format()) ? (high - low) / (is_int4(format()) ? 15 : 255)
                                             : largest / (is_int4(format()) ? 8 : 127);
      for (int64_t i = begin; i < end; ++i) {
        const double value = weight[row * k + i];
        const double error = std::abs(stored[row * k + i] - value);
        // 8 bits: the nearest code; rounding a min to float16 may cost a little of the range.
        EXPECT_LE(error, (is_int4(format()) ? 1.6 : has_mins(format()) ? 0.52 : 0.501) * step);
        squares += error * error;
        const double zero = has_mins(format()) ? low : 0;
        const double nearest = std::nearbyint((value - zero) / step) * step + zero;
        const double limited = has_mins(format()) || !is_int4(format())
                                   ? nearest
                                   : std::clamp(nearest, -largest, 7.0 / 8.0 * largest);
        plain_squares += (limited - value) * (limited - value);
      }
    }
  }
  EXPECT_LE(squares, plain_squares * (is_int4(format()) ? 0.95 : 1.03));
}

// The ways in which checkpoints store integers.
enum class Kind { kPlain, kMins, kZeros, kTable, kRowScales };
struct Stored {
  int bits;
  Kind kind;
};
constexpr Stored kStored[] = {{4, Kind::kPlain},    {4, Kind::kMins},  {4, Kind::kZeros},
                              {4, Kind::kTable},    {8, Kind::kPlain}, {8, Kind::kMins},
                              {8, Kind::kRowScales}};

QuantizedMatrix stored_matrix(const Stored& stored, int64_t n, int64_t k, int group_size) {
  QuantizedMatrix matrix(n, k, stored.bits, stored.kind == Kind::kMins, 1, group_size);
  if (stored.kind == Kind::kZeros) matrix.add_zeros(2);
  if (stored.kind == Kind::kTable) matrix.add_table(3);
  if (stored.kind == Kind::kRowScales) matrix.use_row_scales(4);
  return matrix;
}

// Whether a format holds these codes, scales, mins and zeros, or numbers that are equal to them.
bool keeps(WeightFormat format, const Stored& stored, int group_size) {
  if (stored.kind == Kind::kRowScales) return format == WeightFormat::kInt8;
  if (format == WeightFormat::kInt8 || group_size % group_of(format) != 0) return false;
  if (stored.kind == Kind::kMins && !has_mins(format)) return false;
  if (!is_int4(format)) return true;
  if (stored.bits == 8) return false;
  if (stored.kind == Kind::kTable) return format == WeightFormat::kInt4Table;
  if (stored.kind == Kind::kZeros) return format == WeightFormat::kInt4GroupedZero;
  return format != WeightFormat::kInt4Table;
}

TEST_P(CpuIntPackingTest, CodesOfACheckpointAreKept) {
  CpuBackend backend = make_backend(2);
  for (const Stored& stored : kStored) {
    for (int group_size : {16, kQuantGroup, 2 * kQuantGroup}) {
      if (!keeps(format(), stored, group_size)) continue;
      SCOPED_TRACE(::testing::Message()
                   << stored.bits << " bits, kind " << static_cast<int>(stored.kind)
                   << ", groups of " << group_size);
      const QuantizedMatrix matrix = stored_matrix(stored, 35, 192, group_size);
      const std::vector<double> expected = reference::values_of(matrix.view());
      const std::vector<float> values = unpacked(*pack(backend, matrix.view()));
      for (size_t i = 0; i < values.size(); ++i) {
        ASSERT_EQ(values[i], static_cast<float>(expected[i])) << "at " << i;
      }
    }
  }
}

TEST_P(CpuIntPackingTest, CodesThatDoNotFitAreConverted) {
  CpuBackend backend = make_backend(1);
  for (const Stored& stored : kStored) {
    for (int group_size : {16, kQuantGroup}) {
      SCOPED_TRACE(::testing::Message()
                   << stored.bits << " bits, kind " << static_cast<int>(stored.kind)
                   << ", groups of " << group_size);
      const QuantizedMatrix matrix = stored_matrix(stored, 19, 96, group_size);
      if (takes_codes_alone(format()) && !keeps(format(), stored, group_size)) {
        EXPECT_THROW(pack(backend, matrix.view()), InternalError);
        continue;
      }
      const std::vector<double> expected = reference::values_of(matrix.view());
      const std::vector<float> values = unpacked(*pack(backend, matrix.view()));
      double error = 0;
      double scale = 0;
      for (size_t i = 0; i < values.size(); ++i) {
        error += (values[i] - expected[i]) * (values[i] - expected[i]);
        scale += expected[i] * expected[i];
      }
      EXPECT_LE(std::sqrt(error / scale), is_int4(format()) ? 0.11 : 0.02);
    }
  }
}

TEST_P(CpuIntPackingTest, FormatsOfCodesRefuseFloatsAndOtherTables) {
  if (!takes_codes_alone(format())) GTEST_SKIP() << "takes floats";
  CpuBackend backend = make_backend(2);
  const std::vector<float> floats = random_values(3 * kQuantGroup, 1);
  EXPECT_THROW(pack(backend, view_of(floats, 3)), InternalError);
  QuantizedMatrix first = codes_for(format(), 3, kQuantGroup, 1);
  QuantizedMatrix second = codes_for(format(), 3, kQuantGroup, 2);
  const auto pack_both = [&] {
    const WeightView views[] = {first.view(), second.view()};
    return backend.pack_linear({.parts = views, .format = format()});
  };
  EXPECT_EQ(pack_both()->out_features(), 6);
  if (second.table.empty()) return;
  ++second.table[5];
  EXPECT_THROW(pack_both(), InternalError);
}

TEST_P(CpuIntPackingTest, UnusualWeightsAreStoredSafely) {
  if (takes_codes_alone(format())) GTEST_SKIP() << "takes no floats";
  CpuBackend backend = make_backend(1);
  const int64_t k = 2 * kQuantGroup;
  std::vector<float> weight = random_values(8 * k, 1);
  const float row_scales[] = {0.0f, 1e-42f, 1e-30f, 1e-7f, 1e-4f, 1e3f, 1e4f, 1.0f};
  for (int64_t i = 0; i < 8 * k; ++i) weight[i] *= row_scales[i / k];
  for (int64_t i = 7 * k; i < 8 * k; ++i) weight[i] = 0.75f;  // all alike
  const std::vector<float> stored = unpacked(*pack(backend, view_of(weight, 8)));
  for (int64_t row = 0; row < 8; ++row) {
    float largest = 0;
    for (int64_t i = 0; i < k; ++i) largest = std::max(largest, std::abs(weight[row * k + i]));
    // Float16 scales are multiples of 2^-24.
    const double bound = largest / (is_int4(format()) ? 5.0 : 200.0) + 8 * 0x1p-24;
    for (int64_t i = 0; i < k; ++i) {
      ASSERT_NEAR(stored[row * k + i], weight[row * k + i], bound) << row << ", " << i;
    }
  }
}

TEST_P(CpuIntPackingTest, EmbeddingRowsEqualTheTable) {
  CpuBackend backend = make_backend(2);
  const int64_t dim = inputs(70);
  const Source weight(format(), 51, dim, 1);
  const WeightView view = weight.view();
  const auto packed = pack(backend, view);
  const std::vector<float> stored = unpacked(*packed);
  const auto tied = backend.embedding_from(*packed);
  const auto own = backend.make_embedding(view, format());
  const std::vector<int32_t> ids = {50, 0, 17, 15, 16, 50, 1};
  for (const EmbeddingTable* table : {tied.get(), own.get()}) {
    std::vector<float> out(ids.size() * dim, NAN);
    backend.embed({.table = table,
                   .token_ids = ids.data(),
                   .out = out.data(),
                   .num_rows = static_cast<int>(ids.size())});
    for (size_t i = 0; i < out.size(); ++i) {
      ASSERT_EQ(out[i], stored[ids[i / dim] * dim + i % dim]) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(KernelSets, CpuIntPackingTest, all_int_formats(), int_format_name);

// 4-bit codes without mins in a matrix with mins: the offset of 8 goes into them, where it is a
// float16.
TEST(CpuIntPacking, ScalesOfAnySizeKeepTheirCodes) {
  CpuBackend backend(Isa::kGeneric, 1, DType::kF32);
  for (uint16_t scale : {0x0001, 0x8001, 0x0055, 0x00ff, 0x0100, 0x0155, 0x01ff, 0x03ff, 0x0400,
                         0x8733, 0x3c00, 0x6fff, 0xefff}) {
    QuantizedMatrix matrix(1, kQuantGroup, 4, false, 1);
    matrix.scales[0] = scale;
    const WeightView view = matrix.view();
    const std::vector<double> expected = reference::values_of(view);
    const auto packed =
        backend.pack_linear({.parts = {&view, 1}, .format = WeightFormat::kInt4GroupedMin});
    const std::vector<float> stored = unpacked(*packed);
    for (size_t i = 0; i < stored.size(); ++i) {
      ASSERT_EQ(stored[i], expected[i]) << std::hex << scale << " at " << std::dec << i;
    }
  }
}

// At the act dtype a checkpoint's codes become the floats they stand for.
TEST(CpuIntPacking, QuantisedCheckpointsUnpackToFloats) {
  CpuBackend backend(Isa::kGeneric, 1, DType::kF32);
  for (const Stored& stored : kStored) {
    const QuantizedMatrix matrix = stored_matrix(stored, 18, 64, 16);
    const WeightView view = matrix.view();
    const std::vector<double> expected = reference::values_of(view);
    const std::vector<float> values = unpacked(*backend.pack_linear({.parts = {&view, 1}}));
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(values[i], static_cast<float>(expected[i])) << i;
    }
  }
}

}  // namespace
}  // namespace specdec::cpu
