// The memory behind a WeightView of codes that were stored in another layout.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "backend/op_args.h"
#include "model/safetensors.h"

namespace specdec {

// Rows of codes that mean scale * (code - zero), as a layout stores them.
struct DecodedCodes {
  int bits = 4;  // 2, 3, 4 or 8
  std::vector<uint8_t> codes =
      {};  // unsigned; 8 bits: [rows, in_features], else in 4 bits, in pairs
  std::vector<int16_t> zeros = {};     // [rows, groups]
  std::vector<float> scales = {};      // [rows, groups]
  std::vector<int32_t> group_of = {};  // [in_features], where groups are scattered; else empty
};
// Rows of 4-bit codes that mean scale * table[code].
struct DecodedTable {
  std::vector<uint8_t> codes = {};  // in pairs, the even input in the low half
  std::vector<float> scales = {};   // [rows, groups]
  std::array<float, 16> table = {};
  DType dtype = DType::kF32;  // to which values are rounded where they become float32
};

// Some rows of a matrix. Codes are kept wherever a WeightView can say what they mean.
class KeptMatrix {
 public:
  // `group_size` divides in_features. Without `keeps_codes` the values become float32.
  KeptMatrix(RowRange rows, int64_t in_features, int64_t group_size, bool keeps_codes)
      : rows_(rows),
        in_features_(in_features),
        group_size_(group_size),
        keeps_codes_(keeps_codes) {}

  void keep(DecodedCodes decoded);
  // Scales are rounded to float16, and a table whose entries are no integers to 8 bits.
  void keep(DecodedTable decoded);

  RowRange rows() const { return rows_; }
  WeightView view(RowRange own) const;  // `own` lies in rows()
  // Why codes became float32 though they were to be kept; empty: they are kept.
  const std::string& why_float() const { return why_float_; }

 private:
  int64_t num_groups() const { return in_features_ / group_size_; }
  std::string reason_against(const DecodedCodes& decoded);
  bool set_scales(const std::vector<float>& scales, bool rounds);
  // Puts columns in order of their groups, whose sizes must be equal.
  void sort_columns(DecodedCodes& decoded);
  void keep_nibbles(DecodedCodes decoded);
  void keep_bytes(DecodedCodes decoded);
  template <class Visit>
  void for_each_code(const DecodedCodes& decoded, const Visit& visit) const;

  RowRange rows_;
  int64_t in_features_;
  int64_t group_size_;
  bool keeps_codes_;
  bool is_int4_ = true;
  bool has_table_ = false;
  std::vector<uint8_t> codes_;    // 4 bits in pairs, or int8
  std::vector<uint16_t> scales_;  // float16 [rows, groups]
  std::vector<uint16_t> mins_;
  std::vector<uint8_t> zeros_;
  std::array<int8_t, 16> table_{};
  std::vector<int32_t> input_order_;  // [in_features], see WeightView
  std::vector<float> row_scales_;
  std::vector<float> values_;  // [rows, in_features], in place of codes
  std::string why_float_;
};

}  // namespace specdec
