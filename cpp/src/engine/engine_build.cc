// How an engine is made of its models: device steps take their memory before the KV cache does.
#include <algorithm>
#include <string>
#include <utility>

#include "engine/engine_impl.h"
#include "engine/sizes.h"
#include "engine/step_guard.h"
#include "runtime/leading_device_step.h"

namespace specdec {
namespace {

EngineConfig checked(const EngineConfig& config) {
  config.validate();
  return config;
}

}  // namespace

Engine::Impl::Impl(const EngineConfig& given, const BackendMaker& make_backend)
    : ranks_(Ranks::start(checked(given), make_backend)),
      models_(Ranks::loading(ranks_.get(),
                             [&] {
                               return EngineModels(given, make_backend,
                                                   ranks_ != nullptr ? &ranks_->group() : nullptr);
                             })),
      config_(models_.config()) {
  const EngineConfig& config = config_;
  const DeviceExecutorConfig device_config = DeviceExecutorConfig::of(models_);
  std::unique_ptr<DeviceStep> device_step = DeviceExecutor::make_step(models_, device_config);
  Ranks::loading(ranks_.get(), [&] {
    models_.allocate_caches(device_step != nullptr ? device_step->bytes_on_demand() : 0);
  });
  const CacheSize& cache = models_.cache();
  pool_ = std::make_unique<BlockPool>(cache.num_blocks);
  scheduler_ = std::make_unique<Scheduler>(
      SchedulerConfig{.max_num_seqs = config.max_num_seqs,
                      .max_num_batched_tokens = config.max_num_batched_tokens,
                      .block_size = config.block_size,
                      .enable_prefix_caching = config.enable_prefix_caching,
                      .num_groups = num_groups(),
                      .states = models_.states()},
      *pool_);
  if (config.speculative.enabled()) {
    drafting_ = std::make_unique<Drafting>(config.speculative, models_.model().vocab_size,
                                           models_.draft_models(), *pool_,
                                           models_.backend().thread_pool(), num_groups());
  }
  if (ranks_ != nullptr) ranks_->lead(models_);
  host_ = std::make_unique<HostExecutor>(models_.target(), device_config.logprobs_mode,
                                         config.speculative);
  if (device_step != nullptr) {
    if (ranks_ != nullptr) {
      device_step = std::make_unique<LeadingDeviceStep>(std::move(device_step), ranks_->calls());
    }
    device_ = std::make_unique<DeviceExecutor>(std::move(device_step), drafting_.get(),
                                               models_.backend().thread_pool(), device_config);
  }
  if (drafting_ != nullptr && config.speculative.adapts()) time_passes();
  fill_model_info();
}

Engine::Impl::~Impl() {
  if (ranks_ == nullptr) return;
  drain();
  ranks_->stop();
}

void Engine::Impl::time_passes() {
  const int64_t rows_of_step =
      int64_t{config_.max_num_seqs} * (1 + config_.speculative.max_nodes());
  const auto max_rows =
      static_cast<int>(std::min<int64_t>(rows_of_step, config_.max_num_batched_tokens));
  BlockTable blocks(config_.block_size);
  blocks.reserve(*pool_, std::min(max_rows + 1, pool_->num_free() * config_.block_size));
  const bool is_cpu = resolve_device(config_.device).kind == DeviceKind::kCpu;
  const bool waits = !is_cpu || ranks_ != nullptr;  // for a device, or for others' parts
  const StepGuard hot(models_.backend());
  Ranks::loading(ranks_.get(), [&] {
    drafting_->time_passes(models_.target(), models_.draft_models(), max_rows, blocks,
                           waits ? PassClock::kWall : PassClock::kThread);
    if (ranks_ != nullptr) ranks_->calls().end_step();
  });
}

void Engine::Impl::fill_model_info() {
  const ModelConfig& model = models_.model();
  const CacheSize& cache = models_.cache();
  const ModelRunner& target = models_.target();
  const DraftModels& draft_models = models_.draft_models();
  info_.architecture = model.architecture;
  info_.dtype = std::string(name_of(models_.backend().act_dtype()));
  info_.weight_format = target.model().weight_format();
  info_.device = models_.backend().device_info().name;
  info_.isa = models_.backend().isa();
  info_.num_layers = model.num_layers;
  info_.hidden_size = model.hidden_size;
  const auto attends = [](const LayerSpec& layer) { return !layer.is_recurrent(); };
  const auto first = std::ranges::find_if(model.layers, attends);
  const AttentionHeads heads = first != model.layers.end() ? first->heads : AttentionHeads{};
  info_.num_heads = heads.num_heads;
  info_.num_kv_heads = heads.num_kv_heads;
  info_.head_dim = heads.head_dim;
  info_.vocab_size = model.vocab_size;
  info_.max_model_len = cache.max_model_len;
  info_.max_num_seqs = config_.max_num_seqs;
  info_.max_num_batched_tokens = config_.max_num_batched_tokens;
  info_.num_speculative_tokens = config_.speculative.num_speculative_tokens;
  info_.has_priorities = config_.scheduling_policy == SchedulingPolicy::kPriority;
  info_.num_threads = models_.backend().num_threads();
  info_.num_kv_blocks = cache.num_blocks;
  info_.block_size = config_.block_size;
  info_.num_parameters = target.model().num_parameters();
  info_.weight_bytes = target.model().weight_bytes() + draft_models.weight_bytes();
  info_.kv_cache_dtype = std::string(name_of(target.cache().layers()[0].dtype));
  info_.kv_cache_bytes = target.cache().size_bytes() + draft_models.kv_cache_bytes();
  info_.state_bytes = target.state_bytes();
}

}  // namespace specdec
