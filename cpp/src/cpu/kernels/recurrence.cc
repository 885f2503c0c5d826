#include "cpu/kernels/recurrence.h"

#include "cpu/kernels/lanes.h"
#include "cpu/kernels/math.h"

namespace specdec::cpu::SPECDEC_ISA {
namespace {

// --- Short convolutions ---

template <int kWidth>
void transpose_taps(const ConvTapsTask& task) {
  const float* weight = task.weight + task.begin * kWidth;
  const int64_t count = task.end - task.begin;
  for (int64_t c = 0; c < count; ++c) {
    for (int i = 0; i < kWidth; ++i) task.taps[i * count + c] = weight[c * kWidth + i];
  }
}

void conv_taps(const ConvTapsTask& task) {
  if (task.width == 2) return transpose_taps<2>(task);
  if (task.width == 3) return transpose_taps<3>(task);
  transpose_taps<4>(task);
}

// An input of the slab's channels: x, or x * gates.
struct ConvInput {
  const float* x;
  const float* gates;

  F32x16 at(int64_t i, int n) const {
    const F32x16 value = load_lanes(x + i, n);
    return gates != nullptr ? value * load_lanes(gates + i, n) : value;
  }
};

// The inputs of a request's tokens.
class ConvInputs {
 public:
  // before: [kMaxTaps - 1, kConvSlab] the last inputs that the state in has, as of now.
  ConvInputs(const ShortConvTask& task, const RecurrentRequest& request, float* before)
      : task_(task), request_(request), before_(before) {
    const int64_t slot = request.slot_in < 0 ? 0 : request.slot_in;
    for (int i = 0; i < task.width - 1; ++i) {
      const int64_t slot_row = slot * (task.width - 1) + i;
      const float* from = task.tails + slot_row * task.num_channels + task.begin;
      float* to = before + i * kConvSlab;
      for_each_vector(0, task.end - task.begin, [&](int64_t c, int n) {
        store_lanes(to + c, request.slot_in < 0 ? zero() : load_lanes(from + c, n), n);
      });
    }
  }

  ConvInput row(int64_t row) const {
    const int64_t at = (request_.row_begin + row) * task_.stride + task_.begin;
    return {task_.x + at, task_.input_gates != nullptr ? task_.input_gates + at : nullptr};
  }
  // Of token `index` of the pending records and the rows, which from here on are a chain; as many
  // as width - 1 tokens before the first.
  ConvInput token(int64_t index) const {
    if (index >= request_.num_pending) return row(index - request_.num_pending);
    if (index >= 0) {
      const int64_t record = request_.pending[index];
      return {task_.conv_records + record * task_.num_channels + task_.begin, nullptr};
    }
    return {before_ + (task_.width - 1 + index) * kConvSlab, nullptr};
  }
  // Of the ancestor of `row` that is `back` rows back.
  ConvInput ancestor(int64_t row_index, int back) const {
    while (back > 0 && row_index >= 0) {
      row_index = request_.parents[row_index];
      --back;
    }
    return row_index >= 0 ? row(row_index) : token(request_.num_pending - 1 - back);
  }

