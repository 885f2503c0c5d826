// A thread makes the 32 codes of one group of one output, as cpu/kernels/quantize.cc does: every
// operation rounds once and sums run in the same order as there, so both backends hold the same
// bits.
#include <cstdint>

#include "cuda/common/numeric.cuh"
#include "cuda/common/target.cuh"
#include "cuda/common/warp.cuh"
#include "cuda/kernels/quantize.h"
#include "cuda/kernels/quantize_layout.cuh"
#include "cuda/kernels/tiles.cuh"

namespace specdec::cuda::SPECDEC_TARGET {
namespace {

constexpr int kThreads = 128;
constexpr float kLargestHalf = 65504.0f;
constexpr uint16_t kLargestHalfBits = 0x7bff;
// Groups (or outputs) below it become zero; far below what a float16 scale can represent.
constexpr float kLeast = 0x1p-100f;

struct Group {
  float x[kQuantGroup];
};

// Bits of the float16 nearest to x, ties to even; clamps to the largest.
__device__ uint16_t to_half(float x) {
  const float magnitude = fabsf(x);
  const uint16_t sign = (__float_as_uint(x) >> 31) != 0 ? 0x8000 : 0;
  if (!(magnitude < kLargestHalf)) return sign | kLargestHalfBits;
  return sign | from_float<Half>(magnitude).bits;
}
__device__ float from_half(uint16_t bits) { return to_float(Half{bits}); }

// Bits of the least float16 that is not below x >= 0, if there is one.
__device__ uint16_t to_half_above(float x) {
  const uint16_t half = to_half(x);
  return from_half(half) < x && half < kLargestHalfBits ? half + 1 : half;
}

// -8 * x in float16, exact: can_keep has checked that the exponent has room.
__device__ uint16_t minus_eight_times(uint16_t half) {
  return from_float<Half>(-8.0f * from_half(half)).bits;
}

// Sum of term(i) over the group, as a tree: i and i + 16 are added first, neighbours last.
template <int kStride = 1, class Term>
__device__ __forceinline__ float reduce_add(const Term& term, int first = 0) {
  if constexpr (kStride == kQuantGroup) {
    return term(first);
  } else {
    return __fadd_rn(reduce_add<2 * kStride>(term, first),
                     reduce_add<2 * kStride>(term, first + kStride));
  }
}

__device__ float largest_of(const Group& group) {
  float largest = group.x[0];
#pragma unroll
  for (float x : group.x) largest = fmaxf(largest, x);
  return largest;
}
__device__ float smallest_of(const Group& group) {
  float largest = 0.0f - group.x[0];
#pragma unroll
  for (float x : group.x) largest = fmaxf(largest, 0.0f - x);
  return -largest;
}
__device__ float magnitude_of(const Group& group) {
  float largest = 0.0f;
#pragma unroll
  for (float x : group.x) largest = fmaxf(largest, fabsf(x));
  return largest;
}

// (x - min) / scale, rounded, within [low, high].
__device__ __forceinline__ float level_of(float x, float min, float inverse, float low,
                                          float high) {
  return fminf(fmaxf(rintf(__fmul_rn(__fadd_rn(x, -min), inverse)), low), high);
}
__device__ __forceinline__ float inverse_of(float scale) {
  return scale != 0.0f ? 1.0f / scale : 0.0f;
}

// --- Rules, one per format: scale and min of a group, and the range of levels ---

struct Fit {
  float scale;  // as stored
  float min;
};

template <bool kIsInt4, GroupExtra kOfGroup = GroupExtra::kNone>
struct RuleTraits {
  static constexpr bool kInt4 = kIsInt4, kGrouped = true;
  static constexpr bool kTable = false;
  static constexpr bool kCodesOnly = false;  // takes no rows that it would have to quantise
  static constexpr GroupExtra kExtra = kOfGroup;
  static constexpr bool kMins = kExtra == GroupExtra::kMin;
  static constexpr int kInputs = kExtra == GroupExtra::kSecondScale ? 16 : kQuantGroup;  // a scale
};

struct Int8 : RuleTraits<false> {
  static constexpr bool kGrouped = false;
  static constexpr float kLow = -127.0f, kHigh = 127.0f;
  __device__ static Fit fit(const Group&, float output_scale) { return {output_scale, 0.0f}; }
};

template <GroupExtra kExtra>
struct SymmetricInt8 : RuleTraits<false, kExtra> {
  static constexpr float kLow = -127.0f, kHigh = 127.0f;
  __device__ static Fit fit(const Group& group, float) {
    return {from_half(to_half_above(magnitude_of(group) / 127.0f)), 0.0f};
  }
};
using Int8Grouped = SymmetricInt8<GroupExtra::kNone>;
using Int8Grouped16 = SymmetricInt8<GroupExtra::kSecondScale>;

// The min is half a level above the middle.
struct Int8GroupedMin : RuleTraits<false, GroupExtra::kMin> {
  static constexpr float kLow = -128.0f, kHigh = 127.0f;
  __device__ static Fit fit(const Group& group, float) {
    const float low = smallest_of(group);
    const float high = largest_of(group);
    const float middle = __fadd_rn(__fmul_rn(0.5f, low), __fmul_rn(0.5f, high));
    const float min = from_half(to_half(__fadd_rn(middle, __fadd_rn(high, -low) / 510.0f)));
    const float above = __fadd_rn(high, -min) / 127.0f;
    const float below = __fadd_rn(min, -low) / 128.0f;
    return {from_half(to_half_above(above > below ? above : below)), min};
  }
};

struct Int4Grouped : RuleTraits<true> {
  static constexpr float kLow = -8.0f, kHigh = 7.0f;
  // The scale's sign gives the value of largest magnitude a negative code, the longer side.
  __device__ static Fit fit(const Group& group, float) {
    constexpr float kSpans[] = {6.6f, 7.0f, 7.4f, 7.8f, 8.2f, 8.6f, 9.1f, 9.8f};
    const float low = smallest_of(group);
    const float high = largest_of(group);
    const float extreme = -low > high ? low : high;
    if (fabsf(extreme) < kLeast) return {0.0f, 0.0f};
    float best = -1.0f;
    float scale = 0.0f;
#pragma unroll
    for (float span : kSpans) {
      const float inverse = inverse_of(extreme / -span);
      const auto level = [&](int i) { return level_of(group.x[i], 0.0f, inverse, kLow, kHigh); };
      const float xl = reduce_add([&](int i) { return __fmul_rn(group.x[i], level(i)); });
      const float ll = reduce_add([&](int i) { return __fmul_rn(level(i), level(i)); });
      // With the scale xl / ll the squared error falls by xl^2 / ll.
      const float gain = __fmul_rn(xl / ll, xl);
      if (gain > best) {
        best = gain;
        scale = xl / ll;
      }
    }
    return {from_half(to_half(scale)), 0.0f};
  }
};

// Scale and min by linear regression on the levels of each candidate.
struct Int4GroupedMin : RuleTraits<true, GroupExtra::kMin> {
  static constexpr float kLow = 0.0f, kHigh = 15.0f;
  __device__ static Fit fit(const Group& group, float) {
    constexpr float kSpans[] = {13.4f, 14.0f, 14.5f, 15.0f, 15.6f, 16.4f, 17.4f};
    constexpr float kCount = kQuantGroup;
    const float low = smallest_of(group);
    const float high = largest_of(group);
    const float centre = __fadd_rn(__fmul_rn(0.5f, low), __fmul_rn(0.5f, high));
    const float range = __fadd_rn(high, -low);
    if (!(range >= kLeast)) return {0.0f, from_half(to_half(centre))};
    const auto y = [&](int i) { return __fadd_rn(group.x[i], -centre); };
    const float sum_y = reduce_add(y);
    float best = -1.0f;
    float scale = 0.0f;
    float min = centre;
#pragma unroll
    for (float span : kSpans) {
      const float step = range / span;
      const float bottom = __fmul_rn(-7.5f, step);
      const float inverse = inverse_of(step);
      const auto level = [&](int i) { return level_of(y(i), bottom, inverse, kLow, kHigh); };
      const float sum_l = reduce_add(level);
      const float squares = reduce_add([&](int i) { return __fmul_rn(level(i), level(i)); });
      const float products = reduce_add([&](int i) { return __fmul_rn(y(i), level(i)); });
      const float ll = __fadd_rn(__fmul_rn(kCount, squares), -__fmul_rn(sum_l, sum_l));
      const float yl = __fadd_rn(__fmul_rn(kCount, products), -__fmul_rn(sum_y, sum_l));
      const float gain = __fmul_rn(yl / ll, yl);
      if (gain > best) {
        best = gain;
        scale = yl / ll;
        min = __fadd_rn(centre, __fadd_rn(sum_y, -__fmul_rn(scale, sum_l)) / kCount);
      }
    }
    return {from_half(to_half(scale)), from_half(to_half(min))};
  }
};

struct Int4GroupedZero : RuleTraits<true, GroupExtra::kZero> {
  static constexpr bool kCodesOnly = true;
};

struct Int4Table : RuleTraits<true> {
  static constexpr bool kTable = true, kCodesOnly = true;
};

// --- Sources ---

struct SourceRow {
  const QuantizeSource& source;
  int in_features;
  int64_t row;

