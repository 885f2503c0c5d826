#include "model/weight_format.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "specdec/error.h"
#include "testing/text.h"
#include "testing/thrown.h"

namespace specdec {
namespace {

using testing::error_of;
using testing::has_text;

// Views that are only looked at for what they are made of.
constexpr uint16_t kHalf = 0;

WeightView floats() {
  return {.values = {.data = nullptr, .dtype = DType::kBF16, .shape = {2, 32}}};
}

WeightView integers(int bits, bool mins) {
  const DType dtype = bits == 8 ? DType::kI8 : DType::kU8;
  return {.values = {.data = nullptr, .dtype = dtype, .shape = {2, bits == 8 ? 32 : 16}},
          .scales = &kHalf,
          .mins = mins ? &kHalf : nullptr,
          .group_size = kQuantGroup};
}

constexpr float kOne = 1.0f;

// 8-bit floats [256, 256] with a scale for every `block_cols` inputs.
WeightView fp8(int64_t block_cols = 256) {
  return {.values = {.data = nullptr, .dtype = DType::kF8E4M3, .shape = {256, 256}},
          .block_scales = &kOne,
          .block_rows = 128,
          .block_cols = block_cols};
}

constexpr uint8_t kZero = 8;
constexpr std::array<int8_t, kTableSize> kTable = {-8, -7, 1};
constexpr std::array<int8_t, kTableSize> kOtherTable = {-8, -7, 2};

WeightView with_zeros() {
  WeightView view = integers(4, false);
  view.zeros = &kZero;
  return view;
}
WeightView with_table(const std::array<int8_t, kTableSize>& table = kTable) {
  WeightView view = integers(4, false);
  view.table = table.data();
  return view;
}
WeightView short_groups() {
  WeightView view = integers(8, false);
  view.group_size = kShortGroup;
  return view;
}
WeightView row_scales() {
  return {.values = {.data = nullptr, .dtype = DType::kI8, .shape = {2, 32}},
          .block_scales = &kOne,
          .block_rows = 1,
          .block_cols = 32};
}

bool is_fp8(WeightFormat format) {
  return format == WeightFormat::kFp8 || format == WeightFormat::kFp8Grouped;
}

// Of a backend with all formats of integers.
WeightFormat choose(Quantization quantization, const std::vector<WeightView>& parts,
                    MatrixRole role = MatrixRole::kLayer, bool has_fp8 = false) {
  return choose_format(quantization, role, parts,
                       [&](WeightFormat format) { return has_fp8 || !is_fp8(format); });
}
// Of one that has only groups of 32 with a scale and perhaps a min.
WeightFormat choose_among_few(const std::vector<WeightView>& parts) {
  return choose_format(Quantization::kAuto, MatrixRole::kLayer, parts,
                       [](WeightFormat format) { return format < WeightFormat::kInt4GroupedZero; });
}
WeightFormat choose_with_fp8(Quantization quantization, const std::vector<WeightView>& parts,
                             MatrixRole role = MatrixRole::kLayer) {
  return choose(quantization, parts, role, true);
}

TEST(ChooseFormat, FloatsBecomeWhatIsAskedFor) {
  const std::vector<WeightView> parts = {floats(), floats()};
  EXPECT_EQ(choose(Quantization::kAuto, parts), WeightFormat::kAct);
  EXPECT_EQ(choose(Quantization::kNone, parts), WeightFormat::kAct);
  EXPECT_EQ(choose(Quantization::kInt8, parts), WeightFormat::kInt8);
  EXPECT_EQ(choose(Quantization::kInt4, parts), WeightFormat::kInt4Grouped);
}

TEST(ChooseFormat, TheVocabularyKeepsEightBits) {
  EXPECT_EQ(choose(Quantization::kInt8, {floats()}, MatrixRole::kVocabulary), WeightFormat::kInt8);
  EXPECT_EQ(choose(Quantization::kInt4, {floats()}, MatrixRole::kVocabulary),
            WeightFormat::kInt8Grouped);
  EXPECT_EQ(choose(Quantization::kInt4, {integers(4, false)}, MatrixRole::kVocabulary),
            WeightFormat::kInt4Grouped);
}

TEST(ChooseFormat, RoutersStayFloat) {
  for (const Quantization quantization :
       {Quantization::kAuto, Quantization::kInt8, Quantization::kInt4}) {
    EXPECT_EQ(choose(quantization, {floats()}, MatrixRole::kFloat), WeightFormat::kAct);
    EXPECT_EQ(choose(quantization, {integers(8, false)}, MatrixRole::kFloat), WeightFormat::kAct);
  }
}

TEST(ChooseFormat, StoredIntegersGetTheNarrowestFormatThatHoldsAllParts) {
  for (const Quantization quantization : {Quantization::kAuto, Quantization::kInt8}) {
    EXPECT_EQ(choose(quantization, {integers(4, false)}), WeightFormat::kInt4Grouped);
    EXPECT_EQ(choose(quantization, {integers(4, false), integers(4, true)}),
              WeightFormat::kInt4GroupedMin);
    EXPECT_EQ(choose(quantization, {integers(4, false), integers(8, false)}),
              WeightFormat::kInt8Grouped);
    EXPECT_EQ(choose(quantization, {integers(4, true), integers(8, false)}),
              WeightFormat::kInt8GroupedMin);
    EXPECT_EQ(choose(quantization, {integers(8, true)}), WeightFormat::kInt8GroupedMin);
  }
}

TEST(ChooseFormat, AFloatPartMakesTheWholeFloatOrQuantisesIt) {
  const std::vector<WeightView> parts = {integers(4, true), floats()};
  EXPECT_EQ(choose(Quantization::kAuto, parts), WeightFormat::kAct);
  EXPECT_EQ(choose(Quantization::kInt8, parts), WeightFormat::kInt8);
  EXPECT_EQ(choose(Quantization::kInt4, parts), WeightFormat::kInt4GroupedMin);
}

TEST(ChooseFormat, FourBitsAskedForNarrowsEight) {
  EXPECT_EQ(choose(Quantization::kInt4, {integers(8, true)}), WeightFormat::kInt4Grouped);
  EXPECT_EQ(choose(Quantization::kInt4, {integers(4, true), integers(8, false)}),
            WeightFormat::kInt4GroupedMin);
}

TEST(ChooseFormat, NoneMakesEverythingFloat) {
  EXPECT_EQ(choose(Quantization::kNone, {integers(4, true)}), WeightFormat::kAct);
}

TEST(ChooseFormat, StoredEightBitFloatsStayWhereThereAreProductsWithThem) {
  for (const Quantization quantization : {Quantization::kAuto, Quantization::kFp8}) {
    EXPECT_EQ(choose_with_fp8(quantization, {fp8(), fp8()}), WeightFormat::kFp8);
    EXPECT_EQ(choose_with_fp8(quantization, {fp8(128), fp8()}), WeightFormat::kFp8Grouped);
    EXPECT_EQ(choose_with_fp8(quantization, {fp8(128)}, MatrixRole::kVocabulary),
              WeightFormat::kFp8Grouped);
  }
  EXPECT_EQ(choose(Quantization::kAuto, {fp8()}), WeightFormat::kAct);
  EXPECT_EQ(choose_with_fp8(Quantization::kNone, {fp8()}), WeightFormat::kAct);
  EXPECT_EQ(choose_with_fp8(Quantization::kAuto, {fp8()}, MatrixRole::kFloat), WeightFormat::kAct);
  // Fused with others, or in blocks that groups do not fit.
  EXPECT_EQ(choose_with_fp8(Quantization::kAuto, {fp8(), floats()}), WeightFormat::kAct);
  EXPECT_EQ(choose_with_fp8(Quantization::kAuto, {fp8(48)}), WeightFormat::kAct);
}

TEST(ChooseFormat, IntegersMayBeMadeOfEightBitFloats) {
  for (const bool has_fp8 : {false, true}) {
    EXPECT_EQ(choose(Quantization::kInt8, {fp8()}, MatrixRole::kLayer, has_fp8),
              WeightFormat::kInt8);
    EXPECT_EQ(choose(Quantization::kInt4, {fp8(128)}, MatrixRole::kLayer, has_fp8),
              WeightFormat::kInt4Grouped);
  }
}

TEST(ChooseFormat, EightBitFloatsLeaveTheVocabularyAndIntegersAlone) {
  const Quantization asked = Quantization::kFp8;
  EXPECT_EQ(choose_with_fp8(asked, {floats()}), WeightFormat::kFp8);
  EXPECT_EQ(choose_with_fp8(asked, {floats(), fp8(128)}), WeightFormat::kFp8Grouped);
  EXPECT_EQ(choose_with_fp8(asked, {fp8(48)}), WeightFormat::kFp8);
  EXPECT_EQ(choose_with_fp8(asked, {floats()}, MatrixRole::kVocabulary), WeightFormat::kAct);
  EXPECT_EQ(choose_with_fp8(asked, {floats()}, MatrixRole::kFloat), WeightFormat::kAct);
  EXPECT_EQ(choose_with_fp8(asked, {integers(4, true)}), WeightFormat::kInt4GroupedMin);
}

TEST(DescribeFormats, NamesTheKindsOfNumbersNarrowestFirst) {
  EXPECT_EQ(describe_formats({WeightFormat::kAct}, DType::kBF16), "bfloat16");
  EXPECT_EQ(describe_formats({WeightFormat::kInt8}, DType::kBF16), "int8");
  EXPECT_EQ(
      describe_formats({WeightFormat::kInt4Grouped, WeightFormat::kInt8Grouped}, DType::kBF16),
      "int4+int8");
  EXPECT_EQ(describe_formats({WeightFormat::kAct, WeightFormat::kInt4GroupedMin}, DType::kF32),
            "int4+float32");
  EXPECT_EQ(describe_formats({WeightFormat::kAct, WeightFormat::kFp8Grouped, WeightFormat::kInt8},
                             DType::kBF16),
            "int8+fp8+bfloat16");
}

TEST(ChooseFormat, KeepsZerosTablesShortGroupsAndRowScales) {
  EXPECT_EQ(choose(Quantization::kAuto, {with_zeros(), with_zeros()}),
            WeightFormat::kInt4GroupedZero);
  EXPECT_EQ(choose(Quantization::kInt4, {with_zeros()}), WeightFormat::kInt4GroupedZero);
  EXPECT_EQ(choose(Quantization::kAuto, {with_table(), with_table()}), WeightFormat::kInt4Table);
  EXPECT_EQ(choose(Quantization::kAuto, {short_groups()}), WeightFormat::kInt8Grouped16);
  EXPECT_EQ(choose(Quantization::kAuto, {row_scales(), row_scales()}), WeightFormat::kInt8);
  EXPECT_EQ(choose(Quantization::kNone, {row_scales()}), WeightFormat::kAct);
}

TEST(ChooseFormat, PartsOfDifferentKindsGetAFormatThatHoldsAll) {
  const WeightView plain = integers(4, false);
  EXPECT_EQ(choose(Quantization::kAuto, {plain, with_zeros()}), WeightFormat::kInt4GroupedZero);
  EXPECT_EQ(choose(Quantization::kAuto, {with_table(), with_table(kOtherTable)}),
            WeightFormat::kInt8Grouped);
  EXPECT_EQ(choose(Quantization::kAuto, {with_table(), plain}), WeightFormat::kInt8Grouped);
  EXPECT_EQ(choose(Quantization::kAuto, {with_zeros(), integers(4, true)}),
            WeightFormat::kInt8GroupedMin);
  EXPECT_EQ(choose(Quantization::kAuto, {short_groups(), plain}), WeightFormat::kInt8Grouped16);
  // No group has room for a float32 scale.
  EXPECT_EQ(choose(Quantization::kAuto, {row_scales(), plain}), WeightFormat::kAct);
  EXPECT_EQ(choose(Quantization::kInt8, {row_scales(), plain}), WeightFormat::kInt8);
}

TEST(ChooseFormat, AnOrderOfInputsIsKeptWhereAllPartsHaveIt) {
  std::array<int32_t, 32> order{}, other{};
  order[0] = 1;
  const auto ordered = [](WeightView view, const std::array<int32_t, 32>& columns) {
    view.input_order = columns.data();
    return view;
  };
  const auto kept = [](const std::vector<WeightView>& parts, MatrixRole role, WeightFormat format) {
    EXPECT_EQ(choose(Quantization::kAuto, parts, role), format);
    return keeps_input_order(role, parts, format);
  };
  const WeightView four = ordered(integers(4, false), order);
  const WeightView eight = ordered(integers(8, false), order);
  using enum MatrixRole;
  EXPECT_TRUE(kept({four, four}, kLayer, WeightFormat::kInt4Grouped));
  EXPECT_TRUE(kept({eight}, kLayer, WeightFormat::kInt8Grouped));
  EXPECT_FALSE(kept({four}, kExpert, WeightFormat::kAct));
  EXPECT_FALSE(kept({four}, kVocabulary, WeightFormat::kAct));
  EXPECT_FALSE(kept({four, eight}, kLayer, WeightFormat::kAct));
  EXPECT_FALSE(kept({four, integers(4, false)}, kLayer, WeightFormat::kAct));
  EXPECT_FALSE(kept({four, ordered(integers(4, false), other)}, kLayer, WeightFormat::kAct));
  // Asked for fewer bits, they are quantised anew.
  EXPECT_EQ(choose(Quantization::kInt4, {eight}), WeightFormat::kInt4Grouped);
  EXPECT_FALSE(keeps_input_order(kLayer, std::array{eight}, WeightFormat::kInt4Grouped));
  EXPECT_EQ(choose(Quantization::kInt4, {four}, kExpert), WeightFormat::kInt4Grouped);
}

TEST(ChooseFormat, ABackendWithoutAFormatGetsAWiderOne) {
  EXPECT_EQ(choose_among_few({with_zeros()}), WeightFormat::kInt8Grouped);
  EXPECT_EQ(choose_among_few({with_table()}), WeightFormat::kInt8Grouped);
  EXPECT_EQ(choose_among_few({short_groups()}), WeightFormat::kInt8Grouped);
  EXPECT_EQ(choose_among_few({integers(4, false), with_zeros()}), WeightFormat::kInt8Grouped);
}

TEST(ParseQuantization, KnowsItsNamesAndSaysWhatToWriteForOthers) {
  for (const std::string& name : known_quantizations()) EXPECT_NO_THROW(parse_quantization(name));
  EXPECT_EQ(parse_quantization("int4"), Quantization::kInt4);
  for (const char* name : {"torchao", "experts_int8", "mxfp8", "8", "", "INT8"}) {
    const auto error = error_of<InvalidArgument>([&] { parse_quantization(name); });
    EXPECT_EQ(error.field(), "quantization");
    EXPECT_TRUE(has_text(error.what(), "'auto', 'none', 'int8', 'int4' or 'fp8'"));
  }
}

TEST(ParseQuantization, TakesTheNameOfTheFormatThatACheckpointHas) {
  EXPECT_EQ(parse_quantization("gptq_marlin"), Quantization::kAuto);
  EXPECT_NO_THROW(check_stored_as("gptq_marlin", "gptq 4-bit"));
  EXPECT_NO_THROW(check_stored_as("int8", ""));
  EXPECT_TRUE(
      has_text(error_of<InvalidArgument>([] { check_stored_as("awq", "gptq 4-bit"); }).what(),
               "'awq' says how a checkpoint is stored, and this one is stored as gptq 4-bit"));
  EXPECT_TRUE(has_text(error_of<InvalidArgument>([] { check_stored_as("awq", ""); }).what(),
                       "is stored in floating point"));
}

}  // namespace
}  // namespace specdec
