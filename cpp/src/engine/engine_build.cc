// How an engine is made: weights first, then what steps take for themselves, then the KV cache from
// the memory that is left.
#include <algorithm>
#include <string>
#include <utility>

#include "core/host_memory.h"
#include "core/log.h"
#include "core/str_cat.h"
#include "engine/engine_impl.h"
#include "engine/sizes.h"
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

// What completions return and what draft heads read, which are one and the same row of features.
TapSpec resolve_taps(const EngineConfig& config, const ModelConfig& model,
                     const TapSpec& of_heads) {
  TapSpec taps{.layer_inputs = config.tapped_layers,
               .final_hidden = config.tap_final_hidden,
               .least_width = of_heads.least_width};
  for (const int layer : taps.layer_inputs) {
    if (layer < 0 || layer > model.num_layers) {
      throw InvalidArgument(
          "taps", str_cat("has layer ", layer, ", but there are 0 to ", model.num_layers));
    }
  }
  if (taps.num_taps() == 0) return of_heads;
  if (of_heads.num_taps() != 0 && !taps.reads_same(of_heads)) {
    throw InvalidArgument("taps",
                          "differ from the states that the draft head reads; leave them out, or "
                          "record them on an engine without the head");
  }
  return taps;
}

}  // namespace

Engine::Impl::Impl(const EngineConfig& given, const BackendMaker& make_backend) : config_(given) {
  config_.validate();
  const DeviceChoice device = resolve_device(config_.device);
  if (config_.device == "auto") log_info("device='auto' is ", device.name);
  fill_defaults(config_, device.kind);
  const EngineConfig& config = config_;
  ModelConfig model = load_model_config(config.model, config.hf_overrides);
  model.random_weights = config.load_format == "dummy";
  draft_models_ = std::make_unique<DraftModels>(config, model);
  backend_ = make_backend({.device = device.name,
                           .cpu_isa = config.cpu_isa,
                           .num_threads = config.num_threads,
                           .act_dtype = resolve_dtype(config, model, device.kind),
                           .enforce_eager = config.enforce_eager,
                           .deterministic = config.deterministic});
  release_free_heap();             // what reading a tokenizer left behind, before weights come
  const StepGuard hot(*backend_);  // weights are packed by the threads that will read them
  const KvFormat kv_format = resolve_kv_format(config, backend_->act_dtype());
  const int longest = resolve_max_model_len(config, model);
  const int max_model_len =
      limit_to_cache(longest, config, device.kind, model, kv_format, backend_->memory());
  const RunnerLimits limits{.max_model_len = max_model_len,
                            .max_rows = config.max_num_batched_tokens,
                            .max_logit_rows = max_logit_rows(config)};
  runner_ = std::make_unique<ModelRunner>(model, config.model, *backend_, limits,
                                          parse_quantization(config.quantization),
                                          resolve_taps(config, model, draft_models_->taps()));
  draft_models_->load(*backend_, *runner_, max_model_len);
  const int64_t block_bytes =
      runner_->cache_block_bytes(kv_format) + draft_models_->cache_block_bytes(kv_format);
  const int num_kv_heads = std::max(model.num_kv_heads, draft_models_->num_kv_heads());
  runner_->rehearse(kv_format);
  draft_models_->rehearse(kv_format);
  const LogprobsMode logprobs_mode = parse_logprobs_mode(config.logprobs_mode);
  const DeviceExecutorConfig device_config = {.max_num_seqs = config.max_num_seqs,
                                              .max_rows = config.max_num_batched_tokens,
                                              .max_model_len = max_model_len,
                                              .block_size = config.block_size,
                                              .logprobs_mode = logprobs_mode,
                                              .speculative = config.speculative};
  auto device_step = DeviceExecutor::make_step(*backend_, *runner_, *draft_models_, device_config);
  MemoryInfo memory = backend_->memory();
  if (device_step != nullptr) memory.free_bytes -= device_step->bytes_on_demand();
  const CacheSize cache =
      resolve_cache_size(config, device.kind, max_model_len, block_bytes, num_kv_heads, memory);
  if (cache.max_model_len < longest) {
    log_info("max_model_len lowered from ", longest, " to ", cache.max_model_len,
             ", what the KV cache holds");
  }
  runner_->allocate_cache(cache.num_blocks, kv_format);
  pool_ = std::make_unique<BlockPool>(cache.num_blocks);
  scheduler_ = std::make_unique<Scheduler>(
      SchedulerConfig{.max_num_seqs = config.max_num_seqs,
                      .max_num_batched_tokens = config.max_num_batched_tokens,
                      .block_size = config.block_size,
                      .enable_prefix_caching = config.enable_prefix_caching},
      *pool_);
  draft_models_->allocate_caches(cache.num_blocks, kv_format, runner_->features());
  if (config.speculative.enabled()) {
    drafting_ = std::make_unique<Drafting>(config.speculative, model.vocab_size, *draft_models_,
                                           *pool_, backend_->thread_pool());
  }
  host_ = std::make_unique<HostExecutor>(*runner_, logprobs_mode, config.speculative);
  if (device_step != nullptr) {
    device_ = std::make_unique<DeviceExecutor>(std::move(device_step), drafting_.get(),
                                               backend_->thread_pool(), device_config);
  }
  fill_model_info(model, cache);
}

void Engine::Impl::fill_model_info(const ModelConfig& model, const CacheSize& cache) {
  info_.architecture = model.architecture;
  info_.dtype = std::string(name_of(backend_->act_dtype()));
  info_.weight_format = runner_->model().weight_format();
  info_.device = backend_->device_info().name;
  info_.isa = backend_->isa();
  info_.num_layers = model.num_layers;
  info_.hidden_size = model.hidden_size;
  info_.num_heads = model.num_heads;
  info_.num_kv_heads = model.num_kv_heads;
  info_.head_dim = model.head_dim;
  info_.vocab_size = model.vocab_size;
  info_.max_model_len = cache.max_model_len;
  info_.max_num_seqs = config_.max_num_seqs;
  info_.max_num_batched_tokens = config_.max_num_batched_tokens;
  info_.num_threads = backend_->num_threads();
  info_.num_kv_blocks = cache.num_blocks;
  info_.block_size = config_.block_size;
  info_.num_parameters = runner_->model().num_parameters();
  info_.weight_bytes = runner_->model().weight_bytes() + draft_models_->weight_bytes();
  info_.kv_cache_dtype = std::string(name_of(runner_->cache().layers()[0].dtype));
  info_.kv_cache_bytes = runner_->cache().size_bytes() + draft_models_->kv_cache_bytes();
}

}  // namespace specdec
