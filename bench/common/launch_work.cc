#include "common/launch_work.h"

#include <string_view>

#include "core/check.h"
#include "cuda/kernels/attention.h"
#include "cuda/kernels/moe.h"
#include "cuda/kernels/projection.h"
#include "cuda/kernels/quantize_layout.h"

namespace specdec::bench {
namespace {

// A kernel's first parameter, or the beginning of it.
template <class Params>
const Params& params_of(const cuda::KernelLaunch& launch) {
  SPECDEC_CHECK_GE(launch.num_arguments, 1);
  SPECDEC_CHECK_GE(launch.argument_bytes[0], sizeof(Params));
  return *static_cast<const Params*>(launch.arguments[0]);
}

// Kernels for two tiles at once have shared memory for the sums of both. Kernels that end in
// attention heads have one tile at a time, and other data behind the sums.
bool has_pairs(const cuda::ProjectionParams& projection, size_t shared_bytes) {
  const int num_rows = projection.rows.num_rows;
  int64_t bytes = cuda::few_rows_exchange_bytes(num_rows, 2);
  if (projection.tiling.row_source == cuda::RowSource::kShared) {
    bytes += int64_t{num_rows} * projection.num_k_blocks * cuda::kRecordBytes;
  }
  return projection.finish.kind != cuda::Finish::kHeads &&
         static_cast<int64_t>(shared_bytes) >= bytes;
}

Figures work_of(const cuda::ProjectionParams& projection, size_t shared_bytes) {
  using cuda::Finish, cuda::RowSource;
  const int block_bytes =
      projection.format == WeightFormat::kAct
          ? cuda::kTileOutputs * cuda::kRecordBytes
          : cuda::make_code_layout(projection.format, 1, cuda::kBlockInputs).block_bytes;
  const Finish finish = projection.finish.kind;
  const RowSource source = projection.tiling.row_source;
  return {{"rows", projection.rows.num_rows},
          {"tiles", projection.num_tiles},
          {"k_blocks", projection.num_k_blocks},
          {"block_bytes", block_bytes},
          {"column_tiles", projection.tiling.column_tiles},
          {"tiles_at_once", has_pairs(projection, shared_bytes) ? 2 : 1},
          {"shares_rows", source == RowSource::kShared},
          {"exchanges_rows", source == RowSource::kExchanged},
          {"stores", finish == Finish::kStore},
          {"meets", finish == Finish::kHeads || finish == Finish::kBest}};
}

}  // namespace

Figures work_of(const cuda::KernelLaunch& launch) {
  const std::string_view name = launch.name;
  const size_t shared_bytes = launch.config.shared_bytes;
  if (name == "few_rows" || name == "many_rows" || name == "stream_rows") {
    return work_of(params_of<cuda::ProjectionParams>(launch), shared_bytes);
  }
  if (name == "moe: few rows" || name == "moe: many rows") {
    const auto& params = params_of<cuda::ExpertProjectionsParams>(launch);
    Figures work = work_of(params.projection, shared_bytes);
    work.emplace_back("experts", params.num_experts);
    work.emplace_back("knows_rows", params.rows_are_known);
    return work;
  }
  if (name == "moe: route") return {{"chosen", params_of<cuda::RouteParams>(launch).router.top_k}};
  if (name.starts_with("attention ")) {
    const auto& params = params_of<cuda::AttentionParams>(launch);
    return {{"heads", params.num_heads},
            {"kv_heads", params.kv.num_kv_heads},
            {"head_dim", params.kv.head_dim},
            {"position_bytes",
             2.0 * params.kv.head_dim * static_cast<double>(size_of(params.kv.dtype))},
            {"reads_plan", name.ends_with(" planned")}};
  }
  return {};
}

}  // namespace specdec::bench
