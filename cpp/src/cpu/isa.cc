#include "cpu/isa.h"

#include "core/str_cat.h"
#include "specdec/error.h"

namespace specdec::cpu {
namespace {

std::string joined_names(const std::vector<Isa>& isas) {
  std::string names;
  for (Isa isa : isas) names += str_cat(names.empty() ? "" : ", ", name_of(isa));
  return names;
}

bool is_compiled(Isa isa) {
  for (Isa compiled : compiled_isas()) {
    if (compiled == isa) return true;
  }
  return false;
}

}  // namespace

std::vector<Isa> compiled_isas() {
  return {
      Isa::kGeneric,
#if defined(SPECDEC_HAS_ISA_avx2)
      Isa::kAvx2,
#endif
#if defined(SPECDEC_HAS_ISA_avx_vnni)
      Isa::kAvxVnni,
#endif
#if defined(SPECDEC_HAS_ISA_avx512)
      Isa::kAvx512,
#endif
#if defined(SPECDEC_HAS_ISA_avx512_bf16)
      Isa::kAvx512Bf16,
#endif
#if defined(SPECDEC_HAS_ISA_amx)
      Isa::kAmx,
#endif
#if defined(SPECDEC_HAS_ISA_neon)
      Isa::kNeon,
#endif
#if defined(SPECDEC_HAS_ISA_neon_dotprod)
      Isa::kNeonDotprod,
#endif
#if defined(SPECDEC_HAS_ISA_neon_i8mm)
      Isa::kNeonI8mm,
#endif
#if defined(SPECDEC_HAS_ISA_neon_bf16)
      Isa::kNeonBf16,
#endif
  };
}

Isa best_isa() {
  Isa best = Isa::kGeneric;
  for (Isa isa : compiled_isas()) {
    if (is_supported(isa)) best = isa;
  }
  return best;
}

Isa parse_isa(std::string_view name) {
  if (name == "auto") return best_isa();
  for (Isa isa : kAllIsas) {
    if (name_of(isa) != name) continue;
    if (!is_compiled(isa)) {
      throw Unavailable(str_cat("cpu_isa: this build has no '", name, "' kernels; it has ",
                                joined_names(compiled_isas()),
                                " (SPECDEC_ISAS=ALL builds every set of an architecture)"));
    }
    if (!is_supported(isa)) {
      throw Unavailable(str_cat("cpu_isa: this machine cannot run '", name,
                                "' kernels; the widest it runs is '", name_of(best_isa()), "'"));
    }
    return isa;
  }
  throw InvalidArgument("cpu_isa", str_cat("unknown instruction set '", name, "'; choose auto, ",
                                           joined_names(compiled_isas())));
}

}  // namespace specdec::cpu
