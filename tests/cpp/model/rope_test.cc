#include "model/rope.h"

#include <gtest/gtest.h>

#include <cmath>

namespace specdec {
namespace {

// Frequencies printed by transformers 5.23 (float32) for head_dim 16, theta 10000,
// max_position_embeddings 64.
struct Reference {
  const char* name;
  RopeConfig rope;
  int length;
  std::vector<double> frequencies;
  double attention_factor;
};

RopeConfig long_rope() {
  return {.kind = RopeKind::kLongRope,
          .factor = 4.0,
          .original_max_position_embeddings = 64,
          .short_factors = {1.0, 1.05, 1.1, 1.3, 1.5, 1.9, 2.5, 3.0},
          .long_factors = {1.2, 1.7, 2.4, 3.1, 4.2, 6.0, 9.0, 12.0}};
}

std::vector<Reference> references() {
  return {
      {"Default",
       {},
       64,
       {1, 0.316227764, 0.100000001, 0.0316227786, 0.00999999978, 0.00316227786, 0.00100000005,
        0.000316227786},
       1.0},
      {"Linear",
       {.kind = RopeKind::kLinear, .factor = 2.5},
       64,
       {0.400000006, 0.1264911, 0.0399999991, 0.0126491114, 0.00399999972, 0.00126491114,
        0.000400000019, 0.000126491112},
       1.0},
      {"Dynamic20",
       {.kind = RopeKind::kDynamic, .factor = 2.0, .original_max_position_embeddings = 64},
       20,
       {1, 0.316227764, 0.100000001, 0.0316227786, 0.00999999978, 0.00316227786, 0.00100000005,
        0.000316227786},
       1.0},
      {"Dynamic64",
       {.kind = RopeKind::kDynamic, .factor = 2.0, .original_max_position_embeddings = 64},
       64,
       {1, 0.316227764, 0.100000001, 0.0316227786, 0.00999999978, 0.00316227786, 0.00100000005,
        0.000316227786},
       1.0},
      {"Dynamic65",
       {.kind = RopeKind::kDynamic, .factor = 2.0, .original_max_position_embeddings = 64},
       65,
       {1, 0.314840704, 0.0991246626, 0.0312084779, 0.00982569903, 0.00309352996, 0.000973969174,
        0.000306645117},
       1.0},
      {"Dynamic200",
       {.kind = RopeKind::kDynamic, .factor = 2.0, .original_max_position_embeddings = 64},
       200,
       {1, 0.249528468, 0.0622644536, 0.0155367535, 0.00387686281, 0.000967387517, 0.000241390735,
        6.02338623e-05},
       1.0},
      {"Llama3",
       {.kind = RopeKind::kLlama3,
        .factor = 8.0,
        .original_max_position_embeddings = 64,
        .low_freq_factor = 1.0,
        .high_freq_factor = 4.0},
       64,
       {1, 0.244384587, 0.0130422562, 0.00395284733, 0.00124999997, 0.000395284733, 0.000125000006,
        3.95284733e-05},
       1.0},
      {"Yarn",
       {.kind = RopeKind::kYarn, .factor = 4.0, .original_max_position_embeddings = 2048},
       64,
       {1, 0.316227764, 0.100000001, 0.025693506, 0.00624999963, 0.00138349656, 0.000250000012,
        7.90569466e-05},
       1.138629436111989},
      {"YarnUntruncated",
       {.kind = RopeKind::kYarn,
        .factor = 4.0,
        .original_max_position_embeddings = 2048,
        .beta_fast = 16.0,
        .beta_slow = 2.0,
        .truncate = false},
       64,
       {1, 0.316227764, 0.100000001, 0.0266074985, 0.00426161895, 0.000790569466, 0.000250000012,
        7.90569466e-05},
       1.138629436111989},
      {"YarnMscale",
       {.kind = RopeKind::kYarn,
        .factor = 4.0,
        .original_max_position_embeddings = 2048,
        .mscale = 0.7,
        .mscale_all_dim = 0.9},
       64,
       {1, 0.316227764, 0.100000001, 0.025693506, 0.00624999963, 0.00138349656, 0.000250000012,
        7.90569466e-05},
       0.9753496504321066},
      {"YarnAttentionFactor",
       {.kind = RopeKind::kYarn,
        .factor = 4.0,
        .original_max_position_embeddings = 2048,
        .attention_factor = 1.25},
       64,
       {1, 0.316227764, 0.100000001, 0.025693506, 0.00624999963, 0.00138349656, 0.000250000012,
        7.90569466e-05},
       1.25},
      {"YarnShortContext",
       {.kind = RopeKind::kYarn, .factor = 4.0, .original_max_position_embeddings = 2},
       64,
       {1, 0.079056941, 0.0250000004, 0.00790569466, 0.00249999994, 0.000790569466, 0.000250000012,
        7.90569466e-05},
       1.138629436111989},
      {"LongRopeWithin",
       long_rope(),
       64,
       {1, 0.301169306, 0.0909090936, 0.0243252143, 0.00666666683, 0.00166435679, 0.00039999999,
        0.000105409257},
       1.1547005383792517},
      {"LongRopeBeyond",
       long_rope(),
       65,
       {0.833333313, 0.186016336, 0.0416666679, 0.0102008963, 0.00238095247, 0.00052704633,
        0.000111111112, 2.63523143e-05},
       1.1547005383792517},
  };
}

class RopeFrequencies : public ::testing::TestWithParam<Reference> {};

TEST_P(RopeFrequencies, EqualTransformers) {
  const Reference& reference = GetParam();
  const std::vector<double> frequencies = rope_frequencies(reference.rope, 16, reference.length);
  ASSERT_EQ(frequencies.size(), reference.frequencies.size());
  for (size_t i = 0; i < frequencies.size(); ++i) {
    EXPECT_NEAR(frequencies[i] / reference.frequencies[i], 1.0, 1e-6) << "plane " << i;
  }
  EXPECT_NEAR(rope_attention_factor(reference.rope), reference.attention_factor, 1e-9);
}

TEST(ProportionalRope, TurnsTheFirstPlanesOfTheWholeHead) {
  const RopeConfig rope = {
      .kind = RopeKind::kProportional, .theta = 100.0, .partial_rotary_factor = 0.6, .factor = 2.0};
  ASSERT_EQ(rotary_dim(rope, 16), 16);
  const std::vector<double> frequencies = rope_frequencies(rope, 16, 1);
  ASSERT_EQ(frequencies.size(), 8u);
  for (int i = 0; i < 8; ++i) {
    EXPECT_NEAR(frequencies[i], i < 4 ? std::pow(100.0, -i / 8.0) / 2 : 0.0, 1e-12) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(All, RopeFrequencies, ::testing::ValuesIn(references()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(RopeTables, HoldCosAndSinOfPositionTimesFrequency) {
  const RopeConfig rope{.theta = 100.0};
  const RopeTables tables = make_rope_tables(rope, 4, 50);
  ASSERT_EQ(tables.cos.size(), 100u);
  EXPECT_FLOAT_EQ(tables.cos[0], 1.0f);
  EXPECT_FLOAT_EQ(tables.sin[0], 0.0f);
  EXPECT_FLOAT_EQ(tables.cos[2 * 49], static_cast<float>(std::cos(49.0)));
  EXPECT_FLOAT_EQ(tables.sin[2 * 49 + 1], static_cast<float>(std::sin(4.9)));
}

TEST(RopeTables, PartialRotationTurnsTheLeadingElementsOnly) {
  const RopeConfig rope{.partial_rotary_factor = 0.25};
  EXPECT_EQ(rotary_dim(rope, 32), 8);
  EXPECT_EQ(make_rope_tables(rope, 32, 3).cos.size(), 12u);
}

TEST(RopeTables, YarnScalesCosAndSin) {
  const RopeConfig rope{.kind = RopeKind::kYarn,
                        .factor = 4.0,
                        .original_max_position_embeddings = 64,
                        .attention_factor = 1.5};
  const RopeTables tables = make_rope_tables(rope, 16, 4);
  EXPECT_FLOAT_EQ(tables.cos[0], 1.5f);
  EXPECT_FLOAT_EQ(tables.sin[8 * 3], static_cast<float>(1.5 * std::sin(3.0)));
}

TEST(RopeTables, DynamicPositionUsesTheLengthThatEndsWithIt) {
  const RopeConfig rope{
      .kind = RopeKind::kDynamic, .factor = 2.0, .original_max_position_embeddings = 32};
  const RopeTables tables = make_rope_tables(rope, 16, 100);
  for (int position : {0, 31, 32, 33, 99}) {
    const std::vector<double> frequencies = rope_frequencies(rope, 16, position + 1);
    for (int plane = 0; plane < 8; ++plane) {
      EXPECT_FLOAT_EQ(tables.sin[position * 8 + plane],
                      static_cast<float>(std::sin(position * frequencies[plane])));
    }
  }
  const std::vector<double> original = rope_frequencies(rope, 16, 1);
  EXPECT_EQ(rope_frequencies(rope, 16, 32), original);
  EXPECT_LT(rope_frequencies(rope, 16, 33)[1], original[1]);
}

TEST(RopeTables, LongRopeChoosesFactorsByTheLongestSequence) {
  const auto second_angle = [](int num_positions) {
    const RopeTables tables = make_rope_tables(long_rope(), 16, num_positions);
    return std::asin(tables.sin[8 + 1] / rope_attention_factor(long_rope()));
  };
  EXPECT_NEAR(second_angle(64), 0.301169306, 1e-6);
  EXPECT_NEAR(second_angle(65), 0.186016336, 1e-6);
}

}  // namespace
}  // namespace specdec
