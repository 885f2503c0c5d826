// Checks that the weights of a checkpoint are finite numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/dtype.h"

namespace specdec {

// Is shown the values of a tensor, and remembers the largest magnitude.
class ValueCheck {
 public:
  explicit ValueCheck(DType dtype) : dtype_(dtype) {}

  // Whole elements, aligned to their size.
  void add(std::span<const std::byte> bytes);
  // True if no value is NaN or infinite. Always true for integers.
  bool is_finite() const;
  // Whether every value is zero. False for integers, which are not checked.
  bool is_zero() const { return is_known_ && largest_ == 0; }

 private:
  DType dtype_;
  bool is_known_ = false;
  uint32_t largest_ = 0;  // the bits without the sign, which grow with the magnitude
};

}  // namespace specdec
