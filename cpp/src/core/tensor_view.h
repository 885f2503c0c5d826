// A borrowed, dense, row-major tensor.
#pragma once

#include <cstdint>
#include <vector>

#include "core/dtype.h"

namespace specdec {

struct TensorView {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;

  int64_t num_elements() const {
    int64_t count = 1;
    for (int64_t extent : shape) count *= extent;
    return count;
  }
  int64_t size_bytes() const { return num_elements() * static_cast<int64_t>(size_of(dtype)); }
};

}  // namespace specdec
