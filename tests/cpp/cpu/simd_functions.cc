#include "cpp/cpu/simd_functions.h"

#include "cpu/kernels/math.h"
#include "cpu/kernels/simd_pairs.h"

namespace specdec::cpu::SPECDEC_ISA {
namespace {

template <F32x16 (*Function)(F32x16)>
void apply(const float* x, float* out) {
  store(out, Function(load(x)));
}

}  // namespace

SimdFunctions simd_functions();
SimdFunctions simd_functions() {
  return {
      apply<exp>,
      apply<log>,
      apply<erf>,
      apply<sigmoid>,
      apply<softplus>,
      [](const float* x, uint16_t* out) { store_bf16(out, load(x)); },
      [](const float* x) { return reduce_add(load(x)); },
      [](const float* x) { return reduce_max(load(x)); },
      [](const float* x, int n, float fill, float* out) { store(out, load_partial(x, n, fill)); },
      [](const float* x, int n, float* out) { store_partial(out, load(x), n); },
      [](const float* x, int n, uint16_t* out) { store_bf16_partial(out, load(x), n); },
      [](const uint32_t* pairs, const uint32_t* pair, float* acc) {
        store(acc, dot_bf16(load(acc), load_pairs(pairs), broadcast_pair(pair)));
      }};
}

}  // namespace specdec::cpu::SPECDEC_ISA
