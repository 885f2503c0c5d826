#include "cpu/packed_int.h"

#include <algorithm>
#include <cstring>

#include "core/check.h"
#include "core/dtype.h"
#include "cpu/kernels/linear_int.h"

namespace specdec::cpu {
namespace {

constexpr int64_t kLanes = 16;
constexpr int64_t kWordsOfRecord = kIntRecordDepth / 4;  // quads
static_assert(kIntGroup == kQuantGroup);

uint32_t load_word(const uint8_t* p) {
  uint32_t word;
  std::memcpy(&word, p, sizeof(word));
  return word;
}
void store_word(uint8_t* p, uint32_t word) { std::memcpy(p, &word, sizeof(word)); }

template <class T>
T load_at(const uint8_t* p) {
  T value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}
template <class T>
void store_at(uint8_t* p, T value) {
  std::memcpy(p, &value, sizeof(value));
}

// One quantised row of a checkpoint.
class SourceRow {
 public:
  SourceRow(const WeightView& part, int64_t row)
      : group_size_(part.has_row_scales() ? part.in_features() : part.group_size),
        is_int4_(part.bits() == 4),
        table_(part.table) {
    SPECDEC_CHECK(part.values.dtype == (is_int4_ ? DType::kU8 : DType::kI8));
    SPECDEC_CHECK_GT(group_size_, 0);
    SPECDEC_CHECK_EQ(part.in_features() % group_size_, 0);
    SPECDEC_CHECK((part.mins != nullptr) + (part.zeros != nullptr) + (table_ != nullptr) <= 1);
    SPECDEC_CHECK(is_int4_ || (part.zeros == nullptr && table_ == nullptr));
    const int64_t num_groups = part.in_features() / group_size_;
    codes_ = static_cast<const uint8_t*>(part.values.data) + row * part.values.shape[1];
    if (part.has_row_scales()) {
      SPECDEC_CHECK(part.block_rows == 1 && part.block_cols == part.in_features());
      row_scale_ = part.block_scales + row;
    } else {
      scales_ = part.scales + row * num_groups;
    }
    if (part.mins != nullptr) mins_ = part.mins + row * num_groups;
    if (part.zeros != nullptr) zeros_ = part.zeros + row * num_groups;
  }
  bool is_int4() const { return is_int4_; }
  bool has_mins() const { return mins_ != nullptr; }
  const uint8_t* stored() const { return codes_; }
  // A code of 4 bits, in the low bits.
  uint8_t code(int64_t k) const { return k % 2 == 0 ? codes_[k / 2] & 0x0f : codes_[k / 2] >> 4; }
  // What the code stands for: the weight is scale * level + min.
  int level(int64_t k) const {
    if (!is_int4_) return static_cast<int8_t>(codes_[k]);
    if (table_ != nullptr) return table_[code(k)];
    return has_mins() ? code(k) : code(k) - zero(k);
  }
  int zero(int64_t k) const { return zeros_ != nullptr ? zeros_[k / group_size_] : kInt4Offset; }
  uint16_t scale(int64_t k) const { return scales_[k / group_size_]; }
  uint16_t min(int64_t k) const { return has_mins() ? mins_[k / group_size_] : uint16_t{0}; }
  float row_scale() const { return *row_scale_; }

