// Sums over k in steps that are folded: see LinearTask. Only for the files of matrix products, each
// of which has its own copy.
#pragma once

#include <cstdint>

#include "cpu/kernels/linear.h"

namespace specdec::cpu {
namespace {

// A part of k, and the step in which the part begins.
struct StepSpan {
  const SumStep* step;
  const SumStep* steps_end;
  bool starts;  // nothing of the step was summed before
  int64_t k;
  int64_t end;
};

inline StepSpan step_span(const LinearTask& task, int64_t k, int64_t end) {
  const SumStep* step = task.steps;
  bool starts = true;
  while (k > 0 && step->end <= k) ++step;
  if (k > 0) starts = step != task.steps && step[-1].end == k;
  return {
      .step = step, .steps_end = task.steps + task.num_steps, .starts = starts, .k = k, .end = end};
}

// The k of the current step that is within the span.
inline int64_t k_of_step(const StepSpan& span) {
  return (span.step->end < span.end ? span.step->end : span.end) - span.k;
}

// Whether summing k_of_step() completes the step.
inline bool completes_step(const StepSpan& span) { return span.step->end <= span.end; }

// Goes on to the next step; false when the span is done. A step without any k belongs to the span
// that ends at its k.
inline bool next_step(StepSpan& span) {
  span.k = span.step->end;
  span.starts = true;
  ++span.step;
  return span.step != span.steps_end && (span.k < span.end || span.step->end == span.k);
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

  SumsAt partial(int slot, int64_t width) const {
    return {partials + slot * width, kMaxPartials * width};
  }
  SumsAt result(const SumStep& step, int64_t width) const {
    if (!step.is_left) return partial(step.slot, width);
    return {out + step.slot * plane_stride, out_stride};
  }
  // Where the sums of an incomplete step are kept.
  SumsAt unfinished(const SumStep& step, int64_t width) const {
    if (step.num_folds == 0) return result(step, width);
    return partial(step.slot + step.num_folds, width);
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
