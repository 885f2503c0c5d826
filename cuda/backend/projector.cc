#include "cuda/backend/projector.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace specdec::cuda {
namespace {

// Rows per launch: bounds the workspaces.
constexpr int kMaxRows = 2048;

int ceil_div(int64_t x, int64_t unit) { return static_cast<int>((x + unit - 1) / unit); }

RowNorm kind_of(const NormParams* norm) {
  if (norm == nullptr) return RowNorm::kNone;
  return norm->kind == NormKind::kRms ? RowNorm::kRms : RowNorm::kLayer;
}

template <class T>
T* advance(T* pointer, int64_t count) {
  return pointer != nullptr ? pointer + count : nullptr;
}
void* advance_bytes(void* pointer, int64_t count) { return static_cast<char*>(pointer) + count; }

RowsParams rows_of(const CudaPackedLinear& weight, const ProjectionInput& in) {
  return {.x = in.x,
          .is_float = in.dtype == DType::kF32,
          .row_ids = in.row_ids,
          .num_rows = in.num_rows,
          .dim = static_cast<int>(weight.input_order() != nullptr ? weight.all_inputs()
                                                                  : weight.in_features()),
          .norm = kind_of(in.norm),
          .weight = in.norm != nullptr ? in.norm->weight : nullptr,
          .bias = in.norm != nullptr ? in.norm->bias : nullptr,
          .eps = in.norm != nullptr ? in.norm->eps : 0.0f};
}

// The rows from `begin` on.
RowsParams rows_from(RowsParams rows, int64_t begin, int count, DType act_dtype) {
  if (rows.row_ids != nullptr) {
    rows.row_ids += begin;
  } else {
    const int64_t element_bytes = rows.is_float ? 4 : static_cast<int64_t>(size_of(act_dtype));
    rows.x = static_cast<const char*>(rows.x) + begin * rows.dim * element_bytes;
  }
  rows.num_rows = count;
  return rows;
}

FinishParams finish_from(FinishParams finish, int64_t begin, DType act_dtype) {
  const int64_t act_bytes = static_cast<int64_t>(size_of(act_dtype));
  switch (finish.kind) {
    case Finish::kStore:
      finish.out = static_cast<float*>(finish.out) + begin * finish.out_features;
      break;
    case Finish::kActivate:
      finish.out = advance_bytes(finish.out, begin * finish.out_features * act_bytes);
      break;
    case Finish::kActivateGated:
      finish.out = advance_bytes(finish.out, begin * (finish.out_features / 2) * act_bytes);
      break;
    case Finish::kHeads: {
      HeadsParams& heads = finish.heads;
      heads.positions = advance(heads.positions, begin);
      heads.slot_mapping = advance(heads.slot_mapping, begin);
      heads.q = advance_bytes(heads.q, begin * heads.num_heads * heads.kv.head_dim * act_bytes);
      break;
    }
    case Finish::kBest:
      finish.best.tokens = advance(finish.best.tokens, begin);
      break;
  }
  return finish;
}

int row_tile_rows(const ProjectionTiling& tiling) {
  if (tiling.wide_splits != 0) return kWideRows;
  if (tiling.stream_rows != 0) return tiling.stream_rows;
  return tiling.few_rows ? kFewRows : tiling.column_tiles * 8;
}

}  // namespace

Projector::Projector(Device& device, Stream& stream, const ProjectionKernels& kernels,
                     RankExchange& rank_exchange, DType act_dtype, bool deterministic,
                     GemmList gemms)
    : device_(device),
      stream_(stream),
      kernels_(kernels),
      rank_exchange_(rank_exchange),
      act_dtype_(act_dtype),
      deterministic_(deterministic),
      chooser_(device, stream, kernels, std::move(gemms)),
      natural_rows_(device, stream, "rows to reorder"),
      ordered_rows_(device, stream, "reordered rows"),
      records_(device, stream, "rows of projections"),
      exchange_counts_(device, stream, "counts of projections"),
      head_sums_(device, stream, "sums of projections"),
      head_arrivals_(device, stream, "counts of projections"),
      best_keys_(device, stream, "likeliest tokens"),
      best_arrivals_(device, stream, "counts of projections"),
      partials_(device, stream, "partial sums of projections"),
      partial_arrivals_(device, stream, "counts of projections") {}

