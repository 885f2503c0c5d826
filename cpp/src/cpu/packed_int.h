// Integer weights in the layout of kernels/linear_int.h, packed one row of W at a time. Codes of a
// checkpoint are taken as they are where the layout can hold them; other rows are quantised.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/op_args.h"
#include "cpu/kernels/linear.h"
#include "cpu/kernels/quantize.h"

namespace specdec::cpu {

// Subtracted from a stored code, or from the value of a table plus 128, to get the level that the
// scale multiplies.
int code_offset(PackedFormat format);
int group_size(PackedFormat format);  // k that share a scale

// Sizes and offsets within a block of 16 outputs.
class IntLayout {
 public:
  // `signed_int8`: see LinearKernels. `table`: [16], of formats with a table.
  IntLayout(PackedFormat format, bool signed_int8, int64_t in_features,
            const int8_t* table = nullptr);

  PackedFormat format() const { return format_; }
  bool is_int4() const { return is_int4_; }
  bool has_mins() const { return has_mins_; }
  bool has_zeros() const { return format_ == kPackedInt4GroupedZero; }
  const int8_t* table() const { return table_; }
  bool is_grouped() const { return is_grouped_; }
  int group_size() const { return cpu::group_size(format_); }
  int64_t in_features() const { return in_features_; }
  int64_t num_records() const { return num_records_; }
  int64_t padded_k() const;
  int64_t num_groups() const;  // of padded_k
  int64_t block_bytes() const { return first_record_ + num_records_ * record_bytes_; }

  // Offsets in a block.
  int64_t scale_at(int64_t group, int64_t lane) const;  // float16
  int64_t min_at(int64_t group, int64_t lane) const;    // float16, or a zero
  int64_t output_scale_at(int64_t lane) const;          // float32, of kInt8
  int64_t codes_at(int64_t record) const;
  // XOR mask that turns four stored 8-bit codes into unsigned ones.
  uint32_t flips() const { return signed_int8_ ? 0x80808080u : 0u; }

 private:
  PackedFormat format_;
  bool signed_int8_;
  bool is_int4_;
  bool has_mins_;
  bool is_grouped_;
  const int8_t* table_;
  int64_t in_features_;
  int64_t num_records_;
  int64_t record_bytes_;
  int64_t first_record_;
};

// One row of W as a layout stores it. Reused from row to row, because it holds the scratch.
class IntRow {
 public:
  explicit IntRow(const IntLayout& layout);

  // Reads row `row` of `part`. Keeps its codes and scales where the layout can hold them, else
  // quantises the row, which is impossible for formats with zeros or a table.
  void read(const WeightView& part, int64_t row, const QuantizeKernels& kernels);

  // Writes the row's inputs from `first` on, a whole number of records, to a block of `layout`,
  // which must have the same format.
  void put(int64_t first, const IntLayout& layout, int64_t lane, uint8_t* block) const;
  void get(int64_t lane, const uint8_t* block);
  void to_float(float* out) const;  // [in_features]

 private:
  bool can_keep(const WeightView& part, int64_t row) const;
  void keep(const WeightView& part, int64_t row);

  const IntLayout& layout_;
  std::vector<uint8_t> codes_;    // [padded_k]
  std::vector<uint16_t> scales_;  // [num_groups] float16
  std::vector<uint16_t> mins_;    // [num_groups] float16: mins, or zeros
  float output_scale_ = 0.0f;
  std::vector<float> values_;  // [in_features], of rows that are converted
};

}  // namespace specdec::cpu
