// All there is on a GPU for products beside the kernels of our own.
#pragma once

#include <string>
#include <vector>

#include "cuda/gemm/gemm.h"

namespace specdec::cuda {

struct FoundGemms {
  GemmList gemms;
  std::vector<std::string> absent;  // what there is not, and why
};
FoundGemms find_gemms(const DeviceProperties& properties);

}  // namespace specdec::cuda