bool Projector::finds_best(const CudaPackedLinear& weight, const ProjectionInput& in) const {
  const RowsParams rows = rows_of(weight, in);
  return in.num_rows <= kFewRows && weight.share().ranks() == nullptr &&
         weight.input_order() == nullptr && is_plain(rows) &&
         row_source(weight, rows, Finish::kBest) != RowSource::kRecords;
}

RowSource Projector::row_source(const CudaPackedLinear& weight, const RowsParams& rows,
                                Finish finish) const {
  if (!prepares_rows(rows, finish)) return RowSource::kRecords;
  const int64_t rows_bytes = int64_t{rows.num_rows} * weight.num_k_blocks() * kRecordBytes;
  const bool fits = rows.num_rows <= 8 && rows_bytes <= kSharedRowBytes;
  if (fits && weight.slices().fold_order.is_whole()) return RowSource::kShared;
  return device_.launch_settings().meeting ? RowSource::kExchanged : RowSource::kRecords;
}

void Projector::run(const CudaPackedLinear& weight, const ProjectionInput& in,
                    const FinishParams& finish) {
  SPECDEC_CHECK(in.dtype == DType::kF32 || in.dtype == act_dtype_);
  SPECDEC_CHECK(in.norm == nullptr || in.dtype == DType::kF32);
  const RowsParams rows = rows_of(weight, in);
  for (int begin = 0; begin < in.num_rows; begin += kMaxRows) {
    const int count = std::min(kMaxRows, in.num_rows - begin);
    run_rows(weight, rows_from(rows, begin, count, act_dtype_),
             finish_from(finish, begin, act_dtype_));
  }
}

// A norm over all heads of a row needs all their sums: these are stored first, and a second kernel
// finishes the heads.
void Projector::run_all_heads(const CudaPackedLinear& weight, const RowsParams& rows,
                              FinishParams finish) {
  float* sums = head_sums_.get<float>(static_cast<size_t>(rows.num_rows) *
                                      static_cast<size_t>(finish.out_features));
  run_rows(weight, rows,
           {.kind = Finish::kStore,
            .bias = finish.bias,
            .out_features = finish.out_features,
            .out = sums,
            .heads = {}});
  finish.bias = nullptr;
  HeadsParams& heads = finish.heads;
  heads.sums = sums;
  heads.norm_sums = sums;
  heads.norm_stride = finish.out_features;
  heads.norm_q_dim = heads.num_heads * heads.kv.head_dim;
  heads.norm_k_dim = heads.kv.num_kv_heads * heads.kv.head_dim;
  const SharedHeads* shared = std::exchange(heads.shared_heads, nullptr);  // on the host
  if (shared != nullptr) {
    heads.norm_sums = rank_exchange_.gather_heads(*shared, sums, rows.num_rows, finish.out_features,
                                                  heads.kv.head_dim);
    heads.norm_q_dim = shared->num_heads() * heads.kv.head_dim;
    heads.norm_k_dim = shared->num_kv_heads() * heads.kv.head_dim;
    heads.norm_stride = heads.norm_q_dim + heads.norm_k_dim;
  }
  kernels_.finish_sums(stream_,
                       {.act_dtype = act_dtype_, .finish = finish, .num_rows = rows.num_rows});
}

