// Norms and lookups against double loops and the CPU backend, and each row against itself in other
// batches.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "testing/device_kinds.h"
#include "testing/oracle/operations.h"
#include "testing/values.h"

namespace specdec::cuda {
namespace {

using specdec::testing::from_bits;
using specdec::testing::random_values;
using specdec::testing::rounded;
using specdec::testing::rounding_unit;
using specdec::testing::to_bits;
using specdec::testing::view_of;
using testing::DeviceKind;

class CudaPointwise : public ::testing::TestWithParam<DeviceKind> {
 protected:
  using World = testing::BackendWorld;

  static constexpr uint8_t kUntouched = 0x5a;

  // The rows' norms computed on the device, as bytes, with kUntouched between rows.
  static std::vector<uint8_t> norm(World& world, NormArgs args) {
    const size_t count = size_t(args.num_rows) * args.dim;
    const auto vector = [&](const float* values, size_t size) {
      return world.upload(std::vector<float>(values, values + size));
    };
    const Buffer x = vector(args.x, count);
    const Buffer weight = vector(args.norm.weight, args.dim);
    Buffer bias;
    if (args.norm.bias != nullptr) bias = vector(args.norm.bias, args.dim);
    Buffer out =
        args.accumulate
            ? vector(static_cast<const float*>(args.out), count)
            : world.upload(std::vector<uint8_t>(size_t(args.num_rows) * size_of(args.out_dtype) *
                                                    std::max(args.dim, args.out_stride),
                                                kUntouched));
    args.x = x.as<float>();
    args.norm.weight = weight.as<float>();
    args.norm.bias = bias.as<float>();
    args.out = out.data();
    world.backend->norm(args);
    return world.download<uint8_t>(out);
  }

