#include "runtime/model_runner.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "core/check.h"
#include "core/stopwatch.h"
#include "core/str_cat.h"
#include "model/decoder.h"
#include "specdec/error.h"

namespace specdec {
namespace {

// How work is cut up depends on its rows, so that fewer may need more memory: `work` for all counts
// that a backend could tell apart, the largest first, so that little has to grow.
void each_row_count(int most, const std::function<void(int)>& work) {
  constexpr int kSpacing = 64;
  work(most);
  for (int rows = (most - 1) / kSpacing * kSpacing; rows >= kSpacing; rows -= kSpacing) work(rows);
  for (int rows = std::min(most, kSpacing) / 2; rows > 0; rows /= 2) work(rows);
}

}  // namespace

ModelRunner::ModelRunner(Backend& backend, const RunnerLimits& limits, const ModelMaker& make_model)
    : backend_(backend), limits_(limits), row_processing_(backend) {
  // A backend may pad a batch, to the next power of two at most.
  const auto max_padded_rows =
      static_cast<int>(std::bit_ceil(static_cast<unsigned>(limits.max_rows)));
  try {
    model_ = make_model(max_padded_rows);
    logits_ = backend.allocate(static_cast<size_t>(limits.max_logit_rows) *
                                   static_cast<size_t>(vocab_size()) * sizeof(float),
                               "logits");
    if (limits.max_kept_rows > 0) {
      kept_logits_ = backend.allocate(static_cast<size_t>(limits.max_kept_rows) *
                                          static_cast<size_t>(vocab_size()) * sizeof(float),
                                      "logits");
    }
  } catch (const OutOfMemory& error) {
    throw OutOfMemory(str_cat(error.what(),
                              "; give quantization=\"int8\" or \"int4\", lower "
                              "max_num_batched_tokens, or take a smaller model"));
  }
}

ModelRunner::ModelRunner(const ModelConfig& config, const std::string& directory, Backend& backend,
                         const RunnerLimits& limits, Quantization quantization, TapSpec taps,
                         const RankCoordinates& coordinates)
    : ModelRunner(backend, limits, [&](int max_rows) {
        return std::make_unique<Decoder>(config, directory, backend, limits.max_model_len, max_rows,
                                         quantization, ModelParts{}, coordinates);
      }) {
  taps_.spec = std::move(taps);
  for (const int layer : taps_.spec.layer_inputs) {
    SPECDEC_CHECK(layer >= 0 && layer <= config.num_layers);
  }
}

KvCacheShape ModelRunner::cache_shape(const KvFormat& format) const {
  KvCacheShape shape = {.format = format};
  for (const LayerSpec& layer : model_->config().layers) {
    shape.layers.push_back({.num_kv_heads = layer.heads.num_kv_heads,
                            .head_dim = layer.heads.head_dim,
                            .source = layer.kv_source});
  }
  return shape;
}

int64_t ModelRunner::cache_block_bytes(const KvFormat& format) const {
  return KvCache::block_bytes(backend_, cache_shape(format)) +
         FeatureCache::block_bytes(backend_, feature_width(), format.block_size);
}

std::unique_ptr<FeatureCache> ModelRunner::make_features(int num_blocks,
                                                         const KvFormat& format) const {
  if (taps_.spec.num_taps() == 0) return nullptr;
  return std::make_unique<FeatureCache>(backend_, feature_width(), format.block_size, num_blocks);
}

void ModelRunner::rehearse(const KvFormat& format) {
  const auto max_rows = static_cast<int>(std::bit_ceil(static_cast<unsigned>(limits_.max_rows)));
  backend_.rehearse([&] {
    KvCacheShape shape = cache_shape(format);
    if (model_->config().reads_target_kv) {  // there is no cache of the target's yet
      for (KvLayerShape& layer : shape.layers) layer.source = -1;
    }
    const KvCache cache(backend_, shape, /*num_blocks=*/1);
    const StateCache states(backend_, state_shapes(), /*num_slots=*/1, /*num_records=*/1);
    const auto features = make_features(/*num_blocks=*/1, format);
    Taps taps = taps_;
    if (features != nullptr) taps.features = features->rows();
    // A draft head does different work for drafts than for committed tokens.
    const bool is_draft_head = taps.spec.num_taps() == 0 && taps.features.width > 0;
    for (int level = 0; level <= (is_draft_head ? 1 : 0); ++level) {
      each_row_count(max_rows, [&](int rows) {
        const BatchView batch = {.num_requests = 1, .num_rows = rows, .max_blocks_per_request = 1};
        model_->forward({.batch = batch,
                         .kv_layers = cache.layers(),
                         .states = states.layers(),
                         .taps = taps,
                         .features = taps.features,
                         .level = level});
      });
    }
    each_row_count(std::min(limits_.max_logit_rows, max_rows), [&](int rows) {
      model_->compute_logits(nullptr, rows, logits_.as<float>());
      model_->best_tokens(nullptr, rows, logits_.as<int32_t>());  // for a place: nothing is written
    });
    // Bias together with raw logprobs needs the most memory.
    const std::vector<std::pair<int32_t, float>> bias = {{0, 1.0f}};
    const SampleRow row = {.logit_bias = bias, .num_logprobs = 1, .want_logprobs = true};
    const auto num_rows = static_cast<size_t>(limits_.max_logit_rows);
    const std::vector<SampleRow> rows(num_rows, row);
    std::vector<SampleResult> results(num_rows);
    backend_.sample({.logits = logits_.as<float>(),
                     .rows = rows,
                     .vocab_size = model_->config().vocab_size,
                     .logprobs_mode = LogprobsMode::kRaw,
                     .results = results});
  });
}

void ModelRunner::allocate_cache(int num_blocks, const KvFormat& format,
                                 const DraftCacheNeeds& needs) {
  SPECDEC_CHECK_EQ(model_->config().reads_target_kv, !needs.target.empty());
  cache_ = std::make_unique<KvCache>(backend_, cache_shape(format), num_blocks + needs.num_spare,
                                     needs.target);
  spare_blocks_.resize(static_cast<size_t>(needs.num_spare));
  std::iota(spare_blocks_.begin(), spare_blocks_.end(), num_blocks + 1);  // after the null block
  features_ = make_features(num_blocks, format);
  if (features_ != nullptr) taps_.features = features_->rows();
}

std::vector<StateShape> ModelRunner::state_shapes() const {
  std::vector<StateShape> shapes;
  for (const LayerSpec& layer : model_->config().layers) shapes.push_back(layer.state);
  return shapes;
}

void ModelRunner::allocate_states(int num_slots, int num_records) {
  states_ = std::make_unique<StateCache>(backend_, state_shapes(), num_slots, num_records);
}

void ModelRunner::set_features(const PagedRowsView& features) {
  taps_.features = features;
  const std::span<const float> mask = model_->mask_features();
  if (mask.empty() || features.rows == nullptr) return;
  const int64_t row_bytes = features.width * static_cast<int64_t>(size_of(backend_.act_dtype()));
  const PagedRowsView row = {
      .rows = static_cast<std::byte*>(features.rows) + mask_slot() * row_bytes,
      .num_slots = 1,
      .width = features.width};
  backend_.store_rows(
      {.x = mask.data(), .to = row, .dim = static_cast<int>(mask.size()), .num_rows = 1});
}

void ModelRunner::begin_forward(BatchInputs& inputs) {
  SPECDEC_CHECK_LE(inputs.num_rows(), limits_.max_rows);
  if (observer_ != nullptr) observer_->begin_forward(inputs.view());
}

void ModelRunner::forward(BatchInputs& inputs, const PassKind& kind) {
  SPECDEC_CHECK_LE(inputs.num_rows() * kind.num_levels, limits_.max_rows);
  const BatchView batch = inputs.view();
  level_held_ = kind.level;
  if (observer_ != nullptr) observer_->forward(batch, kind);
  rows_per_level_ = run_staged(batch, kind);
  num_rows_held_ = (kind.num_levels - 1) * rows_per_level_ + batch.num_rows;
}

int ModelRunner::run_staged(const BatchView& given, const PassKind& kind) {
  const BatchView batch = backend_.stage(given);
  const int num_rows = batch.num_rows;
  if (num_rows == 0) return num_rows;
  const auto work = [&] { run(batch, kind); };
  if (!batch.is_recordable) {
    work();
    return num_rows;
  }
  const int mask_words = batch.ancestor_mask != nullptr ? batch.mask_words : 0;
  backend_.run_recorded({.owner = this,
                         .shape = {num_rows, batch.num_requests, batch.max_blocks_per_request,
                                   mask_words, kind.level, kind.kv_only ? 1 : 0, kind.num_levels}},
                        work);
  return num_rows;
}

void ModelRunner::forward(const BatchView& batch, int level) {
  SPECDEC_CHECK_LE(batch.num_rows, limits_.max_rows);
  level_held_ = level;
  run(batch, {.level = level});
}

void ModelRunner::run(const BatchView& batch, const PassKind& kind) {
  std::span<const LayerStateView> states;
  if (states_ != nullptr) states = states_->layers();
  model_->forward({.batch = batch,
                   .kv_layers = cache_->layers(),
                   .states = states,
                   .taps = taps_,
                   .features = taps_.features,
                   .level = kind.level,
                   .num_levels = kind.num_levels,
                   .kv_only = kind.kv_only});
}

void ModelRunner::compute_logits(std::span<const int32_t> row_ids, int level) {
  model_->compute_logits(backend_.stage_ids(row_ids), static_cast<int>(row_ids.size()),
                         logits_.as<float>(), level);
}

void ModelRunner::compute_logits(const int32_t* row_ids, int num_rows, float* logits) {
  model_->compute_logits(row_ids, num_rows, logits, level_held_);
}

TappedStates ModelRunner::read_tapped(const BlockTable& blocks, int num_tokens) const {
  const PagedRowsView& features = taps_.features;
  const DType dtype = backend_.act_dtype();
  TappedStates states{.num_tokens = num_tokens,
                      .num_taps = taps_.spec.num_taps(),
                      .hidden_size = model_->config().hidden_size,
                      .dtype = std::string(name_of(dtype)),
                      .values = {}};
  const auto element_bytes = static_cast<size_t>(size_of(dtype));
  const size_t row_bytes = static_cast<size_t>(features.width) * element_bytes;
  const size_t tapped_bytes = static_cast<size_t>(states.num_taps) *
                              static_cast<size_t>(states.hidden_size) * element_bytes;
  states.values.resize(static_cast<size_t>(num_tokens) * tapped_bytes);
  // Rows of a block are adjacent; a row may be wider than the taps.
  const int run = row_bytes == tapped_bytes ? blocks.block_size() : 1;
  const std::span<std::byte> values(states.values);
  for (int begin = 0; begin < num_tokens; begin += run) {
    const auto num_rows = static_cast<size_t>(std::min(run, num_tokens - begin));
    const auto slot = static_cast<size_t>(blocks.slot(begin));
    backend_.read(
        static_cast<const std::byte*>(features.rows) + slot * row_bytes,
        values.subspan(static_cast<size_t>(begin) * tapped_bytes, num_rows * tapped_bytes));
  }
  return states;
}

void ModelRunner::move_kv(std::span<const std::pair<int64_t, int64_t>> slots) {
  if (slots.empty()) return;
  if (observer_ != nullptr) observer_->move_kv(slots);
  backend_.copy_kv({.layers = cache_->own_layers(), .features = taps_.features, .slots = slots});
}

void ModelRunner::sample_in_turns(std::span<const SampleRow> rows, LogprobsMode logprobs_mode,
                                  std::span<SampleResult> results,
                                  const std::function<void(size_t begin, size_t count)>& compute) {
  SPECDEC_CHECK_EQ(rows.size(), results.size());
  const auto turn = static_cast<size_t>(limits_.max_logit_rows);
  for (size_t begin = 0; begin < rows.size(); begin += turn) {
    const size_t count = std::min(turn, rows.size() - begin);
    const std::span<SampleResult> turn_results = results.subspan(begin, count);
    {
      const Stopwatch watch(lm_head_seconds_);
      compute(begin, count);
    }
    const auto turn_rows = row_processing_.run(
        logits_.as<float>(), vocab_size(), rows.subspan(begin, count), logprobs_mode, turn_results);
    backend_.sample({.logits = logits_.as<float>(),
                     .rows = turn_rows,
                     .vocab_size = vocab_size(),
                     .token_ids = model_->draft_vocabulary().token_ids,
                     .target_vocab_size = model_->draft_vocabulary().target_vocab_size,
                     .logprobs_mode = logprobs_mode,
                     .results = turn_results});
  }
}

void ModelRunner::sample(std::span<const int32_t> row_ids, std::span<const SampleRow> rows,
                         LogprobsMode logprobs_mode, std::span<SampleResult> results,
                         int levels_on) {
  SPECDEC_CHECK_EQ(row_ids.size(), rows.size());
  for (const int32_t row : row_ids) SPECDEC_CHECK(row >= 0 && row < num_rows_held_);
  sample_in_turns(rows, logprobs_mode, results, [&](size_t begin, size_t count) {
    const std::span<const int32_t> ids = row_ids.subspan(begin, count);
    const int level = level_held_ + levels_on;
    if (observer_ != nullptr) observer_->compute_logits(ids, level);
    compute_logits(ids, level);
  });
}

void ModelRunner::keep_logits(std::span<const int32_t> row_ids) {
  SPECDEC_CHECK_LE(row_ids.size(), static_cast<size_t>(limits_.max_kept_rows));
  for (const int32_t row : row_ids) SPECDEC_CHECK(row >= 0 && row < num_rows_held_);
  const Stopwatch watch(lm_head_seconds_);
  // In turns, as other ranks hold no more rows.
  const auto turn = static_cast<size_t>(limits_.max_logit_rows);
  for (size_t begin = 0; begin < row_ids.size(); begin += turn) {
    const std::span<const int32_t> ids =
        row_ids.subspan(begin, std::min(turn, row_ids.size() - begin));
    if (observer_ != nullptr) observer_->compute_logits(ids, level_held_);
    model_->compute_logits(backend_.stage_ids(ids), static_cast<int>(ids.size()),
                           kept_logits_.as<float>() + begin * static_cast<size_t>(vocab_size()),
                           level_held_);
  }
  num_kept_ = static_cast<int>(row_ids.size());
}

void ModelRunner::sample_after(std::span<const int32_t> tokens_before,
                               std::span<const int32_t> kept_ids, std::span<const SampleRow> rows,
                               LogprobsMode logprobs_mode, std::span<SampleResult> results) {
  SPECDEC_CHECK_EQ(kept_ids.size(), rows.size());
  SPECDEC_CHECK_EQ(tokens_before.size(), rows.size());
  for (const int32_t row : kept_ids) SPECDEC_CHECK(row >= 0 && row < num_kept_);
  sample_in_turns(rows, logprobs_mode, results, [&](size_t begin, size_t count) {
    const std::span<const int32_t> tokens = tokens_before.subspan(begin, count);
    const bool has_markov_head = model_->has_markov_head();
    if (has_markov_head) {
      if (observer_ != nullptr) observer_->compute_markov_logits(tokens);
      compute_markov_logits(tokens);
    }
    backend_.gather_rows({.rows = kept_logits_.as<float>(),
                          .row_ids = backend_.stage_ids(kept_ids.subspan(begin, count)),
                          .out = logits_.as<float>(),
                          .accumulate = has_markov_head,
                          .num_rows = static_cast<int>(count),
                          .dim = vocab_size()});
  });
}

void ModelRunner::compute_markov_logits(std::span<const int32_t> token_ids) {
  model_->compute_markov_logits(backend_.stage_ids(token_ids), static_cast<int>(token_ids.size()),
                                logits_.as<float>());
}

}  // namespace specdec