RowsParams Projector::reordered(const CudaPackedLinear& weight, const RowsParams& rows) {
  ReorderParams params = {.rows = rows.x,
                          .row_stride = rows.dim,
                          .order = weight.input_order(),
                          .num_rows = rows.num_rows,
                          .dim = static_cast<int>(weight.in_features())};
  if (rows.is_float || rows.row_ids != nullptr) {
    params.row_stride = int64_t{ceil_div(rows.dim, kBlockInputs)} * kBlockInputs;
    void* natural =
        natural_rows_.get<uint16_t>(static_cast<size_t>(rows.num_rows * params.row_stride));
    kernels_.prepare_rows(stream_, {.rows = rows, .act_dtype = act_dtype_, .out = natural});
    params.rows = natural;
  }
  params.out =
      ordered_rows_.get<uint16_t>(static_cast<size_t>(int64_t{rows.num_rows} * params.dim));
  kernels_.reorder_rows(stream_, params);
  return {.x = params.out, .is_float = false, .num_rows = rows.num_rows, .dim = params.dim};
}

// The only place, besides ProjectionChooser, that chooses a kernel.
void Projector::run_rows(const CudaPackedLinear& weight, const RowsParams& given,
                         const FinishParams& finish) {
  if (finish.heads.norm_all_heads) return run_all_heads(weight, given, finish);
  const RowsParams rows = weight.input_order() != nullptr ? reordered(weight, given) : given;
  ProjectionParams params = {.format = weight.format(),
                             .act_dtype = act_dtype_,
                             .weights = weight.data(),
                             .num_tiles = weight.num_tiles(),
                             .num_k_blocks = weight.num_k_blocks(),
                             .slices = weight.slices(),
                             .rows = rows,
                             .records = rows.x,
                             .finish = finish,
                             .tiling = tiling_of(weight, rows, finish.kind)};
  // Partial sums that ranks exchange are scaled when they are folded.
  const bool is_partial = weight.share().by_inputs();
  if (!is_partial) params.finish.scales = weight.scales();
  const bool is_exchanged = params.tiling.row_source == RowSource::kExchanged;
  if (is_exchanged ||
      (params.tiling.row_source == RowSource::kRecords && !are_records(rows, params.tiling))) {
    const int64_t size_bytes = int64_t{rows.num_rows} * params.num_k_blocks * kRecordBytes;
    params.exchanged = records_.get<char>(static_cast<size_t>(size_bytes));
  }
  if (is_exchanged) {
    params.exchange_counts = exchange_counts_.get<uint32_t>(2);
  } else if (params.exchanged != nullptr) {
    void* records = std::exchange(params.exchanged, nullptr);
    kernels_.prepare_rows(stream_, {.rows = rows, .act_dtype = act_dtype_, .out = records});
    params.records = records;
    params.rows.row_ids = nullptr;
  }
  if (finish.kind == Finish::kHeads) {
    params.finish.heads.sums = head_sums_.get<float>(static_cast<size_t>(rows.num_rows) *
                                                     static_cast<size_t>(finish.out_features));
  }
  if (!deterministic_ && !is_partial && ProjectionChooser::serves(params)) {
    chooser_.run(params, [&](const ProjectionParams& tiled) { launch(tiled); });
  } else {
    params.tiling = chooser_.own_tiling(params);
    launch(params);
  }
}

void Projector::launch(ProjectionParams params) {
  add_workspaces(params);
  if (params.tiling.stream_rows != 0) return kernels_.project_stream(stream_, params);
  if (params.tiling.wide_splits == 0) return kernels_.project(stream_, params);
  kernels_.project_wide(stream_, params);
  if (params.finish.kind == Finish::kHeads) {
    kernels_.finish_sums(
        stream_,
        {.act_dtype = act_dtype_, .finish = params.finish, .num_rows = params.rows.num_rows});
  }
}

bool Projector::are_records(const RowsParams& rows, const ProjectionTiling& tiling) const {
  // Only the few-rows kernel gathers records.
  const bool in_order = rows.row_ids == nullptr || tiling.few_rows;
  return in_order && !rows.is_float && rows.dim % kBlockInputs == 0;
}

