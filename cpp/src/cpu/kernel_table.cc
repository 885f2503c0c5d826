#include "cpu/kernel_table.h"

#include "core/check.h"
#include "cpu/isa.h"

namespace specdec::cpu {

// Each is kernels/kernel_set.cc compiled for that instruction set; only those compiled in are
// called.
namespace generic {
KernelTable kernel_set(PrefetchInto into);
}
namespace avx2 {
KernelTable kernel_set(PrefetchInto into);
}
namespace avx_vnni {
KernelTable kernel_set(PrefetchInto into);
}
namespace avx512 {
KernelTable kernel_set(PrefetchInto into);
}
namespace avx512_bf16 {
KernelTable kernel_set(PrefetchInto into);
}
namespace amx {
KernelTable kernel_set(PrefetchInto into);
}
namespace neon {
KernelTable kernel_set(PrefetchInto into);
}
namespace neon_dotprod {
KernelTable kernel_set(PrefetchInto into);
}
namespace neon_i8mm {
KernelTable kernel_set(PrefetchInto into);
}
namespace neon_bf16 {
KernelTable kernel_set(PrefetchInto into);
}

KernelTable kernel_table(Isa isa) { return kernel_table(isa, prefetch_into()); }

KernelTable kernel_table(Isa isa, PrefetchInto into) {
  switch (isa) {
    case Isa::kGeneric:
      return generic::kernel_set(into);
#if defined(SPECDEC_HAS_ISA_avx2)
    case Isa::kAvx2:
      return avx2::kernel_set(into);
#endif
#if defined(SPECDEC_HAS_ISA_avx_vnni)
    case Isa::kAvxVnni:
      return avx_vnni::kernel_set(into);
#endif
#if defined(SPECDEC_HAS_ISA_avx512)
    case Isa::kAvx512:
      return avx512::kernel_set(into);
#endif
#if defined(SPECDEC_HAS_ISA_avx512_bf16)
    case Isa::kAvx512Bf16:
      return avx512_bf16::kernel_set(into);
#endif
#if defined(SPECDEC_HAS_ISA_amx)
    case Isa::kAmx:
      return amx::kernel_set(into);
#endif
#if defined(SPECDEC_HAS_ISA_neon)
    case Isa::kNeon:
      return neon::kernel_set(into);
#endif
#if defined(SPECDEC_HAS_ISA_neon_dotprod)
    case Isa::kNeonDotprod:
      return neon_dotprod::kernel_set(into);
#endif
#if defined(SPECDEC_HAS_ISA_neon_i8mm)
    case Isa::kNeonI8mm:
      return neon_i8mm::kernel_set(into);
#endif
#if defined(SPECDEC_HAS_ISA_neon_bf16)
    case Isa::kNeonBf16:
      return neon_bf16::kernel_set(into);
#endif
    default:
      break;
  }
  detail::check_failed(__FILE__, __LINE__, "kernel set is compiled in");
}

}  // namespace specdec::cpu
