// CUTLASS's collective GEMM for compute capability 9.0, where the build has its headers.
#pragma once

#include <memory>
#include <string>

#include "cuda/gemm/gemm.h"

namespace specdec::cuda {

// "CUTLASS", or why the build has none.
std::string cutlass_note();
// The ways are CUTLASS's tile shapes. Null where the build has no CUTLASS or none for this device.
std::unique_ptr<Gemm> make_cutlass(const DeviceProperties& properties);

}  // namespace specdec::cuda
