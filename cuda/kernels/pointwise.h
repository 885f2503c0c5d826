// Norms, embedding lookups, residual streams and rows of features.
//
// Plain versions: reference::norm, scaled_rows, sparse_gates, predicted_streams, corrected_streams,
// matched_magnitude and loaded_rows (tests/testing/oracle/operations.cc).
// tests/cuda/backend/pointwise_test.cc and features_test.cc compare with them, and lookups with the
// rows of the table.
#pragma once

#include <cstdint>

#include "backend/op_args.h"
#include "core/dtype.h"
#include "cuda/gpu/device.h"
#include "cuda/kernels/quantize_layout.h"

namespace specdec::cuda {

struct NormRowsParams {
  const float* x;       // [num_rows, dim]
  const float* weight;  // [dim]
  const float* bias;    // [dim], or null
  float eps;
  bool is_layer;          // subtracts the mean first
  bool accumulate;        // out = scale * (out + norm(x)); only with a float32 out
  float scale;            // with `accumulate` only
  Activation activation;  // without constants
  void* out;              // row i goes to `out` + i * out_stride, in elements
  DType out_dtype;
  int num_rows;
  int dim;
  // Not null: row i goes to `out` + slot_mapping[i] * out_stride; with -1 it is not written.
  const int64_t* slot_mapping;
  int64_t out_stride;
};

struct EmbedRowsParams {
  const void* table;  // packed
  int num_embeddings;
  int dim;
  const int32_t* token_ids;  // [num_rows]
  int32_t index_offset;      // added to every id
  bool accumulate;           // out += row instead of out = row
  float scale;               // every row is multiplied by it
  bool unknown_is_first;     // ids past the table read its first row
  float* out;                // [num_rows, dim]
  int num_rows;
};

// StoreRowsArgs without a norm.
struct StoreRowsParams {
  const float* x;               // [num_rows, dim]
  const int64_t* slot_mapping;  // [num_rows], -1: the row is left out; null: row i goes to row i
  void* out;                    // act; row i goes to out + slot_mapping[i] * out_stride, elements
  DType act_dtype;
  int64_t out_stride;
  int dim;
  int num_rows;
};

struct LoadRowsParams {
  const void* from;      // act; row i is read at from + slots[i] * from_stride, elements
  const int64_t* slots;  // [num_rows], -1: zeros; null: row i is at row i
  DType act_dtype;
  int64_t from_stride;
  float* out;  // [num_rows, dim]
  bool accumulate;
  int dim;
  int num_rows;
};

// ScaleRowsArgs.
struct ScaleRowsParams {
  void* rows;  // [num_rows, dim] act
  DType act_dtype;
  const float* gates;     // [num_rows], or null: the factors are read
  const float* factors;   // row i begins at factors + i * factor_stride
  int64_t factor_stride;  // elements
  bool factors_are_gates;
  int num_rows;
  int dim;
};

// Leaves a row's outputs in the num_kept runs with the greatest scores (ClusterLogitsArgs), and
// makes the others -inf.
struct KeepClustersParams {
  float* logits;        // [num_rows, num_clusters * cluster_size]
  const float* scores;  // [num_rows, num_clusters]
  int num_rows;
  int num_clusters;
  int num_kept;
  int cluster_size;
};

struct PointwiseKernels {
  void (*norm)(Stream&, const NormRowsParams&);
  // A row whose id is outside the table becomes NaN.
  void (*embed_act)(Stream&, const EmbedRowsParams&, DType act_dtype);
  void (*embed_codes)(Stream&, const EmbedRowsParams&, const CodeLayout&);
  void (*scale_rows)(Stream&, const ScaleRowsParams&);
  void (*sparse_gates)(Stream&, const SparseGatesArgs&);
  void (*keep_clusters)(Stream&, const KeepClustersParams&);
  void (*predict_streams)(Stream&, const PredictStreamsArgs&);
  void (*correct_streams)(Stream&, const CorrectStreamsArgs&);
  void (*match_magnitude)(Stream&, const MatchMagnitudeArgs&);
  void (*store_rows)(Stream&, const StoreRowsParams&);
  void (*load_rows)(Stream&, const LoadRowsParams&);
  void (*gather_rows)(Stream&, const GatherRowsArgs&);
};

namespace native {
PointwiseKernels pointwise_kernels();
}
namespace emulated {
PointwiseKernels pointwise_kernels();
}

}  // namespace specdec::cuda
