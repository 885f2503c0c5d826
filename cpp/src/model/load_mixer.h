// Loads what recurrent layers have in place of attention.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "model/parts.h"
#include "model/tensor_loader.h"

namespace specdec {

// The order that lays all rows of the first part before those of the second, and so on, where each
// of `num_heads` blocks of rows has the rows of all parts, `part_rows` of each.
std::vector<RowRange> parts_apart(int num_heads, std::span<const int64_t> part_rows);

// `prefix`: of the names of the layer's tensors. Loads the mixer with its norm and its projections.
void load_mixer(TensorLoader& loader, const std::string& prefix, Layer& layer);

}  // namespace specdec
