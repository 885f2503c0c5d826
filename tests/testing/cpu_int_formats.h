// Integer weights of the CPU backend: every format on every kernel set this machine runs.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cpu/cpu_backend.h"
#include "cpu/packed_linear.h"
#include "testing/cpu_isas.h"
#include "testing/quantized_matrix.h"
#include "testing/values.h"

namespace specdec::cpu {

inline constexpr WeightFormat kIntFormats[] = {
    WeightFormat::kInt8,        WeightFormat::kInt8Grouped,    WeightFormat::kInt8GroupedMin,
    WeightFormat::kInt4Grouped, WeightFormat::kInt4GroupedMin, WeightFormat::kInt4GroupedZero,
    WeightFormat::kInt4Table,   WeightFormat::kInt8Grouped16};

// Whether a format holds codes of a checkpoint alone, and no floats.
inline bool takes_codes_alone(WeightFormat format) {
  return format == WeightFormat::kInt4GroupedZero || format == WeightFormat::kInt4Table;
}
inline bool is_int4(WeightFormat format) {
  return format == WeightFormat::kInt4Grouped || format == WeightFormat::kInt4GroupedMin ||
         takes_codes_alone(format);
}
inline bool has_mins(WeightFormat format) {
  return format == WeightFormat::kInt8GroupedMin || format == WeightFormat::kInt4GroupedMin;
}

inline int group_of(WeightFormat format) {
  return format == WeightFormat::kInt8Grouped16 ? 16 : kQuantGroup;
}
// The inputs, k or the next more, that matrices of a format can have.
inline int64_t inputs_for(WeightFormat format, int64_t k) {
  return takes_codes_alone(format) ? (k + kQuantGroup - 1) / kQuantGroup * kQuantGroup : k;
}

// Codes of a checkpoint that a format of groups keeps.
inline specdec::testing::QuantizedMatrix codes_for(WeightFormat format, int64_t n, int64_t k,
                                                   uint32_t seed) {
  specdec::testing::QuantizedMatrix codes(n, k, is_int4(format) ? 4 : 8, has_mins(format), seed,
                                          group_of(format));
  if (format == WeightFormat::kInt4GroupedZero) codes.add_zeros(seed);
  if (format == WeightFormat::kInt4Table) codes.add_table(7);
  return codes;
}

// A random matrix that can be stored in a format: floats, or codes where it takes no floats.
class Source {
 public:
  Source(WeightFormat format, int64_t n, int64_t k, uint32_t seed) : n_(n) {
    if (takes_codes_alone(format)) {
      codes_.emplace(codes_for(format, n, k, seed));
    } else {
      floats_ = specdec::testing::random_values(n * k, seed);
    }
  }
  WeightView view() const {
    return codes_.has_value() ? codes_->view() : specdec::testing::view_of(floats_, n_);
  }

 private:
  int64_t n_;
  std::vector<float> floats_;
  std::optional<specdec::testing::QuantizedMatrix> codes_;
};

// Products of float32 rows.
inline std::vector<float> run(CpuBackend& backend, const PackedLinear& weight, const float* x,
                              int rows) {
  std::vector<float> out(rows * weight.out_features(), NAN);
  backend.linear({.weight = &weight, .in = {.x = x, .num_rows = rows}, .out = out.data()});
  return out;
}

// The matrix as stored.
inline std::vector<float> unpacked(const PackedLinear& weight) {
  std::vector<float> values(weight.out_features() * weight.in_features());
  for (int64_t row = 0; row < weight.out_features(); ++row) {
    static_cast<const CpuPackedLinear&>(weight).unpack_row(
        row, values.data() + row * weight.in_features());
  }
  return values;
}

struct IntFormatParams {
  Isa isa;
  WeightFormat format;
};

class IntFormatTest : public ::testing::TestWithParam<IntFormatParams> {
 protected:
  CpuBackend make_backend(int num_threads, DType act_dtype = DType::kF32) const {
    return CpuBackend(GetParam().isa, num_threads, act_dtype);
  }
  static WeightFormat format() { return GetParam().format; }
  static int64_t inputs(int64_t k) { return inputs_for(format(), k); }
  static std::unique_ptr<PackedLinear> pack(CpuBackend& backend, const WeightView& view) {
    return backend.pack_linear({.parts = {&view, 1}, .format = format()});
  }
  // A random matrix [n, k].
  static std::unique_ptr<PackedLinear> pack(CpuBackend& backend, int64_t n, int64_t k) {
    const Source source(format(), n, k, 1);
    return pack(backend, source.view());
  }
};

// INSTANTIATE_TEST_SUITE_P(KernelSets, XTest, all_int_formats(), int_format_name).
inline auto all_int_formats() {
  std::vector<IntFormatParams> params;
  for (Isa isa : specdec::testing::supported_isas()) {
    for (WeightFormat format : kIntFormats) params.push_back({isa, format});
  }
  return ::testing::ValuesIn(params);
}
inline std::string int_format_name(const ::testing::TestParamInfo<IntFormatParams>& info) {
  return std::string(name_of(info.param.isa)) + "_" + std::string(name_of(info.param.format));
}

}  // namespace specdec::cpu
