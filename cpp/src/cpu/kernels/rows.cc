#include "cpu/kernels/rows.h"

#include "cpu/kernels/lanes.h"
#include "cpu/kernels/linear_int.h"
#include "cpu/kernels/math.h"
#include "cpu/kernels/simd_int.h"

namespace specdec::cpu::SPECDEC_ISA {
namespace {

// Calls body(value_at), where value_at(i, n) gives n elements of the prepared row from i on, the
// other lanes zero.
template <class Body>
void with_values(const RowsTask& task, int64_t row, Body&& body) {
  const int64_t from = (task.row_ids != nullptr ? task.row_ids[row] : row) * task.dim;
  if (task.x_bf16) {
    const uint16_t* x = static_cast<const uint16_t*>(task.x) + from;
    return body([=](int64_t i, int n) { return load_lanes(x + i, n); });
  }
  const float* x = static_cast<const float*>(task.x) + from;
  if (task.norm == kNoNorm) {
    return body([=](int64_t i, int n) { return load_lanes(x + i, n); });
  }
  const float mean = task.norm == kLayerNorm ? mean_of(x, task.dim) : 0.0f;
  const F32x16 scale = broadcast(inverse_root(mean_square(x, task.dim, mean), task.eps));
  body([=, &task](int64_t i, int n) {
    const F32x16 normal = (load_lanes(x + i, n) - broadcast(mean)) * scale;
    const F32x16 result = normal * load_lanes(task.weight + i, n);
    return task.bias != nullptr ? result + load_lanes(task.bias + i, n) : result;
  });
}

void add_rows(const RowsTask& task) {
  const F32x16 scale = broadcast(task.sum_scale);
  for (int64_t row = task.row_begin; row < task.row_end; ++row) {
    float* out = static_cast<float*>(task.out) + row * task.out_stride;
    with_values(task, row, [&](auto value_at) {
      for_each_vector(0, task.dim, [&](int64_t i, int n) {
        store_lanes(out + i, (load_lanes(out + i, n) + value_at(i, n)) * scale, n);
      });
    });
  }
}

template <class Out>
void prepare(const RowsTask& task) {
  for (int64_t row = task.row_begin; row < task.row_end; ++row) {
    Out* out = static_cast<Out*>(task.out) + row * task.out_stride;
    with_values(task, row, [&](auto value_at) {
      for_each_vector(0, task.dim,
                      [&](int64_t i, int n) { store_lanes(out + i, value_at(i, n), n); });
    });
    for (int64_t i = task.dim; i < task.out_stride; ++i) out[i] = Out{0};
  }
}

void prepare_f32(const RowsTask& task) {
  if (task.accumulate) {
    add_rows(task);
  } else {
    prepare<float>(task);
  }
}

void prepare_widened_bf16(const RowsTask& task) {
  for (int64_t row = task.row_begin; row < task.row_end; ++row) {
    float* out = static_cast<float*>(task.out) + row * task.out_stride;
    with_values(task, row, [&](auto value_at) {
      for_each_vector(0, task.dim, [&](int64_t i, int n) {
        uint16_t rounded[kLanes];
        store_bf16(rounded, value_at(i, n));
        store_lanes(out + i, load_bf16(rounded), n);
      });
    });
    for (int64_t i = task.dim; i < task.out_stride; ++i) out[i] = 0.0f;
  }
}

struct GroupScale {
  float scale;
  int32_t sum;  // of the codes
};

// Quantises 32 values. A group with a NaN or an infinity gets a scale that is no finite number.
// Always inline: a call passes the values through memory, which made AVX2 take three times as long.
[[gnu::always_inline]] inline GroupScale quantise(F32x16 a, F32x16 b, int8_t* codes) {
  constexpr float kLeast = 0x1p-100f;  // below it a group counts as zero: 127 / x has to be finite
  const float largest = reduce_max(max(abs(a), abs(b)));
  const bool is_zero = largest < kLeast;
  const F32x16 inverse = broadcast(is_zero ? 0.0f : 127.0f / largest);
  const F32x16 code_a = round_even(a * inverse);
  const F32x16 code_b = round_even(b * inverse);
  const float sum = reduce_add(code_a + code_b);  // exact
  if (sum != sum) {
    for (int i = 0; i < kIntGroup; ++i) codes[i] = 0;
    return {sum, 0};
  }
  store_bytes(codes, code_a);
  store_bytes(codes + kLanes, code_b);
  return {is_zero ? 0.0f : largest / 127.0f, static_cast<int32_t>(sum)};
}

template <int kGroup>
void put_codes(const int8_t* codes, int8_t (&out)[kGroup]) {
  __builtin_memcpy(out, codes, kGroup);
}
template <int kGroup>
void put_codes(const int8_t* codes, int16_t (&out)[kGroup]) {
  for (int i = 0; i < kGroup; i += 4) {
    out[i] = codes[i];
    out[i + 1] = codes[i + 2];
    out[i + 2] = codes[i + 1];
    out[i + 3] = codes[i + 3];
  }
}

inline int32_t start_in_halves(int code_offset, const int8_t* codes) {
  int sums[2] = {};
  for (int i = 0; i < kIntGroup; ++i) sums[i / 2 % 2] += codes[i];
  const auto start = [&](int sum) { return static_cast<uint32_t>(-code_offset * sum) & 0xffff; };
  return static_cast<int32_t>(start(sums[0]) | start(sums[1]) << 16);
}

template <class Code, int kGroup>
void prepare_groups(const RowsTask& task) {
  for (int64_t row = task.row_begin; row < task.row_end; ++row) {
    auto* out = static_cast<IntRowGroup<Code, kGroup>*>(task.out) + row * task.out_stride;
    with_values(task, row, [&](auto value_at) {
      for (int64_t group = 0; group < task.out_stride; ++group) {
        F32x16 half[2] = {zero(), zero()};  // the second one stays zero in groups of 16
        for (int j = 0; j < kGroup / kLanes; ++j) {
          const int64_t begin = group * kGroup + j * kLanes;
          if (begin < task.dim) half[j] = value_at(begin, lanes_left(begin, task.dim));
        }
        int8_t codes[kIntGroup];
        const GroupScale result = quantise(half[0], half[1], codes);
        put_codes(codes, out[group].codes);
        const float sum = static_cast<float>(result.sum);
        out[group].scale = result.scale;
        out[group].start = task.halves_start ? start_in_halves(task.code_offset, codes)
                                             : -task.code_offset * result.sum;
        out[group].min = task.has_zeros ? -sum : result.scale * sum;
      }
    });
  }
}

template <class Code>
void prepare_codes(const RowsTask& task) {
  if (task.group_size == kSmallIntGroup) return prepare_groups<Code, kSmallIntGroup>(task);
  prepare_groups<Code, kIntGroup>(task);
}

template <class T>
void scale_rows_of(const ScaleRowsTask& task) {
  for (int64_t row = task.row_begin; row < task.row_end; ++row) {
    T* values = static_cast<T*>(task.rows) + row * task.dim;
    if (task.factors != nullptr) {
      const float* factors = task.factors + row * task.factor_stride;
      for_each_vector(0, task.dim, [&](int64_t i, int n) {
        F32x16 factor = load_lanes(factors + i, n);
        if (task.factors_are_gates) factor = sigmoid(factor);
        store_lanes(values + i, load_lanes(values + i, n) * factor, n);
      });
      continue;
    }
    const F32x16 factor = sigmoid(broadcast(task.gates[row]));
    for_each_vector(0, task.dim, [&](int64_t i, int n) {
      store_lanes(values + i, load_lanes(values + i, n) * factor, n);
    });
  }
}

void scale_rows(const ScaleRowsTask& task) {
  if (task.is_bf16) return scale_rows_of<uint16_t>(task);
  scale_rows_of<float>(task);
}

float dot(const float* a, const float* b, int n) {
  float sum = 0.0f;
  for (int i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

void predict_streams(const PredictStreamsTask& task) {
  const StreamsTask& streams = task.streams;
  const int count = streams.num_streams;
  for (int64_t row = streams.row_begin; row < streams.row_end; ++row) {
    float factors[kMaxTaskStreams * kMaxTaskStreams];
    for (int i = 0; i < count * count; ++i) {
      factors[i] = dot(task.coefficients + i * count, streams.modalities + row * count, count);
    }
    float* const data = streams.data + row * streams.dim;
    for_each_vector(0, streams.dim, [&](int64_t i, int n) {
      F32x16 before[kMaxTaskStreams];
      for (int j = 0; j < count; ++j) before[j] = load_lanes(data + j * streams.stride + i, n);
      for (int k = 0; k < count; ++k) {
        F32x16 sum = before[k];
        for (int j = 0; j < count; ++j) {
          sum = fma(broadcast(factors[k * count + j]), before[j], sum);
        }
        store_lanes(data + k * streams.stride + i, sum, n);
      }
    });
  }
}

void correct_streams(const CorrectStreamsTask& task) {
  const StreamsTask& streams = task.streams;
  const int count = streams.num_streams;
  for (int64_t row = streams.row_begin; row < streams.row_end; ++row) {
    float factors[kMaxTaskStreams];
    for (int k = 0; k < count; ++k) {
      const float* coefficients = task.coefficients + k * count;
      factors[k] = 1.0f + dot(coefficients, streams.modalities + row * count, count);
    }
    float* const data = streams.data + row * streams.dim;
    const float* const active = data + task.active * streams.stride;
    const float* const activated = task.activated + row * streams.dim;
    for_each_vector(0, streams.dim, [&](int64_t i, int n) {
      const F32x16 change = load_lanes(activated + i, n) - load_lanes(active + i, n);
      for (int k = 0; k < count; ++k) {
        float* const stream = data + k * streams.stride + i;
        store_lanes(stream, fma(change, broadcast(factors[k]), load_lanes(stream, n)), n);
      }
    });
  }
}

void match_magnitude(const MatchMagnitudeTask& task) {
  constexpr float kLeastSquare = 1e-5f;
  for (int64_t row = task.row_begin; row < task.row_end; ++row) {
    const float* x = task.x + row * task.dim;
    float* out = task.out + row * task.dim;
    F32x16 factor = broadcast(1.0f);
    if (task.reference != nullptr) {
      const float wanted = mean_square(task.reference + row * task.dim, task.dim, 0.0f);
      const float square = mean_square(x, task.dim, 0.0f);
      // Written so that a NaN stays one.
      const float divisor = __builtin_sqrtf(square < kLeastSquare ? kLeastSquare : square);
      factor = broadcast(__builtin_sqrtf(wanted) / divisor);
    }
    for_each_vector(0, task.dim, [&](int64_t i, int n) {
      F32x16 value = load_lanes(x + i, n) * factor;
      if (task.accumulate) value = (load_lanes(out + i, n) + value) * broadcast(task.scale);
      store_lanes(out + i, value, n);
    });
  }
}

}  // namespace

RowsKernels rows_kernels();
RowsKernels rows_kernels() {
  return {prepare_f32,           prepare<uint16_t>,      prepare_widened_bf16,
          prepare_codes<int8_t>, prepare_codes<int16_t>, scale_rows,
          predict_streams,       correct_streams,        match_magnitude};
}

}  // namespace specdec::cpu::SPECDEC_ISA