ProjectionTiling Projector::tiling_of(const CudaPackedLinear& weight, const RowsParams& rows,
                                      Finish finish) const {
  ProjectionTiling tiling;
  if (streams(weight, rows.num_rows, finish)) {
    for (tiling.stream_rows = 8; tiling.stream_rows < rows.num_rows;) tiling.stream_rows *= 2;
    tiling.stream_units = ceil_div(stream_groups(weight.num_tiles()) * kNumSlices,
                                   device_.properties().num_multiprocessors);
    return tiling;
  }
  tiling.few_rows = rows.num_rows <= kFewRows;
  if (tiling.few_rows) {
    tiling.row_source = row_source(weight, rows, finish);
    tile_few_rows(weight.num_tiles(), rows.num_rows, tiling);
    return tiling;
  }
  tiling.column_tiles = rows.num_rows <= 32 ? 4 : kMaxColumnTiles;
  const int num_blocks = ceil_div(weight.num_tiles(), kManyRowsTiles) *
                         ceil_div(rows.num_rows, tiling.column_tiles * 8);
  tiling.split_slices = num_blocks <= device_.properties().num_multiprocessors;
  return tiling;
}

bool Projector::streams(const CudaPackedLinear& weight, int num_rows, Finish finish) const {
  const std::optional<int> fewest_rows = device_.launch_settings().fewest_stream_rows;
  return fewest_rows.has_value() && num_rows >= *fewest_rows && num_rows <= kMostStreamRows &&
         can_stream(weight.format()) && kernels_.project_stream != nullptr &&
         device_.properties().compute_capability == 90 && weight.slices().fold_order.is_whole() &&
         finish != Finish::kBest;
}

// One block per SM at most, so that the next projection's blocks fit beside them. No more blocks
// than make the most tiles per block smallest.
void Projector::tile_few_rows(int num_tiles, int num_rows, ProjectionTiling& tiling) const {
  const int block_tiles = ceil_div(num_tiles, device_.properties().num_multiprocessors);
  tiling.num_blocks = ceil_div(num_tiles, block_tiles);
  // Rows outside of shared memory are read from L2 once per tile, or once per two tiles.
  const bool share_rows = tiling.row_source == RowSource::kShared || num_rows > 4;
  const bool in_pairs = block_tiles % 2 == 0 || block_tiles > 8;
  tiling.tiles_at_once = in_pairs && share_rows ? 2 : 1;
}

void Projector::add_workspaces(ProjectionParams& params) {
  const int num_row_tiles = ceil_div(params.rows.num_rows, row_tile_rows(params.tiling));
  if (params.finish.kind == Finish::kHeads && params.tiling.wide_splits == 0) {
    HeadsParams& heads = params.finish.heads;
    const int64_t num_heads = heads.num_heads + 2 * heads.kv.num_kv_heads;
    heads.arrivals = head_arrivals_.get<uint32_t>(static_cast<size_t>(num_row_tiles * num_heads));
  }
  if (params.finish.kind == Finish::kBest) {
    params.finish.best.keys =
        best_keys_.get<uint64_t>(static_cast<size_t>(params.tiling.num_blocks * kFewRows));
    params.finish.best.arrivals = best_arrivals_.get<uint32_t>(1);
  }
  const ProjectionTiling& tiling = params.tiling;
  if (tiling.stream_rows != 0) {
    const int num_groups = stream_groups(params.num_tiles);
    const int num_blocks = ceil_div(num_groups * kNumSlices, tiling.stream_units);
    params.partials = partials_.get<float>(
        static_cast<size_t>(num_blocks * kStreamNodes * stream_partial_floats(tiling.stream_rows)));
    params.partial_arrivals =
        partial_arrivals_.get<uint32_t>(static_cast<size_t>(num_groups * kStreamTiles));
  }
  if (tiling.split_slices || tiling.wide_splits > 1) {
    const int64_t num_cells = int64_t{num_row_tiles} * ceil_div(params.num_tiles, kManyRowsTiles);
    const int64_t cell_floats = tiling.split_slices
                                    ? kNumSlices * partial_floats(tiling.column_tiles)
                                    : tiling.wide_splits * partial_floats(kWideRows / 8);
    params.partials = partials_.get<float>(static_cast<size_t>(num_cells * cell_floats));
    params.partial_arrivals = partial_arrivals_.get<uint32_t>(static_cast<size_t>(num_cells));
  }
}

}  // namespace specdec::cuda
