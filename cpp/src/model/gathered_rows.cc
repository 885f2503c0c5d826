#include "model/gathered_rows.h"

#include "core/check.h"

namespace specdec {
namespace {

template <class T>
void append(const void* from, int64_t count, std::vector<T>& to) {
  const T* const begin = static_cast<const T*>(from);
  if (begin != nullptr) to.insert(to.end(), begin, begin + count);
}

int64_t bytes_of_row(const WeightView& matrix) {
  return matrix.values.shape[1] * static_cast<int64_t>(size_of(matrix.values.dtype));
}

int64_t blocks_of_row(const WeightView& matrix) {
  return (matrix.in_features() + matrix.block_cols - 1) / matrix.block_cols;
}

// Row `row` of a matrix, as a matrix. Its block scales are those of its block.
WeightView row_of(const WeightView& matrix, int64_t row) {
  WeightView view = matrix;
  view.values.shape[0] = 1;
  view.values.data = static_cast<const std::byte*>(matrix.values.data) + row * bytes_of_row(matrix);
  if (matrix.scales != nullptr) {
    const int64_t first_group = row * (matrix.in_features() / matrix.group_size);
    view.scales += first_group;
    if (view.mins != nullptr) view.mins += first_group;
    if (view.zeros != nullptr) view.zeros += first_group;
  }
  if (matrix.block_scales != nullptr) {
    view.block_scales += row / matrix.block_rows * blocks_of_row(matrix);
  }
  return view;
}

}  // namespace

GatheredRows::GatheredRows(std::span<const WeightView> pieces) : first_(pieces.front()) {
  const int64_t num_groups =
      first_.scales != nullptr ? first_.in_features() / first_.group_size : 0;
  for (const WeightView& piece : pieces) {
    SPECDEC_CHECK(!piece.random.is_set() && piece.values.dtype == first_.values.dtype);
    num_rows_ += piece.rows();
    append(piece.values.data, piece.rows() * bytes_of_row(piece), values_);
    append(piece.scales, piece.rows() * num_groups, scales_);
    append(piece.mins, piece.rows() * num_groups, mins_);
    append(piece.zeros, piece.rows() * num_groups, zeros_);
    if (piece.block_scales == nullptr) continue;
    for (int64_t row = 0; row < piece.rows(); ++row) {
      append(row_of(piece, row).block_scales, blocks_of_row(piece), block_scales_);
    }
  }
}

WeightView GatheredRows::view() const {
  WeightView view = first_;
  view.values.shape[0] = num_rows_;
  view.values.data = values_.data();
  if (view.scales != nullptr) view.scales = scales_.data();
  if (view.mins != nullptr) view.mins = mins_.data();
  if (view.zeros != nullptr) view.zeros = zeros_.data();
  if (view.block_scales != nullptr) {
    view.block_scales = block_scales_.data();
    view.block_rows = 1;
  }
  return view;
}

std::vector<WeightView> every_row(const WeightView& matrix, int64_t first, int64_t step) {
  std::vector<WeightView> rows;
  for (int64_t row = first; row < matrix.rows(); row += step) rows.push_back(row_of(matrix, row));
  return rows;
}

}  // namespace specdec
