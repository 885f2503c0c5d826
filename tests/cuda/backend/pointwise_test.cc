// Norms, statistics of rows, residual streams and lookups against double loops, and each row
// against itself in other batches.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "testing/clusters.h"
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
  for (const float scale : {1.0f, 0.3f}) {
    const NormArgs args = {.norm = {.weight = weight.data()},
                           .x = x.data(),
                           .out = before.data(),
                           .num_rows = num_rows,
                           .dim = dim,
                           .accumulate = true,
                           .scale = scale};
    const std::vector<uint8_t> out = norm(world, args);
    const std::vector<double> expected = reference::norm(args);
    for (size_t i = 0; i < expected.size(); ++i) {
      const double value = reference::element(out.data(), DType::kF32, static_cast<int64_t>(i));
      ASSERT_NEAR(value, expected[i], 2e-6) << i << " times " << scale;
    }
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

TEST_P(CudaPointwise, RowsAreMultipliedByFactorsInPlace) {
  const int num_rows = 4;
  for (DType act : {DType::kBF16, DType::kF16}) {
    World world(GetParam(), act);
    for (const int dim : {1, 17, 300}) {
      const std::vector<uint16_t> before = to_bits(random_values(num_rows * dim, 1), act);
      for (const auto& [stride, are_gates] :
           {std::pair{0, false}, {dim, false}, {dim + 3, false}, {0, true}, {dim + 3, true}}) {
        const int64_t step = stride != 0 ? stride : dim;
        const std::vector<float> factors = random_values(num_rows * step, 2, 2.0f);
        const Buffer device_factors = world.upload(factors);
        const auto run = [&, stride = stride, are_gates = are_gates](int begin, int count) {
          Buffer rows = world.upload(std::vector<uint16_t>(before.begin() + begin * dim,
                                                           before.begin() + (begin + count) * dim));
          world.backend->scale_rows({.rows = rows.data(),
                                     .factors = device_factors.as<float>() + begin * step,
                                     .factor_stride = stride,
                                     .factors_are_gates = are_gates,
                                     .num_rows = count,
                                     .dim = dim});
          return world.download<uint16_t>(rows);
        };
        const std::vector<uint16_t> all = run(0, num_rows);
        std::vector<uint16_t> copy = before;
        const std::vector<double> expected = reference::scaled_rows({.rows = copy.data(),
                                                                     .factors = factors.data(),
                                                                     .factor_stride = stride,
                                                                     .factors_are_gates = are_gates,
                                                                     .num_rows = num_rows,
                                                                     .dim = dim},
                                                                    act);
        for (size_t i = 0; i < all.size(); ++i) {
          ASSERT_NEAR(from_bits(all[i], act), expected[i],
                      (2e-6 + rounding_unit(act)) * std::abs(expected[i]) + 1e-7)
              << i << " of " << dim << ", stride " << stride << ", gates " << are_gates;
        }
        for (int row = 0; row < num_rows; ++row) {
          const std::vector<uint16_t> alone = run(row, 1);
          EXPECT_TRUE(std::equal(alone.begin(), alone.end(), all.begin() + row * dim)) << row;
        }
      }
    }
  }
}

TEST_P(CudaPointwise, GatesFarAboveTheMeanPass) {
  World world(GetParam(), DType::kBF16);
  const int num_rows = 4;
  for (const int dim : {1, 3, 100, 577, 2052}) {
    std::vector<float> gates = random_values(num_rows * dim, 1, 2.0f);
    for (int i = 0; i < dim; ++i) gates[dim + i] += 5.0f;  // a mean that is no zero
    for (const auto& [deviations, activation] : {std::pair{0.8f, Activation::kGeluTanh},
                                                 {-0.5f, Activation::kSilu},
                                                 {1.2f, Activation::kIdentity}}) {
      const auto run = [&, deviations = deviations, activation = activation](int begin, int count) {
        Buffer device_gates = world.upload(
            std::vector<float>(gates.begin() + begin * dim, gates.begin() + (begin + count) * dim));
        world.backend->sparse_gates({.gates = device_gates.as<float>(),
                                     .deviations = deviations,
                                     .activation = activation,
                                     .num_rows = count,
                                     .dim = dim});
        return world.download<float>(device_gates);
      };
      const std::vector<float> all = run(0, num_rows);
      const std::vector<double> expected = reference::sparse_gates({.gates = gates.data(),
                                                                    .deviations = deviations,
                                                                    .activation = activation,
                                                                    .num_rows = num_rows,
                                                                    .dim = dim});
      for (size_t i = 0; i < all.size(); ++i) {
        ASSERT_NEAR(all[i], expected[i], 5e-6) << i << " of " << dim << ", " << deviations;
      }
      if (dim >= 100) {
        EXPECT_GT(std::count(all.begin(), all.end(), 0.0f), num_rows * dim / 10);
        EXPECT_LT(std::count(all.begin(), all.end(), 0.0f), num_rows * dim);
      }
      for (int row = 0; row < num_rows; ++row) {
        const std::vector<float> alone = run(row, 1);
        EXPECT_EQ(0, std::memcmp(alone.data(), &all[row * dim], dim * sizeof(float))) << row;
      }
    }
  }
}

TEST_P(CudaPointwise, LogitsOfClustersAreThoseOfAll) {
  World world(GetParam(), DType::kBF16);
  const int k = 64, rows = 3;
  const Buffer x = world.upload(random_values(rows * k, 2));
  for (const auto& shape : specdec::testing::kClusterShapes) {
    const int n = shape.num_clusters * shape.size;
    const std::vector<float> values = random_values(n * k, 1);
    const WeightView view = view_of(values, n);
    const auto packed = world.backend->pack_linear({.parts = {&view, 1}});
    const auto outputs = [&](auto&& run) {
      Buffer out = world.upload(std::vector<float>(size_t(rows) * n, NAN));
      run(LinearArgs{.weight = packed.get(),
                     .in = {.x = x.data(), .dtype = DType::kF32, .num_rows = rows},
                     .out = out.as<float>()});
      return world.download<float>(out);
    };
    const std::vector<float> scores = specdec::testing::cluster_scores(rows, shape.num_clusters);
    const Buffer device_scores = world.upload(scores);
    const auto all = outputs([&](const LinearArgs& linear) { world.backend->linear(linear); });
    const auto out = outputs([&](const LinearArgs& linear) {
      world.backend->cluster_logits({.linear = linear,
                                     .scores = device_scores.as<float>(),
                                     .num_clusters = shape.num_clusters,
                                     .num_kept = shape.num_kept});
    });
    for (int i = 0; i < rows * n; ++i) {
      const bool is_kept = specdec::testing::is_kept(shape, scores, i);
      ASSERT_EQ(out[i], is_kept ? all[i] : -INFINITY) << i << " of " << n;
    }
  }
}

TEST_P(CudaPointwise, MagnitudesAreMatched) {
  World world(GetParam(), DType::kBF16);
  const int num_rows = 4;
  for (const int dim : {1, 3, 100, 577, 2052}) {
    std::vector<float> x = random_values(num_rows * dim, 1, 2.0f);
    for (int i = 0; i < dim; ++i) {
      x[dim + i] *= 1e-4f;  // below the least mean of squares
      x[2 * dim + i] = 0.0f;
    }
    const std::vector<float> reference = random_values(num_rows * dim, 2, 3.0f);
    enum class Out { kOwn, kInPlace, kSum, kSumUnmatched };
    for (const Out way : {Out::kOwn, Out::kInPlace, Out::kSum, Out::kSumUnmatched}) {
      const bool is_matched = way != Out::kSumUnmatched;
      const bool accumulates = way == Out::kSum || way == Out::kSumUnmatched;
      std::vector<float> before = random_values(num_rows * dim, 3);
      const auto rows_of = [&](const std::vector<float>& values, int begin, int count) {
        return world.upload(std::vector<float>(values.begin() + begin * dim,
                                               values.begin() + (begin + count) * dim));
      };
      const auto run = [&](int begin, int count) {
        Buffer device_x = rows_of(x, begin, count), sums = rows_of(before, begin, count);
        const Buffer device_reference = rows_of(reference, begin, count);
        Buffer& out = way == Out::kInPlace ? device_x : sums;
        world.backend->match_magnitude(
            {.x = device_x.as<float>(),
             .reference = is_matched ? device_reference.as<float>() : nullptr,
             .out = out.as<float>(),
             .accumulate = accumulates,
             .scale = 0.7f,
             .num_rows = count,
             .dim = dim});
        return world.download<float>(out);
      };
      const std::vector<float> all = run(0, num_rows);
      const std::vector<double> expected =
          reference::matched_magnitude({.x = x.data(),
                                        .reference = is_matched ? reference.data() : nullptr,
                                        .out = before.data(),
                                        .accumulate = accumulates,
                                        .scale = 0.7f,
                                        .num_rows = num_rows,
                                        .dim = dim});
      for (size_t i = 0; i < all.size(); ++i) {
        ASSERT_NEAR(all[i], expected[i], 2e-6 * std::abs(expected[i]) + 2e-6)
            << i << " of " << dim << ", way " << static_cast<int>(way);
      }
      for (int row = 0; row < num_rows; ++row) {
        const std::vector<float> alone = run(row, 1);
        EXPECT_EQ(0, std::memcmp(alone.data(), &all[row * dim], dim * sizeof(float))) << row;
      }
    }
  }
}

TEST_P(CudaPointwise, StreamsArePredictedAndCorrected) {
  World world(GetParam(), DType::kBF16);
  const int num_rows = 3;
  for (const int num_streams : {1, 4, kMaxStreams}) {
    const Buffer predictions =
        world.upload(random_values(num_streams * num_streams * num_streams, 1));
    const Buffer corrections = world.upload(random_values(num_streams * num_streams, 2));
    const std::vector<float> modalities = random_values(num_rows * num_streams, 3);
    for (const int dim : {1, 100, 300}) {
      const int active = num_streams / 2;
      const std::vector<float> activated = random_values(num_rows * dim, 4);
      // Streams of `num_rows` rows and a gap.
      const int64_t all_stride = num_rows * dim + 5;
      std::vector<float> before = random_values(num_streams * all_stride, 5);
      // The streams of `count` rows afterwards, without gaps: a call's results, and what they
      // should be.
      const auto run = [&](bool corrects, int begin, int count) {
        const Buffer device_modalities =
            world.upload(std::vector<float>(modalities.begin() + begin * num_streams,
                                            modalities.begin() + (begin + count) * num_streams));
        const Buffer device_activated = world.upload(std::vector<float>(
            activated.begin() + begin * dim, activated.begin() + (begin + count) * dim));
        Buffer data = world.upload(before);
        const StreamsView streams = {.data = data.as<float>() + begin * dim,
                                     .stride = all_stride,
                                     .num_streams = num_streams,
                                     .num_rows = count,
                                     .dim = dim};
        if (corrects) {
          world.backend->correct_streams({.streams = streams,
                                          .active = active,
                                          .activated = device_activated.as<float>(),
                                          .modalities = device_modalities.as<float>(),
                                          .coefficients = corrections.as<float>()});
        } else {
          world.backend->predict_streams({.streams = streams,
                                          .modalities = device_modalities.as<float>(),
                                          .coefficients = predictions.as<float>()});
        }
        return world.download<float>(data);
      };
      for (const bool corrects : {false, true}) {
        const std::vector<float> all = run(corrects, 0, num_rows);
        const StreamsView streams = {.data = before.data(),
                                     .stride = all_stride,
                                     .num_streams = num_streams,
                                     .num_rows = num_rows,
                                     .dim = dim};
        const std::vector<float> host_coefficients =
            world.download<float>(corrects ? corrections : predictions);
        const std::vector<double> expected =
            corrects ? reference::corrected_streams({.streams = streams,
                                                     .active = active,
                                                     .activated = activated.data(),
                                                     .modalities = modalities.data(),
                                                     .coefficients = host_coefficients.data()})
                     : reference::predicted_streams({.streams = streams,
                                                     .modalities = modalities.data(),
                                                     .coefficients = host_coefficients.data()});
        for (int64_t i = 0; i < num_streams * all_stride; ++i) {
          const int64_t stream = i / all_stride, at = i % all_stride;
          if (at >= num_rows * dim) {
            ASSERT_EQ(all[i], before[i]) << "between streams";
          } else {
            ASSERT_NEAR(all[i], expected[stream * num_rows * dim + at], 1e-5)
                << at << " of stream " << stream << (corrects ? ", corrected" : ", predicted");
          }
        }
        for (int row = 0; row < num_rows; ++row) {
          std::vector<float> others = before;
          const std::vector<float> alone = run(corrects, row, 1);
          for (int stream = 0; stream < num_streams; ++stream) {
            const int64_t begin = stream * all_stride + row * dim;
            std::copy_n(all.begin() + begin, dim, others.begin() + begin);
          }
          EXPECT_EQ(alone, others) << "row " << row;
        }
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
