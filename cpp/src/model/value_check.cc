#include "model/value_check.h"

#include <algorithm>

namespace specdec {

// Signed, since the least instruction sets compare signed lanes only.
template <class Bits, Bits kMagnitude>
void ValueCheck::add_as(std::span<const std::byte> bytes) {
  const auto* values = reinterpret_cast<const Bits*>(bytes.data());
  const size_t count = bytes.size() / sizeof(Bits);
  Bits largest = 0;
  for (size_t i = 0; i < count; ++i) {
    largest = std::max(largest, static_cast<Bits>(values[i] & kMagnitude));
  }
  largest_ = std::max(largest_, static_cast<uint32_t>(largest));
  is_known_ = true;
}

void ValueCheck::add(std::span<const std::byte> bytes) {
  switch (dtype_) {
    case DType::kF32:
      return add_as<int32_t, 0x7fffffff>(bytes);
    case DType::kBF16:
    case DType::kF16:
      return add_as<int16_t, 0x7fff>(bytes);
    case DType::kF8E4M3:
      return add_as<uint8_t, 0x7f>(bytes);
    default:
      return;
  }
}

bool ValueCheck::is_finite() const {
  switch (dtype_) {
    case DType::kF32:
      return largest_ < 0x7f800000u;
    case DType::kBF16:
      return largest_ < 0x7f80u;
    case DType::kF16:
      return largest_ < 0x7c00u;
    case DType::kF8E4M3:  // no infinities
      return largest_ < 0x7fu;
    default:
      return true;
  }
}

}  // namespace specdec
