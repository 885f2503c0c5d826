// Lists all code for GEMMs on a GPU besides our own kernels.
#pragma once

#include <string>
#include <vector>

#include "cuda/gemm/gemm.h"

namespace specdec::cuda {

struct FoundGemms {
  GemmList gemms;
  std::vector<std::string> absent;  // libraries that are missing, and why
};
FoundGemms find_gemms(const DeviceProperties& properties);

}  // namespace specdec::cuda
