// Sums over k in slices that are folded: see LinearTask. Only for the files of matrix products,
// each of which has its own copy.
#pragma once

#include <cstdint>

#include "cpu/kernels/linear.h"

namespace specdec::cpu {
namespace {

// A part of k, and the slice in which the part begins.
struct SliceSpan {
  const SumSlice* slice;
  const SumSlice* slices_end;
  bool starts;  // nothing of the slice was summed before
  int64_t k;
  int64_t end;
};

inline SliceSpan slice_span(const LinearTask& task, int64_t k, int64_t end) {
  const SumSlice* slice = task.slices;
  bool starts = true;
  while (k > 0 && slice->end <= k) ++slice;
  if (k > 0) starts = slice != task.slices && slice[-1].end == k;
  return {.slice = slice,
          .slices_end = task.slices + task.num_slices,
          .starts = starts,
          .k = k,
          .end = end};
}

// The k of the current slice that is within the span.
inline int64_t k_of_slice(const SliceSpan& span) {
  return (span.slice->end < span.end ? span.slice->end : span.end) - span.k;
}

// Whether summing k_of_slice() completes the slice.
inline bool completes_slice(const SliceSpan& span) { return span.slice->end <= span.end; }

// Goes on to the next slice; false when the span is done. A slice without any k belongs to the span
// that ends at its k.
inline bool next_slice(SliceSpan& span) {
  span.k = span.slice->end;
  span.starts = true;
  ++span.slice;
  return span.slice != span.slices_end && (span.k < span.end || span.slice->end == span.k);
}

// Sums of a tile's rows: row r at data + r * stride.
struct SumsAt {
  float* data;
  int64_t stride;
};

// Where the sums of a tile are stored, `width` floats per row.
struct TileSums {
  float* out;  // first result; the next ones are plane_stride further on
  int64_t out_stride;
  int64_t plane_stride;
  float* partials;  // [rows, kMaxPartials, width]

  SumsAt partial(int stack_index, int64_t width) const {
    return {partials + stack_index * width, kMaxPartials * width};
  }
  SumsAt result(const SumSlice& slice, int64_t width) const {
    if (!slice.is_left) return partial(slice.stack_index, width);
    return {out + slice.stack_index * plane_stride, out_stride};
  }
  // Where the sums of an incomplete slice are kept.
  SumsAt unfinished(const SumSlice& slice, int64_t width) const {
    if (slice.num_folds == 0) return result(slice, width);
    return partial(slice.stack_index + slice.num_folds, width);
  }
};

inline TileSums tile_sums(const LinearTask& task, int64_t row, int64_t block, int64_t width) {
  return {.out = task.sums + row * task.sums_stride + block * 16,
          .out_stride = task.sums_stride,
          .plane_stride = task.plane_stride,
          .partials = task.partials + row * kMaxPartials * width};
}

}  // namespace
}  // namespace specdec::cpu
