// Products with weight matrices: rows on their way in (gathered, normalised, converted), the
// product, and what becomes of the sums; and the packing of weights. kernels/tiles.cuh has the
// layouts and the order of sums.
#pragma once

#include <algorithm>
#include <cstdint>

#include "backend/op_args.h"
#include "core/k_slices.h"
#include "cuda/gpu/device.h"

namespace specdec::cuda {

inline constexpr int kTileOutputs = 16;    // outputs of a tile of weights
inline constexpr int kBlockInputs = 32;    // inputs of a block of weights, and of a row's record
inline constexpr int kFewRows = 16;        // rows that read the weights once, as one stream
inline constexpr int kMaxColumnTiles = 8;  // of 8 rows, of one block of the kernel for many rows

// Consecutive outputs of a matrix from a checkpoint into ActFormat's layout.
struct PackParams {
  const void* source = nullptr;  // [num_rows, in_features], on the device
  DType source_dtype = DType::kF32;
  DType act_dtype = DType::kBF16;
  int64_t first_row = 0;  // the output that row 0 is
  int64_t num_rows = 0;
  int64_t out_features = 0;
  int in_features = 0;
  bool gated = false;
  void* packed = nullptr;
};

enum class RowNorm : uint8_t { kNone, kRms, kLayer };

// The rows of a product as they come: ProjectionInput.
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

// Rows that all products of few rows prepare themselves. The code for others would be in the way.
inline bool is_plain(const RowsParams& rows) {
  return rows.is_float && rows.dim % 4 == 0 && rows.norm != RowNorm::kLayer && rows.bias == nullptr;
}

// Rows as records.
struct PrepareParams {
  RowsParams rows;
  DType act_dtype = DType::kBF16;
  void* out = nullptr;  // [num_rows, ceil(dim / 32)] records
};

// Heads of q, k and v: see QkvArgs.
struct HeadsParams {
  const float* q_norm = nullptr;
  const float* k_norm = nullptr;
  bool norm_all_heads = false;  // only served by finish_sums
  float norm_eps = 0.0f;
  const float* rope_cos = nullptr;
  const float* rope_sin = nullptr;
  int rotary_dim = 0;  // 0: nothing is rotated
  int num_heads = 0;
  const int32_t* positions = nullptr;     // [num_rows]
  const int64_t* slot_mapping = nullptr;  // [num_rows]
  void* q = nullptr;
  PagedKvView kv;
  float* sums = nullptr;  // workspace [num_rows, out_features]
  // With norm_all_heads, a row's q, then k, of all heads, which may be more than num_heads.
  const float* norm_sums = nullptr;  // [num_rows, norm_stride]
  int norm_stride = 0;
  int norm_q_dim = 0;
  int norm_k_dim = 0;
  const SharedHeads* shared_heads = nullptr;  // of the host: see QkvArgs
  // How many tiles of a head are done, for every row tile: [row tiles, all heads]. Zero between
  // launches.
  uint32_t* arrivals = nullptr;
};

// kBest: of few rows that the product prepares itself.
enum class Finish : uint8_t { kStore, kActivate, kActivateGated, kHeads, kBest };

// What a kernel for few rows is compiled for beside its Finish, as code for what is not there would
// be in the way: sums that are stored or compared may have a soft cap, and heads of keys and values
// may go to a cache of int8 codes. Others look at FinishParams when they run, and so do those for
// rows that are not plain.
enum class FinishVariant : uint8_t { kAny, kPlain, kSoftCap, kCodes, kLayerRows };

// Whether a product of few rows prepares these rows itself. Those with a layer norm or a bias have
// kernels of their own for what a layer begins its blocks with.
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
  uint32_t* arrivals = nullptr;        // [1] of blocks, zero between launches
};

// Whether products let the next kernel start before they wait themselves. Not where that is
// attention, which then plans in the time of the product: LaunchConfig::reads_before_wait.
inline constexpr bool starts_next_early(Finish finish) { return finish != Finish::kHeads; }