 private:
  const ShortConvTask& task_;
  const RecurrentRequest& request_;
  const float* before_;
};

template <class Out, int kWidth>
void convolve(const ShortConvTask& task, const RecurrentRequest& request) {
  float before[(kMaxTaps - 1) * kConvSlab];
  const ConvInputs inputs(task, request, before);
  const int64_t count = task.end - task.begin;
  for (int64_t row = 0; row < request.num_rows; ++row) {
    ConvInput window[kWidth];
    for (int i = 0; i < kWidth; ++i) window[i] = inputs.ancestor(row, kWidth - 1 - i);
    const int64_t batch_row = request.row_begin + row;
    const float* output_gates = task.output_gates != nullptr
                                    ? task.output_gates + batch_row * task.stride + task.begin
                                    : nullptr;
    Out* out = static_cast<Out*>(task.out) + batch_row * task.num_channels + task.begin;
    for_each_vector(0, count, [&](int64_t c, int n) {
      F32x16 sum = zero();
      for (int i = 0; i < kWidth; ++i) {
        sum = fma(load_lanes(task.taps + i * count + c, n), window[i].at(c, n), sum);
      }
      if (task.bias != nullptr) sum = load_lanes(task.bias + task.begin + c, n) + sum;
      if (task.silu) sum = silu(sum);
      if (output_gates != nullptr) sum = sum * load_lanes(output_gates + c, n);
      store_lanes(out + c, sum, n);
    });
  }
  const auto write = [&](const ConvInput& input, float* to) {
    for_each_vector(0, count, [&](int64_t c, int n) { store_lanes(to + c, input.at(c, n), n); });
  };
  for (int64_t row = 0; row < request.num_rows; ++row) {
    const int64_t record = task.records[request.row_begin + row];
    if (record < 0) continue;
    write(inputs.row(row), task.conv_records + record * task.num_channels + task.begin);
  }
  for (int s = 0; s < request.num_stores; ++s) {
    const StoredState& stored = request.stores[s];
    for (int i = 0; i < kWidth - 1; ++i) {
      const int64_t to = int64_t{stored.slot} * (kWidth - 1) + i;
      write(inputs.token(stored.num_tokens - (kWidth - 1) + i),
            task.tails + to * task.num_channels + task.begin);
    }
  }
}

template <class Out>
void short_conv(const ShortConvTask& task, const RecurrentRequest& request) {
  if (task.width == 2) return convolve<Out, 2>(task, request);
  if (task.width == 3) return convolve<Out, 3>(task, request);
  convolve<Out, 4>(task, request);
}

// --- Linear recurrences: rows ---

enum : int { kSlices = 8 };  // of sums over key_dim, see core/k_slices.h

template <class T>
T fold(const T (&sums)[kSlices]) {
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

inline float fma_one(float a, float b, float c) {
#if defined(__FMA__) || defined(SPECDEC_NEON)
  return __builtin_fmaf(a, b, c);
#else
  return c + a * b;
#endif
}

float dot(const float* a, const float* b, int dim) {
  const int run = dim / kSlices;
  float sums[kSlices] = {};
  for (int i = 0; i < run; ++i) {
    for (int s = 0; s < kSlices; ++s) {
      sums[s] = fma_one(a[s * run + i], b[s * run + i], sums[s]);
    }
  }
  return fold(sums);
}

void normalize(float* x, int dim, float scale) {
  F32x16 sum = zero();
  for_each_vector(0, dim, [&](int64_t i, int n) {
    const F32x16 value = load_lanes(x + i, n);
    sum = fma(value, value, sum);
  });
  const F32x16 factor = broadcast(scale * inverse_root(reduce_add(sum), 1e-6f));
  for_each_vector(0, dim,
                  [&](int64_t i, int n) { store_lanes(x + i, load_lanes(x + i, n) * factor, n); });
}

void prepare_steps(const RecurrenceTask& task, int64_t row) {
  float* steps = task.steps + row * task.step_stride;
  float* factors = task.factors + row * task.factor_stride;
  for_each_vector(0, task.num_heads, [&](int64_t h, int n) {
    const F32x16 step = softplus(load_lanes(steps + h, n) + load_lanes(task.step_bias + h, n));
    store_lanes(steps + h, exp(load_lanes(task.decay_rates + h, n) * step), n);
    store_lanes(factors + h, task.is_delta ? sigmoid(load_lanes(factors + h, n)) : step, n);
  });
  const int64_t record = task.records[row];
  if (record < 0) return;
  float* decays = task.state_records + (record + 1) * task.record_size - task.num_heads;
  for (int h = 0; h < task.num_heads; ++h) decays[h] = steps[h];
}

void prepare(const RecurrenceTask& task, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    const int64_t row = i / task.num_key_heads, head = i % task.num_key_heads;
    const int64_t at = row * task.stride + head * task.key_dim;
    float* const queries = task.queries + at;
    float* const keys = task.keys + at;
    if (task.is_delta) {
      normalize(queries, task.key_dim, 1.0f / __builtin_sqrtf(static_cast<float>(task.key_dim)));
      normalize(keys, task.key_dim, 1.0f);
    }
    task.dots[i] = dot(keys, queries, task.key_dim);
    if (head == 0) prepare_steps(task, row);
    const int64_t record = task.records[row];
    if (record < 0) continue;
    float* to = task.state_records + record * task.record_size + head * task.key_dim;
    for (int j = 0; j < task.key_dim; ++j) to[j] = keys[j];
  }
}

// --- Linear recurrences: states ---

// A slab of whole vectors of a matrix.
struct Slab {
  float* data;
  int64_t stride;  // from one row of the matrix to the next
};

// S = decay * S + key update^T
struct Update {
  const float* key;     // [key_dim]
  const float* update;  // [columns]
  float decay;
};
enum : int { kMaxUpdates = 8 };  // of a pass over a slab

enum DotsOf { kNoDots, kDotsOfQuery, kDotsOfBoth };

// Sums per column: S^T k and S^T q.
template <int kVectors>
struct Dots {
  F32x16 key[kVectors];
  F32x16 query[kVectors];
};

#if defined(__AVX512F__)
enum : int { kSlicesAtOnce = 2 };  // keeps the additions of a column's sums from waiting
#else
enum : int { kSlicesAtOnce = 1 };
#endif

// A slab that is to be prefetched, or null.
struct NextSlab {
  const float* data;
  int64_t stride;
};

// Applies updates to S, in order, and computes the dots with the result. kUpdates: their number;
// -1: num_updates. kWrites: also writes the result to `to`. Prefetches `next`.
template <int kVectors, int kUpdates, DotsOf kDots, bool kWrites>
[[gnu::always_inline]] inline void sweep(Slab from, Slab to, const Update* updates, int num_updates,
                                         int key_dim, const float* key, const float* query,
                                         NextSlab next, Dots<kVectors>& dots) {
  const int run = key_dim / kSlices;
  F32x16 key_sums[kVectors][kSlices], query_sums[kVectors][kSlices];
  F32x16 update[kVectors];
  if constexpr (kUpdates == 1) {
    for (int v = 0; v < kVectors; ++v) update[v] = load(updates->update + v * kLanes);
  }
  for (int s = 0; s < kSlices; s += kSlicesAtOnce) {
    F32x16 key_sum[kSlicesAtOnce][kVectors], query_sum[kSlicesAtOnce][kVectors];
#pragma GCC unroll 8
    for (int a = 0; a < kSlicesAtOnce; ++a) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) key_sum[a][v] = query_sum[a][v] = zero();
    }
    for (int i = 0; i < run; ++i) {
#pragma GCC unroll 8
      for (int a = 0; a < kSlicesAtOnce; ++a) {
        const int64_t k = (s + a) * run + i;
        if (next.data != nullptr) {
          // Into the second cache: the first one has to hold this slab.
#pragma GCC unroll 8
          for (int v = 0; v < kVectors; ++v) {
            __builtin_prefetch(next.data + k * next.stride + v * kLanes, 0, 2);
          }
        }
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) {
          F32x16 state = load(from.data + k * from.stride + v * kLanes);
          if constexpr (kUpdates == 1) {
            state = fma(broadcast(updates->key[k]), update[v], broadcast(updates->decay) * state);
          } else if constexpr (kUpdates == -1) {
            for (int u = 0; u < num_updates; ++u) {
              state = fma(broadcast(updates[u].key[k]), load(updates[u].update + v * kLanes),
                          broadcast(updates[u].decay) * state);
            }
          }
          if constexpr (kWrites) store(to.data + k * to.stride + v * kLanes, state);
          if constexpr (kDots == kDotsOfBoth) {
            key_sum[a][v] = fma(state, broadcast(key[k]), key_sum[a][v]);
          }
          if constexpr (kDots != kNoDots) {
            query_sum[a][v] = fma(state, broadcast(query[k]), query_sum[a][v]);
          }
        }
      }
    }
    if constexpr (kDots != kNoDots) {
#pragma GCC unroll 8
      for (int a = 0; a < kSlicesAtOnce; ++a) {
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) {
          key_sums[v][s + a] = key_sum[a][v];
          query_sums[v][s + a] = query_sum[a][v];
        }
      }
    }
  }
  if constexpr (kDots != kNoDots) {
    for (int v = 0; v < kVectors; ++v) {
      if constexpr (kDots == kDotsOfBoth) dots.key[v] = fold(key_sums[v]);
      dots.query[v] = fold(query_sums[v]);
    }
  }
}

