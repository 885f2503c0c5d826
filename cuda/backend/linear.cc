// Weights and projections of the CUDA backend.
#include "comm/communicator.h"
#include "core/check.h"
#include "cuda/backend/cuda_backend.h"
#include "cuda/backend/packed_linear.h"

namespace specdec::cuda {
namespace {

const CudaPackedLinear& packed(const PackedLinear* weight) {
  SPECDEC_CHECK(weight != nullptr);
  return static_cast<const CudaPackedLinear&>(*weight);
}

}  // namespace

std::unique_ptr<PackedLinear> CudaBackend::pack_linear(const PackArgs& args) {
  std::unique_ptr<PackedLinear> weight = packer_.pack(args);
  // A projection loads weights before it waits for earlier work on the stream.
  stream_->synchronize();
  return weight;
}

void CudaBackend::linear(const LinearArgs& args) {
  const CudaPackedLinear& weight = packed(args.weight);
  SPECDEC_CHECK(!weight.is_gated());
  if (weight.share().ranks() != nullptr) {
    if (args.in.num_rows == 0) return;
    return weight.share().by_inputs() ? linear_by_inputs(args) : linear_by_outputs(args);
  }
  projector_.run(weight, args.in,
                 {.kind = Finish::kStore,
                  .bias = args.bias,
                  .out_features = static_cast<int>(weight.out_features()),
                  .out = args.out,
                  .accumulate = args.accumulate,
                  .scale = args.scale,
                  .soft_cap = args.soft_cap,
                  .heads = {}});
}

bool CudaBackend::best_tokens(const BestTokensArgs& args) {
  const LinearArgs& linear = args.linear;
  const CudaPackedLinear& weight = packed(linear.weight);
  SPECDEC_CHECK(!weight.is_gated() && !linear.accumulate);
  if (!projector_.finds_best(weight, linear.in)) return false;
  projector_.run(weight, linear.in,
                 {.kind = Finish::kBest,
                  .bias = linear.bias,
                  .out_features = static_cast<int>(weight.out_features()),
                  .scale = linear.scale,
                  .soft_cap = linear.soft_cap,
                  .heads = {},
                  .best = {.token_ids = args.token_ids, .tokens = args.tokens}});
  return true;
}

void CudaBackend::linear_by_inputs(const LinearArgs& args) {
  const CudaPackedLinear& weight = packed(args.weight);
  const int num_rows = args.in.num_rows;
  const int out_features = static_cast<int>(weight.out_features());
  const ProjectionInput in =
      weight.input_order() != nullptr ? gather_inputs(weight, args.in) : args.in;
  projector_.run(weight, in,
                 {.kind = Finish::kStore,
                  .out_features = out_features,
                  .out = rank_exchange_.own_planes(weight, num_rows),
                  .plane_stride = num_rows * weight.out_features(),
                  .heads = {}});
  rank_exchange_.sum(weight, num_rows,
                     {.kind = Finish::kStore,
                      .bias = args.bias,
                      .out_features = out_features,
                      .out = args.out,
                      .accumulate = args.accumulate,
                      .scale = args.scale,
                      .soft_cap = args.soft_cap,
                      .heads = {}});
}

ProjectionInput CudaBackend::gather_inputs(const CudaPackedLinear& weight,
                                           const ProjectionInput& in) {
  SPECDEC_CHECK(in.dtype == act_dtype_ && in.norm == nullptr && in.row_ids == nullptr);
  const RankShare& share = weight.share();
  const int64_t width = share.num_inputs(share.ranks()->rank());
  kernels_.pointwise.load_rows(*stream_, {.from = in.x,
                                          .slots = nullptr,
                                          .act_dtype = act_dtype_,
                                          .from_stride = width,
                                          .out = rank_exchange_.own_floats(in.num_rows * width),
                                          .accumulate = false,
                                          .dim = static_cast<int>(width),
                                          .num_rows = in.num_rows});
  return {.x = rank_exchange_.gather_inputs(share, in.num_rows), .num_rows = in.num_rows};
}

void CudaBackend::linear_by_outputs(const LinearArgs& args) {
  const CudaPackedLinear& weight = packed(args.weight);
  const RankShare& share = weight.share();
  SPECDEC_CHECK(!args.accumulate);
  const int64_t first = share.first_output(share.ranks()->rank());
  projector_.run(weight, args.in,
                 {.kind = Finish::kStore,
                  .bias = args.bias != nullptr ? args.bias + first : nullptr,
                  .out_features = static_cast<int>(weight.num_outputs()),
                  .out = rank_exchange_.own_floats(args.in.num_rows * weight.num_outputs()),
                  .scale = args.scale,
                  .soft_cap = args.soft_cap,
                  .heads = {}});
  rank_exchange_.gather_outputs(share, args.in.num_rows, args.out);
}

void CudaBackend::activated_linear(const ActivatedLinearArgs& args) {
  const CudaPackedLinear& weight = packed(args.weight);
  SPECDEC_CHECK(weight.is_gated() == args.gated && weight.share().ranks() == nullptr);
  SPECDEC_CHECK(args.gated || args.activation != Activation::kClampedSwiglu);
  projector_.run(weight, args.in,
                 {.kind = args.gated ? Finish::kActivateGated : Finish::kActivate,
                  .bias = args.bias,
                  .out_features = static_cast<int>(weight.out_features()),
                  .out = args.out,
                  .activation = args.activation,
                  .constants = args.constants,
                  .heads = {}});
}

void CudaBackend::project_qkv(const QkvArgs& args) {
  const CudaPackedLinear& weight = packed(args.weight);
  const PagedKvView& kv = args.kv;
  SPECDEC_CHECK(!weight.is_gated() && weight.share().ranks() == nullptr);
  SPECDEC_CHECK_EQ(weight.out_features(),
                   int64_t{args.num_heads + 2 * kv.num_kv_heads} * kv.head_dim);
  SPECDEC_CHECK_EQ(args.in.num_rows, args.batch->num_rows);
  SPECDEC_CHECK_LE(args.rotary_dim, kv.head_dim);
  SPECDEC_CHECK_EQ(args.rotary_dim % 2, 0);
  SPECDEC_CHECK(kv.dtype == act_dtype_ || kv.dtype == DType::kI8 || kv.num_kv_heads == 0);
  SPECDEC_CHECK(!args.norm_all_heads || args.q_norm != nullptr);
  SPECDEC_CHECK(!args.norm_all_heads || args.k_norm != nullptr || kv.num_kv_heads == 0);
  SPECDEC_CHECK(!args.norm_all_heads || !args.norm_after_rope);
  projector_.run(weight, args.in,
                 {.kind = Finish::kHeads,
                  .bias = args.bias,
                  .out_features = static_cast<int>(weight.out_features()),
                  .heads = {.q_norm = args.q_norm,
                            .k_norm = args.k_norm,
                            .v_norm = args.v_norm,
                            .norm_all_heads = args.norm_all_heads,
                            .norm_after_rope = args.norm_after_rope,
                            .norm_eps = args.norm_eps,
                            .rope_cos = args.rope_cos,
                            .rope_sin = args.rope_sin,
                            .query_scales = args.query_scales,
                            .rotary_dim = args.rope_cos != nullptr ? args.rotary_dim : 0,
                            .num_heads = args.num_heads,
                            .positions = args.batch->positions,
                            .slot_mapping = args.batch->slot_mapping,
                            .q = args.q,
                            .kv = kv,
                            .shared_heads = args.shared_heads}});
}

}  // namespace specdec::cuda