  __device__ bool is_int4() const { return source.dtype == DType::kU8; }
  __device__ bool has_mins() const { return source.mins != nullptr; }
  __device__ int64_t group_at(int k) const {
    return row * (in_features / source.group_size) + k / source.group_size;
  }
  __device__ uint16_t scale(int k) const { return source.scales[group_at(k)]; }
  __device__ uint16_t min(int k) const { return has_mins() ? source.mins[group_at(k)] : 0; }
  __device__ int zero(int k) const {
    return source.zeros != nullptr ? source.zeros[group_at(k)] : 8;
  }
  // Of 4 bits, as stored.
  __device__ int int4(int k) const {
    const int64_t at = row * in_features + k;
    return static_cast<const unsigned char*>(source.values)[at / 2] >> (k % 2 * 4) & 15;
  }
  // A weight is scale * code + min.
  __device__ int code(int k) const {
    if (!is_int4()) return static_cast<const signed char*>(source.values)[row * in_features + k];
    if (source.has_table) return source.table[int4(k)];
    return int4(k) - (has_mins() ? 0 : zero(k));
  }
  __device__ float value(int k) const {
    if (source.row_scales == nullptr && source.scales == nullptr) {
      return float_at(source.values, source.dtype, row * in_features + k);
    }
    const float factor =
        source.row_scales != nullptr ? source.row_scales[row] : from_half(scale(k));
    return weight_of(make_float2(factor, from_half(min(k))), static_cast<float>(code(k)));
  }
};

// Whether codes and scales of the row fit the layout as they are.
template <class Rule>
__device__ bool can_keep(const SourceRow& row) {
  if (!Rule::kGrouped) return row.source.row_scales != nullptr;
  if (row.source.scales == nullptr) return false;
  if (row.source.group_size % Rule::kInputs != 0) return false;
  if (row.has_mins() && !Rule::kMins) return false;
  if (!Rule::kInt4) return true;
  if (!row.is_int4() || row.source.has_table) return false;
  if (row.source.zeros != nullptr) return false;
  if (row.has_mins() == Rule::kMins) return true;
  // scale * (code - 8) = scale * code + min with min = -8 scale, if that is a float16.
  for (int k = 0; k < row.in_features; k += row.source.group_size) {
    constexpr int kLargestExponent = 0x1e - 3;
    if ((row.scale(k) >> 10 & 0x1f) > kLargestExponent) return false;
  }
  return true;
}

struct Codes {
  uint16_t scale, extra;  // float16, and as GroupExtra says
  int code[kQuantGroup];  // as stored
};

// Input `i` of a group. Past the end of the row it is the group's first, which is no new extreme.
__device__ int input_at(const SourceRow& row, int begin, int i) {
  return begin + i < row.in_features ? begin + i : begin;
}

template <class Rule>
__device__ Codes kept(const SourceRow& row, int begin) {
  const bool eights_in_min = Rule::kInt4 && Rule::kMins && !row.has_mins();
  Codes codes{};
  if (Rule::kGrouped) codes.scale = row.scale(begin);
  if (Rule::kMins) codes.extra = eights_in_min ? minus_eight_times(codes.scale) : row.min(begin);
  if (Rule::kExtra == GroupExtra::kZero) codes.extra = row.zero(begin);
  if (Rule::kExtra == GroupExtra::kSecondScale) codes.extra = row.scale(input_at(row, begin, 16));
#pragma unroll
  for (int i = 0; i < kQuantGroup; ++i) {
    const int k = input_at(row, begin, i);
    codes.code[i] = Rule::kInt4 ? row.int4(k) : row.code(k);
  }
  return codes;
}

template <class Rule>
__device__ Codes quantized(const SourceRow& row, int begin, float output_scale) {
  constexpr bool kHasHalves = Rule::kExtra == GroupExtra::kSecondScale;
  constexpr int kOffset = Rule::kInt4 ? static_cast<int>(-Rule::kLow) : 0;
  Codes codes{};
#pragma unroll
  for (int first = 0; first < kQuantGroup; first += Rule::kInputs) {
    const int from = input_at(row, begin, first);
    Group group;  // repeats the inputs of a scale
#pragma unroll
    for (int i = 0; i < kQuantGroup; ++i) {
      group.x[i] = row.value(input_at(row, from, i % Rule::kInputs));
    }
    const Fit fit = Rule::fit(group, output_scale);
    const float inverse = inverse_of(fit.scale);
    if (first == 0) codes.scale = to_half(fit.scale);
    if (kHasHalves || Rule::kMins) codes.extra = to_half(kHasHalves ? fit.scale : fit.min);
#pragma unroll
    for (int i = 0; i < Rule::kInputs; ++i) {
      const float level = level_of(group.x[i], fit.min, inverse, Rule::kLow, Rule::kHigh);
      codes.code[first + i] = static_cast<int>(level) + kOffset;
    }
  }
  return codes;
}

// --- Kernels ---

__device__ TileRow tile_row_of(const QuantizeParams& params, int64_t row) {
  return tile_row_at(packed_index(params.first_row + row, params.out_features, params.is_gated));
}

// A warp per row finds the largest magnitude.
__global__ void output_scales_kernel(QuantizeParams params) {
  const int64_t row = int64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32;
  if (row >= params.source.num_rows) return;
  const SourceRow source{params.source, params.layout.in_features, row};
  const bool is_kept = can_keep<Int8>(source);
  float largest = 0.0f;
  for (int k = threadIdx.x % 32; k < source.in_features && !is_kept; k += 32) {
    largest = fmaxf(largest, fabsf(source.value(k)));
  }
  largest = warp_max(largest);
  if (threadIdx.x % 32 != 0) return;
  const TileRow tile_row = tile_row_of(params, row);
  unsigned char* weights = static_cast<unsigned char*>(params.weights);
  const float scale = is_kept            ? params.source.row_scales[row]
                      : largest < kLeast ? 0.0f
                                         : largest / 127.0f;
  *reinterpret_cast<float*>(weights + output_scale_at(params.layout, tile_row)) = scale;
}

template <class Rule>
__global__ void pack_kernel(QuantizeParams params) {
  const CodeLayout& layout = params.layout;
  const int num_groups = (layout.in_features + kQuantGroup - 1) / kQuantGroup;
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t row = index / num_groups;
  if (row >= params.source.num_rows) return;
  const int begin = static_cast<int>(index % num_groups) * kQuantGroup;
  const SourceRow source{params.source, layout.in_features, row};
  const TileRow tile_row = tile_row_of(params, row);
  unsigned char* weights = static_cast<unsigned char*>(params.weights);
  const Codes codes = [&] {
    if constexpr (Rule::kCodesOnly) {
      return kept<Rule>(source, begin);
    } else {
      if (can_keep<Rule>(source)) return kept<Rule>(source, begin);
      float output_scale = 0.0f;
      if (!Rule::kGrouped) output_scale = scale_and_min(weights, layout, tile_row, 0).x;
      return quantized<Rule>(source, begin, output_scale);
    }
  }();
  if (Rule::kTable && index == 0) {
    for (int i = 0; i < kCodeTableBytes; ++i) {
      weights[layout.scales_offset + i] = static_cast<unsigned char>(params.source.table[i]);
    }
  }

  unsigned char* block = weights + block_at(layout, tile_row.tile, begin);
  if (Rule::kGrouped) {
    *reinterpret_cast<uint16_t*>(block + scale_at(layout, tile_row.row)) = codes.scale;
  }
  if (Rule::kExtra != GroupExtra::kNone) {
    *reinterpret_cast<uint16_t*>(block + extra_at(layout, tile_row.row)) = codes.extra;
  }
#pragma unroll
  for (int i = 0; i < kQuantGroup; ++i) {
    unsigned char* byte = block + code_at(layout, tile_row.row, i);
    if (!Rule::kInt4) {
      *byte = static_cast<unsigned char>(codes.code[i]);
    } else if (i % 4 < 2) {
      *byte = static_cast<unsigned char>(codes.code[i] | codes.code[i + 2] << 4);
    }
  }
}

unsigned blocks_of(int64_t count, int of_block) {
  return static_cast<unsigned>((count + of_block - 1) / of_block);
}

template <class Rule>
void pack_with(Stream& stream, const QuantizeParams& params) {
  const int64_t num_groups = (params.layout.in_features + kQuantGroup - 1) / kQuantGroup;
  launch("quantize", stream, pack_kernel<Rule>,
         {.grid = {blocks_of(num_groups * params.source.num_rows, kThreads)}, .block = {kThreads}},
         params);
}

void pack(Stream& stream, const QuantizeParams& params) {
  if (!params.layout.is_grouped) {
    launch("quantize: output scales", stream, output_scales_kernel,
           {.grid = {blocks_of(params.source.num_rows, kThreads / 32)}, .block = {kThreads}},
           params);
    return pack_with<Int8>(stream, params);
  }
  if (params.layout.has_table) return pack_with<Int4Table>(stream, params);
  const bool is_int4 = params.layout.is_int4;
  switch (params.layout.extra) {
    case GroupExtra::kNone:
      return is_int4 ? pack_with<Int4Grouped>(stream, params)
                     : pack_with<Int8Grouped>(stream, params);
    case GroupExtra::kMin:
      return is_int4 ? pack_with<Int4GroupedMin>(stream, params)
                     : pack_with<Int8GroupedMin>(stream, params);
    case GroupExtra::kZero:
      return pack_with<Int4GroupedZero>(stream, params);
    case GroupExtra::kSecondScale:
      return pack_with<Int8Grouped16>(stream, params);
  }
}

}  // namespace

void pack_fp8(Stream& stream, const PackFp8Params& params);              // quantize_fp8.cu
void random_weights(Stream& stream, const RandomWeightsParams& params);  // random_weights.cu

QuantizeKernels quantize_kernels() {
  return {.pack = pack, .pack_fp8 = pack_fp8, .random_weights = random_weights};
}

}  // namespace specdec::cuda::SPECDEC_TARGET
