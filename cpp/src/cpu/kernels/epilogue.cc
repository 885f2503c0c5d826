#include "cpu/kernels/epilogue.h"

#include "cpu/kernels/kv_layout.h"
#include "cpu/kernels/lanes.h"
#include "cpu/kernels/math.h"

namespace specdec::cpu::SPECDEC_ISA {
namespace {

// --- plain ---

void store_sums(const StoreTask& task) {
  const SumsCell& cell = task.cell;
  const int64_t end = cell.end < task.out_features ? cell.end : task.out_features;
  const F32x16 scale = broadcast(task.scale);
  for (int64_t row = cell.row_begin; row < cell.row_end; ++row) {
    const float* sums = cell.sums + (row - cell.row_begin) * cell.stride - cell.begin;
    float* out = task.out + row * task.out_features;
    for_each_vector(cell.begin, end, [&](int64_t i, int n) {
      F32x16 value = load_lanes(sums + i, n);
      if (task.bias != nullptr) value = value + load_lanes(task.bias + i, n);
      value = value * scale;
      if (task.soft_cap != 0.0f) value = soft_cap(value, task.soft_cap);
      if (task.accumulate) value = value + load_lanes(out + i, n);
      store_lanes(out + i, value, n);
    });
  }
}

// --- activations ---

template <class Function, class Out>
void activate_cell(const ActivationTask& task) {
  const SumsCell& cell = task.cell;
  const int64_t width = task.gated ? 2 * kLanes : kLanes;  // sums of 16 results
  const int64_t first = cell.begin / width * kLanes;
  const int64_t last = cell.end / width * kLanes;
  const int64_t end = last < task.dim ? last : task.dim;
  for (int64_t row = cell.row_begin; row < cell.row_end; ++row) {
    const float* sums = cell.sums + (row - cell.row_begin) * cell.stride;
    Out* out = static_cast<Out*>(task.out) + row * task.dim;
    for_each_vector(first, end, [&](int64_t i, int n) {
      F32x16 x = load(sums);
      if (task.bias != nullptr) x = x + load_lanes(task.bias + i, n);
      if (task.gated) {
        F32x16 up = load(sums + kLanes);
        if (task.bias != nullptr) up = up + load_lanes(task.bias + task.dim + i, n);
        x = Function::gated(task.factors, x, up);
      } else {
        x = Function::of(task.factors, x);
      }
      store_lanes(out + i, x, n);
      sums += width;
    });
  }
}

template <class Function>
void activate(const ActivationTask& task) {
  if (task.out_bf16) {
    activate_cell<Function, uint16_t>(task);
  } else {
    activate_cell<Function, float>(task);
  }
}

F32x16 relu(F32x16 x) { return max(x, zero()); }
F32x16 identity(F32x16 x) { return x; }
F32x16 relu_squared(F32x16 x) { return relu(x) * relu(x); }

template <F32x16 (*kFunction)(F32x16)>
struct Plain {
  static F32x16 of(const ActivationFactors&, F32x16 x) { return kFunction(x); }
  static F32x16 gated(const ActivationFactors&, F32x16 gate, F32x16 up) {
    return kFunction(gate) * up;
  }
};
struct Xielu {
  static F32x16 of(const ActivationFactors& factors, F32x16 x) {
    const F32x16 least = min(x, broadcast(factors.eps));
    const F32x16 negative = broadcast(factors.negative) * (exp_minus_line(least) + (least - x));
    const F32x16 positive = broadcast(factors.positive) * x * x;
    return broadcast(factors.beta) * x + select_less(zero(), x, positive, negative);
  }
  static F32x16 gated(const ActivationFactors& factors, F32x16 gate, F32x16 up) {
    return of(factors, gate) * up;
  }
};
struct ClampedSwiglu {
  static F32x16 of(const ActivationFactors&, F32x16 x) { return x; }  // only of gates
  static F32x16 gated(const ActivationFactors& factors, F32x16 gate, F32x16 up) {
    const F32x16 limit = broadcast(factors.limit);
    const F32x16 g = min(gate, limit);
    const F32x16 u = max(min(up, limit), zero() - limit);
    return g * sigmoid(broadcast(factors.alpha) * g) * (broadcast(1.0f) + u);
  }
};

template <class Function>
void sparse_gates(const SparseGatesTask& task) {
  for (int64_t row = task.row_begin; row < task.row_end; ++row) {
    float* gates = task.gates + row * task.dim;
    const float mean = mean_of(gates, task.dim);
    const float deviation = __builtin_sqrtf(mean_square(gates, task.dim, mean));
    const F32x16 least = broadcast(mean + task.deviations * deviation);
    for_each_vector(0, task.dim, [&](int64_t i, int n) {
      const F32x16 above = max(load_lanes(gates + i, n) - least, zero());
      store_lanes(gates + i, Function::of({}, above), n);
    });
  }
}

// --- heads ---

// sums + bias of one head.
void add_bias(const float* sums, const float* bias, int dim, float* out) {
  for_each_vector(0, dim, [&](int64_t i, int n) {
    F32x16 value = load_lanes(sums + i, n);
    if (bias != nullptr) value = value + load_lanes(bias + i, n);
    store_lanes(out + i, value, n);
  });
}

float norm_scale(const float* x, int64_t dim, float eps) {
  return inverse_root(mean_square(x, dim, 0.0f), eps);
}

RowScales row_scales(const RowScalesTask& task) {
  return {norm_scale(task.q_and_k, task.q_dim, task.norm_eps),
          norm_scale(task.q_and_k + task.q_dim, task.k_dim, task.norm_eps)};
}

// head *= scale * weight, in place.
void scale_head_by(float scale, const float* weight, int dim, float* head) {
  for_each_vector(0, dim, [&](int64_t i, int n) {
    store_lanes(head + i, load_lanes(head + i, n) * broadcast(scale) * load_lanes(weight + i, n),
                n);
  });
}

// Norm of one head, in place. `row_scale` is used only by norms over all heads.
void normalise(const QkvTask& task, const float* weight, float row_scale, float* head) {
  const int dim = task.head_dim;
  const bool all_heads = task.row_scales != nullptr;
  scale_head_by(all_heads ? row_scale : norm_scale(head, dim, task.norm_eps), weight, dim, head);
}

void rotate(const QkvTask& task, int64_t position, float* head) {
  if (task.rope_cos == nullptr) return;
  const int half = task.rotary_dim / 2;
  const float* cos = task.rope_cos + position * half;
  const float* sin = task.rope_sin + position * half;
  for_each_vector(0, half, [&](int64_t i, int n) {
    const F32x16 a = load_lanes(head + i, n), b = load_lanes(head + half + i, n);
    const F32x16 c = load_lanes(cos + i, n), s = load_lanes(sin + i, n);
    store_lanes(head + i, a * c - b * s, n);
    store_lanes(head + half + i, b * c + a * s, n);
  });
}

// Norm, where there is a weight for it, and rotation of a head of q or k, in place.
void prepare_head(const QkvTask& task, const float* weight, float row_scale, int64_t position,
                  float* head) {
  const bool norms_before = weight != nullptr && !task.norm_after_rope;
  if (norms_before) normalise(task, weight, row_scale, head);
  rotate(task, position, head);
  if (weight != nullptr && !norms_before) normalise(task, weight, row_scale, head);
}

void scale_head(float factor, int dim, float* head) {
  for_each_vector(0, dim, [&](int64_t i, int n) {
    store_lanes(head + i, load_lanes(head + i, n) * broadcast(factor), n);
  });
}

template <class Act>
void store_row(Act* out, const float* x, int dim) {
  for_each_vector(0, dim, [&](int64_t i, int n) { store_lanes(out + i, load_lanes(x + i, n), n); });
}

// Elements of an activation type in one word of the cache.
template <class Act>
constexpr int kPerWord = sizeof(float) / sizeof(Act);

// Writes a token's key or value to its group. `index` gives the offset of element i.
template <class Act, class Index>
void store_token(Act* group, int, const float* x, int dim, Index&& index) {
  Act rounded[kMaxHeadDim + kLanes];
  store_row(rounded, x, dim);
  for (int i = 0; i < dim; ++i) group[index(i)] = rounded[i];
}
// The same as int8 codes, with one scale for the token: its largest magnitude becomes 127.
template <class Index>
void store_token(int8_t* group, int token, const float* x, int dim, Index&& index) {
  F32x16 largest = zero();
  for_each_vector(0, dim,
                  [&](int64_t i, int n) { largest = max(largest, abs(load_lanes(x + i, n))); });
  const float limit = reduce_max(largest);
  const F32x16 inverse = broadcast(limit > 0.0f ? 127.0f / limit : 0.0f);
  float codes[kMaxHeadDim + kLanes];
  for_each_vector(0, dim, [&](int64_t i, int n) {
    store(codes + i, round_even(load_lanes(x + i, n) * inverse));
  });
  static_cast<float*>(static_cast<void*>(group))[token] = limit / 127.0f;
  int8_t* out = group + kGroupHeaderBytes<int8_t>;
  for (int i = 0; i < dim; ++i) out[index(i)] = static_cast<int8_t>(codes[i]);
}

template <class Act, class Stored>
void finish_head(const QkvTask& task, const RowScales& scales, int head_index, int64_t row,
                 float* head) {
  const int dim = task.head_dim;
  const int64_t norm_stride = task.row_scales != nullptr ? dim : 0;
  const int64_t position = task.positions[row];
  if (head_index < task.num_heads) {
    const float* weight = task.q_norm != nullptr ? task.q_norm + head_index * norm_stride : nullptr;
    prepare_head(task, weight, scales.q, position, head);
    if (task.query_scales != nullptr) scale_head(task.query_scales[position], dim, head);
    const int64_t offset = (row * task.num_heads + head_index) * dim;
    return store_row(static_cast<Act*>(task.q) + offset, head, dim);
  }
  const bool is_key = head_index < task.num_heads + task.num_kv_heads;
  const int kv_head = head_index - task.num_heads - (is_key ? 0 : task.num_kv_heads);
  const int64_t slot = task.slot_mapping[row];
  const int token = static_cast<int>(slot % kGroupTokens);
  const int64_t offset = group_index(slot, kv_head, task.num_blocks, task.block_size) *
                         group_bytes<Stored>(dim) / static_cast<int64_t>(sizeof(Stored));
  constexpr int kWord = kPerWord<Act>;
  if (is_key) {
    const float* weight = task.k_norm != nullptr ? task.k_norm + kv_head * norm_stride : nullptr;
    prepare_head(task, weight, scales.k, position, head);
    store_token(static_cast<Stored*>(task.keys) + offset, token, head, dim,
                [&](int i) { return key_index<kWord>(token, i); });
  } else {
    if (task.v_norm != nullptr) {
      scale_head_by(norm_scale(head, dim, task.norm_eps), task.v_norm, dim, head);
    }
    store_token(static_cast<Stored*>(task.values) + offset, token, head, dim,
                [&](int i) { return value_index<kWord>(token, i, dim); });
  }
}

template <class Act, class Stored>
void split_heads(const QkvTask& task) {
  const SumsCell& cell = task.cell;
  const int dim = task.head_dim;
  const int num_heads = task.num_heads + 2 * task.num_kv_heads;
  const int first = static_cast<int>(cell.begin / dim);
  const int last =
      static_cast<int>(cell.end / dim) < num_heads ? static_cast<int>(cell.end / dim) : num_heads;
  float head[kMaxHeadDim];
  for (int64_t row = cell.row_begin; row < cell.row_end; ++row) {
    const float* sums = cell.sums + (row - cell.row_begin) * cell.stride - cell.begin;
    const RowScales scales =
        task.row_scales != nullptr ? task.row_scales[row] : RowScales{1.0f, 1.0f};
    for (int h = first; h < last; ++h) {
      const int64_t begin = static_cast<int64_t>(h) * dim;
      add_bias(sums + begin, task.bias != nullptr ? task.bias + begin : nullptr, dim, head);
      finish_head<Act, Stored>(task, scales, h, row, head);
    }
  }
}

}  // namespace

EpilogueKernels epilogue_kernels();
EpilogueKernels epilogue_kernels() {
  return {store_sums,
          {activate<Plain<silu>>, activate<Plain<relu>>, activate<Plain<gelu>>,
           activate<Plain<gelu_tanh>>, activate<Plain<identity>>, activate<Plain<relu_squared>>,
           activate<Xielu>, activate<ClampedSwiglu>},
          {sparse_gates<Plain<silu>>, sparse_gates<Plain<relu>>, sparse_gates<Plain<gelu>>,
           sparse_gates<Plain<gelu_tanh>>, sparse_gates<Plain<identity>>,
           sparse_gates<Plain<relu_squared>>},
          {split_heads<uint16_t, uint16_t>, split_heads<float, float>,
           split_heads<uint16_t, int8_t>, split_heads<float, int8_t>},
          row_scales};
}

}  // namespace specdec::cpu::SPECDEC_ISA
