// CUTLASS's collective GEMM for compute capability 9.0, where the build has its headers.
#pragma once

#include <memory>
#include <string>

#include "cuda/gemm/gemm.h"

namespace specdec::cuda {

// "CUTLASS", or why there is none.
std::string cutlass_note();
// Its tile shapes are the ways. Null where the build has none, or not for this device.
std::unique_ptr<Gemm> make_cutlass(const DeviceProperties& properties);

}  // namespace specdec::cuda
