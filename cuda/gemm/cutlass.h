// GEMMs by CUTLASS for compute capability 9.0, if the build has its headers. The emulation has
// none; ProjectionChooserTest (tests/cuda/backend/projection_chooser_test.cc) compares with double
// loops on a GPU.
#pragma once

#include <memory>
#include <string>

#include "cuda/gemm/gemm.h"

namespace specdec::cuda {

// "CUTLASS", or why the build has no CUTLASS.
std::string cutlass_note();
// Ways are CUTLASS's tile shapes. Null if the build has no CUTLASS, or none for this device.
std::unique_ptr<Gemm> make_cutlass(const DeviceProperties& properties);

}  // namespace specdec::cuda
