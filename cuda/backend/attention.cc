// Attention over the paged cache and the operations on the cache itself.
#include <algorithm>
#include <climits>
#include <vector>

#include "core/check.h"
#include "core/str_cat.h"
#include "cuda/backend/cuda_backend.h"
#include "cuda/backend/kv_runs.h"
#include "specdec/error.h"

namespace specdec::cuda {
namespace {

int64_t num_kv_rows(const PagedKvView& kv) {
  return int64_t{kv.num_blocks} * kv.num_kv_heads * kv.block_size;
}

void check_kv(const PagedKvView& kv, DType act_dtype) {
  SPECDEC_CHECK(kv.dtype == act_dtype || kv.dtype == DType::kI8);
  SPECDEC_CHECK_GT(kv.block_size, 0);
  SPECDEC_CHECK_EQ(kv.block_size % 16, 0);
  SPECDEC_CHECK_GT(kv.num_kv_heads, 0);
  SPECDEC_CHECK_GT(kv.head_dim, 0);
  SPECDEC_CHECK_LE(num_kv_rows(kv), int64_t{INT_MAX});
}

}  // namespace

size_t CudaBackend::kv_layer_bytes(const PagedKvView& shape) const {
  check_kv(shape, act_dtype_);
  const bool has_codes = shape.dtype == DType::kI8;
  const int multiple = has_codes ? 16 : 8;
  if (shape.head_dim > kMaxAttentionHeadDim || shape.head_dim % multiple != 0) {
    throw InvalidArgument(
        "model", str_cat("heads of ", shape.head_dim, " elements are not computed on a GPU with a ",
                         name_of(shape.dtype), " cache: they have to be a multiple of ", multiple,
                         ", at most ", kMaxAttentionHeadDim, "; use device='cpu'"));
  }
  const int shared_bytes = device_->properties().max_shared_bytes_per_block;
  if (attention_shared_bytes(shape.head_dim) > shared_bytes) {
    throw InvalidArgument(
        "model", str_cat("heads of ", shape.head_dim, " elements need more shared memory than the ",
                         shared_bytes, " bytes of ", device_->info().name, "; use device='cpu'"));
  }
  const size_t row_bytes = shape.head_dim * size_of(shape.dtype) + (has_codes ? sizeof(float) : 0);
  return static_cast<size_t>(num_kv_rows(shape)) * row_bytes;
}

void CudaBackend::tree_attention(const TreeAttentionArgs& args) {
  check_kv(args.kv, act_dtype_);
  SPECDEC_CHECK_EQ(args.num_heads % args.kv.num_kv_heads, 0);
  SPECDEC_CHECK_GT(args.scale, 0.0f);
  if (args.soft_cap != 0.0f && args.kv.head_dim > kMaxCappedHeadDim) {
    throw InvalidArgument(
        "model",
        str_cat("scores with a soft cap (attn_logit_softcapping) are computed on a GPU for "
                "heads of at most ",
                kMaxCappedHeadDim, " elements, and these have ", args.kv.head_dim,
                "; use device='cpu'"));
  }
  if (args.batch->num_rows == 0) return;
  kernels_.attention.tree_attention(
      *stream_,
      {.q = args.q,
       .out = args.out,
       .act_dtype = act_dtype_,
       .batch = *args.batch,
       .kv = args.kv,
       .num_heads = args.num_heads,
       .scale = args.scale,
       .soft_cap = args.soft_cap,
       .sliding_window = args.sliding_window,
       .sinks = args.sinks,
       .first_position = args.first_position,
       .num_multiprocessors = device_->properties().num_multiprocessors,
       .max_shared_bytes = device_->properties().max_shared_bytes_per_block - kMaxStaticSharedBytes,
       .workspace = attention_workspace_.data(),
       .workspace_bytes = attention_workspace_.size_bytes(),
       .work_list = attention_work_lists_.list_of(args)});
}

void CudaBackend::copy_kv(const CopyKvArgs& args) {
  const bool has_features = args.features.width > 0;
  if (args.slots.empty() || (args.layers.empty() && !has_features)) return;
  // One launch moves the KV of all layers of one shape.
  std::vector<KvLayerPointers> layers;
  for (const PagedKvView& layer : args.layers) {
    check_kv(layer, act_dtype_);
    layers.push_back({.keys = layer.keys, .values = layer.values});
  }
  std::vector<int64_t> slots;
  for (const auto& [from, to] : args.slots) {
    if (from == to) continue;
    slots.push_back(from);
    slots.push_back(to);
  }
  if (slots.empty()) return;
  const int32_t num_pairs = static_cast<int32_t>(slots.size() / 2);
  const KvLayerPointers* staged_layers = staging_.upload(std::span<const KvLayerPointers>(layers));
  const int64_t* staged_slots = staging_.upload(std::span<const int64_t>(slots));
  const int32_t* staged_count = staging_.upload(std::span<const int32_t>(&num_pairs, 1));
  if (has_features) {
    kernels_.attention.copy_rows(
        *stream_, {.rows = args.features, .slots = staged_slots, .num_pairs = staged_count});
  }
  for (const auto& run : runs_of_one_shape(args.layers)) {
    kernels_.attention.copy_kv(*stream_,
                               {.layers = staged_layers + (run.data() - args.layers.data()),
                                .num_layers = static_cast<int>(run.size()),
                                .shape = run.front(),
                                .slots = staged_slots,
                                .num_pairs = staged_count});
  }
}

}  // namespace specdec::cuda
