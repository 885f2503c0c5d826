// Shared by the tests of the wrappers in ptx.cuh.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "testing/device_kinds.h"
#include "tests/cuda/emulation/ptx_conformance_kernels.h"

namespace specdec::cuda::testing {

class PtxTest : public CudaDeviceTest {
 protected:
  ConformanceKernels run() const { return SPECDEC_KERNELS_FOR(GetParam(), conformance_kernels); }
};

inline float widen(ElementType type, uint16_t bits) {
  return type == ElementType::kBf16 ? to_float(BFloat16{bits}) : half_to_float(bits);
}

}  // namespace specdec::cuda::testing
