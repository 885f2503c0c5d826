// Weights that are codes: integers have the CPU's bits, products equal double loops, and each row
// equals itself in other batches.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

#include "cpu/cpu_backend.h"
#include "cuda/backend/packed_linear.h"
#include "testing/cpu_int_formats.h"
#include "testing/cuda_qkv.h"
#include "testing/device_kinds.h"
#include "testing/oracle/operations.h"
#include "testing/quantized_matrix.h"
#include "testing/quantized_world.h"

namespace specdec::cuda {
namespace {

using cpu::codes_for;
using cpu::inputs_for;
using cpu::Source;
using cpu::takes_codes_alone;
using specdec::testing::from_bits;
using specdec::testing::QuantizedMatrix;
using specdec::testing::random_values;
using specdec::testing::rows_of;
using specdec::testing::to_bits;
using specdec::testing::view_of;
using testing::DeviceKind;
using testing::expect_products;
using World = testing::QuantizedWorld;

constexpr WeightFormat kFormats[] = {WeightFormat::kInt8,
                                     WeightFormat::kInt8Grouped,
                                     WeightFormat::kInt8GroupedMin,
                                     WeightFormat::kInt8Grouped16,
                                     WeightFormat::kInt4Grouped,
                                     WeightFormat::kInt4GroupedMin,
                                     WeightFormat::kInt4GroupedZero,
                                     WeightFormat::kInt4Table,
                                     WeightFormat::kFp8,
                                     WeightFormat::kFp8Grouped};
// The formats that the CPU backend has, too.
constexpr std::span<const WeightFormat> kIntFormats = std::span(kFormats).first(8);

// Whether a format holds the codes of a matrix as they are. All scales are small enough.
bool keeps(WeightFormat format, const WeightView& view) {
  if (view.has_row_scales()) return format == WeightFormat::kInt8;
  if (!view.is_integer() || view.group_size % cpu::group_of(format) != 0) return false;
  const bool is_plain_int4 =
      view.bits() == 4 && view.mins == nullptr && view.zeros == nullptr && view.table == nullptr;
  switch (format) {
    case WeightFormat::kInt8Grouped:
    case WeightFormat::kInt8Grouped16:
      return view.mins == nullptr;
    case WeightFormat::kInt8GroupedMin:
      return true;
    case WeightFormat::kInt4Grouped:
      return is_plain_int4;
    case WeightFormat::kInt4GroupedMin:
      return is_plain_int4 || (view.bits() == 4 && view.mins != nullptr);
    case WeightFormat::kInt4GroupedZero:
      return is_plain_int4 || view.zeros != nullptr;
    case WeightFormat::kInt4Table:
      return view.table != nullptr;
    default:
      return false;
  }
}

// The values after packing on the CPU.
std::vector<float> unpacked_on_cpu(const WeightView& view, WeightFormat format) {
  cpu::CpuBackend backend(cpu::Isa::kGeneric, 1, DType::kF32);
  const auto table = backend.make_embedding(view, format);
  std::vector<int32_t> ids(table->num_embeddings());
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
  std::vector<float> out(ids.size() * table->dim());
  backend.embed({.table = table.get(),
                 .token_ids = ids.data(),
                 .out = out.data(),
                 .num_rows = static_cast<int>(ids.size())});
  return out;
}

class CudaQuantized : public ::testing::TestWithParam<DeviceKind> {
 protected:
  void expect_same_codes(World& world, const WeightView& view) {
    for (WeightFormat format : kIntFormats) {
      if (takes_codes_alone(format) && !keeps(format, view)) continue;
      const std::vector<float> mine = world.unpacked(*world.pack(view, format));
      const std::vector<float> expected = unpacked_on_cpu(view, format);
      ASSERT_EQ(mine.size(), expected.size());
      for (size_t i = 0; i < mine.size(); ++i) {
        ASSERT_EQ(mine[i], expected[i]) << name_of(format) << " at " << i;
      }
    }
  }
};

TEST_P(CudaQuantized, FloatsBecomeTheCodesOfTheCpu) {
  World world(GetParam(), DType::kBF16);
  for (int64_t k : {1, 32, 70, 161}) {
    SCOPED_TRACE(k);
    std::vector<float> values = random_values(19 * k, 1);
    const float row_scales[] = {0.0f, 1e-42f, 1e-30f, 1e-7f, 1e-4f, 1e3f, 1e4f};
    for (int64_t i = 0; i < 7 * k; ++i) values[i] *= row_scales[i / k];
    for (int64_t i = 7 * k; i < 8 * k; ++i) values[i] = 0.75f;  // all equal
    expect_same_codes(world, view_of(values, 19));
    for (DType dtype : {DType::kBF16, DType::kF16}) {
      const std::vector<uint16_t> bits = to_bits(random_values(19 * k, 2), dtype);
      expect_same_codes(world, {.values = {bits.data(), dtype, {19, k}}});
    }
  }
}

// Rows from the middle of a random tensor, alone and beside another part: packed bytes are those of
// the same rows filled on the host.
TEST_P(CudaQuantized, WeightsMadeOnTheDeviceAreThoseOfTheHost) {
  constexpr int64_t kRows = 19, kFirstRow = 3;
  World world(GetParam(), DType::kBF16);
  std::vector<WeightFormat> formats = {WeightFormat::kAct};
  std::ranges::remove_copy_if(kFormats, std::back_inserter(formats), takes_codes_alone);
  for (const int64_t k : {32, 70, 161}) {
    RandomSource source = random_source("some.weight", k);
    source.first = kFirstRow * k;
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      std::vector<std::byte> filled(static_cast<size_t>(kRows * k) * size_of(dtype));
      fill_random(source, dtype, kRows * k, filled.data());
      const WeightView on_host = {.values = {filled.data(), dtype, {kRows, k}}};
      const WeightView on_device = {.values = {nullptr, dtype, {kRows, k}}, .random = source};
      for (const WeightFormat format : formats) {
        for (const bool gated : {false, true}) {
          const auto bytes_of = [&](const WeightView& view) {
            const WeightView parts[] = {view, view};
            const auto packed = world.backend->pack_linear(
                {.parts = std::span(parts).first(gated ? 2 : 1), .format = format, .gated = gated});
            std::vector<std::byte> bytes(static_cast<size_t>(packed->size_bytes()));
            world.backend->read(static_cast<const CudaPackedLinear&>(*packed).data(), bytes);
            return bytes;
          };
          EXPECT_TRUE(bytes_of(on_host) == bytes_of(on_device))
              << name_of(format) << " from " << specdec::name_of(dtype) << ", " << k << " inputs";
        }
      }
    }
  }
}

TEST_P(CudaQuantized, StoredIntegersKeepTheirCodes) {
  World world(GetParam(), DType::kBF16);
  for (int group_size : {16, 32, 64}) {
    const auto matrix = [&](int bits, bool with_mins) {
      return QuantizedMatrix(17, group_size == 16 ? 208 : 192, bits, with_mins, 3, group_size);
    };
    const std::pair<const char*, QuantizedMatrix> matrices[] = {
        {"8 bits", matrix(8, false)},
        {"8 bits, mins", matrix(8, true)},
        {"8 bits, row scales", matrix(8, false).use_row_scales(4)},
        {"4 bits", matrix(4, false)},
        {"4 bits, mins", matrix(4, true)},
        {"4 bits, zeros", matrix(4, false).add_zeros(4)},
        {"4 bits, a table", matrix(4, false).add_table(4)}};
    for (const auto& [name, codes] : matrices) {
      SCOPED_TRACE(::testing::Message() << name << ", groups of " << group_size);
      const WeightView view = codes.view();
      expect_same_codes(world, view);
      const std::vector<double> values = reference::values_of(view);
      const std::vector<float> expected(values.begin(), values.end());
      for (WeightFormat format : kIntFormats) {
        if (!keeps(format, view)) continue;
        const std::vector<float> stored = world.unpacked(*world.pack(view, format));
        for (size_t i = 0; i < stored.size(); ++i) {
          ASSERT_EQ(stored[i], expected[i]) << name_of(format) << " at " << i;
        }
      }
      EXPECT_EQ(world.unpacked(*world.pack(view, WeightFormat::kAct)),
                specdec::testing::rounded(expected, DType::kBF16));
    }
  }
}

// Zeros and tables are those of the checkpoint, and all codes of a matrix share a table.
TEST_P(CudaQuantized, ZerosAndTablesAreOnlyKept) {
  World world(GetParam(), DType::kBF16);
  const std::vector<float> floats = random_values(8 * 64, 1);
  const QuantizedMatrix wide(8, 64, 8, false, 2), fine(8, 64, 4, false, 3, 16);
  const QuantizedMatrix mins(8, 64, 4, true, 4);
  for (WeightFormat format : {WeightFormat::kInt4GroupedZero, WeightFormat::kInt4Table}) {
    const QuantizedMatrix kept = codes_for(format, 8, 64, 5);
    const WeightFormat other = format == WeightFormat::kInt4Table ? WeightFormat::kInt4GroupedZero
                                                                  : WeightFormat::kInt4Table;
    const QuantizedMatrix others[] = {wide, fine, mins, codes_for(other, 8, 64, 6)};
    EXPECT_THROW(world.pack(view_of(floats, 8), format), InternalError);
    for (const QuantizedMatrix& matrix : others) {
      const WeightView views[] = {kept.view(), matrix.view()};
      EXPECT_THROW(world.backend->pack_linear({.parts = views, .format = format}), InternalError);
    }
  }
  const QuantizedMatrix first = codes_for(WeightFormat::kInt4Table, 8, 64, 7);
  const QuantizedMatrix second = QuantizedMatrix(8, 64, 4, false, 8).add_table(9);
  const WeightView views[] = {first.view(), second.view()};
  EXPECT_THROW(world.backend->pack_linear({.parts = views, .format = WeightFormat::kInt4Table}),
               InternalError);
}

// 4-bit codes without mins in a matrix with mins: their offset of 8 goes into the mins, if those
// are then float16 numbers.
TEST_P(CudaQuantized, ScalesOfAnySizeKeepTheirCodes) {
  World world(GetParam(), DType::kBF16);
  const uint16_t scales[] = {0x0001, 0x8001, 0x0055, 0x00ff, 0x0155, 0x01ff,
                             0x03ff, 0x0400, 0x8733, 0x3c00, 0x6fff, 0xefff};
  QuantizedMatrix matrix(std::size(scales) + 1, 2 * kQuantGroup, 4, false, 1);
  for (size_t i = 0; i < std::size(scales); ++i) matrix.scales[2 * i] = scales[i];
  matrix.scales.back() = 0x7000;  // 8 times it is no float16
  const std::vector<float> stored =
      world.unpacked(*world.pack(matrix.view(), WeightFormat::kInt4GroupedMin));
  const std::vector<float> expected = unpacked_on_cpu(matrix.view(), WeightFormat::kInt4GroupedMin);
  for (size_t i = 0; i < stored.size(); ++i) ASSERT_EQ(stored[i], expected[i]) << i;
}

TEST_P(CudaQuantized, FusedPartsAreStoredAsTheyWouldBeAlone) {
  World world(GetParam(), DType::kF16);
  const QuantizedMatrix first(13, 64, 4, false, 1), second(20, 64, 4, true, 2);
  const std::vector<float> third = random_values(9 * 64, 3);
  const QuantizedMatrix with_zeros = QuantizedMatrix(20, 64, 4, false, 4).add_zeros(5);
  const QuantizedMatrix with_table = QuantizedMatrix(33, 64, 4, false, 6).add_table(7);
  for (WeightFormat format : kIntFormats) {
    std::vector<WeightView> views = {first.view(), second.view(), view_of(third, 9)};
    if (format == WeightFormat::kInt4GroupedZero) views = {first.view(), with_zeros.view()};
    if (format == WeightFormat::kInt4Table) {
      views = {rows_of(with_table.view(), 0, 13), rows_of(with_table.view(), 13, 20)};
    }
    const std::vector<float> fused =
        world.unpacked(*world.backend->pack_linear({.parts = views, .format = format}));
    std::vector<float> alone;
    for (const WeightView& view : views) {
      const std::vector<float> part = unpacked_on_cpu(view, format);
      alone.insert(alone.end(), part.begin(), part.end());
    }
    EXPECT_EQ(fused, alone) << name_of(format);
  }
}

TEST_P(CudaQuantized, ProductsMatchDoubleLoops) {
  struct Shape {
    int64_t n, k;
    int rows;
  };
  for (DType act : {DType::kBF16, DType::kF16}) {
    World world(GetParam(), act);
    for (WeightFormat format : kFormats) {
      for (const Shape& shape : {Shape{37, 70, 3}, {16, 32, 9}, {50, 330, 1}, {150, 64, 40}}) {
        const int64_t k = inputs_for(format, shape.k);
        SCOPED_TRACE(::testing::Message() << name_of(format) << ' ' << name_of(act) << ' '
                                          << shape.n << " x " << k << ", " << shape.rows);
        const auto packed = world.pack(Source(format, shape.n, k, 1).view(), format);
        const std::vector<float> x = random_values(shape.rows * k, 2);
        expect_products(world.linear(*packed, x.data(), shape.rows), x, act,
                        world.unpacked(*packed), k);
      }
      if (format == WeightFormat::kFp8 || format == WeightFormat::kFp8Grouped) continue;
      // All codes, and scales
      const QuantizedMatrix matrix = codes_for(format, 24, 96, 4);
      const auto packed = world.pack(matrix.view(), format);
      const std::vector<float> x = random_values(2 * 96, 5);
      expect_products(world.linear(*packed, x.data(), 2), x, act, world.unpacked(*packed), 96);
    }
  }
}

TEST_P(CudaQuantized, RowsAreBitEqualWhateverTheBatch) {
  constexpr int kRows = 70;
  const int64_t n = 40, k = 288;
  const std::vector<float> x = random_values(kRows * k, 2);
  for (DType act : {DType::kBF16, DType::kF16}) {
    World world(GetParam(), act);
    for (WeightFormat format : kFormats) {
      const auto packed = world.pack(Source(format, n, k, 1).view(), format);
      const std::vector<float> all = world.linear(*packed, x.data(), kRows);
      for (int rows : {1, 2, 8, 9, 16, 17, 33}) {
        const int first = kRows - rows - rows % 7;
        const std::vector<float> out = world.linear(*packed, x.data() + first * k, rows);
        ASSERT_EQ(0, std::memcmp(out.data(), all.data() + first * n, out.size() * sizeof(float)))
            << name_of(format) << ", " << rows << " rows from " << first;
      }
    }
  }
}

TEST_P(CudaQuantized, GatedProductsAreThoseOfTheParts) {
  const int64_t inner = 21;
  const DType act = DType::kF16;
  World world(GetParam(), act);
  for (WeightFormat format : kFormats) {
    const int64_t k = inputs_for(format, 100);
    const Source source(format, 2 * inner, k, 1);
    const WeightView views[] = {rows_of(source.view(), 0, inner),
                                rows_of(source.view(), inner, inner)};
    const std::vector<float> x = random_values(5 * k, 3, 0.3f);
    const auto packed =
        world.backend->pack_linear({.parts = views, .format = format, .gated = true});
    for (int rows : {1, 5}) {
      const std::vector<uint16_t> bits =
          world.gated(*packed, {x.begin(), x.begin() + rows * k}, rows, Activation::kSilu);
      const std::vector<float> gates = world.linear(*world.pack(views[0], format), x.data(), rows);
      const std::vector<float> ups = world.linear(*world.pack(views[1], format), x.data(), rows);
      for (size_t i = 0; i < bits.size(); ++i) {
        const double expected = reference::activate(Activation::kSilu, gates[i]) * ups[i];
        ASSERT_NEAR(from_bits(bits[i], act), expected, 1e-3 * std::abs(expected) + 1e-5)
            << name_of(format) << " at " << i;
      }
    }
  }
}

// Queries, keys and values are the plain product's outputs, rounded.
TEST_P(CudaQuantized, HeadsAreTheProductsOfTheWholeMatrix) {
  constexpr int kRows = 9, kK = 96;
  const testing::QkvShape shape = {.num_heads = 3, .num_kv_heads = 1, .head_dim = 24};
  const DType act = DType::kBF16;
  const testing::QkvWorld rows(shape, act, kRows, kK);
  World world(GetParam(), act);
  for (WeightFormat format : kFormats) {
    const Source source(format, shape.num_outputs(), kK, 1);
    const auto packed = world.pack(source.view(), format);
    const testing::QkvResult result = rows.run(world, *packed, kRows);
    const std::vector<uint16_t> expected =
        to_bits(world.linear(*packed, rows.x().data(), kRows), act);
    const size_t q_size = shape.num_heads * shape.head_dim, num_n = shape.num_outputs();
    for (int row = 0; row < kRows; ++row) {
      EXPECT_EQ(0, std::memcmp(&result.q[row * q_size], &expected[row * num_n], q_size * 2))
          << name_of(format);
      const std::vector<uint8_t> value = rows.cached(result.values, rows.slot(row), 0);
      EXPECT_EQ(0, std::memcmp(value.data(), &expected[row * num_n + q_size + shape.head_dim],
                               value.size()))
          << name_of(format);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, CudaQuantized, ::testing::ValuesIn(testing::device_kinds()),
                         testing::test_name);

}  // namespace
}  // namespace specdec::cuda
