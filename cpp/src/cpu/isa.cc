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

Isa isa_named(std::string_view name) {
  for (Isa isa : kAllIsas) {
    if (name_of(isa) == name) return isa;
  }
  throw InvalidArgument("cpu_isa", str_cat("unknown instruction set '", name, "'; choose auto, ",
                                           joined_names(compiled_isas())));
}

bool is_compiled(Isa isa) {
  for (Isa compiled : compiled_isas()) {
    if (compiled == isa) return true;
  }
  return false;
}

}  // namespace

std::vector<Isa> compiled_isas() {
  std::vector<Isa> isas;
#define SPECDEC_ISA(name) isas.push_back(isa_named(#name));
  SPECDEC_COMPILED_ISAS
#undef SPECDEC_ISA
  return isas;
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
  const Isa isa = isa_named(name);
  if (!is_supported(isa)) {
    throw Unavailable(str_cat("cpu_isa: this machine cannot run '", name,
                              "' kernels; the widest it runs is '", name_of(best_isa()), "'"));
  }
  if (!is_compiled(isa)) {
    throw Unavailable(str_cat("cpu_isa: this build has no '", name, "' kernels; it has ",
                              joined_names(compiled_isas()),
                              " (SPECDEC_ISAS=ALL builds every set of an architecture)"));
  }
  return isa;
}

}  // namespace specdec::cpu