// Slab `slab` of a head's matrix over a request's tokens.
template <int kVectors, bool kIsDelta>
class SlabRun {
 public:
  SlabRun(const RecurrenceTask& task, const RecurrentRequest& request, const ColumnSlab& slab,
          int num_levels, const float* next, float* scratch)
      : task_(task),
        request_(request),
        slab_(slab),
        key_head_(slab.head / (task.num_heads / task.num_key_heads)),
        columns_(slab.end - slab.begin),
        scratch_(scratch),
        spare_(level(num_levels)),
        state_(level(0)),
        next_{next, task.value_dim} {}

  void run() {
    read_state();
    for (int i = 0; i < request_.num_pending; ++i) {
      add_record(request_.pending[i]);
      const bool is_last = i + 1 == request_.num_pending && request_.num_rows == 0;
      if (is_stored(i + 1)) {
        if (is_last) return write_updated(state_);
        apply();
        write_state(level(0));
      } else if (num_updates_ == kMaxUpdates) {
        apply();
      }
    }
    for (int i = 0; i < request_.num_rows; ++i) visit(request_.visits[i], i == 0);
  }

 private:
  enum : int { kWidth = kVectors * kLanes };
  static constexpr DotsOf kDots = kIsDelta ? kDotsOfBoth : kDotsOfQuery;

