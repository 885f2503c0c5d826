#include "cpu/kernels/pointwise.h"

#include "cpu/kernels/math.h"

namespace specdec::cpu::SPECDEC_ISA {
namespace {

void store_lanes(float* out, F32x16 a, int n) {
  if (n == kLanes) {
    store(out, a);
  } else {
    store_partial(out, a, n);
  }
}
void store_lanes(uint16_t* out, F32x16 a, int n) {
  if (n == kLanes) {
    store_bf16(out, a);
  } else {
    store_bf16_partial(out, a, n);
  }
}
F32x16 load_lanes(const float* p, int n, float fill = 0.0f) {
  return n == kLanes ? load(p) : load_partial(p, n, fill);
}
int lanes_left(int64_t i, int64_t end) {
  return end - i < kLanes ? static_cast<int>(end - i) : kLanes;
}

// Calls body(first element, number of elements) for each vector of [begin, end).
template <class Body>
void for_each_vector(int64_t begin, int64_t end, Body&& body) {
  for (int64_t i = begin; i < end; i += kLanes) body(i, lanes_left(i, end));
}

// --- norms: sums in 16 lanes in order of the elements, then a fixed tree ---

float inverse_root(float mean_square, float eps) {
  return 1.0f / __builtin_sqrtf(mean_square + eps);
}

float mean_square(const float* x, int64_t dim, float mean) {
  F32x16 sum = zero();
  for_each_vector(0, dim, [&](int64_t i, int n) {
    const F32x16 d = load_lanes(x + i, n, mean) - broadcast(mean);
    sum = fma(d, d, sum);
  });
  return reduce_add(sum) / static_cast<float>(dim);
}

float mean_of(const float* x, int64_t dim) {
  F32x16 sum = zero();
  for_each_vector(0, dim, [&](int64_t i, int n) { sum = sum + load_lanes(x + i, n); });
  return reduce_add(sum) / static_cast<float>(dim);
}

template <class Out>
void normalise_rows(const NormTask& task, bool centre) {
  for (int64_t row = task.row_begin; row < task.row_end; ++row) {
    const float* x = task.x + row * task.dim;
    Out* out = static_cast<Out*>(task.out) + row * task.dim;
    const float mean = centre ? mean_of(x, task.dim) : 0.0f;
    const F32x16 scale = broadcast(inverse_root(mean_square(x, task.dim, mean), task.eps));
    for_each_vector(0, task.dim, [&](int64_t i, int n) {
      const F32x16 normal = (load_lanes(x + i, n) - broadcast(mean)) * scale;
      F32x16 result = normal * load_lanes(task.weight + i, n);
      if (task.bias != nullptr) result = result + load_lanes(task.bias + i, n);
      store_lanes(out + i, result, n);
    });
  }
}

void normalise(const NormTask& task, bool centre) {
  if (task.out_bf16) {
    normalise_rows<uint16_t>(task, centre);
  } else {
    normalise_rows<float>(task, centre);
  }
}
void rms_norm(const NormTask& task) { normalise(task, false); }
void layer_norm(const NormTask& task) { normalise(task, true); }

// --- split of the fused projection ---

// Norm and rotation of one head; out may not overlap x.
void prepare_head(const QkvTask& task, const float* x, const float* weight, int64_t position,
                  float* out) {
  const int dim = task.head_dim;
  if (weight != nullptr) {
    const F32x16 scale = broadcast(inverse_root(mean_square(x, dim, 0.0f), task.norm_eps));
    for_each_vector(0, dim, [&](int64_t i, int n) {
      store_lanes(out + i, load_lanes(x + i, n) * scale * load_lanes(weight + i, n), n);
    });
  } else {
    for_each_vector(0, dim,
                    [&](int64_t i, int n) { store_lanes(out + i, load_lanes(x + i, n), n); });
  }
  if (task.rope_cos == nullptr) return;
  const int half = task.rotary_dim / 2;
  const float* cos = task.rope_cos + position * half;
  const float* sin = task.rope_sin + position * half;
  for_each_vector(0, half, [&](int64_t i, int n) {
    const F32x16 a = load_lanes(out + i, n), b = load_lanes(out + half + i, n);
    const F32x16 c = load_lanes(cos + i, n), s = load_lanes(sin + i, n);
    store_lanes(out + i, a * c - b * s, n);
    store_lanes(out + half + i, b * c + a * s, n);
  });
}

// One key into its column of the transposed block; `base` is the start of block and head.
void store_key(float* base, int offset, int block_size, const float* key, int dim) {
  for (int d = 0; d < dim; ++d) base[static_cast<int64_t>(d) * block_size + offset] = key[d];
}
void store_key(uint16_t* base, int offset, int block_size, const float* key, int dim) {
  uint16_t rounded[kMaxHeadDim + kLanes];
  for_each_vector(0, dim,
                  [&](int64_t i, int n) { store_bf16(rounded + i, load_lanes(key + i, n)); });
  for (int d = 0; d < dim; d += 2) {
    uint16_t* pair = base + (static_cast<int64_t>(d) * block_size + 2 * offset);
    pair[0] = rounded[d];
    pair[1] = rounded[d + 1];
  }
}

template <class Act>
void split_qkv(const QkvTask& task) {
  const int dim = task.head_dim;
  const int64_t row_width = static_cast<int64_t>(task.num_heads + 2 * task.num_kv_heads) * dim;
  float head[kMaxHeadDim];
  for (int64_t row = task.row_begin; row < task.row_end; ++row) {
    const float* x = task.qkv + row * row_width;
    const int64_t position = task.positions[row];
    Act* q = static_cast<Act*>(task.q) + row * task.num_heads * dim;
    for (int h = 0; h < task.num_heads; ++h, x += dim, q += dim) {
      prepare_head(task, x, task.q_norm, position, head);
      for_each_vector(0, dim,
                      [&](int64_t i, int n) { store_lanes(q + i, load_lanes(head + i, n), n); });
    }
    const int64_t slot = task.slot_mapping[row];
    const int offset = static_cast<int>(slot % task.block_size);
    const int64_t block = slot / task.block_size * task.num_kv_heads;
    const int64_t head_size = static_cast<int64_t>(task.block_size) * dim;
    for (int h = 0; h < task.num_kv_heads; ++h, x += dim) {
      prepare_head(task, x, task.k_norm, position, head);
      store_key(static_cast<Act*>(task.keys) + (block + h) * head_size, offset, task.block_size,
                head, dim);
    }
    for (int h = 0; h < task.num_kv_heads; ++h, x += dim) {
      Act* value = static_cast<Act*>(task.values) + (block + h) * head_size + offset * dim;
      for_each_vector(0, dim,
                      [&](int64_t i, int n) { store_lanes(value + i, load_lanes(x + i, n), n); });
    }
  }
}

// --- activations ---

template <F32x16 (*Function)(F32x16), class Out>
void activate_rows(const ActivationTask& task) {
  const int64_t width = task.gated ? 2 * task.dim : task.dim;
  for (int64_t row = task.row_begin; row < task.row_end; ++row) {
    const float* x = task.x + row * width;
    Out* out = static_cast<Out*>(task.out) + row * task.dim;
    for_each_vector(task.column_begin, task.column_end, [&](int64_t i, int n) {
      F32x16 result = Function(load_lanes(x + i, n));
      if (task.gated) result = result * load_lanes(x + task.dim + i, n);
      store_lanes(out + i, result, n);
    });
  }
}

template <F32x16 (*Function)(F32x16)>
void activate(const ActivationTask& task) {
  if (task.out_bf16) {
    activate_rows<Function, uint16_t>(task);
  } else {
    activate_rows<Function, float>(task);
  }
}

F32x16 relu(F32x16 x) { return max(x, zero()); }
F32x16 identity(F32x16 x) { return x; }

}  // namespace

PointwiseKernels pointwise_kernels();
PointwiseKernels pointwise_kernels() {
  return {
      rms_norm,
      layer_norm,
      split_qkv<uint16_t>,
      split_qkv<float>,
      {activate<silu>, activate<relu>, activate<gelu>, activate<gelu_tanh>, activate<identity>}};
}

}  // namespace specdec::cpu::SPECDEC_ISA