 private:
  int64_t group_size_;
  bool is_int4_;
  const int8_t* table_;
  const uint8_t* codes_;
  const float* row_scale_ = nullptr;
  const uint16_t* scales_ = nullptr;
  const uint16_t* mins_ = nullptr;
  const uint8_t* zeros_ = nullptr;
};

WeightElement element_of(DType dtype) {
  if (dtype == DType::kF32) return kElementF32;
  return dtype == DType::kBF16 ? kElementBf16 : kElementF16;
}

// -8 * x in float16. The exponent must have room for it.
uint16_t minus_eight_times(uint16_t half) {
  const int exponent = (half >> 10) & 0x1f;
  if (exponent > 0) return static_cast<uint16_t>((half + (3 << 10)) ^ 0x8000);
  // A subnormal is a multiple of 2^-24, and 8 times that may be a normal number.
  int fraction = (half & 0x3ff) * 8;
  int shifted = 0;
  while (fraction >= 0x800) {
    fraction /= 2;  // exact: a multiple of 8
    ++shifted;
  }
  return static_cast<uint16_t>(((half & 0x8000) ^ 0x8000) | (fraction + (shifted << 10)));
}

}  // namespace

int code_offset(PackedFormat format) {
  if (format == kPackedInt4Grouped) return kInt4Offset;
  if (format == kPackedInt4GroupedMin || format == kPackedInt4GroupedZero) return 0;
  return kInt8Offset;
}

int group_size(PackedFormat format) {
  return format == kPackedInt8Grouped16 ? kSmallIntGroup : kIntGroup;
}

IntLayout::IntLayout(PackedFormat format, bool signed_int8, int64_t in_features,
                     const int8_t* table)
    : format_(format),
      signed_int8_(signed_int8),
      is_int4_(format >= kPackedInt4Grouped && format <= kPackedInt4SmallTable),
      has_mins_(format == kPackedInt8GroupedMin || format == kPackedInt4GroupedMin),
      is_grouped_(format != kPackedInt8),
      table_(table),
      in_features_(in_features),
      num_records_((in_features + kIntRecordDepth - 1) / kIntRecordDepth) {
  SPECDEC_CHECK(format >= kPackedInt8 && format < kNumPackedFormats);
  record_bytes_ = is_int4_ ? kInt4CodesBytes : kInt8CodesBytes;
  if (is_grouped_) {
    record_bytes_ +=
        (has_mins_ || has_zeros() ? 2 : 1) * kIntHeaderBytes * kIntGroup / group_size();
  }
  first_record_ = is_grouped_ ? 0 : kIntHeaderBytes;
}

int64_t IntLayout::padded_k() const { return num_records_ * kIntRecordDepth; }
int64_t IntLayout::num_groups() const { return padded_k() / group_size(); }

int64_t IntLayout::scale_at(int64_t group, int64_t lane) const {
  const int64_t groups_of_record = kIntRecordDepth / group_size();
  return group / groups_of_record * record_bytes_ + (group % groups_of_record * kLanes + lane) * 2;
}
int64_t IntLayout::min_at(int64_t group, int64_t lane) const {
  return scale_at(group, lane) + kIntHeaderBytes;
}
int64_t IntLayout::output_scale_at(int64_t lane) const { return lane * 4; }
int64_t IntLayout::codes_at(int64_t record) const {
  const int64_t codes_bytes = is_int4_ ? kInt4CodesBytes : kInt8CodesBytes;
  return first_record_ + (record + 1) * record_bytes_ - codes_bytes;
}

IntRow::IntRow(const IntLayout& layout) : layout_(layout), codes_(layout.padded_k()) {
  if (layout.is_grouped()) scales_.resize(layout.num_groups());
  if (layout.has_mins() || layout.has_zeros()) mins_.resize(layout.num_groups());
}

// Whether the layout can hold the row's codes and scales unchanged.
bool IntRow::can_keep(const WeightView& part, int64_t row) const {
  if (!part.is_integer()) return false;
  if (part.has_row_scales() || !layout_.is_grouped()) {
    return part.has_row_scales() && !layout_.is_grouped();
  }
  const SourceRow source(part, row);
  if (part.group_size % layout_.group_size() != 0) return false;
  if (source.has_mins() && !layout_.has_mins()) return false;
  if (!layout_.is_int4()) return true;
  if (!source.is_int4()) return false;
  if (part.table != nullptr || layout_.table() != nullptr) {
    return part.table != nullptr && layout_.table() != nullptr &&
           std::equal(part.table, part.table + 16, layout_.table());
  }
  if (layout_.has_zeros()) return true;
  if (part.zeros != nullptr) return false;
  if (source.has_mins() == layout_.has_mins()) return true;
  // The layout computes scale * (code - 8), so min must be -8 scale, and -8 scale a float16.
  for (int64_t k = 0; k < layout_.in_features(); k += part.group_size) {
    constexpr int kLargestExponent = 0x1e - 3;
    if (((source.scale(k) >> 10) & 0x1f) > kLargestExponent) return false;
  }
  return true;
}

void IntRow::keep(const WeightView& part, int64_t row) {
  const SourceRow source(part, row);
  const int64_t num_k = layout_.in_features();
  const uint8_t* from = source.stored();
  uint8_t* to = codes_.data();
  if (layout_.is_int4()) {
    for (int64_t i = 0; i < num_k / 2; ++i) {
      to[2 * i] = from[i] & 0x0f;
      to[2 * i + 1] = from[i] >> 4;
    }
  } else if (!source.is_int4()) {
    for (int64_t k = 0; k < num_k; ++k) to[k] = static_cast<uint8_t>(from[k] + kInt8Offset);
  } else {
    for (int64_t k = 0; k < num_k; ++k) {
      to[k] = static_cast<uint8_t>(source.level(k) + kInt8Offset);
    }
  }
  if (!layout_.is_grouped()) {
    output_scale_ = source.row_scale();
    return;
  }
  const bool eights_in_mins = layout_.is_int4() && layout_.has_mins() && !source.has_mins();
  for (int64_t k = 0; k < layout_.in_features(); k += layout_.group_size()) {
    const int64_t group = k / layout_.group_size();
    scales_[group] = source.scale(k);
    if (layout_.has_zeros()) mins_[group] = float_to_half(static_cast<float>(source.zero(k)));
    if (!layout_.has_mins()) continue;
    mins_[group] = eights_in_mins ? minus_eight_times(source.scale(k)) : source.min(k);
  }
}

void IntRow::read(const WeightView& part, int64_t row, const QuantizeKernels& kernels) {
  if (can_keep(part, row)) return keep(part, row);
  SPECDEC_CHECK(part.input_order == nullptr);
  QuantizeTask task{.x = nullptr,
                    .element = kElementF32,
                    .dim = layout_.in_features(),
                    .codes = codes_.data(),
                    .scales = scales_.data(),
                    .mins = mins_.data(),
                    .output_scale = &output_scale_};
  if (part.is_quantized()) {
    values_.resize(layout_.in_features());
    dequantize_row(part, row, values_.data());
    task.x = values_.data();
  } else {
    task.element = element_of(part.values.dtype);
    task.x = static_cast<const char*>(part.values.data) +
             row * layout_.in_features() * static_cast<int64_t>(size_of(part.values.dtype));
  }
  SPECDEC_CHECK(kernels.row[layout_.format()] != nullptr);
  kernels.row[layout_.format()](task);
}

void IntRow::put(int64_t first, const IntLayout& layout, int64_t lane, uint8_t* block) const {
  SPECDEC_CHECK_EQ(first % kIntRecordDepth, 0);
  const int64_t first_group = first / layout.group_size();
  const auto put_halves = [&](const std::vector<uint16_t>& from, auto&& offset_of) {
    const int64_t left = static_cast<int64_t>(from.size()) - first_group;
    for (int64_t group = 0; group < std::min(layout.num_groups(), left); ++group) {
      store_at(block + offset_of(group), from[first_group + group]);
    }
  };
  put_halves(scales_, [&](int64_t group) { return layout.scale_at(group, lane); });
  put_halves(mins_, [&](int64_t group) { return layout.min_at(group, lane); });
  if (!layout.is_grouped()) store_at(block + layout.output_scale_at(lane), output_scale_);
  const int64_t first_record = first / kIntRecordDepth;
  const int64_t num_records = std::min(layout.num_records(), layout_.num_records() - first_record);
  for (int64_t record = 0; record < num_records; ++record) {
    uint8_t* out = block + layout.codes_at(record) + lane * 4;
    const uint8_t* codes = codes_.data() + first + record * kIntRecordDepth;
    if (layout.is_int4()) {
      for (int64_t i = 0; i < kWordsOfRecord; i += 2, out += 4 * kLanes) {
        store_word(out, load_word(codes + 4 * i) | load_word(codes + 4 * i + 4) << 4);
      }
    } else {
      for (int64_t i = 0; i < kWordsOfRecord; ++i, out += 4 * kLanes) {
        store_word(out, load_word(codes + 4 * i) ^ layout.flips());
      }
    }
  }
}

void IntRow::get(int64_t lane, const uint8_t* block) {
  for (int64_t group = 0; group < static_cast<int64_t>(scales_.size()); ++group) {
    scales_[group] = load_at<uint16_t>(block + layout_.scale_at(group, lane));
  }
  for (int64_t group = 0; group < static_cast<int64_t>(mins_.size()); ++group) {
    mins_[group] = load_at<uint16_t>(block + layout_.min_at(group, lane));
  }
  if (!layout_.is_grouped()) output_scale_ = load_at<float>(block + layout_.output_scale_at(lane));
  for (int64_t record = 0; record < layout_.num_records(); ++record) {
    const uint8_t* in = block + layout_.codes_at(record) + lane * 4;
    uint8_t* codes = codes_.data() + record * kIntRecordDepth;
    if (layout_.is_int4()) {
      for (int64_t i = 0; i < kWordsOfRecord; i += 2, in += 4 * kLanes) {
        const uint32_t word = load_word(in);
        store_word(codes + 4 * i, word & 0x0f0f0f0fu);
        store_word(codes + 4 * i + 4, word >> 4 & 0x0f0f0f0fu);
      }
    } else {
      for (int64_t i = 0; i < kWordsOfRecord; ++i, in += 4 * kLanes) {
        store_word(codes + 4 * i, load_word(in) ^ layout_.flips());
      }
    }
  }
}

void IntRow::to_float(float* out) const {
  const int8_t* table = layout_.table();
  for (int64_t begin = 0; begin < layout_.in_features(); begin += layout_.group_size()) {
    const int64_t group = begin / layout_.group_size();
    const int64_t end = std::min<int64_t>(begin + layout_.group_size(), layout_.in_features());
    const float scale = layout_.is_grouped() ? half_to_float(scales_[group]) : output_scale_;
    const float min = layout_.has_mins() ? half_to_float(mins_[group]) : 0.0f;
    const int offset = layout_.has_zeros() ? static_cast<int>(half_to_float(mins_[group]))
                                           : code_offset(layout_.format());
    for (int64_t k = begin; k < end; ++k) {
      const int level = table != nullptr ? table[codes_[k]] : codes_[k] - offset;
      out[k] = scale * static_cast<float>(level) + min;
    }
  }
}

}  // namespace specdec::cpu
