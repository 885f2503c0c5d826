#include "runtime/draft_models.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "core/check.h"
#include "core/str_cat.h"
#include "specdec/error.h"

namespace specdec {
namespace {

constexpr int kDraftLogitRows = 64;
// The padding of one vocabulary may differ from that of another. A larger difference means another
// tokenizer.
constexpr int kMaxVocabularyPadding = 1024;

void check_vocabulary(const ModelConfig& draft, const ModelConfig& target) {
  if (std::abs(draft.vocab_size - target.vocab_size) <= kMaxVocabularyPadding) return;
  throw InvalidArgument("model", str_cat("the draft model has a vocabulary of ", draft.vocab_size,
                                         " tokens and the target one of ", target.vocab_size,
                                         "; a draft model must share the target's tokenizer"));
}

}  // namespace

DraftModels::DraftModels(const EngineConfig& config, Backend& backend, const ModelRunner& target,
                         int max_model_len) {
  const std::vector<DrafterConfig>& drafters = config.speculative.drafters;
  for (int id = 0; id < static_cast<int>(drafters.size()); ++id) {
    if (has_model(drafters[id].method)) {
      load(id, config, backend, target, max_model_len);
    }
  }
  device_draft_ = find_device_draft(config.speculative, max_model_len);
}

void DraftModels::load(int id, const EngineConfig& config, Backend& backend,
                       const ModelRunner& target, int max_model_len) {
  const DrafterConfig& drafter = config.speculative.drafters[id];
  const ModelConfig& target_config = target.model().config();
  ModelConfig model = load_model_config(drafter.model);
  model.random_weights = target_config.random_weights;
  check_vocabulary(model, target_config);
  int longest = std::min(max_model_len, max_positions(model));
  if (drafter.max_model_len > 0) longest = std::min(longest, drafter.max_model_len);
  const int max_rows = std::max(config.max_num_batched_tokens, config.speculative.tree_width);
  auto runner = std::make_unique<ModelRunner>(
      model, drafter.model, backend,
      RunnerLimits{.max_model_len = longest,
                   .max_rows = max_rows,
                   .max_logit_rows = std::min(kDraftLogitRows, max_rows)},
      parse_quantization(drafter.quantization));
  // A pass takes its time to read the weights, all of them.
  const double relative_cost = static_cast<double>(runner->model().weight_bytes()) /
                               static_cast<double>(target.model().weight_bytes());
  models_.push_back({.options = {.id = id,
                                 .sampling = drafter.sampling,
                                 .min_confidence = drafter.min_confidence,
                                 .max_rows = max_rows,
                                 .max_model_len = longest,
                                 .vocab_size = target_config.vocab_size,
                                 .relative_cost = relative_cost},
                     .runner = std::move(runner)});
}

std::optional<DraftModels::DeviceDraft> DraftModels::find_device_draft(
    const SpeculativeConfig& config, int max_model_len) const {
  if (models_.size() != 1 || config.drafters.size() != 1) return std::nullopt;
  const auto& [options, runner] = models_[0];
  if (runner->vocab_size() != options.vocab_size || options.max_model_len < max_model_len) {
    return std::nullopt;
  }
  if (options.min_confidence > 0) return std::nullopt;
  if (options.sampling == DraftSampling::kIndependent) {
    // The draws at a node of a tree would share one distribution.
    if (!weighs_drafts(config.verification) || config.tree_width > 1) return std::nullopt;
  }
  return DeviceDraft{.runner = runner.get(), .sampling = options.sampling};
}

int64_t DraftModels::cache_block_bytes(const KvFormat& format) const {
  int64_t bytes = 0;
  for (const Model& model : models_) bytes += model.runner->cache_block_bytes(format);
  return bytes;
}

int DraftModels::num_kv_heads() const {
  int most = 0;
  for (const Model& model : models_) {
    most = std::max(most, model.runner->model().config().num_kv_heads);
  }
  return most;
}

void DraftModels::rehearse(const KvFormat& format) {
  for (const Model& model : models_) model.runner->rehearse(format);
}

void DraftModels::allocate_caches(int num_blocks, const KvFormat& format) {
  for (const Model& model : models_) model.runner->allocate_cache(num_blocks, format);
}

std::unique_ptr<ModelDrafter> DraftModels::make_drafter(int id, const BlockPool& pool) {
  const auto model = std::ranges::find(models_, id, [](const Model& m) { return m.options.id; });
  SPECDEC_CHECK(model != models_.end());
  return std::make_unique<ModelDrafter>(*model->runner, pool, model->options);
}

int64_t DraftModels::weight_bytes() const {
  int64_t bytes = 0;
  for (const Model& model : models_) bytes += model.runner->model().weight_bytes();
  return bytes;
}

int64_t DraftModels::kv_cache_bytes() const {
  int64_t bytes = 0;
  for (const Model& model : models_) bytes += model.runner->cache().size_bytes();
  return bytes;
}

}  // namespace specdec
