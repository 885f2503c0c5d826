// Prepares rows for a projection: gathers, normalises and converts them; and scales and mixes rows.
// Plain aggregates only: see kernel_table.h.
#pragma once

#include <cstdint>

namespace specdec::cpu {

enum RowNorm : int { kNoNorm, kRmsNorm, kLayerNorm };

struct RowsTask {
  const void* x;  // [*, dim] float32 or bfloat16
  bool x_bf16 = false;
  const int32_t* row_ids = nullptr;  // row i is row row_ids[i] of x; null: row i
  int64_t dim;
  RowNorm norm = kNoNorm;         // only for float32 rows
  const float* weight = nullptr;  // [dim], with a norm
  const float* bias = nullptr;    // [dim], or null
  float eps = 0.0f;
  int64_t row_begin = 0;
  int64_t row_end;
  void* out;                // [*, out_stride], elements past dim are zero
  int64_t out_stride;       // in elements, at least dim; for codes, in IntRowGroups
  bool accumulate = false;  // to_f32: added to what out holds, then times sum_scale
  float sum_scale = 1.0f;
  // Codes only, of the weights: k of a group, 32 or 16; the code offset (IntRowGroup::start), and
  // whether it has two halves; whether they have zeros (IntRowGroup::min).
  int group_size = 32;
  int code_offset = 0;
  bool halves_start = false;
  bool has_zeros = false;
};

// See ScaleRowsArgs.
struct ScaleRowsTask {
  void* rows;  // [*, dim] float32 or bfloat16
  bool is_bf16;
  const float* gates;     // [*], or null
  const float* factors;   // [*, factor_stride], where gates are null
  int64_t factor_stride;  // at least dim
  bool factors_are_gates;
  int64_t dim;
  int64_t row_begin;
  int64_t row_end;
};

// See StreamsView.
struct StreamsTask {
  float* data;     // stream k begins at k * stride: [*, dim]
  int64_t stride;  // in elements
  int num_streams;
  int64_t dim;
  int64_t row_begin;
  int64_t row_end;
  const float* modalities;  // [*, num_streams]
};
enum : int { kMaxTaskStreams = 8 };

// See PredictStreamsArgs.
struct PredictStreamsTask {
  StreamsTask streams;
  const float* coefficients;  // [num_streams^2, num_streams]
};

// See CorrectStreamsArgs.
struct CorrectStreamsTask {
  StreamsTask streams;
  int active;
  const float* activated;     // [*, dim]
  const float* coefficients;  // [num_streams, num_streams]
};

// See MatchMagnitudeArgs.
struct MatchMagnitudeTask {
  const float* x;          // [*, dim]
  const float* reference;  // [*, dim], or null
  float* out;              // [*, dim]
  bool accumulate;
  float scale;  // with `accumulate`
  int64_t dim;
  int64_t row_begin;
  int64_t row_end;
};

struct RowsKernels {
  void (*to_f32)(const RowsTask& task);
  void (*to_bf16)(const RowsTask& task);
  void (*to_widened_bf16)(const RowsTask& task);  // rounded to bfloat16, stored as float32
  // Per group: scale = largest magnitude / 127 and codes = round(x / scale), ties to even.
  // Elements are float32 here, bfloat16 ones widened; an element's code depends on its group alone.
  void (*to_int8)(const RowsTask& task);
  void (*to_widened_int8)(const RowsTask& task);  // likewise, in int16: see LinearKernels
  void (*scale_rows)(const ScaleRowsTask& task);
  void (*predict_streams)(const PredictStreamsTask& task);
  void (*correct_streams)(const CorrectStreamsTask& task);
  void (*match_magnitude)(const MatchMagnitudeTask& task);
};

}  // namespace specdec::cpu
