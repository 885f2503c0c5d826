#include "model/kept_matrix.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "core/str_cat.h"

namespace specdec {
namespace {

constexpr int kMiddle = 8;        // the zero of 4-bit codes without zeros
constexpr int kByteMiddle = 128;  // the same of 8-bit codes
constexpr uint8_t kByteSign = 0x80;
constexpr float kLeastNormalHalf = 0x1p-14f;
constexpr float kLargestHalf = 65504.0f;

// The float16 equal to `value`, or (`rounds`) the nearest, where that keeps eleven bits.
std::optional<uint16_t> half_of(float value, bool rounds) {
  const uint16_t half = float_to_half(value);
  if (half_to_float(half) == value) return half;
  const float magnitude = std::abs(value);
  if (rounds && magnitude >= kLeastNormalHalf && magnitude <= kLargestHalf) return half;
  return {};
}

float rounded(float value, DType dtype) {
  if (dtype == DType::kBF16) return specdec::to_float(to_bfloat16(value));
  return dtype == DType::kF16 ? half_to_float(float_to_half(value)) : value;
}

int nibble_at(const std::vector<uint8_t>& codes, int64_t at) {
  return codes[static_cast<size_t>(at / 2)] >> (at % 2 * 4) & 15;
}

}  // namespace

// visit(index of the weight, code - zero, index of its scale) for all weights.
template <class Visit>
void KeptMatrix::for_each_code(const DecodedCodes& decoded, const Visit& visit) const {
  for (int64_t row = 0; row < rows_.count; ++row) {
    for (int64_t k = 0; k < in_features_; ++k) {
      const int64_t at = row * in_features_ + k;
      const int64_t group =
          decoded.group_of.empty() ? k / group_size_ : decoded.group_of[static_cast<size_t>(k)];
      const auto scale = static_cast<size_t>(row * num_groups() + group);
      const int code =
          decoded.bits == 8 ? decoded.codes[static_cast<size_t>(at)] : nibble_at(decoded.codes, at);
      visit(at, code - decoded.zeros[scale], scale);
    }
  }
}

std::string KeptMatrix::reason_against(const DecodedCodes& decoded) {
  std::vector<int64_t> sizes(static_cast<size_t>(num_groups()));
  for (const int32_t group : decoded.group_of) ++sizes[static_cast<size_t>(group)];
  if (std::ranges::any_of(sizes, [&](int64_t size) { return size != 0 && size != group_size_; })) {
    return "act-order (g_idx) has groups of several sizes";
  }
  if (group_size_ % kQuantGroup != 0) {
    return str_cat("groups of ", group_size_, " inputs are no multiple of ", kQuantGroup);
  }
  return set_scales(decoded.scales, /*rounds=*/false) ? "" : "a scale is no float16";
}

bool KeptMatrix::set_scales(const std::vector<float>& scales, bool rounds) {
  scales_.resize(scales.size());
  for (size_t i = 0; i < scales.size(); ++i) {
    const std::optional<uint16_t> half = half_of(scales[i], rounds);
    if (!half) {
      scales_.clear();
      return false;
    }
    scales_[i] = *half;
  }
  return true;
}

void KeptMatrix::keep(DecodedCodes decoded) {
  is_int4_ = decoded.bits != 8;
  // A scale per output stays float32, which only 8-bit codes without zeros have a format for.
  const bool is_by_row = decoded.bits == 8 && num_groups() == 1 &&
                         std::ranges::all_of(decoded.zeros, [](int z) { return z == kByteMiddle; });
  if (keeps_codes_ && is_by_row) {
    row_scales_ = std::move(decoded.scales);
    codes_ = std::move(decoded.codes);
    for (uint8_t& code : codes_) code ^= kByteSign;
    return;
  }
  if (keeps_codes_) why_float_ = reason_against(decoded);
  if (!keeps_codes_ || !why_float_.empty()) {
    values_.resize(static_cast<size_t>(rows_.count * in_features_));
    for_each_code(decoded, [&](int64_t at, int level, size_t scale) {
      values_[static_cast<size_t>(at)] = decoded.scales[scale] * static_cast<float>(level);
    });
    return;
  }
  if (!decoded.group_of.empty()) sort_columns(decoded);
  if (decoded.bits == 8) {
    keep_bytes(std::move(decoded));
  } else {
    keep_nibbles(std::move(decoded));
  }
}

void KeptMatrix::sort_columns(DecodedCodes& decoded) {
  input_order_.resize(static_cast<size_t>(in_features_));
  std::iota(input_order_.begin(), input_order_.end(), 0);
  std::ranges::stable_sort(input_order_, {}, [&](int32_t input) {
    return decoded.group_of[static_cast<size_t>(input)];
  });
  decoded.group_of.clear();
  std::vector<uint8_t> sorted(decoded.codes.size());
  const auto num_k = static_cast<size_t>(in_features_);
  const size_t row_bytes = decoded.bits == 8 ? num_k : num_k / 2;
  std::vector<uint8_t> row(num_k);  // a byte a code
  for (size_t begin = 0; begin < sorted.size(); begin += row_bytes) {
    const uint8_t* from = decoded.codes.data() + begin;
    uint8_t* to = sorted.data() + begin;
    if (decoded.bits == 8) {
      for (size_t k = 0; k < num_k; ++k) to[k] = from[input_order_[k]];
      continue;
    }
    for (size_t i = 0; i < row_bytes; ++i) {
      row[2 * i] = from[i] & 15;
      row[2 * i + 1] = from[i] >> 4;
    }
    for (size_t i = 0; i < row_bytes; ++i) {
      to[i] = static_cast<uint8_t>(row[input_order_[2 * i]] | row[input_order_[2 * i + 1]] << 4);
    }
  }
  decoded.codes = std::move(sorted);
}

void KeptMatrix::keep_nibbles(DecodedCodes decoded) {
  if (decoded.bits == 4) {
    codes_ = std::move(decoded.codes);
    if (std::ranges::all_of(decoded.zeros, [](int zero) { return zero == kMiddle; })) return;
    zeros_.assign(decoded.zeros.begin(), decoded.zeros.end());
    return;
  }
  // Codes of 2 and 3 bits, less their zeros, are at least -7 and at most 7.
  codes_.resize(decoded.codes.size());
  for_each_code(decoded, [&](int64_t at, int level, size_t) {
    codes_[static_cast<size_t>(at / 2)] |= static_cast<uint8_t>((level + kMiddle) << (at % 2 * 4));
  });
}

void KeptMatrix::keep_bytes(DecodedCodes decoded) {
  int least = 0, most = 0;
  for_each_code(decoded, [&](int64_t, int level, size_t) {
    least = std::min(least, level);
    most = std::max(most, level);
  });
  codes_.resize(decoded.codes.size());
  if (least >= -kByteMiddle && most < kByteMiddle) {
    for_each_code(decoded, [&](int64_t at, int level, size_t) {
      codes_[static_cast<size_t>(at)] = static_cast<uint8_t>(level);
    });
    return;
  }
  // scale * (code - zero) = scale * (code - 128) + min, and the min is rounded.
  codes_ = std::move(decoded.codes);
  for (uint8_t& code : codes_) code ^= kByteSign;
  for (size_t i = 0; i < decoded.zeros.size(); ++i) {
    mins_.push_back(
        float_to_half(decoded.scales[i] * static_cast<float>(kByteMiddle - decoded.zeros[i])));
  }
}

void KeptMatrix::keep(DecodedTable decoded) {
  float largest = 0.0f;
  bool is_integer = true;
  for (const float value : decoded.table) {
    largest = std::max(largest, std::abs(value));
    is_integer = is_integer && value == std::round(value);
  }
  // Other entries than integers are scaled so that the largest becomes 127.
  const float unit = is_integer || largest == 0.0f ? 1.0f : largest / 127.0f;
  std::vector<float> steps = decoded.scales;
  for (float& step : steps) step *= unit;
  if (keeps_codes_ && set_scales(steps, /*rounds=*/true)) {
    for (size_t i = 0; i < table_.size(); ++i) {
      table_[i] = static_cast<int8_t>(std::lround(decoded.table[i] / unit));
    }
    codes_ = std::move(decoded.codes);
    has_table_ = true;
    return;
  }
  if (keeps_codes_) why_float_ = "a scale is no float16";
  values_.resize(static_cast<size_t>(rows_.count * in_features_));
  for (int64_t at = 0; at < rows_.count * in_features_; ++at) {
    const float value = decoded.scales[static_cast<size_t>(at / group_size_)] *
                        decoded.table[static_cast<size_t>(nibble_at(decoded.codes, at))];
    values_[static_cast<size_t>(at)] = rounded(value, decoded.dtype);
  }
}

WeightView KeptMatrix::view(RowRange own) const {
  const int64_t row = own.begin - rows_.begin;
  const auto from = [&](const auto& values, int64_t of_row) {
    return values.empty() ? nullptr : values.data() + row * of_row;
  };
  if (!values_.empty()) {
    return {.values = {.data = from(values_, in_features_),
                       .dtype = DType::kF32,
                       .shape = {own.count, in_features_}}};
  }
  const int64_t row_bytes = is_int4_ ? in_features_ / 2 : in_features_;
  const bool is_by_row = !row_scales_.empty();
  return {.values = {.data = from(codes_, row_bytes),
                     .dtype = is_int4_ ? DType::kU8 : DType::kI8,
                     .shape = {own.count, row_bytes}},
          .scales = from(scales_, num_groups()),
          .mins = from(mins_, num_groups()),
          .zeros = from(zeros_, num_groups()),
          .table = has_table_ ? table_.data() : nullptr,
          .group_size = is_by_row ? 0 : static_cast<int>(group_size_),
          .block_scales = from(row_scales_, 1),
          .block_rows = is_by_row ? 1 : 0,
          .block_cols = is_by_row ? in_features_ : 0,
          .input_order = input_order_.empty() ? nullptr : input_order_.data()};
}

}  // namespace specdec