  static std::vector<float> embed(World& world, const EmbeddingTable& table,
                                  const std::vector<int32_t>& ids, int offset = 0,
                                  const std::vector<float>& onto = {}, float scale = 1.0f) {
    const size_t count = ids.size() * table.dim();
    Buffer out = world.upload(onto.empty() ? std::vector<float>(count, NAN) : onto);
    const Buffer device_ids = world.upload(ids);
    world.backend->embed({.table = &table,
                          .token_ids = device_ids.as<int32_t>(),
                          .out = out.as<float>(),
                          .num_rows = static_cast<int>(ids.size()),
                          .index_offset = offset,
                          .accumulate = !onto.empty(),
                          .scale = scale});
    return world.download<float>(out);
  }
};

TEST_P(CudaPointwise, NormsMatchReference) {
  for (DType act : {DType::kBF16, DType::kF16}) {
    World world(GetParam(), act);
    for (int dim : {1, 3, 17, 100, 576, 2052}) {
      for (const bool layer : {false, true}) {
        for (DType out_dtype : {DType::kF32, act}) {
          const int num_rows = 3;
          std::vector<float> x = random_values(int64_t{num_rows} * dim, 1, 3.0f);
          if (layer) {
            for (float& value : x) value += 5.0f;
          }
          const std::vector<float> weight = random_values(dim, 2);
          const std::vector<float> bias = random_values(dim, 3);
          const NormArgs args = {.norm = {.kind = layer ? NormKind::kLayer : NormKind::kRms,
                                          .weight = weight.data(),
                                          .bias = layer ? bias.data() : nullptr,
                                          .eps = 1e-5f},
                                 .x = x.data(),
                                 .out_dtype = out_dtype,
                                 .num_rows = num_rows,
                                 .dim = dim};
          const std::vector<uint8_t> out = norm(world, args);
          const std::vector<double> expected = reference::norm(args);
          const double rounding = out_dtype == DType::kF32 ? 0.0 : rounding_unit(out_dtype);
          for (size_t i = 0; i < expected.size(); ++i) {
            const double value = reference::element(out.data(), out_dtype, static_cast<int64_t>(i));
            ASSERT_NEAR(value, expected[i], (2e-6 + rounding) * std::abs(expected[i]) + 1e-5)
                << "element " << i << " of " << dim;
          }
        }
      }
    }
  }
}

TEST_P(CudaPointwise, NormsMayBeAddedToWhatIsThere) {
  World world(GetParam(), DType::kBF16);
  const int num_rows = 3, dim = 100;
  const std::vector<float> x = random_values(num_rows * dim, 1);
  const std::vector<float> weight = random_values(dim, 2);
  std::vector<float> before = random_values(num_rows * dim, 3);
  const NormArgs args = {.norm = {.weight = weight.data()},
                         .x = x.data(),
                         .out = before.data(),
                         .num_rows = num_rows,
                         .dim = dim,
                         .accumulate = true};
  const std::vector<uint8_t> out = norm(world, args);
  const std::vector<double> expected = reference::norm(args);
  for (size_t i = 0; i < expected.size(); ++i) {
    const double value = reference::element(out.data(), DType::kF32, static_cast<int64_t>(i));
    ASSERT_NEAR(value, expected[i], 2e-6) << i;
  }
}

TEST_P(CudaPointwise, NormedRowsMayBeActivatedAndStandApart) {
  const int num_rows = 3;
  for (DType act : {DType::kBF16, DType::kF16}) {
    World world(GetParam(), act);
    for (const int dim : {17, 300}) {
      const std::vector<float> x = random_values(num_rows * dim, 1, 2.0f);
      const std::vector<float> weight = random_values(dim, 2), bias = random_values(dim, 3);
      for (const Activation activation :
           {Activation::kSilu, Activation::kRelu, Activation::kGelu, Activation::kGeluTanh,
            Activation::kIdentity, Activation::kReluSquared}) {
        for (DType out_dtype : {DType::kF32, act}) {
          NormArgs args = {.norm = {.weight = weight.data(), .bias = bias.data()},
                           .x = x.data(),
                           .out_dtype = out_dtype,
                           .num_rows = num_rows,
                           .dim = dim,
                           .out_stride = dim + 5,
                           .activation = activation};
          const std::vector<uint8_t> out = norm(world, args);
          const std::vector<double> expected = reference::norm(args);
          const double rounding = out_dtype == DType::kF32 ? 0.0 : rounding_unit(out_dtype);
          for (int row = 0; row < num_rows; ++row) {
            const int64_t begin = int64_t{row} * (dim + 5);
            for (int i = 0; i < dim; ++i) {
              const double value = reference::element(out.data(), out_dtype, begin + i);
              const double want = expected[row * dim + i];
              ASSERT_NEAR(value, want, (4e-6 + rounding) * std::abs(want) + 1e-5)
                  << i << " of " << dim << " activation " << int(activation);
            }
            const size_t row_bytes = dim * size_of(out_dtype);
            const auto at = out.begin() + begin * static_cast<int64_t>(size_of(out_dtype));
            for (size_t i = row_bytes; i < (dim + 5) * size_of(out_dtype); ++i) {
              ASSERT_EQ(at[static_cast<int64_t>(i)], kUntouched) << "between rows";
            }
            NormArgs one = args;
            one.x += int64_t{row} * dim;
            one.num_rows = 1;
            one.out_stride = 0;
            const std::vector<uint8_t> alone = norm(world, one);
            ASSERT_EQ(0, std::memcmp(alone.data(), &*at, row_bytes)) << row;
          }
        }
      }
    }
  }
}

TEST_P(CudaPointwise, RowsAreGatedInPlace) {
  const int num_rows = 5;
  const std::vector<float> gates = {0.3f, -2.0f, 80.0f, -80.0f, 4.0f};
  for (DType act : {DType::kBF16, DType::kF16}) {
    World world(GetParam(), act);
    for (const int dim : {1, 17, 300}) {
      const std::vector<uint16_t> before = to_bits(random_values(num_rows * dim, 1), act);
      const auto run = [&](int begin, int count) {
        Buffer rows = world.upload(std::vector<uint16_t>(before.begin() + begin * dim,
                                                         before.begin() + (begin + count) * dim));
        const Buffer device_gates =
            world.upload(std::vector<float>(gates.begin() + begin, gates.begin() + begin + count));
        world.backend->scale_rows({.rows = rows.data(),
                                   .gates = device_gates.as<float>(),
                                   .num_rows = count,
                                   .dim = dim});
        return world.download<uint16_t>(rows);
      };
      const std::vector<uint16_t> all = run(0, num_rows);
      std::vector<uint16_t> copy = before;
      const std::vector<double> expected = reference::scaled_rows(
          {.rows = copy.data(), .gates = gates.data(), .num_rows = num_rows, .dim = dim}, act);
      for (size_t i = 0; i < all.size(); ++i) {
        ASSERT_NEAR(from_bits(all[i], act), expected[i],
                    (2e-6 + rounding_unit(act)) * std::abs(expected[i]) + 1e-7)
            << i << " of " << dim;
      }
      for (int row = 0; row < num_rows; ++row) {
        const std::vector<uint16_t> alone = run(row, 1);
        EXPECT_TRUE(std::equal(alone.begin(), alone.end(), all.begin() + row * dim)) << row;
      }
    }
  }
}

TEST_P(CudaPointwise, NormRowsDoNotSeeEachOther) {
  World world(GetParam(), DType::kBF16);
  const int dim = 577, num_rows = 5;
  const std::vector<float> x = random_values(int64_t{num_rows} * dim, 1);
  const std::vector<float> weight = random_values(dim, 2);
  NormArgs args = {.norm = {.weight = weight.data()}, .x = x.data(), .dim = dim};
  args.num_rows = num_rows;
  const std::vector<uint8_t> all = norm(world, args);
  args.num_rows = 1;
  for (int row = 0; row < num_rows; ++row) {
    args.x = x.data() + int64_t{row} * dim;
    const std::vector<uint8_t> alone = norm(world, args);
    EXPECT_EQ(0, std::memcmp(alone.data(), all.data() + row * alone.size(), alone.size())) << row;
  }
}

TEST_P(CudaPointwise, LookupsGiveTheRowsOfTheTable) {
  const int64_t num_embeddings = 37;
  for (DType act : {DType::kBF16, DType::kF16}) {
    World world(GetParam(), act);
    for (int64_t dim : {1, 31, 64, 300}) {
      const std::vector<float> values = random_values(num_embeddings * dim, 1);
      const std::vector<float> stored = rounded(values, act);
      const WeightView view = view_of(values, num_embeddings);
      const auto packed = world.backend->pack_linear({.parts = {&view, 1}});
      const auto tied = world.backend->embedding_from(*packed);
      const auto own = world.backend->make_embedding(view, WeightFormat::kAct);
      EXPECT_EQ(tied->size_bytes(), 0);
      EXPECT_EQ(own->size_bytes(), packed->size_bytes());
      const std::vector<int32_t> ids = {36, 0, 17, 15, 16, 36};
      for (const EmbeddingTable* table : {tied.get(), own.get()}) {
        const std::vector<float> out = embed(world, *table, ids);
        for (size_t i = 0; i < out.size(); ++i) {
          ASSERT_EQ(out[i], stored[ids[i / dim] * dim + i % dim]) << i << " of " << dim;
        }
      }
    }
  }
}

TEST_P(CudaPointwise, LookupsShiftIdsAndAdd) {
  World world(GetParam(), DType::kBF16);
  const int64_t dim = 20;
  const std::vector<float> values = random_values(9 * dim, 1);
  const WeightView view = view_of(values, 9);
  const auto table = world.backend->make_embedding(view, WeightFormat::kAct);
  const std::vector<float> plain = embed(world, *table, {2, 8});
  EXPECT_EQ(embed(world, *table, {0, 6}, 2), plain);
  const std::vector<float> onto = random_values(2 * dim, 2);
  const std::vector<float> sums = embed(world, *table, {2, 8}, 0, onto);
  for (size_t i = 0; i < sums.size(); ++i) EXPECT_EQ(sums[i], onto[i] + plain[i]) << i;
  const std::vector<float> scaled = embed(world, *table, {2, 8}, 0, onto, 1.7f);
  for (size_t i = 0; i < sums.size(); ++i) EXPECT_EQ(scaled[i], onto[i] + 1.7f * plain[i]) << i;
  // Ids outside of the table read nothing.
  for (float value : embed(world, *table, {9, -1})) EXPECT_TRUE(std::isnan(value));
}

INSTANTIATE_TEST_SUITE_P(Devices, CudaPointwise, ::testing::ValuesIn(testing::device_kinds()),
                         testing::test_name);

}  // namespace
}  // namespace specdec::cuda
