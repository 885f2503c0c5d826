// Whether the weights of a checkpoint are numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/dtype.h"

namespace specdec {

// Sees the values of a tensor go by, and remembers the largest magnitude.
class ValueCheck {
 public:
  explicit ValueCheck(DType dtype) : dtype_(dtype) {}

  // Whole elements, aligned to their size.
  void add(std::span<const std::byte> bytes);
  // Neither NaN nor infinite. Integers always are.
  bool is_finite() const;
  // Every value is zero. Of integers it is not known.
  bool is_zero() const { return is_known_ && largest_ == 0; }

 private:
  DType dtype_;
  bool is_known_ = false;
  uint32_t largest_ = 0;  // the bits without the sign, which grow with the magnitude
};

}  // namespace specdec
