#include "cpu/kernels/rows.h"

#include "cpu/kernels/lanes.h"

namespace specdec::cpu::SPECDEC_ISA {
namespace {

float mean_of(const float* x, int64_t dim) {
  F32x16 sum = zero();
  for_each_vector(0, dim, [&](int64_t i, int n) { sum = sum + load_lanes(x + i, n); });
  return reduce_add(sum) / static_cast<float>(dim);
}

template <class Out>
void normalise(const RowsTask& task, const float* x, Out* out) {
  const float mean = task.norm == kLayerNorm ? mean_of(x, task.dim) : 0.0f;
  const F32x16 scale = broadcast(inverse_root(mean_square(x, task.dim, mean), task.eps));
  for_each_vector(0, task.dim, [&](int64_t i, int n) {
    const F32x16 normal = (load_lanes(x + i, n) - broadcast(mean)) * scale;
    F32x16 result = normal * load_lanes(task.weight + i, n);
    if (task.bias != nullptr) result = result + load_lanes(task.bias + i, n);
    store_lanes(out + i, result, n);
  });
}

template <class In, class Out>
void convert(const RowsTask& task, const In* x, Out* out) {
  for_each_vector(0, task.dim,
                  [&](int64_t i, int n) { store_lanes(out + i, load_lanes(x + i, n), n); });
}

template <class Out>
void prepare(const RowsTask& task) {
  for (int64_t row = task.row_begin; row < task.row_end; ++row) {
    const int64_t from = (task.row_ids != nullptr ? task.row_ids[row] : row) * task.dim;
    Out* out = static_cast<Out*>(task.out) + row * task.out_stride;
    if (task.x_bf16) {
      convert(task, static_cast<const uint16_t*>(task.x) + from, out);
    } else if (task.norm == kNoNorm) {
      convert(task, static_cast<const float*>(task.x) + from, out);
    } else {
      normalise(task, static_cast<const float*>(task.x) + from, out);
    }
    for (int64_t i = task.dim; i < task.out_stride; ++i) out[i] = Out{0};
  }
}

}  // namespace

RowsKernels rows_kernels();
RowsKernels rows_kernels() { return {prepare<float>, prepare<uint16_t>}; }

}  // namespace specdec::cpu::SPECDEC_ISA
