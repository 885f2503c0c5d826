// Projections: rows times a weight matrix, with the preparation of the rows before (gather, norm,
// conversion) and the epilogue after; and the packing of weights. kernels/tiles.cuh has the layouts
// and the order of sums.
//
// Plain versions: reference::norm, linear, activate, gated and split_qkv
// (tests/testing/oracle/operations.cc). ProjectionTest and QkvTest
// (tests/cuda/backend/projection_test.cc) and WideProjectionTest (projection_wide_test.cc) compare
// with them. Finish::kBest: best_tokens_test.cc takes the argmax of the outputs that Finish::kStore
// gives. ProjectionTilingTest (projection_tiling_test.cc) checks that the tiling changes no bit.
#pragma once

#include <algorithm>
#include <cstdint>

#include "backend/op_args.h"
#include "core/k_slices.h"
#include "cuda/gpu/device.h"

namespace specdec::cuda {

inline constexpr int kTileOutputs = 16;    // outputs of a tile of weights
inline constexpr int kBlockInputs = 32;    // inputs of a block of weights, and of a row's record
inline constexpr int kFewRows = 16;        // most rows that read the weights once, as one stream
inline constexpr int kMaxColumnTiles = 8;  // most tiles of 8 rows in a block, with many rows

// Packs consecutive outputs of a checkpoint's matrix into ActFormat's layout.
struct PackParams {
  const void* source = nullptr;  // [num_rows, in_features], on the device
  DType source_dtype = DType::kF32;
  DType act_dtype = DType::kBF16;
  int64_t first_row = 0;  // the output of row 0
  int64_t num_rows = 0;
  int64_t out_features = 0;
  int in_features = 0;
  bool gated = false;
  void* packed = nullptr;
};

enum class RowNorm : uint8_t { kNone, kRms, kLayer };

// The rows of a projection before their preparation: ProjectionInput.
struct RowsParams {
  const void* x = nullptr;  // [*, dim]
  bool is_float = true;     // float32, else act
  const int32_t* row_ids = nullptr;
  int num_rows = 0;
  int dim = 0;
  RowNorm norm = RowNorm::kNone;
  const float* weight = nullptr;  // [dim], with a norm
  const float* bias = nullptr;    // [dim], or null
  float eps = 0.0f;
};

// Rows that every few-rows kernel can prepare itself. Code for other rows would make them all
// longer.
inline bool is_plain(const RowsParams& rows) {
  return rows.is_float && rows.dim % 4 == 0 && rows.norm != RowNorm::kLayer && rows.bias == nullptr;
}

// Converts rows to records.
struct PrepareParams {
  RowsParams rows;
  DType act_dtype = DType::kBF16;
  void* out = nullptr;  // [num_rows, ceil(dim / 32)] records
};

// Reorders rows of elements of 16 bits: out[row, j] = rows[row, order[j]].
struct ReorderParams {
  const void* rows = nullptr;  // [num_rows, row_stride] act
  int64_t row_stride = 0;
  const int32_t* order = nullptr;  // [dim]
  int num_rows = 0;
  int dim = 0;
  void* out = nullptr;  // [num_rows, dim] act
};

// Heads of q, k and v: see QkvArgs.
struct HeadsParams {
  const float* q_norm = nullptr;
  const float* k_norm = nullptr;
  const float* v_norm = nullptr;
  bool norm_all_heads = false;  // only served by finish_sums
  bool norm_after_rope = false;
  float norm_eps = 0.0f;
  const float* rope_cos = nullptr;
  const float* rope_sin = nullptr;
  const float* query_scales = nullptr;  // [max_positions], or null
  int rotary_dim = 0;                   // 0: nothing is rotated
  int num_heads = 0;
  const int32_t* positions = nullptr;     // [num_rows]
  const int64_t* slot_mapping = nullptr;  // [num_rows]
  void* q = nullptr;
  PagedKvView kv;
  float* sums = nullptr;  // workspace [num_rows, out_features]
  // With norm_all_heads: a row's q, then k, of all ranks' heads, which may be more than num_heads.
  const float* norm_sums = nullptr;  // [num_rows, norm_stride]
  int norm_stride = 0;
  int norm_q_dim = 0;
  int norm_k_dim = 0;
  const SharedHeads* shared_heads = nullptr;  // in host memory: see QkvArgs
  // [row tiles, all heads] How many tiles of a head are done. Zero between launches.
  uint32_t* arrivals = nullptr;
};

// kBest: only for few rows that the kernel prepares itself.
enum class Finish : uint8_t { kStore, kActivate, kActivateGated, kHeads, kBest };

// Compile-time variant of a few-rows kernel, beside its Finish. Unused features are compiled out to
// fit the instruction cache. kSoftCap: stored or compared sums have a soft cap. kCodes: keys and
// values go to a cache of int8 codes. kAny, and kLayerRows for rows that are not plain, look at
// FinishParams at run time.
enum class FinishVariant : uint8_t { kAny, kPlain, kSoftCap, kCodes, kLayerRows };

// Whether a few-rows kernel prepares these rows itself. Rows with a layer norm or a bias have
// kernels only for the projections that begin a layer's blocks.
inline bool prepares_rows(const RowsParams& rows, Finish finish) {
  const bool begins_block =
      finish == Finish::kHeads || finish == Finish::kActivate || finish == Finish::kActivateGated;
  return is_plain(rows) || (begins_block && rows.is_float && rows.dim % 4 == 0);
}

// The likeliest token of each row: see BestTokensArgs.
struct BestParams {
  const int32_t* token_ids = nullptr;  // [out_features], or null
  int32_t* tokens = nullptr;           // [num_rows]
  uint64_t* keys = nullptr;            // workspace [blocks, num_rows]
  uint32_t* arrivals = nullptr;        // [1] blocks that are done, zero between launches
};

// Whether a projection lets the next kernel start before it has waited itself. Not with kHeads: the
// next kernel is attention, which works out its work list beside the projection and for that reads
// lengths before it waits (LaunchConfig::reads_before_wait).
inline constexpr bool starts_next_early(Finish finish) { return finish != Finish::kHeads; }

// The epilogue of a projection.
struct FinishParams {
  Finish kind = Finish::kStore;
  // [tiles, kTileOutputs] factors of the outputs' sums, or null
  const float* scales = nullptr;
  const float* bias = nullptr;  // [out_features], or null
  int out_features = 0;         // of the projection; gated: gates and ups
  void* out = nullptr;          // kStore: float32; kActivate*: act
  // kStore, where sums are not folded to one: floats from one plane of sums to the next.
  int64_t plane_stride = 0;
  bool accumulate = false;  // kStore: this, scale and soft_cap as in LinearArgs
  float scale = 1.0f;
  float soft_cap = 0.0f;
  Activation activation = Activation::kIdentity;
  ActivationConstants constants = {};
  HeadsParams heads;
  BestParams best = {};
};

// Whether stored sums are changed by more than an addition to the old output.
inline bool changes_sums(const FinishParams& finish) {
  return finish.bias != nullptr || finish.scale != 1.0f || finish.soft_cap != 0.0f;
}

// A FoldOrder as a kernel parameter. Not an array of structs: GCC 12's __builtin_clear_padding, by
// which the emulation clears parameters, would miss the padding behind the array.
struct DeviceFoldOrder {
  int8_t num_folds[kNumSlices] = {};
  int8_t stack_indices[kNumSlices] = {};
  int num_entries = 0;
  int num_left = 0;

