// Weights first, then what steps take for themselves, then the KV cache from the memory that is
// left.
#include "engine/engine_models.h"

#include <algorithm>
#include <span>
#include <string>
#include <utility>

#include "core/byte_message.h"
#include "core/host_memory.h"
#include "core/log.h"
#include "core/str_cat.h"
#include "engine/failure.h"
#include "engine/join_ranks.h"
#include "engine/step_guard.h"
#include "specdec/error.h"

namespace specdec {
namespace {

constexpr int kMaxLogitRows = 64;  // bounds the logits buffer; more rows are sampled in turns

// Rows sampled in one turn: all that decode and their drafts, within reason.
int max_logit_rows(const EngineConfig& config) {
  const int64_t rows_per_sequence =
      config.speculative.enabled() ? 1 + config.speculative.max_nodes() : 1;
  return static_cast<int>(
      std::min<int64_t>(config.max_num_seqs * rows_per_sequence, kMaxLogitRows));
}

// The taps that completions return and the taps that draft heads read must be the same row of
// features.
TapSpec resolve_taps(const EngineConfig& config, const ModelConfig& model,
                     const TapSpec& of_draft_heads) {
  TapSpec taps{.layer_inputs = config.tapped_layers,
               .final_hidden = config.tap_final_hidden,
               .least_width = of_draft_heads.least_width};
  for (const int layer : taps.layer_inputs) {
    if (layer < 0 || layer > model.num_layers) {
      throw InvalidArgument(
          "taps", str_cat("has layer ", layer, ", but there are 0 to ", model.num_layers));
    }
  }
  if (taps.num_taps() == 0) return of_draft_heads;
  if (of_draft_heads.num_taps() != 0 && !taps.reads_same(of_draft_heads)) {
    throw InvalidArgument("taps",
                          "differ from the states that the draft head reads; leave them out, or "
                          "record them on an engine without the head");
  }
  return taps;
}

}  // namespace

EngineModels::EngineModels(const EngineConfig& given, const BackendMaker& make_backend,
                           Communicator* ranks)
    : config_(given), ranks_(ranks) {
  try {
    load(make_backend);
  } catch (...) {  // while this rank has not left the groups it is in
    if (ranks_ != nullptr) ranks_->abort(message_of(std::current_exception()));
    throw;
  }
}

void EngineModels::load(const BackendMaker& make_backend) {
  const int rank = ranks_ != nullptr ? ranks_->rank() : 0;
  const DeviceChoice device = resolve_device(config_.device, device_of_rank(config_, rank));
  device_kind_ = device.kind;
  if (config_.device == "auto" && rank == 0) log_info("device='auto' is ", device.name);
  const bool may_lower_seqs = config_.max_num_seqs == 0;
  fill_defaults(config_, device.kind);
  const EngineConfig& config = config_;
  model_ = load_model_config(config.model, config.hf_overrides);
  check_stored_as(config.quantization, model_.stored_format);
  model_.random_weights = config.load_format == LoadFormat::kDummy;
  coordinates_ = find_coordinates();
  draft_models_ = std::make_unique<DraftModels>(config, model_, coordinates_);
  // Work that is recorded on a device cannot wait for rows of another stage.
  backend_ =
      make_backend({.device = device.name,
                    .cpu_isa = config.cpu_isa,
                    .num_threads = config.num_threads,
                    .num_sharers = num_ranks_of_host(config),
                    .act_dtype = resolve_dtype(config, model_, device.kind),
                    .enforce_eager = config.enforce_eager || config.pipeline_parallel_size > 1,
                    .deterministic = config.deterministic});
  release_free_heap();             // what reading a tokenizer left behind, before weights come
  const StepGuard hot(*backend_);  // weights are packed by the threads that will read them
  kv_format_ = resolve_kv_format(config, backend_->act_dtype());
  longest_ = resolve_max_model_len(config, model_);
  max_model_len_ = static_cast<int>(
      agree(limit_to_cache(longest_, config, device.kind, model_, kv_format_, own_memory())));
  const RunnerLimits limits{.max_model_len = max_model_len_,
                            .max_rows = config.max_num_batched_tokens,
                            .max_logit_rows = max_logit_rows(config)};
  target_ = std::make_unique<ModelRunner>(
      model_, config.model, *backend_, limits, parse_quantization(config.quantization),
      resolve_taps(config, model_, draft_models_->taps()), coordinates_);
  draft_models_->load(*backend_, *target_, max_model_len_);
  target_->rehearse(kv_format_);
  draft_models_->rehearse(kv_format_);
  if (model_.has_states() && may_lower_seqs) lower_num_seqs();
}

void EngineModels::lower_num_seqs() {
  const auto fitting = static_cast<int>(agree(fit_num_seqs(config_, state_bytes(), own_memory())));
  if (fitting < config_.max_num_seqs) {
    log_info("max_num_seqs lowered from ", config_.max_num_seqs, " to ", fitting,
             ": the recurrent states of a sequence take ", state_bytes().slot >> 20, " MiB");
  }
  config_.max_num_seqs = fitting;
}

StateBytes EngineModels::state_bytes() const {
  const std::vector<StateShape> shapes = target_->state_shapes();
  return {.slot = StateCache::slot_bytes(shapes), .record = StateCache::record_bytes(shapes)};
}

EngineModels::~EngineModels() = default;

// Rank 0 is in the last stage, where tokens are sampled and drafted.
RankCoordinates EngineModels::find_coordinates() {
  const int num_stages = config_.pipeline_parallel_size;
  if (ranks_ == nullptr || num_stages == 1) return {.ranks = ranks_};
  const int size = config_.tensor_parallel_size;
  const int from_last = ranks_->rank() / size;
  if (size > 1) stage_ = ranks_->subgroup(from_last * size, size);
  return {.ranks = stage_.get(),
          .stages = ranks_,
          .stage = num_stages - 1 - from_last,
          .num_stages = num_stages,
          .previous_rank = ranks_->rank() + size,
          .next_rank = ranks_->rank() - size};
}

void EngineModels::allocate_caches(int64_t reserved_bytes) {
  const StepGuard hot(*backend_);
  // A stage of a model may have recurrent layers alone.
  const int64_t block_bytes = std::max<int64_t>(
      target_->cache_block_bytes(kv_format_) + draft_models_->cache_block_bytes(kv_format_), 1);
  const int num_kv_heads = std::max(model_.most_kv_heads(), draft_models_->num_kv_heads());
  MemoryInfo memory = own_memory();
  memory.free_bytes -= reserved_bytes + draft_models_->spare_cache_bytes(kv_format_);
  if (model_.has_states()) {
    memory.free_bytes -= bytes_for_states(config_, device_kind_, state_bytes(), memory);
  }
  cache_ =
      resolve_cache_size(config_, device_kind_, max_model_len_, block_bytes, num_kv_heads, memory);
  cache_.num_blocks = static_cast<int>(agree(cache_.num_blocks));
  cache_.max_model_len = static_cast<int>(agree(cache_.max_model_len));
  if (cache_.max_model_len < longest_) {
    log_info("max_model_len lowered from ", longest_, " to ", cache_.max_model_len,
             ", what the KV cache holds");
  }
  if (model_.has_states()) {
    states_ = resolve_states(config_, model_, kv_format_, block_bytes * cache_.num_blocks,
                             state_bytes(), own_memory());
    states_.num_cached = static_cast<int>(agree(states_.num_cached));
    target_->allocate_states(states_.total_slots(), states_.num_records());
  }
  target_->allocate_cache(cache_.num_blocks, kv_format_);
  draft_models_->allocate_caches(cache_.num_blocks, kv_format_, *target_);
}

// The backend's, of which other ranks of the host have their parts.
MemoryInfo EngineModels::own_memory() const {
  MemoryInfo memory = backend_->memory();
  if (device_kind_ == DeviceKind::kCpu) memory.free_bytes /= num_ranks_of_host(config_);
  return memory;
}

int64_t EngineModels::agree(int64_t value) {
  if (ranks_ == nullptr) return value;
  std::byte* part = ranks_->part(sizeof(value));
  std::memcpy(part, &value, sizeof(value));
  for (const std::span<const std::byte> other : ranks_->exchange(sizeof(value))) {
    value = std::min(value, MessageReader(other).get<int64_t>());
  }
  return value;
}

std::vector<ModelRunner*> EngineModels::runners() {
  std::vector<ModelRunner*> runners = {target_.get()};
  for (ModelRunner* runner : draft_models_->runners()) runners.push_back(runner);
  return runners;
}

}  // namespace specdec
