#include "cuda/backend/moe.h"

#include <algorithm>
#include <vector>

#include "core/check.h"
#include "cuda/backend/cuda_backend.h"
#include "cuda/backend/packed_linear.h"

namespace specdec::cuda {
namespace {

// Rows per round: bounds the workspaces.
constexpr int kMaxRows = 2048;

const CudaPackedLinear& packed(const PackedLinear* weight) {
  SPECDEC_CHECK(weight != nullptr);
  return static_cast<const CudaPackedLinear&>(*weight);
}

// Sets the weights of all experts, which have one shape and format.
void set_weights(std::span<const PackedLinear* const> experts, ExpertProjectionsParams& params) {
  const CudaPackedLinear& first = packed(experts[0]);
  params.num_experts = static_cast<int>(experts.size());
  params.projection.format = first.format();
  params.projection.num_tiles = first.num_tiles();
  params.projection.num_k_blocks = first.num_k_blocks();
  params.projection.slices = first.slices();
  params.projection.finish.out_features = static_cast<int>(first.out_features());
  if (first.scales() != nullptr && !first.share().by_inputs())
    params.scales_offset = first.code_layout().scales_offset;
  for (size_t i = 0; i < experts.size(); ++i) {
    const CudaPackedLinear& expert = packed(experts[i]);
    SPECDEC_CHECK(expert.format() == first.format() && expert.input_order() == nullptr);
    SPECDEC_CHECK_EQ(expert.out_features(), first.out_features());
    SPECDEC_CHECK_EQ(expert.in_features(), first.in_features());
    params.weights[i] = expert.data();
  }
}

}  // namespace

ExpertMixer::ExpertMixer(Device& device, Stream& stream, const MoeKernels& kernels,
                         const ProjectionKernels& projection_kernels, RankExchange& rank_exchange,
                         DType act_dtype)
    : properties_(device.properties()),
      stream_(stream),
      kernels_(kernels),
      projection_kernels_(projection_kernels),
      rank_exchange_(rank_exchange),
      act_dtype_(act_dtype),
      choices_(device, stream, "choices of experts"),
      records_(device, stream, "rows of experts"),
      act_(device, stream, "rows of experts"),
      results_(device, stream, "results of experts") {}

void ExpertMixer::run(const MoeArgs& args) {
  const int num_experts = static_cast<int>(args.gate_up.size());
  SPECDEC_CHECK_EQ(args.down.size(), args.gate_up.size());
  check_router(args.router, num_experts);
  SPECDEC_CHECK_LE(num_experts, kMaxExperts);
  for (int begin = 0; begin < args.num_rows; begin += kMaxRows) {
    run_rows(args, begin, std::min(kMaxRows, args.num_rows - begin));
  }
}

void ExpertMixer::run_rows(const MoeArgs& args, int first_row, int num_rows) {
  const int num_experts = static_cast<int>(args.gate_up.size());
  const int num_choices = num_rows * args.router.top_k;
  const int64_t hidden = packed(args.gate_up[0]).in_features();
  const int64_t inner = packed(args.down[0]).in_features();
  const size_t act_bytes = size_of(act_dtype_);

  const size_t choices = static_cast<size_t>(num_choices);
  int32_t* const chosen = choices_.get<int32_t>(4 * choices + num_experts + 1);
  float* const weights = reinterpret_cast<float*>(chosen + choices);
  int32_t* const row_ids = chosen + 2 * choices;
  int32_t* const choice_order = chosen + 3 * choices;
  int32_t* const cu_rows = chosen + 4 * choices;
  void* const act = act_.get<char>(choices * inner * act_bytes);
  float* const results = results_.get<float>(choices * hidden);

  kernels_.route(stream_, {.logits = args.router_logits + int64_t{first_row} * num_experts,
                           .num_rows = num_rows,
                           .num_experts = num_experts,
                           .router = args.router,
                           .experts = chosen,
                           .weights = weights});
  kernels_.group(stream_, {.experts = chosen,
                           .num_choices = num_choices,
                           .num_experts = num_experts,
                           .top_k = args.router.top_k,
                           .cu_rows = cu_rows,
                           .row_ids = row_ids,
                           .choice_order = choice_order});
  Rows rows = {.x = static_cast<const char*>(args.x) + first_row * hidden * act_bytes,
               .num_x = num_rows,
               .row_ids = row_ids,
               .cu_rows = cu_rows,
               .most_of_expert = num_rows,
               .num_choices = num_choices};
  project(args.gate_up, rows,
          {.kind = Finish::kActivateGated,
           .bias = args.gate_up_bias,
           .out = act,
           .activation = args.activation,
           .constants = args.constants,
           .heads = {}});
  rows.x = act;
  rows.num_x = num_choices;
  rows.row_ids = nullptr;
  rows.are_known = true;  // the gate and up projections have waited for the counts
  const CudaPackedLinear& first_down = packed(args.down[0]);
  if (first_down.share().by_inputs()) {
    project(args.down, rows,
            {.kind = Finish::kStore,
             .out = rank_exchange_.own_planes(first_down, num_choices),
             .plane_stride = num_choices * hidden,
             .heads = {}});
    add_up(args, cu_rows, num_choices, results);
  } else {
    project(args.down, rows,
            {.kind = Finish::kStore, .bias = args.down_bias, .out = results, .heads = {}});
  }
  kernels_.combine(stream_, {.results = results,
                             .choice_order = choice_order,
                             .weights = weights,
                             .num_rows = num_rows,
                             .top_k = args.router.top_k,
                             .dim = static_cast<int>(hidden),
                             .out = args.out + first_row * hidden,
                             .accumulate = args.accumulate});
}

void ExpertMixer::add_up(const MoeArgs& args, const int32_t* cu_rows, int num_choices,
                         float* results) {
  const CudaPackedLinear& first = packed(args.down[0]);
  RowExperts experts;
  if (first.scales() != nullptr || args.down_bias != nullptr) {  // each expert has its own
    experts = {.num_experts = static_cast<int>(args.down.size()), .cu_rows = cu_rows};
  }
  if (first.scales() != nullptr) {
    experts.scales_offset = first.code_layout().scales_offset;
    for (size_t i = 0; i < args.down.size(); ++i) experts.weights[i] = packed(args.down[i]).data();
  }
  rank_exchange_.sum(first, num_choices,
                     {.kind = Finish::kStore,
                      .bias = args.down_bias,
                      .out_features = static_cast<int>(first.out_features()),
                      .out = results,
                      .heads = {}},
                     experts);
}

void ExpertMixer::project(std::span<const PackedLinear* const> experts, const Rows& rows,
                          const FinishParams& finish) {
  ExpertProjectionsParams params{};
  ProjectionParams& projection = params.projection;
  projection.act_dtype = act_dtype_;
  projection.finish = finish;
  set_weights(experts, params);
  params.cu_rows = rows.cu_rows;
  params.rows_are_known = rows.are_known;
  projection.tiling.few_rows = rows.most_of_expert <= kFewRows;
  const int dim = static_cast<int>(experts[0]->in_features());
  // The few-rows kernel finds records by row_ids; the many-rows kernel reads them in order.
  const bool is_gathered = rows.row_ids != nullptr && !projection.tiling.few_rows;
  projection.rows = {
      .row_ids = is_gathered ? nullptr : rows.row_ids, .num_rows = rows.most_of_expert, .dim = dim};
  projection.records = is_gathered || dim % kBlockInputs != 0
                           ? prepared(rows, dim, is_gathered, projection.num_k_blocks)
                           : rows.x;
  params.most_with_rows = std::min(params.num_experts, rows.num_choices);
  // One block per SM, shared among the experts that may have rows. No more blocks than make the
  // most tiles per block smallest.
  const int blocks = std::max(1, properties_.num_multiprocessors / params.most_with_rows);
  const int block_tiles = (projection.num_tiles + blocks - 1) / blocks;
  projection.tiling.num_blocks = (projection.num_tiles + block_tiles - 1) / block_tiles;
  kernels_.project(stream_, params);
}

const void* ExpertMixer::prepared(const Rows& rows, int dim, bool is_gathered, int num_k_blocks) {
  const int num_records = is_gathered ? rows.num_choices : rows.num_x;
  void* const records =
      records_.get<char>(static_cast<size_t>(num_records) * num_k_blocks * kRecordBytes);
  const RowsParams x = {.x = rows.x,
                        .is_float = false,
                        .row_ids = is_gathered ? rows.row_ids : nullptr,
                        .num_rows = num_records,
                        .dim = dim};
  projection_kernels_.prepare_rows(stream_, {.rows = x, .act_dtype = act_dtype_, .out = records});
  return records;
}

void CudaBackend::moe(const MoeArgs& args) { mixer_.run(args); }

}  // namespace specdec::cuda
