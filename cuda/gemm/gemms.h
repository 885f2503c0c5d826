// All code for products on a GPU besides our own kernels.
#pragma once

#include <string>
#include <vector>

#include "cuda/gemm/gemm.h"

namespace specdec::cuda {

struct FoundGemms {
  GemmList gemms;
  std::vector<std::string> absent;  // what is missing, and why
};
FoundGemms find_gemms(const DeviceProperties& properties);

}  // namespace specdec::cuda
