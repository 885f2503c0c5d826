#include "cpu/kernel_table.h"

#include "core/check.h"
#include "cpu/isa.h"

namespace specdec::cpu {

// Each is kernels/kernel_set.cc compiled for that instruction set; only those compiled in are
// called.
namespace generic {
KernelTable kernel_set();
}
namespace avx2 {
KernelTable kernel_set();
}
namespace avx512 {
KernelTable kernel_set();
}
namespace avx512_bf16 {
KernelTable kernel_set();
}
namespace amx {
KernelTable kernel_set();
}

KernelTable kernel_table(Isa isa) {
  switch (isa) {
    case Isa::kGeneric:
      return generic::kernel_set();
#if defined(SPECDEC_HAS_ISA_avx2)
    case Isa::kAvx2:
      return avx2::kernel_set();
#endif
#if defined(SPECDEC_HAS_ISA_avx512)
    case Isa::kAvx512:
      return avx512::kernel_set();
#endif
#if defined(SPECDEC_HAS_ISA_avx512_bf16)
    case Isa::kAvx512Bf16:
      return avx512_bf16::kernel_set();
#endif
#if defined(SPECDEC_HAS_ISA_amx)
    case Isa::kAmx:
      return amx::kernel_set();
#endif
    default:
      break;
  }
  detail::check_failed(__FILE__, __LINE__, "kernel set is compiled in");
}

}  // namespace specdec::cpu
