// Float weights as a checkpoint stores them.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "backend/op_args.h"
#include "testing/values.h"

namespace specdec::testing {

// A random matrix at float32, float64, bfloat16 or float16: its bytes, and the values they hold.
struct StoredMatrix {
  int64_t rows, cols;
  DType dtype;
  std::vector<float> values;
  std::vector<uint8_t> bytes;

  StoredMatrix(int64_t num_rows, int64_t num_cols, DType stored, uint32_t seed)
      : rows(num_rows), cols(num_cols), dtype(stored), values(random_values(rows * cols, seed)) {
    for (float& value : values) {
      if (dtype == DType::kF64) {
        append(double{value});
      } else if (dtype == DType::kF32) {
        append(value);
      } else {
        const uint16_t bits = to_bits(value, dtype);
        append(bits);
        value = from_bits(bits, dtype);
      }
    }
  }
  WeightView view() const { return {.values = {bytes.data(), dtype, {rows, cols}}}; }

 private:
  template <class T>
  void append(const T& element) {
    const auto* begin = reinterpret_cast<const uint8_t*>(&element);
    bytes.insert(bytes.end(), begin, begin + sizeof(T));
  }
};

}  // namespace specdec::testing