  DeviceFoldOrder() = default;
  DeviceFoldOrder(const FoldOrder& order)
      : num_entries(order.num_entries), num_left(order.num_left) {
    for (int i = 0; i < num_entries; ++i) {
      num_folds[i] = static_cast<int8_t>(order.entries[i].num_folds);
      stack_indices[i] = static_cast<int8_t>(order.entries[i].stack_index);
    }
  }
  constexpr FoldEntry entry(int i) const { return {num_folds[i], stack_indices[i]}; }
  // Sums that wait, at most, while another two are in registers.
  constexpr int most_waiting() const {
    return num_entries > 0 ? *std::max_element(stack_indices, stack_indices + num_entries) : 0;
  }
  // Folds all slices to one sum.
  constexpr bool is_whole() const { return num_entries == kNumSlices && num_left == 1; }
};

// The slices of k that a weight has, in order, and how their sums fold: core/k_slices.h.
struct SliceParams {
  int bounds[kNumSlices + 1] = {};  // k blocks: slice i is [bounds[i], bounds[i + 1])
  DeviceFoldOrder fold_order = {};  // an entry per slice
};

// Where the few-rows kernel gets its rows from.
enum class RowSource : uint8_t {
  kRecords,    // records that an earlier kernel has written
  kShared,     // every block prepares all rows for itself, in shared memory; at most 8 rows
  kExchanged,  // every block prepares some of the rows for all; blocks wait for each other
  // The last two are for rows that prepares_rows() allows, and no others.
};

// The tiling of a projection. It changes no result.
struct ProjectionTiling {
  bool few_rows = false;                       // at most kFewRows: the few-rows kernel
  RowSource row_source = RowSource::kRecords;  // few_rows
  int tiles_at_once = 1;      // few_rows: 1 or 2 tiles per warp, where the kernel can
  int num_blocks = 1;         // few_rows, at most num_tiles; project_wide: blocks of the grid
  int column_tiles = 8;       // else: 4 or 8 tiles of 8 rows per block
  bool split_slices = false;  // else: a block per slice; partial sums meet in memory
  int wide_splits = 0;   // not 0: project_wide, where so many blocks (1, 2, 4, 8) share the slices
  int stream_rows = 0;   // not 0: project_stream, of so many rows: 8, 16, 32 or 64
  int stream_units = 1;  // then: slices of groups of kStreamTiles tiles per block
};

struct ProjectionParams {
  WeightFormat format = WeightFormat::kAct;
  DType act_dtype = DType::kBF16;
  const void* weights = nullptr;
  int num_tiles = 0;
  int num_k_blocks = 0;
  SliceParams slices = {};
  RowsParams rows;
  // The rows' records [*, num_k_blocks]; with few rows indexed by rows.row_ids, if given. Only read
  // with RowSource::kRecords.
  const void* records = nullptr;
  // kExchanged: the records [rows.num_rows, num_k_blocks] that the blocks write, and counters of
  // rows written and of blocks that have seen all rows, zero between launches.
  void* exchanged = nullptr;
  uint32_t* exchange_counts = nullptr;  // [2]
  FinishParams finish;
  ProjectionTiling tiling;
  // With split_slices, or wide_splits of more than 1: [blocks of tiles, row tiles, slices or
  // splits] x partial_floats, and for every block of tiles and row tile a counter, zero between
  // launches. With stream_rows: [blocks, kStreamNodes] x stream_partial_floats, and a counter for
  // every tile.
  float* partials = nullptr;
  uint32_t* partial_arrivals = nullptr;
};

// Tiles of a block of the many-rows kernel: its 8 warps have one each.
inline constexpr int kManyRowsTiles = 8;
inline constexpr int64_t partial_floats(int column_tiles) {
  return int64_t{kManyRowsTiles} * kTileOutputs * column_tiles * 8;
}

// Blocks of project_wide: their rows, and their tiles of weights.
inline constexpr int kWideRows = 128;
inline constexpr int kWideTiles = kManyRowsTiles;
// Sums of slices that may wait in shared memory while a block of project_wide sums others.
inline constexpr int kWideLevels = 2;

// project_stream: tiles of a group, and the most rows.
inline constexpr int kStreamTiles = 8;
inline constexpr int kMostStreamRows = 64;
inline constexpr int stream_groups(int num_tiles) {
  return (num_tiles + kStreamTiles - 1) / kStreamTiles;
}
// Sums of subtrees of slices that a block may leave for others: three of a run of slices that ends
// a group, and of one that begins a group; or four of one within.
inline constexpr int kStreamNodes = 6;
inline constexpr int64_t stream_partial_floats(int stream_rows) {
  return int64_t{kStreamTiles} * kTileOutputs * stream_rows;
}
inline constexpr bool can_stream(WeightFormat format) {
  return format == WeightFormat::kAct || format == WeightFormat::kInt8;
}

// Bytes of a record: 32 inputs of a row, as act elements.
inline constexpr int kRecordBytes = kBlockInputs * 2;
// Bytes of dynamic shared memory of the few-rows kernel before the prepared rows: two buffers for
// the sums of slices, which are also scratch for a head per warp.
inline constexpr int64_t few_rows_exchange_bytes(int num_rows, int tiles_at_once) {
  return int64_t{2} * 8 * tiles_at_once * (num_rows > 8 ? 2 : 1) * kTileOutputs * 8 * 4;
}
// Bytes of its shared memory behind the prepared rows. With heads: every row's slot, factor of q
// and rotation. For likeliest tokens: every warp's best keys.
inline constexpr int64_t heads_tail_bytes(int num_rows, int rotary_dim) {
  return int64_t{kFewRows} * (8 + 4) + int64_t{num_rows} * rotary_dim * 4;
}
inline constexpr int64_t kBestKeyBytes = int64_t{8} * kFewRows * 8;
// Most bytes of records that every block prepares for itself: the rows must be ready when the first
// weights arrive.
inline constexpr int64_t kSharedRowBytes = int64_t{16} << 10;

// Unpacks tiles of WeightFormat::kAct into a row-major matrix, for a library's GEMM.
struct UnpackParams {
  const void* weights = nullptr;  // of the first tile
  int num_tiles = 0;
  int num_k_blocks = 0;
  void* out = nullptr;  // [num_tiles * kTileOutputs, num_k_blocks * kBlockInputs] act
};

// The epilogue for sums in memory, which a library's GEMM or an exchange of ranks left there,
// outputs in the order of the tiles.
struct FinishSumsParams {
  DType act_dtype = DType::kBF16;
  // kHeads: all sums are in heads.sums; of the fields below only num_rows is read.
  FinishParams finish;
  int num_rows = 0;
  const float* sums = nullptr;  // [num_rows, ld]
  int64_t ld = 0;
  int first_tile = 0;  // tile of a row's first sum
  int num_tiles = 0;
  // Unless empty: the sums are planes of partial sums, an entry each, that fold to one.
  DeviceFoldOrder fold_order = {};
  int64_t plane_stride = 0;  // floats
};

struct ProjectionKernels {
  void (*pack)(Stream& stream, const PackParams& params) = nullptr;
  void (*prepare_rows)(Stream& stream, const PrepareParams& params) = nullptr;
  void (*reorder_rows)(Stream& stream, const ReorderParams& params) = nullptr;
  void (*project)(Stream& stream, const ProjectionParams& params) = nullptr;
  // WeightFormat::kAct on compute capability 9.0, by wgmma. Sums of heads are stored to
  // heads.sums, for finish_sums. Null if the build has no kernels for it.
  void (*project_wide)(Stream& stream, const ProjectionParams& params) = nullptr;
  // Formats that can_stream() on compute capability 9.0, by wgmma: the bits of project. Rows are
  // records in order, slices fold to one sum, and Finish::kBest is not served. Null likewise.
  void (*project_stream)(Stream& stream, const ProjectionParams& params) = nullptr;
  void (*unpack)(Stream& stream, const UnpackParams& params) = nullptr;
  void (*finish_sums)(Stream& stream, const FinishSumsParams& params) = nullptr;
};

namespace native {
ProjectionKernels projection_kernels();
}
namespace emulated {
ProjectionKernels projection_kernels();
}

}  // namespace specdec::cuda
