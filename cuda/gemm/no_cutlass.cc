#include "cuda/gemm/cutlass.h"

namespace specdec::cuda {

std::string cutlass_note() { return "without CUTLASS"; }

std::unique_ptr<Gemm> make_cutlass(const DeviceProperties&) { return nullptr; }

}  // namespace specdec::cuda
