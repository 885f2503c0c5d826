#include "model/draft_head_fusion.h"

#include <algorithm>
#include <cstddef>

#include "core/check.h"

namespace specdec {

DraftHeadFusion::DraftHeadFusion(const FeatureFusion& fusion, int hidden_size, Backend& backend,
                                 int max_rows)
    : fusion_(fusion), hidden_size_(hidden_size), backend_(backend) {
  const auto rows = [&](int64_t width, DType dtype) {
    const size_t bytes = static_cast<size_t>(max_rows) * static_cast<size_t>(width);
    return backend.allocate(bytes * size_of(dtype), "draft head workspace");
  };
  int64_t widest = 0;
  for (const FeatureFusion::Part& part : fusion.parts) {
    widest = std::max(widest, part.weight->in_features());
  }
  features_ = rows(widest, DType::kF32);
  token_rows_ = rows(fusion.embedding ? fusion.embedding->in_features() : hidden_size, DType::kF32);
  joined_ = rows(2 * int64_t{hidden_size}, backend.act_dtype());
  if (fusion.feedback) states_ = rows(fusion.feedback->out_features(), DType::kF32);
}

void DraftHeadFusion::fuse(const ModelPass& pass, float* hidden) {
  const BatchView& batch = pass.batch;
  const int rows = batch.num_rows;
  if (pass.level > 0 && !fusion_.fuses_states) {
    backend_.load_rows({.from = pass.features,
                        .slots = batch.feature_slots,
                        .column = 0,
                        .dim = hidden_size_,
                        .out = hidden,
                        .num_rows = rows});
    return;
  }
  const auto add = [&](const PackedLinear& weight, const Norm& norm, const Buffer& x,
                       const float* bias, bool accumulates) {
    const NormParams params = norm.params();
    backend_.linear({.weight = &weight,
                     .in = {.x = x.data(),
                            .dtype = DType::kF32,
                            .norm = norm.weight.empty() ? nullptr : &params,
                            .num_rows = rows},
                     .bias = bias,
                     .out = hidden,
                     .accumulate = accumulates});
  };
  const bool has_embedding = fusion_.embedding != nullptr;
  if (has_embedding) add(*fusion_.embedding, fusion_.embedding_norm, token_rows_, nullptr, false);
  for (const FeatureFusion::Part& part : fusion_.parts) {
    backend_.load_rows({.from = pass.features,
                        .slots = batch.feature_slots,
                        .column = part.column,
                        .dim = static_cast<int>(part.weight->in_features()),
                        .out = features_.as<float>(),
                        .num_rows = rows});
    const bool is_first = &part == &fusion_.parts.front();
    add(*part.weight, part.norm, features_, is_first ? fusion_.bias.as<float>() : nullptr,
        has_embedding || !is_first);
  }
}

ProjectionInput DraftHeadFusion::join_embedding(const Layer& layer, float* hidden, int num_rows) {
  const DType act = backend_.act_dtype();
  const size_t half_bytes = static_cast<size_t>(hidden_size_) * size_of(act);
  const auto put = [&](const Norm& norm, const float* x, void* out, DType dtype, int stride) {
    backend_.norm({.norm = norm.params(),
                   .x = x,
                   .out = out,
                   .out_dtype = dtype,
                   .num_rows = num_rows,
                   .dim = hidden_size_,
                   .out_stride = stride});
  };
  const int stride = 2 * hidden_size_;
  put(layer.embedding_norm, token_rows_.as<float>(), joined_.data(), act, stride);
  put(layer.attention_norm, hidden, joined_.as<std::byte>() + half_bytes, act, stride);
  // In place, which is safe because a row is summed before any of it is written. Swapping buffers
  // an odd number of times per pass would move the results away from where recorded work expects
  // them.
  if (fusion_.normed_residual) put(layer.attention_norm, hidden, hidden, DType::kF32, 0);
  return {.x = joined_.data(), .dtype = act, .num_rows = num_rows};
}

void DraftHeadFusion::store_states(const ModelPass& pass, const float* hidden,
                                   const NormParams* final_norm) {
  SPECDEC_CHECK(!fusion_.feeds_back_normed || final_norm != nullptr);
  const NormParams* norm = fusion_.feeds_back_normed ? final_norm : nullptr;
  const int num_rows = pass.batch.num_rows;
  StoreRowsArgs store = {.x = hidden,
                         .norm = norm,
                         .slot_mapping = pass.batch.state_slots,
                         .to = pass.features,
                         .column = 0,
                         .dim = hidden_size_,
                         .num_rows = num_rows};
  if (fusion_.feedback) {
    backend_.linear({.weight = fusion_.feedback.get(),
                     .in = {.x = hidden, .dtype = DType::kF32, .norm = norm, .num_rows = num_rows},
                     .out = states_.as<float>()});
    store.x = states_.as<float>();
    store.norm = nullptr;
    store.dim = static_cast<int>(fusion_.feedback->out_features());
  }
  backend_.store_rows(store);
}

}  // namespace specdec
