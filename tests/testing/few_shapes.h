// SPECDEC_FEW_SHAPES=1 cuts the shapes of the slowest tests, for machines that are emulated.
#pragma once

#include <cstdint>
#include <cstdlib>

namespace specdec::testing {

inline bool few_shapes() {
  static const bool kFew = std::getenv("SPECDEC_FEW_SHAPES") != nullptr;
  return kFew;
}

// Whether a case of so many rows of so many inputs is one of those that are left out then. What is
// left has every number of rows that kernels treat differently, and sums of several pieces of k.
inline bool is_left_out(int64_t rows, int64_t k) {
  return few_shapes() && (k > 1200 || (rows > 17 && rows * k > 4000));
}

}  // namespace specdec::testing