  Slab level(int index) const {
    return {scratch_ + int64_t{index} * task_.key_dim * kWidth, kWidth};
  }
  Slab slot(int32_t index) const {
    const int64_t matrix = int64_t{index} * task_.num_heads + slab_.head;
    return {task_.matrices + matrix * task_.key_dim * task_.value_dim + slab_.begin,
            task_.value_dim};
  }
  bool is_whole() const { return columns_ == kWidth; }
  template <class Body>
  void for_each_lanes(Body&& body) const {
    for (int v = 0; v < kVectors; ++v) body(v, lanes_left(v * kLanes, columns_));
  }

  void read_state() {
    const Slab to = level(0);
    if (request_.slot_in < 0) {
      for (int64_t i = 0; i < int64_t{task_.key_dim} * kWidth; i += kLanes) {
        store(to.data + i, zero());
      }
      return;
    }
    const Slab from = slot(request_.slot_in);
    if (is_whole()) {
      state_ = from;  // copied by the first pass
      return;
    }
    for (int64_t k = 0; k < task_.key_dim; ++k) {
      for_each_lanes([&](int v, int n) {
        store(to.data + k * to.stride + v * kLanes,
              load_lanes(from.data + k * from.stride + v * kLanes, n));
      });
    }
  }
  // Whether the state after `num_tokens` is stored; if so, write_state() is to follow.
  bool is_stored(int num_tokens) const {
    return next_store_ < request_.num_stores &&
           request_.stores[next_store_].num_tokens == num_tokens;
  }
  void write_state(Slab from) {
    const int num_tokens = request_.stores[next_store_].num_tokens;
    for (; is_stored(num_tokens); ++next_store_) {
      const Slab to = slot(request_.stores[next_store_].slot);
      for (int64_t k = 0; k < task_.key_dim; ++k) {
        for_each_lanes([&](int v, int n) {
          store_lanes(to.data + k * to.stride + v * kLanes,
                      load(from.data + k * from.stride + v * kLanes), n);
        });
      }
    }
  }
  // Likewise what the updates make of `from`.
  void write_updated(Slab from) {
    if (!is_whole()) {
      update(from, spare_);
      return write_state(spare_);
    }
    const StoredState& stored = request_.stores[next_store_++];
    update(from, slot(stored.slot));
    if (is_stored(stored.num_tokens)) write_state(slot(stored.slot));
  }

