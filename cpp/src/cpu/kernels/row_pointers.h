// Addresses of the rows of a register tile. Only for the files of matrix products, each of which
// has its own copy.
#pragma once

#include <cstdint>

namespace specdec::cpu {
namespace {

// Row r of a tile is at base + r * stride. Left to itself, the compiler keeps a pointer for every
// row and runs out of registers; this class gives it addresses that the processor computes as it
// loads.
template <class X>
class RowPointers {
 public:
  RowPointers(const X* x, int64_t stride)
      : low_(x),
        high_(x + 8 * stride),
        s1_(stride),
        s3_(3 * stride),
        s5_(5 * stride),
        s7_(7 * stride) {
    asm("" : "+r"(s1_), "+r"(s3_), "+r"(s5_), "+r"(s7_));
  }
  // Hides from the compiler that the bases only ever move by `step`.
  void advance(int count) {
    low_ += count;
    high_ += count;
    asm("" : "+r"(low_), "+r"(high_));
  }
  [[gnu::always_inline]] const X* row(int r) const {
    const X* base = r < 8 ? low_ : high_;
    switch (r % 8) {
      case 0:
        return base;
      case 1:
        return base + s1_;
      case 2:
        return base + 2 * s1_;
      case 3:
        return base + s3_;
      case 4:
        return base + 4 * s1_;
      case 5:
        return base + s5_;
      case 6:
        return base + 2 * s3_;
      default:
        return base + s7_;
    }
  }

 private:
  const X* low_;
  const X* high_;
  int64_t s1_, s3_, s5_, s7_;
};

// Row `row`'s group at the current k of `x`. Always inline: a call would spill the accumulators.
template <class Format>
[[gnu::always_inline]] inline const typename Format::RowGroup& group_of(
    const RowPointers<uint8_t>& x, int row) {
  return *reinterpret_cast<const typename Format::RowGroup*>(x.row(row));
}

}  // namespace
}  // namespace specdec::cpu
