// Short convolutions, linear recurrences and gated norms on the CPU.
#include "core/check.h"
#include "cpu/cpu_backend.h"

namespace specdec::cpu {

void CpuBackend::short_conv(const ShortConvArgs& args) {
  static_cast<void>(args);
  SPECDEC_CHECK(false);
}

void CpuBackend::recurrence(const RecurrenceArgs& args) {
  static_cast<void>(args);
  SPECDEC_CHECK(false);
}

void CpuBackend::gated_norm(const GatedNormArgs& args) {
  static_cast<void>(args);
  SPECDEC_CHECK(false);
}

}  // namespace specdec::cpu