  void add_record(int64_t index) {
    const float* record = task_.state_records + index * task_.record_size;
    const int64_t num_keys = int64_t{task_.num_key_heads} * task_.key_dim;
    const float* values = record + num_keys + int64_t{slab_.head} * task_.value_dim + slab_.begin;
    float* to = values_[num_updates_];
    for_each_lanes(
        [&](int v, int n) { store(to + v * kLanes, load_lanes(values + v * kLanes, n)); });
    updates_[num_updates_++] = {record + int64_t{key_head_} * task_.key_dim, to,
                                record[task_.record_size - task_.num_heads + slab_.head]};
  }
  // Level 0 gets the state after the updates.
  void apply() {
    update(state_, level(0));
    state_ = level(0);
  }
  void update(Slab from, Slab to) {
    Dots<kVectors> dots;
    if (num_updates_ == 1) {
      sweep<kVectors, 1, kNoDots, true>(from, to, updates_, 1, task_.key_dim, nullptr, nullptr,
                                        take_next(), dots);
    } else {
      sweep<kVectors, -1, kNoDots, true>(from, to, updates_, num_updates_, task_.key_dim, nullptr,
                                         nullptr, take_next(), dots);
    }
    num_updates_ = 0;
  }

  // What the first pass over the slab prefetches.
  NextSlab take_next() {
    const NextSlab next = next_;
    next_.data = nullptr;
    return next;
  }

  void visit(const RowVisit& visit, bool is_first) {
    const Slab from = is_first ? state_ : level(visit.from);
    const Slab to = level(visit.to);
    const int64_t row = request_.row_begin + visit.row;
    const int64_t at = row * task_.stride + int64_t{key_head_} * task_.key_dim;
    const float* key = task_.keys + at;
    const float* query = task_.queries + at;
    if (!is_first && !visit.applies) num_updates_ = 0;
    Dots<kVectors> dots;
    if (num_updates_ == 1) {
      sweep<kVectors, 1, kDots, true>(from, to, updates_, 1, task_.key_dim, key, query, take_next(),
                                      dots);
    } else if (num_updates_ > 0) {
      sweep<kVectors, -1, kDots, true>(from, to, updates_, num_updates_, task_.key_dim, key, query,
                                       take_next(), dots);
    } else if (from.data != to.data) {
      sweep<kVectors, 0, kDots, true>(from, to, nullptr, 0, task_.key_dim, key, query, take_next(),
                                      dots);
    } else {
      sweep<kVectors, 0, kDots, false>(from, to, nullptr, 0, task_.key_dim, key, query, take_next(),
                                       dots);
    }
    num_updates_ = 0;
    if (stores_last_row_) write_state(to);
    finish_row(row, key, dots);
    stores_last_row_ = is_stored(request_.num_pending + visit.row + 1);
    if (visit.has_no_children && stores_last_row_) {
      write_updated(to);
      stores_last_row_ = false;
    }
  }

  // Computes the row's result and its update.
  void finish_row(int64_t row, const float* key, const Dots<kVectors>& dots) {
    const int64_t at = int64_t{slab_.head} * task_.value_dim + slab_.begin;
    const float* values = task_.values + row * task_.stride + at;
    float* out = task_.out + row * task_.num_heads * task_.value_dim + at;
    const float decay = task_.steps[row * task_.step_stride + slab_.head];
    const F32x16 factor = broadcast(task_.factors[row * task_.factor_stride + slab_.head]);
    const F32x16 dot = broadcast(task_.dots[row * task_.num_key_heads + key_head_]);
    const int64_t record = task_.records[row];
    float* recorded = record < 0 ? nullptr
                                 : task_.state_records + record * task_.record_size +
                                       int64_t{task_.num_key_heads} * task_.key_dim + at;
    for_each_lanes([&](int v, int n) {
      const F32x16 value = load_lanes(values + v * kLanes, n);
      F32x16 update = value;
      if constexpr (kIsDelta) update = fma(broadcast(-decay), dots.key[v], value);
      update = factor * update;
      F32x16 result = fma(dot, update, broadcast(decay) * dots.query[v]);
      if (task_.skip != nullptr) result = fma(broadcast(task_.skip[slab_.head]), value, result);
      store_lanes(out + v * kLanes, result, n);
      store(values_[0] + v * kLanes, update);
      if (recorded != nullptr) store_lanes(recorded + v * kLanes, update, n);
    });
    updates_[0] = {key, values_[0], decay};
    num_updates_ = 1;
  }

