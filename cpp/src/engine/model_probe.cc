#include "engine/model_probe.h"

#include <algorithm>
#include <utility>

#include "core/str_cat.h"
#include "engine/sizes.h"
#include "specdec/error.h"

namespace specdec {
namespace {

EngineConfig completed(const EngineConfig& given) {
  EngineConfig config = given;
  config.validate();
  config.tensor_parallel_size = config.pipeline_parallel_size = 1;  // the states are the same
  for (DrafterConfig& drafter : config.speculative.drafters) drafter.draft_tensor_parallel_size = 1;
  fill_defaults(config, resolve_device(config.device).kind);
  return config;
}

void check_tokens(const ModelConfig& model, const std::vector<int32_t>& tokens) {
  if (tokens.empty()) throw InvalidArgument("tokens", "there are none");
  for (const int32_t token : tokens) {
    if (token < 0 || token >= model.vocab_size) {
      throw InvalidArgument(
          "tokens", str_cat(token, " is not in the vocabulary of ", model.vocab_size, " tokens"));
    }
  }
}

// The target's config; checks that the tokens are the target's.
ModelConfig load_target(const EngineConfig& config, const std::vector<int32_t>& tokens) {
  ModelConfig model = load_model_config(config.model, config.hf_overrides);
  model.random_weights = config.load_format == "dummy";
  check_tokens(model, tokens);
  return model;
}

}  // namespace

ModelProbe::ModelProbe(const EngineConfig& config, const std::vector<int32_t>& tokens,
                       int num_drafts, TapSpec taps)
    : config_(completed(config)),
      model_(load_target(config_, tokens)),
      pool_(num_blocks_for(static_cast<int>(tokens.size()) + num_drafts, config_.block_size)),
      blocks_(config_.block_size) {
  const DeviceChoice device = resolve_device(config_.device);
  backend_ = make_backend({.device = device.name,
                           .cpu_isa = config_.cpu_isa,
                           .num_threads = config_.num_threads,
                           .act_dtype = resolve_dtype(config_, model_, device.kind),
                           .enforce_eager = config_.enforce_eager,
                           .deterministic = config_.deterministic});
  const int num_slots = static_cast<int>(tokens.size()) + num_drafts;
  max_rows_ = std::min(config_.max_num_batched_tokens, num_slots);
  draft_models_ = std::make_unique<DraftModels>(config_, model_);
  if (taps.num_taps() == 0) taps = draft_models_->taps();
  target_ = std::make_unique<ModelRunner>(
      model_, config_.model, *backend_,
      RunnerLimits{.max_model_len = num_slots, .max_rows = max_rows_, .max_logit_rows = 1},
      parse_quantization(config_.quantization), std::move(taps));
  draft_models_->load(*backend_, *target_, num_slots);
  const KvFormat format = resolve_kv_format(config_, backend_->act_dtype());
  target_->allocate_cache(pool_.num_blocks(), format);
  draft_models_->allocate_caches(pool_.num_blocks(), format, target_->features());
  blocks_.reserve(pool_, num_slots);
}

void ModelProbe::run_target(std::span<const int32_t> tokens) {
  const auto num_tokens = static_cast<int>(tokens.size());
  for (int begin = 0; begin < num_tokens; begin += max_rows_) {
    BatchInputs inputs;
    inputs.add_chain(tokens.subspan(static_cast<size_t>(begin),
                                    static_cast<size_t>(std::min(max_rows_, num_tokens - begin))),
                     begin, blocks_);
    backend_->begin_step();
    target_->forward(inputs);
    backend_->end_step();
  }
}

std::vector<float> ModelProbe::read_features(int num_tokens) {
  const TappedStates tapped = target_->read_tapped(blocks_, num_tokens);
  const size_t num_values =
      tapped.values.size() / static_cast<size_t>(size_of(backend_->act_dtype()));
  std::vector<float> states(num_values);
  to_floats(tapped.values.data(), backend_->act_dtype(), num_values, states.data());
  return states;
}

}  // namespace specdec