// What becomes of the sums.
struct FinishParams {
  Finish kind = Finish::kStore;
  // [tiles, kTileOutputs] what the sums of an output are multiplied with, or null
  const float* scales = nullptr;
  const float* bias = nullptr;  // [out_features], or null
  int out_features = 0;         // of the product; gated: gates and ups
  void* out = nullptr;          // kStore: float32; kActivate*: act
  // kStore of sums that are not folded to one: floats from one plane of them to the next.
  int64_t plane_stride = 0;
  bool accumulate = false;  // kStore: this and what follows, as of LinearArgs
  float scale = 1.0f;
  float soft_cap = 0.0f;
  Activation activation = Activation::kIdentity;
  HeadsParams heads;
  BestParams best = {};
};

// Whether more than an addition to what is there becomes of stored sums.
inline bool changes_sums(const FinishParams& finish) {
  return finish.bias != nullptr || finish.scale != 1.0f || finish.soft_cap != 0.0f;
}

// A FoldPlan as kernels take it. Not as an array of structs: GCC 12 would leave the padding behind
// it as it is, where the emulation clears it.
struct FoldOrder {
  int8_t num_folds[kNumSlices] = {};
  int8_t slots[kNumSlices] = {};
  int num_steps = 0;
  int num_left = 0;

  FoldOrder() = default;
  FoldOrder(const FoldPlan& plan) : num_steps(plan.num_steps), num_left(plan.num_left) {
    for (int i = 0; i < num_steps; ++i) {
      num_folds[i] = static_cast<int8_t>(plan.steps[i].num_folds);
      slots[i] = static_cast<int8_t>(plan.steps[i].slot);
    }
  }
  constexpr FoldStep step(int i) const { return {num_folds[i], slots[i]}; }
  // Of all slices, to one sum.
  constexpr bool is_whole() const { return num_steps == kNumSlices && num_left == 1; }
};

// The slices of k that a weight has, in order, and how their sums fold: core/k_slices.h.
struct SliceParams {
  int bounds[kNumSlices + 1] = {};  // k blocks: slice i is [bounds[i], bounds[i + 1])
  FoldOrder plan = {};              // a step a slice
};

// Where the streaming kernel for few rows has them from.
enum class RowSource : uint8_t {
  kRecords,    // records that are there
  kShared,     // every block prepares all rows for itself, in shared memory; at most 8 rows
  kExchanged,  // every block prepares some of the rows for all; blocks wait for each other
  // The last two are for rows that prepares_rows() allows, and no others.
};

// How a product is cut up; never changes a result, but for wide_rows.
struct ProductPlan {
  bool few_rows = false;                       // at most kFewRows: the streaming kernel
  RowSource row_source = RowSource::kRecords;  // few_rows
  int tiles_at_once = 1;      // few_rows: 1 or 2 tiles a warp, where the kernel can
  int num_blocks = 1;         // few_rows: of the grid, at most num_tiles
  int column_tiles = 8;       // else: 4 or 8 tiles of 8 rows a block
  bool split_slices = false;  // else: a block a slice; partial sums meet in memory
  int wide_rows = 0;          // not 0: wide_product, so many rows a block; one of kWideRows
};

struct ProductParams {
  WeightFormat format = WeightFormat::kAct;
  DType act_dtype = DType::kBF16;
  const void* weights = nullptr;
  int num_tiles = 0;
  int num_k_blocks = 0;
  SliceParams slices = {};
  RowsParams rows;
  // Records [*, num_k_blocks] of the rows; few rows: by rows.row_ids if those are given. Unused
  // with other sources than kRecords.
  const void* records = nullptr;
  // kExchanged: records [rows.num_rows, num_k_blocks] that the blocks write, and counts of rows and
  // of blocks, zero between launches.
  void* exchanged = nullptr;
  uint32_t* exchange_counts = nullptr;  // [2]
  FinishParams finish;
  ProductPlan plan;
  // With split_slices: [blocks of tiles, row tiles, slices] x partial_floats, and a zero count for
  // every block of tiles and row tile.
  float* partials = nullptr;
  uint32_t* partial_arrivals = nullptr;
};

