#include "model/weight_format.h"

#include <algorithm>

#include "core/check.h"
#include "core/str_cat.h"

namespace specdec {
namespace {

bool is_int4(WeightFormat format) {
  return format == WeightFormat::kInt4Grouped || format == WeightFormat::kInt4GroupedMin;
}

// The narrowest format that holds all of these integers.
WeightFormat stored_format(std::span<const WeightView> parts) {
  const bool has_mins =
      std::ranges::any_of(parts, [](const WeightView& part) { return part.mins != nullptr; });
  const bool is_wide =
      std::ranges::any_of(parts, [](const WeightView& part) { return part.bits() == 8; });
  if (is_wide) return has_mins ? WeightFormat::kInt8GroupedMin : WeightFormat::kInt8Grouped;
  return has_mins ? WeightFormat::kInt4GroupedMin : WeightFormat::kInt4Grouped;
}

// Four bits: those that are stored in four keep their codes and mins.
WeightFormat int4_format(std::span<const WeightView> parts) {
  const bool has_mins = std::ranges::any_of(
      parts, [](const WeightView& part) { return part.bits() == 4 && part.mins != nullptr; });
  return has_mins ? WeightFormat::kInt4GroupedMin : WeightFormat::kInt4Grouped;
}

}  // namespace

WeightFormat choose_format(Quantization quantization, MatrixRole role,
                           std::span<const WeightView> parts) {
  if (role == MatrixRole::kFloat || quantization == Quantization::kNone) return WeightFormat::kAct;
  const bool is_stored =
      std::ranges::all_of(parts, [](const WeightView& part) { return part.is_quantized(); });
  switch (quantization) {
    case Quantization::kAuto:
      return is_stored ? stored_format(parts) : WeightFormat::kAct;
    case Quantization::kInt8:
      return is_stored ? stored_format(parts) : WeightFormat::kInt8;
    case Quantization::kInt4:
      if (role == MatrixRole::kLayer) return int4_format(parts);
      return is_stored ? stored_format(parts) : WeightFormat::kInt8Grouped;
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
        return format != WeightFormat::kAct && !is_int4(format);
      })) {
    add("int8");
  }
  if (formats.contains(WeightFormat::kAct)) add(name_of(act));
  return text;
}

}  // namespace specdec
