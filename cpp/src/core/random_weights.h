// Random weights, which load_format="dummy" uses instead of a checkpoint's. An element depends only
// on its tensor and its index, so any part of a tensor can be generated anywhere.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/dtype.h"

namespace specdec {

// Some consecutive elements of a tensor.
struct RandomSource {
  uint64_t key = 0;   // of the tensor
  float unit = 0.0f;  // what elements are multiples of; 0: there are none
  int64_t first = 0;  // element of the tensor

  bool is_set() const { return unit != 0.0f; }
  bool operator==(const RandomSource&) const = default;
};

// The source for the whole tensor `name`. Elements are uniform in +-sqrt(3 / fan_in), so that sums
// over fan_in inputs keep the scale of one input.
RandomSource random_source(std::string_view name, int64_t fan_in);

// `count` elements from the source's first on, as the dtype: float32, bfloat16 or float16. Eight
// elements have a counter of Philox together, and element i the 16 bits i % 8 of its words.
void fill_random(const RandomSource& source, DType dtype, int64_t count, void* values);

}  // namespace specdec
