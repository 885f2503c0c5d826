// Integer weights of the CPU backend: every format on every kernel set this machine runs.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cpu/cpu_backend.h"
#include "cpu/packed_linear.h"
#include "testing/cpu_isas.h"

namespace specdec::cpu {

inline constexpr WeightFormat kIntFormats[] = {
    WeightFormat::kInt8, WeightFormat::kInt8Grouped, WeightFormat::kInt8GroupedMin,
    WeightFormat::kInt4Grouped, WeightFormat::kInt4GroupedMin};

inline bool is_int4(WeightFormat format) {
  return format == WeightFormat::kInt4Grouped || format == WeightFormat::kInt4GroupedMin;
}
inline bool has_mins(WeightFormat format) {
  return format == WeightFormat::kInt8GroupedMin || format == WeightFormat::kInt4GroupedMin;
}

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
  static std::unique_ptr<PackedLinear> pack(CpuBackend& backend, const WeightView& view) {
    return backend.pack_linear({.parts = {&view, 1}, .format = format()});
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