  const RecurrenceTask& task_;
  const RecurrentRequest& request_;
  const ColumnSlab& slab_;
  const int key_head_;
  const int columns_;
  float* const scratch_;
  const Slab spare_;
  Slab state_;  // before the updates, until the first visit
  NextSlab next_;
  int next_store_ = 0;
  bool stores_last_row_ = false;  // the next visit applies its update
  int num_updates_ = 0;
  Update updates_[kMaxUpdates];
  alignas(64) float values_[kMaxUpdates][kWidth];
};

template <bool kIsDelta>
void run_slab(const RecurrenceTask& task, const RecurrentRequest& request, const ColumnSlab& slab,
              int num_levels, const float* next, float* scratch) {
  if (slab.end - slab.begin <= kLanes) {
    SlabRun<1, kIsDelta>(task, request, slab, num_levels, next, scratch).run();
  } else {
    SlabRun<2, kIsDelta>(task, request, slab, num_levels, next, scratch).run();
  }
}

void run(const RecurrenceTask& task, const RecurrentRequest& request, const ColumnSlab& slab,
         int num_levels, const float* next, float* scratch) {
  if (task.is_delta) return run_slab<true>(task, request, slab, num_levels, next, scratch);
  run_slab<false>(task, request, slab, num_levels, next, scratch);
}

// --- Gated norms ---

void gate(const GateTask& task) {
  for_each_vector(0, task.count, [&](int64_t i, int n) {
    store_lanes(task.out + i, load_lanes(task.x + i, n) * silu(load_lanes(task.gates + i, n)), n);
  });
}

F32x16 norm_scale(const float* x, int64_t dim, float eps) {
  return broadcast(inverse_root(mean_square(x, dim, 0.0f), eps));
}

template <class Out>
void group_norm(const GroupNormTask& task) {
  const F32x16 scale = norm_scale(task.x, task.dim, task.eps);
  const float* x = task.x + task.begin;
  Out* out = static_cast<Out*>(task.out);
  for_each_vector(0, task.end - task.begin, [&](int64_t i, int n) {
    store_lanes(out + i, load_lanes(x + i, n) * scale * load_lanes(task.weight + i, n), n);
  });
}

template <class Out>
void gated_norm(const GatedNormTask& task, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    const int64_t row = i / task.num_groups, group = i % task.num_groups;
    const float* x = task.x + i * task.dim;
    const float* gates = task.gates + row * task.gate_stride + group * task.dim;
    const float* weight = task.weight + group * task.dim;
    Out* out = static_cast<Out*>(task.out) + i * task.dim;
    if (task.gates_first) {
      gate({.x = x, .gates = gates, .count = task.dim, .out = task.scratch});
      group_norm<Out>({.x = task.scratch,
                       .weight = weight,
                       .eps = task.eps,
                       .dim = task.dim,
                       .begin = 0,
                       .end = task.dim,
                       .out = out});
      continue;
    }
    const F32x16 scale = norm_scale(x, task.dim, task.eps);
    for_each_vector(0, task.dim, [&](int64_t j, int n) {
      const F32x16 result = load_lanes(x + j, n) * scale * load_lanes(weight + j, n);
      store_lanes(out + j, result * silu(load_lanes(gates + j, n)), n);
    });
  }
}

}  // namespace

RecurrenceKernels recurrence_kernels();
RecurrenceKernels recurrence_kernels() {
  return {conv_taps,
          short_conv<float>,
          short_conv<uint16_t>,
          prepare,
          run,
          gated_norm<float>,
          gated_norm<uint16_t>,
          gate,
          group_norm<float>,
          group_norm<uint16_t>};
}

}  // namespace specdec::cpu::SPECDEC_ISA
