#include "model/weight_format.h"

#include <algorithm>

#include "core/check.h"
#include "core/str_cat.h"

namespace specdec {
namespace {

bool is_int4(WeightFormat format) {
  return format == WeightFormat::kInt4Grouped || format == WeightFormat::kInt4GroupedMin ||
         format == WeightFormat::kInt4GroupedZero || format == WeightFormat::kInt4Table;
}

// The narrowest format that holds the integers of one part.
WeightFormat format_of(const WeightView& part) {
  if (part.has_row_scales()) return WeightFormat::kInt8;
  const bool has_short_groups = part.group_size % kQuantGroup != 0;
  if (part.bits() == 8 || has_short_groups) {
    if (part.mins != nullptr) return WeightFormat::kInt8GroupedMin;
    return has_short_groups ? WeightFormat::kInt8Grouped16 : WeightFormat::kInt8Grouped;
  }
  if (part.table != nullptr) return WeightFormat::kInt4Table;
  if (part.zeros != nullptr) return WeightFormat::kInt4GroupedZero;
  return part.mins != nullptr ? WeightFormat::kInt4GroupedMin : WeightFormat::kInt4Grouped;
}

// The narrowest format that holds all of the stored integers; kAct: none does.
WeightFormat stored_format(std::span<const WeightView> parts, const SupportsFormat& supports) {
  std::set<WeightFormat> formats;
  for (const WeightView& part : parts) formats.insert(format_of(part));
  const auto is_one_table = [&](const WeightView& part) {
    return std::ranges::equal(std::span(part.table, kTableSize),
                              std::span(parts.front().table, kTableSize));
  };
  const WeightFormat first = *formats.begin();
  if (formats.size() == 1 && supports(first) &&
      (first != WeightFormat::kInt4Table || std::ranges::all_of(parts, is_one_table))) {
    return first;
  }
  // A scale per output fits no groups.
  if (formats.contains(WeightFormat::kInt8)) {
    return formats.size() == 1 ? WeightFormat::kInt8 : WeightFormat::kAct;
  }
  const auto are_among = [&](std::initializer_list<WeightFormat> few) {
    return std::ranges::all_of(
        formats, [&](WeightFormat format) { return std::ranges::find(few, format) != few.end(); });
  };
  using enum WeightFormat;
  if (are_among({kInt4Grouped, kInt4GroupedMin})) return kInt4GroupedMin;
  if (are_among({kInt4Grouped, kInt4GroupedZero}) && supports(kInt4GroupedZero)) {
    return kInt4GroupedZero;
  }
  const bool has_mins = formats.contains(kInt4GroupedMin) || formats.contains(kInt8GroupedMin);
  if (has_mins) return kInt8GroupedMin;
  if (formats.contains(kInt8Grouped16) && supports(kInt8Grouped16)) return kInt8Grouped16;
  return kInt8Grouped;
}

// Whether all parts are integers that one format can hold, in the order that their columns have.
bool are_stored(MatrixRole role, std::span<const WeightView> parts) {
  if (!std::ranges::all_of(parts, [](const WeightView& part) { return part.is_integer(); })) {
    return false;
  }
  const bool has_order = std::ranges::any_of(
      parts, [](const WeightView& part) { return part.input_order != nullptr; });
  return !has_order || keeps_input_order(role, parts, format_of(parts.front()));
}

// 4-bit formats: weights stored in four bits keep their codes, mins and zeros.
WeightFormat int4_format(bool is_stored, std::span<const WeightView> parts,
                         const SupportsFormat& supports) {
  if (is_stored) {
    const WeightFormat format = stored_format(parts, supports);
    if (is_int4(format)) return format;
  }
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

bool keeps_input_order(MatrixRole role, std::span<const WeightView> parts, WeightFormat format) {
  const int32_t* order = parts.front().input_order;
  if (order == nullptr || role != MatrixRole::kLayer) return false;
  return std::ranges::all_of(parts, [&](const WeightView& part) {
    return part.input_order != nullptr && format_of(part) == format &&
           std::equal(order, order + part.in_features(), part.input_order);
  });
}

WeightFormat choose_format(Quantization quantization, MatrixRole role,
                           std::span<const WeightView> parts, const SupportsFormat& supports) {
  if (role == MatrixRole::kFloat || quantization == Quantization::kNone) return WeightFormat::kAct;
  const bool is_stored = are_stored(role, parts);
  const bool has_fp8 = supports(WeightFormat::kFp8);
  const bool is_kept_fp8 = has_fp8 && std::ranges::all_of(parts, [](const WeightView& part) {
                             return keeps_fp8(WeightFormat::kFp8Grouped, part);
                           });
  switch (quantization) {
    case Quantization::kAuto:
      if (is_kept_fp8) return fp8_format(parts);
      return is_stored ? stored_format(parts, supports) : WeightFormat::kAct;
    case Quantization::kInt8: {
      const WeightFormat stored = is_stored ? stored_format(parts, supports) : WeightFormat::kAct;
      return stored != WeightFormat::kAct ? stored : WeightFormat::kInt8;
    }
    case Quantization::kInt4:
      if (role != MatrixRole::kVocabulary) return int4_format(is_stored, parts, supports);
      return is_stored ? stored_format(parts, supports) : WeightFormat::kInt8Grouped;
    case Quantization::kFp8:
      SPECDEC_CHECK(has_fp8);
      if (is_stored) return stored_format(parts, supports);
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
