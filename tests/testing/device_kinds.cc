#include "testing/device_kinds.h"

#include <cstdio>
#include <stdexcept>

#include "cuda/factory.h"
#ifdef SPECDEC_CUDA_EMULATION
#include "cuda/emulation/emulated_device.h"
#endif

namespace specdec::cuda::testing {

std::vector<DeviceKind> device_kinds() {
  std::vector<DeviceKind> kinds;
#ifdef SPECDEC_CUDA_EMULATION
  kinds = {DeviceKind::kEmulatedForward, DeviceKind::kEmulatedReverse, DeviceKind::kEmulatedRandom};
#endif
  if (!list_cuda_devices().empty()) {
    kinds.push_back(DeviceKind::kGpu);
  } else {
    static const int kPrinted = std::fprintf(
        stderr, "no GPU: tests run on the emulated device only (%s)\n", build_note().c_str());
    (void)kPrinted;
  }
  return kinds;
}

std::unique_ptr<Device> make_device(DeviceKind kind) {
  if (kind == DeviceKind::kGpu) {
#ifdef SPECDEC_HAS_CUDA
    return make_cuda_device(0);
#endif
  }
#ifdef SPECDEC_CUDA_EMULATION
  const Schedule schedule = kind == DeviceKind::kEmulatedForward   ? Schedule::kForward
                            : kind == DeviceKind::kEmulatedReverse ? Schedule::kReverse
                                                                   : Schedule::kRandom;
  // One is a smaller device: less shared memory, no wgmma.
  const int capability = kind == DeviceKind::kEmulatedForward ? 80 : 90;
  return make_emulated_device({.schedule = schedule, .compute_capability = capability});
#else
  throw std::logic_error("no such device in this build");
#endif
}

KernelTable kernels_for(DeviceKind kind) { return SPECDEC_KERNELS_FOR(kind, kernel_table); }

std::unique_ptr<CudaBackend> make_backend(DeviceKind kind, DType act_dtype) {
  return std::make_unique<CudaBackend>(make_device(kind), kernels_for(kind), act_dtype);
}

std::string name_of(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::kEmulatedForward:
      return "EmulatedForward";
    case DeviceKind::kEmulatedReverse:
      return "EmulatedReverse";
    case DeviceKind::kEmulatedRandom:
      return "EmulatedRandom";
    case DeviceKind::kGpu:
      return "Gpu";
  }
  return "?";
}

}  // namespace specdec::cuda::testing