// Of one block of the kernel for many rows: 8 warps, each with a tile.
inline constexpr int kManyRowsTiles = 8;
inline constexpr int64_t partial_floats(int column_tiles) {
  return int64_t{kManyRowsTiles} * kTileOutputs * column_tiles * 8;
}

// Blocks of wide_product: rows, and tiles of weights.
inline constexpr int kWideRows[2] = {128, 256};
inline constexpr int wide_tiles(int wide_rows) { return wide_rows == kWideRows[0] ? 4 : 8; }

// Bytes of 32 inputs of a row, as the products read them: act elements.
inline constexpr int kRecordBytes = kBlockInputs * 2;
// Bytes of dynamic shared memory of the streaming kernel before the prepared rows: sums of slices,
// twice; or a head for every warp.
inline constexpr int64_t few_rows_exchange_bytes(int num_rows, int tiles_at_once) {
  return int64_t{2} * 8 * tiles_at_once * (num_rows > 8 ? 2 : 1) * kTileOutputs * 8 * 4;
}
// What lies behind the prepared rows. Of heads: a row's rotation and slot. Of likeliest tokens: the
// best one of every warp.
inline constexpr int64_t heads_tail_bytes(int num_rows, int rotary_dim) {
  return int64_t{kFewRows} * 8 + int64_t{num_rows} * rotary_dim * 4;
}
inline constexpr int64_t kBestKeyBytes = int64_t{8} * kFewRows * 8;
// Rows as records up to which every block prepares them for itself: that must be done when the
// first weights are there.
inline constexpr int64_t kSharedRowBytes = int64_t{16} << 10;
// Of any kind of it beside attention with heads of up to 128.
inline constexpr int64_t kMostFewRowsBytes =
    std::max({few_rows_exchange_bytes(8, 2) + kSharedRowBytes + kBestKeyBytes,
              few_rows_exchange_bytes(kFewRows, 2) + kBestKeyBytes,
              few_rows_exchange_bytes(8, 1) + kSharedRowBytes + heads_tail_bytes(8, 256),
              few_rows_exchange_bytes(kFewRows, 1) + heads_tail_bytes(kFewRows, 256)});

// Tiles of WeightFormat::kAct as a plain matrix, for products by code that is not ours.
struct UnpackParams {
  const void* weights = nullptr;  // of the first tile
  int num_tiles = 0;
  int num_k_blocks = 0;
  void* out = nullptr;  // [num_tiles * kTileOutputs, num_k_blocks * kBlockInputs] act
};

// What becomes of sums that such code left in memory, outputs in the order of the tiles.
struct FinishSumsParams {
  DType act_dtype = DType::kBF16;
  // kHeads: all sums are in heads.sums, and the fields below but num_rows say nothing.
  FinishParams finish;
  int num_rows = 0;
  const float* sums = nullptr;  // [num_rows, ld]
  int64_t ld = 0;
  int first_tile = 0;  // that the first sum of a row belongs to
  int num_tiles = 0;
  // With steps: planes of partial sums, a step each, that fold to one.
  FoldOrder plan = {};
  int64_t plane_stride = 0;  // floats
};

struct ProjectionKernels {
  void (*pack)(Stream& stream, const PackParams& params) = nullptr;
  void (*prepare_rows)(Stream& stream, const PrepareParams& params) = nullptr;
  void (*product)(Stream& stream, const ProductParams& params) = nullptr;
  // For WeightFormat::kAct on compute capability 9.0, by wgmma, which adds in an order of its own.
  // Null where the build has no kernels for it.
  void (*wide_product)(Stream& stream, const ProductParams& params) = nullptr;
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
