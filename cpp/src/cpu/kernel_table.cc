#include "cpu/kernel_table.h"

#include "core/check.h"
#include "cpu/isa.h"

namespace specdec::cpu {

// Each namespace is kernels/kernel_set.cc compiled for that instruction set.
#define SPECDEC_ISA(name)                    \
  namespace name {                           \
  KernelTable kernel_set(PrefetchInto into); \
  }
SPECDEC_COMPILED_ISAS
#undef SPECDEC_ISA

KernelTable kernel_table(Isa isa) { return kernel_table(isa, prefetch_into()); }

KernelTable kernel_table(Isa isa, PrefetchInto into) {
#define SPECDEC_ISA(name) \
  if (name_of(isa) == #name) return name::kernel_set(into);
  SPECDEC_COMPILED_ISAS
#undef SPECDEC_ISA
  detail::check_failed(__FILE__, __LINE__, "kernel set is compiled in");
}

}  // namespace specdec::cpu
