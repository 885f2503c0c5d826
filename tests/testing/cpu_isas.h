// Instruction sets and dtypes as test parameters.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "core/dtype.h"
#include "cpu/isa.h"

namespace specdec::testing {

inline std::vector<cpu::Isa> supported_isas() {
  std::vector<cpu::Isa> isas;
  for (cpu::Isa isa : cpu::compiled_isas()) {
    if (cpu::is_supported(isa)) isas.push_back(isa);
  }
  return isas;
}

using IsaAndDType = std::tuple<cpu::Isa, DType>;

inline auto all_isas_and_dtypes() {
  return ::testing::Combine(::testing::ValuesIn(supported_isas()),
                            ::testing::Values(DType::kF32, DType::kBF16));
}

inline std::string isa_and_dtype_name(const ::testing::TestParamInfo<IsaAndDType>& info) {
  return std::string(cpu::name_of(std::get<0>(info.param))) + "_" +
         std::string(name_of(std::get<1>(info.param)));
}

}  // namespace specdec::testing
