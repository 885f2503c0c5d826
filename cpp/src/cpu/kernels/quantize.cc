#include "cpu/kernels/quantize.h"

#include "cpu/kernels/linear_int.h"
#include "cpu/kernels/simd_int.h"

namespace specdec::cpu::SPECDEC_ISA {
namespace {

constexpr float kLargestHalf = 65504.0f;
// Groups (or outputs) whose largest magnitude is below this become zero. It is far below the least
// float16 scale, and its reciprocal is finite.
constexpr float kLeast = 0x1p-100f;

// No operation below is fused: products and sums round one by one, in the same way on every
// machine.
struct Group {
  F32x16 a, b;
};

// Bits of the float16 nearest to x, ties to even. Values that are too large become the largest
// float16.
uint16_t to_half(float x) {
  const float magnitude = __builtin_fabsf(x);
  const uint16_t sign = __builtin_signbit(x) ? 0x8000 : 0;
  if (!(magnitude < kLargestHalf)) return sign | 0x7bff;
  if (magnitude < 0x1p-14f) {  // multiples of 2^-24; 1024 of them are the least normal number
    return static_cast<uint16_t>(sign |
                                 static_cast<int>(magnitude * 0x1p24f + 0x1.8p23f - 0x1.8p23f));
  }
  uint32_t bits;
  __builtin_memcpy(&bits, &magnitude, sizeof(bits));
  bits += 0xfffu + ((bits >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((bits - (112u << 23)) >> 13));
}

float from_half(uint16_t half) {
  uint16_t lanes[kLanes] = {half};
  float values[kLanes];
  store(values, load_half(lanes));
  return values[0];
}

// Bits of the least float16 that is not below x >= 0, if there is one.
uint16_t to_half_above(float x) {
  const uint16_t half = to_half(x);
  return from_half(half) < x && half < 0x7bff ? half + 1 : half;
}

// kGroup values from x[begin] on; a group of 16 is there twice. Past the end the first value is
// repeated, which changes neither extreme.
template <int kGroup = kIntGroup>
Group load_group(const QuantizeTask& task, int64_t begin) {
  constexpr int kSecond = kGroup - kLanes;
  const int64_t left = task.dim - begin;
  const int size = task.element == kElementF32 ? 4 : 2;
  const char* from = static_cast<const char*>(task.x) + begin * size;
  char copy[kGroup * 4];
  if (left < kGroup) {
    for (int i = 0; i < kGroup; ++i) {
      __builtin_memcpy(copy + i * size, from + (i < left ? i : 0) * size, size);
    }
    from = copy;
  }
  if (task.element == kElementF32) {
    const float* x = reinterpret_cast<const float*>(from);
    return {load(x), load(x + kSecond)};
  }
  const uint16_t* x = reinterpret_cast<const uint16_t*>(from);
  if (task.element == kElementBf16) return {load_bf16(x), load_bf16(x + kSecond)};
  return {load_half(x), load_half(x + kSecond)};
}

float largest_of(Group x) { return reduce_max(max(x.a, x.b)); }
float smallest_of(Group x) { return -reduce_max(max(zero() - x.a, zero() - x.b)); }
float magnitude_of(Group x) { return reduce_max(max(abs(x.a), abs(x.b))); }

F32x16 levels_of(F32x16 x, F32x16 inverse, float low, float high) {
  return min(max(round_even(x * inverse), broadcast(low)), broadcast(high));
}
// (x - min) / scale, rounded, within [low, high].
Group levels_of(Group x, float min, float scale, float low, float high) {
  const F32x16 inverse = broadcast(scale != 0.0f ? 1.0f / scale : 0.0f);
  return {levels_of(x.a - broadcast(min), inverse, low, high),
          levels_of(x.b - broadcast(min), inverse, low, high)};
}

template <int kGroup = kIntGroup>
void store_codes(uint8_t* codes, Group levels, float offset) {
  store_bytes(codes, levels.a + broadcast(offset));
  store_bytes(codes + kGroup - kLanes, levels.b + broadcast(offset));
}

// --- 8 bits ---

void quantize_int8(const QuantizeTask& task) {
  float largest = 0.0f;
  for (int64_t i = 0; i < task.dim; i += kIntGroup) {
    const float magnitude = magnitude_of(load_group(task, i));
    largest = magnitude > largest ? magnitude : largest;
  }
  const float scale = largest < kLeast ? 0.0f : largest / 127.0f;
  *task.output_scale = scale;
  for (int64_t i = 0; i < task.dim; i += kIntGroup) {
    store_codes(task.codes + i, levels_of(load_group(task, i), 0.0f, scale, -127.0f, 127.0f),
                kInt8Offset);
  }
}

template <int kGroup>
void quantize_int8_grouped(const QuantizeTask& task) {
  for (int64_t i = 0; i < task.dim; i += kGroup) {
    const Group x = load_group<kGroup>(task, i);
    const uint16_t scale = to_half_above(magnitude_of(x) / 127.0f);
    task.scales[i / kGroup] = scale;
    const Group levels = levels_of(x, 0.0f, from_half(scale), -127.0f, 127.0f);
    store_codes<kGroup>(task.codes + i, levels, kInt8Offset);
  }
}

// Codes are signed, -128 to 127: the min is half a step above the middle.
void quantize_int8_grouped_min(const QuantizeTask& task) {
  for (int64_t i = 0; i < task.dim; i += kIntGroup) {
    const Group x = load_group(task, i);
    const float low = smallest_of(x);
    const float high = largest_of(x);
    const uint16_t min_bits = to_half(0.5f * low + 0.5f * high + (high - low) / 510.0f);
    const float min = from_half(min_bits);
    const float above = (high - min) / 127.0f;
    const float below = (min - low) / 128.0f;
    const uint16_t scale = to_half_above(above > below ? above : below);
    task.mins[i / kIntGroup] = min_bits;
    task.scales[i / kIntGroup] = scale;
    store_codes(task.codes + i, levels_of(x, min, from_half(scale), -128.0f, 127.0f), kInt8Offset);
  }
}

// --- 4 bits: tries a few placements of the levels, each with its best scale ---

// Levels -8 to 7. The scale's sign puts the largest magnitude on the longer side.
uint16_t fit_scale(Group x) {
  constexpr float kSpans[] = {6.6f, 7.0f, 7.4f, 7.8f, 8.2f, 8.6f, 9.1f, 9.8f};
  const float low = smallest_of(x);
  const float high = largest_of(x);
  const float extreme = -low > high ? low : high;
  if (__builtin_fabsf(extreme) < kLeast) return 0;
  float best = -1.0f;
  float scale = 0.0f;
  for (float span : kSpans) {
    const Group level = levels_of(x, 0.0f, extreme / -span, -8.0f, 7.0f);
    const float xl = reduce_add(x.a * level.a + x.b * level.b);
    const float ll = reduce_add(level.a * level.a + level.b * level.b);
    // With the scale xl / ll the squared error falls by xl^2 / ll.
    const float gain = xl / ll * xl;
    if (gain > best) {
      best = gain;
      scale = xl / ll;
    }
  }
  return to_half(scale);
}

void quantize_int4_grouped(const QuantizeTask& task) {
  for (int64_t i = 0; i < task.dim; i += kIntGroup) {
    const Group x = load_group(task, i);
    const uint16_t scale = fit_scale(x);
    task.scales[i / kIntGroup] = scale;
    store_codes(task.codes + i, levels_of(x, 0.0f, from_half(scale), -8.0f, 7.0f), kInt4Offset);
  }
}

struct ScaleAndMin {
  uint16_t scale, min;
};

// Levels 0 to 15, by regression on the levels of each candidate.
ScaleAndMin fit_scale_and_min(Group x) {
  constexpr float kSpans[] = {13.4f, 14.0f, 14.5f, 15.0f, 15.6f, 16.4f, 17.4f};
  const float low = smallest_of(x);
  const float high = largest_of(x);
  const float centre = 0.5f * low + 0.5f * high;
  const float range = high - low;
  if (!(range >= kLeast)) return {0, to_half(centre)};
  const Group y = {x.a - broadcast(centre), x.b - broadcast(centre)};
  const float sum_y = reduce_add(y.a + y.b);
  float best = -1.0f;
  float scale = 0.0f;
  float min = centre;
  for (float span : kSpans) {
    const float step = range / span;
    const Group level = levels_of(y, -7.5f * step, step, 0.0f, 15.0f);
    const float sum_l = reduce_add(level.a + level.b);
    const float ll = kIntGroup * reduce_add(level.a * level.a + level.b * level.b) - sum_l * sum_l;
    const float yl = kIntGroup * reduce_add(y.a * level.a + y.b * level.b) - sum_y * sum_l;
    const float gain = yl / ll * yl;
    if (gain > best) {
      best = gain;
      scale = yl / ll;
      min = centre + (sum_y - scale * sum_l) / kIntGroup;
    }
  }
  return {to_half(scale), to_half(min)};
}

void quantize_int4_grouped_min(const QuantizeTask& task) {
  for (int64_t i = 0; i < task.dim; i += kIntGroup) {
    const Group x = load_group(task, i);
    const ScaleAndMin fit = fit_scale_and_min(x);
    task.scales[i / kIntGroup] = fit.scale;
    task.mins[i / kIntGroup] = fit.min;
    store_codes(task.codes + i, levels_of(x, from_half(fit.min), from_half(fit.scale), 0.0f, 15.0f),
                0.0f);
  }
}

}  // namespace

QuantizeKernels quantize_kernels();
QuantizeKernels quantize_kernels() {
  QuantizeKernels kernels{};
  kernels.row[kPackedInt8] = quantize_int8;
  kernels.row[kPackedInt8Grouped] = quantize_int8_grouped<kIntGroup>;
  kernels.row[kPackedInt8Grouped16] = quantize_int8_grouped<kSmallIntGroup>;
  kernels.row[kPackedInt8GroupedMin] = quantize_int8_grouped_min;
  kernels.row[kPackedInt4Grouped] = quantize_int4_grouped;
  kernels.row[kPackedInt4GroupedMin] = quantize_int4_grouped_min;
  return kernels;
}

}  // namespace specdec::cpu::SPECDEC_ISA
