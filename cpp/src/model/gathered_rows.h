// Rows of a matrix in another order than they are stored in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/op_args.h"

namespace specdec {

// A copy of rows that lie apart.
class GatheredRows {
 public:
  // The pieces one after another. They are of one matrix, and none is random.
  explicit GatheredRows(std::span<const WeightView> pieces);

  WeightView view() const;  // valid as long as this and the pieces' table and input_order

 private:
  WeightView first_;
  int64_t num_rows_ = 0;
  std::vector<std::byte> values_;
  std::vector<uint16_t> scales_;
  std::vector<uint16_t> mins_;
  std::vector<uint8_t> zeros_;
  std::vector<float> block_scales_;
};

// Rows first, first + step, ... of a matrix, each a piece.
std::vector<WeightView> every_row(const WeightView& matrix, int64_t first, int64_t step);

}  // namespace specdec
