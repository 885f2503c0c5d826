#include "model/weight_format.h"

#include <algorithm>

#include "core/check.h"
#include "core/str_cat.h"

namespace specdec {
namespace {

bool is_int4(WeightFormat format) {
  return format == WeightFormat::kInt4Grouped || format == WeightFormat::kInt4GroupedMin;
}

// The narrowest format that holds all of the stored integers.
WeightFormat stored_format(std::span<const WeightView> parts) {
  const bool has_mins =
      std::ranges::any_of(parts, [](const WeightView& part) { return part.mins != nullptr; });
  const bool is_wide =
      std::ranges::any_of(parts, [](const WeightView& part) { return part.bits() == 8; });
  if (is_wide) return has_mins ? WeightFormat::kInt8GroupedMin : WeightFormat::kInt8Grouped;
  return has_mins ? WeightFormat::kInt4GroupedMin : WeightFormat::kInt4Grouped;
}

// 4-bit formats: weights stored in four bits keep their codes and mins.
WeightFormat int4_format(std::span<const WeightView> parts) {
  const bool has_mins = std::ranges::any_of(
      parts, [](const WeightView& part) { return part.bits() == 4 && part.mins != nullptr; });
  return has_mins ? WeightFormat::kInt4GroupedMin : WeightFormat::kInt4Grouped;
}

// 8-bit floats: in groups where a part has several scales along its rows.
WeightFormat fp8_format(std::span<const WeightView> parts) {
  const bool has_groups = std::ranges::any_of(parts, [](const WeightView& part) {
    return keeps_fp8(WeightFormat::kFp8Grouped, part) && !keeps_fp8(WeightFormat::kFp8, part);
  });
  return has_groups ? WeightFormat::kFp8Grouped : WeightFormat::kFp8;
}

bool is_fp8(WeightFormat format) {
  return format == WeightFormat::kFp8 || format == WeightFormat::kFp8Grouped;
}

}  // namespace

WeightFormat choose_format(Quantization quantization, MatrixRole role,
                           std::span<const WeightView> parts, bool has_fp8) {
  if (role == MatrixRole::kFloat || quantization == Quantization::kNone) return WeightFormat::kAct;
  const bool is_stored =
      std::ranges::all_of(parts, [](const WeightView& part) { return part.is_integer(); });
  const bool is_kept_fp8 = has_fp8 && std::ranges::all_of(parts, [](const WeightView& part) {
                             return keeps_fp8(WeightFormat::kFp8Grouped, part);
                           });
  switch (quantization) {
    case Quantization::kAuto:
      if (is_kept_fp8) return fp8_format(parts);
      return is_stored ? stored_format(parts) : WeightFormat::kAct;
    case Quantization::kInt8:
      return is_stored ? stored_format(parts) : WeightFormat::kInt8;
    case Quantization::kInt4:
      if (role == MatrixRole::kLayer) return int4_format(parts);
      return is_stored ? stored_format(parts) : WeightFormat::kInt8Grouped;
    case Quantization::kFp8:
      SPECDEC_CHECK(has_fp8);
      if (is_stored) return stored_format(parts);
      if (role == MatrixRole::kVocabulary && !is_kept_fp8) return WeightFormat::kAct;
      return fp8_format(parts);
    case Quantization::kNone:
      break;
  }
  detail::check_failed(__FILE__, __LINE__, "quantization is known");
}

std::string describe_formats(const std::set<WeightFormat>& formats, DType act) {
  std::string text;
  const auto add = [&](std::string_view name) { text += str_cat(text.empty() ? "" : "+", name); };
  if (std::ranges::any_of(formats, is_int4)) add("int4");
  if (std::ranges::any_of(formats, [](WeightFormat format) {
        return format != WeightFormat::kAct && !is_int4(format) && !is_fp8(format);
      })) {
    add("int8");
  }
  if (std::ranges::any_of(formats, is_fp8)) add("fp8");
  if (formats.contains(WeightFormat::kAct)) add(name_of(act));
  return text;
}

}  // namespace specdec
