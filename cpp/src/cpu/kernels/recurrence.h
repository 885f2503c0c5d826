// Short convolutions, linear recurrences and gated norms of recurrent layers.
// Plain aggregates only: see kernel_table.h.
#pragma once

#include <cstdint>

namespace specdec::cpu {

// See StateStore.
struct StoredState {
  int32_t num_tokens;
  int32_t slot;
};

// A step of a walk over a request's rows, depth first. A row has nothing but the state before it
// computed, for its children: what it adds to the state is applied by the visit of its first child.
// States are kept in levels; the first visit finds level 0 empty.
struct RowVisit {
  int32_t row;
  int32_t from;  // the level with the state before this row, or with `applies` before the
                 // row that was visited last, which is then the parent
  int32_t to;    // with `applies`, the level that gets the state before this row
  bool applies;  // not in the first visit
  bool has_no_children;
};

// A request of a batch: see RecurrentRows.
struct RecurrentRequest {
  int64_t row_begin;
  int num_rows;
  int32_t slot_in;
  const int32_t* pending;
  int num_pending;
  const StoredState* stores;
  int num_stores;
  const int32_t* parents;  // [num_rows]
  const RowVisit* visits;  // [num_rows]
};

// See ShortConvArgs. Channels [begin, end) of a request, at most kConvSlab.
struct ShortConvTask {
  const float* x;
  const float* input_gates;   // or null
  const float* output_gates;  // or null
  int64_t stride;
  const float* taps;  // [width, end - begin]
  const float* bias;  // or null
  bool silu;
  int width;
  int64_t num_channels;
  int64_t begin;
  int64_t end;
  float* tails;
  float* conv_records;
  const int32_t* records;  // of the batch's rows
  void* out;
};
enum : int { kConvSlab = 512, kMaxTaps = 4 };

// Transposes taps [width, end - begin] out of weight [*, width].
struct ConvTapsTask {
  const float* weight;
  int width;
  int64_t begin;
  int64_t end;
  float* taps;
};

// See RecurrenceArgs.
struct RecurrenceTask {
  bool is_delta;
  int num_key_heads;
  int num_heads;
  int key_dim;
  int value_dim;
  float* queries;
  float* keys;
  const float* values;
  int64_t stride;
  float* steps;  // decays, once the rows are prepared
  int64_t step_stride;
  const float* decay_rates;
  const float* step_bias;
  const float* skip;  // or null
  // What an update is multiplied by: b or t. Of kGatedDelta they are the gates until the rows are
  // prepared.
  float* factors;  // [num_rows, num_heads]
  int64_t factor_stride;
  float* dots;  // [num_rows, num_key_heads] k . q
  float* matrices;
  float* state_records;
  int64_t record_size;
  const int32_t* records;  // of the batch's rows
  float* out;
};

// Columns [begin, end) of a head's matrix, at most kColumnSlab.
struct ColumnSlab {
  int head;
  int begin;
  int end;
};
enum : int { kColumnSlab = 32 };

// See GatedNormArgs.
struct GatedNormTask {
  const float* x;
  const float* gates;
  int64_t gate_stride;
  const float* weight;
  float eps;
  bool gates_first;
  int64_t num_groups;
  int64_t dim;
  float* scratch;  // [dim]
  void* out;
};

// out = x * SiLU(gates), of `count` values.
struct GateTask {
  const float* x;
  const float* gates;
  int64_t count;
  float* out;
};

// Values [begin, end) of a normalised group of `dim` values that have been gated. `weight` and
// `out` have only these.
struct GroupNormTask {
  const float* x;  // [dim]
  const float* weight;
  float eps;
  int64_t dim;
  int64_t begin;
  int64_t end;
  void* out;
};

struct RecurrenceKernels {
  void (*conv_taps)(const ConvTapsTask& task);
  void (*conv_to_f32)(const ShortConvTask& task, const RecurrentRequest& request);
  void (*conv_to_bf16)(const ShortConvTask& task, const RecurrentRequest& request);
  // The normalised keys and queries, dots, factors and decays of pairs [begin, end) of a row and a
  // key head.
  void (*prepare)(const RecurrenceTask& task, int64_t begin, int64_t end);
  // `next` is where the slab after this one lies in the state that will be read then, or null.
  // scratch: [num_levels + 1, key_dim, kColumnSlab].
  void (*run)(const RecurrenceTask& task, const RecurrentRequest& request, const ColumnSlab& slab,
              int num_levels, const float* next, float* scratch);
  // Pairs [begin, end) of a row and a group.
  void (*gated_norm_to_f32)(const GatedNormTask& task, int64_t begin, int64_t end);
  void (*gated_norm_to_bf16)(const GatedNormTask& task, int64_t begin, int64_t end);
  // The steps of a gated norm with gates first, where ranks share its groups.
  void (*gate)(const GateTask& task);
  void (*group_norm_to_f32)(const GroupNormTask& task);
  void (*group_norm_to_bf16)(const GroupNormTask& task);
};

}  // namespace specdec::cpu
