// Operations that have no implementation yet. Each leaves this file when it gets one.
#include "cpu/cpu_backend.h"
#include "specdec/error.h"

namespace specdec::cpu {
namespace {

[[noreturn]] void not_yet(const char* operation) {
  throw Unavailable(std::string("the CPU backend has no ") + operation + " yet");
}

}  // namespace

// sampler.cc
void CpuBackend::sample(const SampleArgs&) { not_yet("sample"); }

}  // namespace specdec::cpu
