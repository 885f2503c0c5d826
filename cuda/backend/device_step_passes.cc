// The launches of a step: the draft model's passes, the target's, and what becomes of the drafts.
#include <algorithm>

#include "core/check.h"
#include "cuda/backend/device_step.h"

namespace specdec::cuda {
namespace {

constexpr int kDraftsInSlots = -1;  // VerifyRowsParams::num_drafts

}  // namespace

void CudaDeviceStep::draft(const Shape& shape) {
  const int num_slots = shape.num_slots;
  for (int pass = 0; pass < shape.num_passes; ++pass) {
    const int rows_per_slot = pass == 0 ? shape.lag : config_.tree.width;
    const int num_rows = std::min(num_slots * rows_per_slot, config_.max_rows);
    const bool is_level = grows_trees() && pass > 0;
    if (is_level) {
      draft_tree_rows(shape, pass, num_rows);
    } else {
      draft_chain_rows(shape, pass, num_rows);
    }
    sample(shape, *config_.draft, is_level ? num_slots * config_.tree.width : num_slots);
    if (grows_trees()) grow_trees(shape, pass);
  }
}

void CudaDeviceStep::draft_chain_rows(const Shape& shape, int pass, int num_rows) {
  kernels_.step.draft_rows(backend_.stream(),
                           {.state = state(shape.num_slots),
                            .batch = batch(num_rows),
                            .sampled = pass == 0 ? nullptr : sampled_.as<int32_t>(),
                            .started = pass == 0 ? &times_.as<StepTimes>()->draft : nullptr,
                            .pass = pass,
                            .num_drafts = shape.num_passes,
                            .argmax = config_.sampling == DraftSampling::kArgmax,
                            .num_candidates = grows_trees() ? config_.tree.width : 0,
                            .distributions = distributions_.as<float>(),
                            .max_drafts = config_.tree.max_nodes,
                            .vocab_size = config_.target->vocab_size()});
  config_.draft->forward(view(shape.num_slots, num_rows));
}

void CudaDeviceStep::draft_tree_rows(const Shape& shape, int pass, int num_rows) {
  kernels_.step.tree_rows(backend_.stream(),
                          {.state = state(shape.num_slots),
                           .batch = batch(num_rows),
                           .growths = growths(),
                           .is_tree = is_tree_.as<uint8_t>(),
                           .masks = masks_.as<uint64_t>(),
                           .paths = paths_.as<int32_t>(),
                           .pass = pass,
                           .argmax = config_.sampling == DraftSampling::kArgmax});
  BatchView batch = tree_view(shape.num_slots, num_rows);
  batch.num_tree_slots = num_kv_slots_.as<int32_t>();
  config_.draft->forward(batch);
}

void CudaDeviceStep::grow_trees(const Shape& shape, int pass) {
  kernels_.step.grow_trees(backend_.stream(), {.state = state(shape.num_slots),
                                               .growths = growths(),
                                               .num_candidates = num_candidates_.as<int32_t>(),
                                               .candidates = candidates_.as<DeviceCandidate>(),
                                               .pass = pass,
                                               .is_last = pass + 1 == shape.num_passes});
}

void CudaDeviceStep::verify(const Shape& shape) {
  Stream& stream = backend_.stream();
  const bool has_trees = may_be_trees(shape);
  const bool has_sampled = shape.num_passes > 0 && !has_trees;
  kernels_.step.verify_rows(stream, {.state = state(shape.num_slots),
                                     .batch = batch(shape.num_rows),
                                     .trees = trees(shape),
                                     .sampled = has_sampled ? sampled_.as<int32_t>() : nullptr,
                                     .started = &times_.as<StepTimes>()->verify,
                                     .num_drafts = has_trees ? kDraftsInSlots : shape.num_passes});
  config_.target->forward(has_trees ? tree_view(shape.num_slots, shape.num_rows)
                                    : view(shape.num_slots, shape.num_rows));
  sample(shape, *config_.target, shape.num_rows);
  accept(shape);
  if (has_trees) move_kv(shape, *config_.target, layers_, /*places=*/nullptr);
  const bool grew_trees = grows_trees() && shape.num_passes > 0;
  if (grew_trees) move_kv(shape, *config_.draft, draft_layers_, kv_places_.as<int32_t>());
  kernels_.step.commit(stream, {.state = state(shape.num_slots),
                                .cu_rows = cu_rows_.as<int32_t>(),
                                .sampled = sampled_.as<int32_t>(),
                                .accepted = accepted(),
                                .is_weighed = is_weighed(shape),
                                .grew_trees = grew_trees,
                                .token_lists = token_lists_.as<int32_t>(),
                                .reports = reports_.as<StepReport>(),
                                .times = times_.as<StepTimes>(),
                                .reported_times = times_.as<StepTimes>() + 1});
}

void CudaDeviceStep::accept(const Shape& shape) {
  const VerifyTrees trees = {.cu_rows = cu_rows_.as<int32_t>(),
                             .token_ids = token_ids_.as<int32_t>(),
                             .parents = parents_.as<int32_t>(),
                             .positions = positions_.as<int32_t>(),
                             .seeds = seeds_.as<uint64_t>(),
                             .num_requests = shape.num_slots};
  Stream& stream = backend_.stream();
  if (!is_weighed(shape)) {
    kernels_.verify.walk(stream, {.trees = trees,
                                  .sampled = sampled_.as<int32_t>(),
                                  .rates = accept_rates_.as<double>(),
                                  .num_rates = static_cast<int>(config_.synthetic_rates.size()),
                                  .accepted = accepted()});
    return;
  }
  const int vocab_size = config_.target->vocab_size();
  kernels_.verify.weigh(stream, {.trees = trees,
                                 .attempts = attempts_.as<VerifyAttempt>(),
                                 .cu_attempts = cu_attempts_.as<int32_t>(),
                                 .target = targets_.as<float>(),
                                 .drafts = distributions_.as<float>(),
                                 .vocab_size = vocab_size,
                                 .draft_vocab_size = vocab_size,
                                 .num_rows = shape.num_rows,
                                 .is_block = config_.verification == Verification::kBlock,
                                 .residuals = residuals_.as<double>(),
                                 .accepted = accepted()});
}

// The KV of accepted nodes lies where they stood in their tree, or in the order the draft model ran
// them.
void CudaDeviceStep::move_kv(const Shape& shape, StepModel& model, const Buffer& layers,
                             const int32_t* places) {
  kernels_.verify.kv_moves(backend_.stream(),
                           {.cu_rows = cu_rows_.as<int32_t>(),
                            .accepted = accepted(),
                            .base_lens = base_lens_.as<int32_t>(),
                            .places = places,
                            .max_places = kMaxStepDrafts,
                            .block_tables = block_tables_.as<int32_t>(),
                            .max_blocks_per_request = config_.max_blocks_per_request,
                            .block_size = config_.block_size,
                            .num_requests = shape.num_slots,
                            .slots = moves_.as<int64_t>(),
                            .num_pairs = num_moves_.as<int32_t>()});
  const std::span<const PagedKvView> views = model.kv_layers();
  kernels_.attention.copy_kv(backend_.stream(), {.layers = layers.as<KvLayerPointers>(),
                                                 .num_layers = static_cast<int>(views.size()),
                                                 .shape = views[0],
                                                 .slots = moves_.as<int64_t>(),
                                                 .num_pairs = num_moves_.as<int32_t>()});
  if (model.features().width == 0) return;
  kernels_.attention.copy_rows(backend_.stream(), {.rows = model.features(),
                                                   .slots = moves_.as<int64_t>(),
                                                   .num_pairs = num_moves_.as<int32_t>()});
}

SampleOutputs CudaDeviceStep::draft_outputs(int first_row) {
  SampleOutputs outputs{};
  outputs.token_ids = sampled_.as<int32_t>() + first_row;
  if (!grows_trees()) return outputs;
  outputs.num_candidates = num_candidates_.as<int32_t>() + first_row;
  outputs.candidates = candidates_.as<DeviceCandidate>() + int64_t{first_row} * config_.tree.width;
  outputs.max_candidates = config_.tree.width;
  return outputs;
}

SampleOutputs CudaDeviceStep::reported_outputs(const Shape& shape, int first_row) {
  SampleOutputs outputs{};
  outputs.token_ids = sampled_.as<int32_t>() + first_row;
  if (shape.num_logprobs < 0) return outputs;
  outputs.max_logprobs = shape.num_logprobs;
  outputs.num_logprobs = num_logprobs_.as<int32_t>() + first_row;
  outputs.logprobs = logprobs_.as<DeviceLogprob>() + int64_t{first_row} * (shape.num_logprobs + 1);
  return outputs;
}

void CudaDeviceStep::sample(const Shape& shape, StepModel& model, int num_rows) {
  const int vocab_size = config_.target->vocab_size();
  const bool is_draft = &model == config_.draft;
  const bool raw = is_raw(config_.logprobs_mode);
  const bool keeps_raw = !is_draft && shape.num_logprobs >= 0 && raw && shape.any_edits;
  float* logits = logits_.as<float>();
  for (int first = 0; first < num_rows; first += logit_rows_) {
    const int count = std::min(logit_rows_, num_rows - first);
    model.compute_logits(sample_ids_.as<int32_t>() + first, count, logits);
    kernels_.sampling.sample(
        backend_.stream(),
        {.rows = samples_.as<DeviceSampleRow>() + first,
         .logits = logits,
         .processed = keeps_raw ? processed_.as<float>() : logits,
         .token_lists = token_lists_.as<int32_t>(),
         .counts = nullptr,
         .biases = biases_.as<DeviceLogitBias>(),
         .workspace = sample_workspace_at(sampler_.data(), logit_rows_, vocab_size),
         .outputs = is_draft ? draft_outputs(first) : reported_outputs(shape, first),
         .num_rows = count,
         .vocab_size = vocab_size,
         .raw_logprobs = raw,
         .logprobs_hold_logits = holds_logits(config_.logprobs_mode),
         .any_edits = shape.any_edits,
         .any_vectors =
             is_draft ? config_.sampling == DraftSampling::kIndependent : is_weighed(shape)});
  }
}

}  // namespace specdec::cuda
