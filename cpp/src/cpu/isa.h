// The kernel sets of the CPU backend. Each is the same source compiled for one instruction set, in
// a namespace of its own, so that no instruction a machine lacks can leak into what it runs.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace specdec::cpu {

enum class Isa { kGeneric, kAvx2, kAvx512, kAvx512Bf16, kAmx };

std::string_view name_of(Isa isa);  // "generic", "avx2", "avx512", "avx512_bf16", "amx"
std::vector<Isa> compiled_isas();   // narrowest first
bool is_supported(
    Isa isa);    // supported by this machine: CPUID, OS state, and for AMX the kernel's permission
Isa best_isa();  // the widest set that is compiled in and supported
// "auto" or a name. Throws InvalidArgument (field cpu_isa) for an unknown name and Unavailable for
// one this build or machine does not have.
Isa parse_isa(std::string_view name);

}  // namespace specdec::cpu
