// Operations that have no implementation yet. Each leaves this file when it gets one.
#include "cpu/cpu_backend.h"
#include "specdec/error.h"

namespace specdec::cpu {
namespace {

[[noreturn]] void not_yet(const char* operation) {
  throw Unavailable(std::string("the CPU backend has no ") + operation + " yet");
}

}  // namespace

// attention.cc, pointwise.cc, moe.cc
size_t CpuBackend::kv_layer_bytes(const PagedKvView&) const { not_yet("kv_layer_bytes"); }
void CpuBackend::norm(const NormArgs&) { not_yet("norm"); }
void CpuBackend::split_qkv(const QkvArgs&) { not_yet("split_qkv"); }
void CpuBackend::tree_attention(const TreeAttentionArgs&) { not_yet("tree_attention"); }
void CpuBackend::activation(const ActivationArgs&) { not_yet("activation"); }
void CpuBackend::moe(const MoeArgs&) { not_yet("moe"); }
void CpuBackend::gather_rows(const GatherRowsArgs&) { not_yet("gather_rows"); }
void CpuBackend::copy_kv(const CopyKvArgs&) { not_yet("copy_kv"); }

// sampler.cc
void CpuBackend::sample(const SampleArgs&) { not_yet("sample"); }

}  // namespace specdec::cpu
