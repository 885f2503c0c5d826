// The kernel sets of the CPU backend. Each is the same source compiled for one instruction set, in
// a namespace of its own, so that no instruction a machine lacks can leak into what it runs.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cpu/kernels/prefetch_into.h"

namespace specdec::cpu {

enum class Isa {
  kGeneric,
  kAvx2,
  kAvxVnni,
  kAvx512,
  kAvx512Bf16,
  kAmx,
  kNeon,
  kNeonDotprod,
  kNeonI8mm,
  kNeonBf16,
};
inline constexpr Isa kAllIsas[] = {
    Isa::kGeneric, Isa::kAvx2, Isa::kAvxVnni,     Isa::kAvx512,   Isa::kAvx512Bf16,
    Isa::kAmx,     Isa::kNeon, Isa::kNeonDotprod, Isa::kNeonI8mm, Isa::kNeonBf16};

std::string_view name_of(Isa isa);  // "generic", "avx2", "neon_dotprod" and so on
std::vector<Isa> compiled_isas();   // narrowest first
// Supported by this machine: on x86 CPUID, OS state, and for AMX the kernel's permission; on ARM
// what the operating system reports.
bool is_supported(Isa isa);
Isa best_isa();                // the widest set that is compiled in and supported
PrefetchInto prefetch_into();  // the choice for this machine (see kernels/prefetch.h)
// "auto" or a name. Throws InvalidArgument (field cpu_isa) for an unknown name and Unavailable for
// one this build or machine does not have.
Isa parse_isa(std::string_view name);

}  // namespace specdec::cpu
