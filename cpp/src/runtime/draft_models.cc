#include "runtime/draft_models.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <utility>

#include "core/check.h"
#include "core/log.h"
#include "core/str_cat.h"
#include "model/decoder.h"
#include "model/model_shard.h"
#include "runtime/draft_size.h"
#include "specdec/error.h"

namespace specdec {
namespace {

constexpr int kDraftLogitRows = 64;
// Of the logits that are kept of a pass over spans.
constexpr int64_t kMostKeptBytes = 64 << 20;
// The padding of one vocabulary may differ from that of another. A larger difference means another
// tokenizer.
constexpr int kMaxVocabularyPadding = 1024;

void check_vocabulary(const ModelConfig& draft, const ModelConfig& target) {
  if (std::abs(draft.vocab_size - target.vocab_size) <= kMaxVocabularyPadding) return;
  throw InvalidArgument("model", str_cat("the draft model has a vocabulary of ", draft.vocab_size,
                                         " tokens and the target one of ", target.vocab_size,
                                         "; a draft model must share the target's tokenizer"));
}

// A draft head that is the only drafter must reach the depth asked for; with others, it drafts as
// deep as it can.
void check_depth(const DraftHeadConfig& head, const SpeculativeConfig& config) {
  if (head.max_depth == 0 || config.num_speculative_tokens <= head.max_depth ||
      config.drafters.size() > 1) {
    return;
  }
  throw InvalidArgument("num_speculative_tokens",
                        str_cat(config.num_speculative_tokens, " is more than the ", head.max_depth,
                                " tokens that the head in ", head.directory, " can draft"));
}

int most_span_rows(const SpanConfig& span, int vocab_size, int max_rows) {
  if (span.num_rows == 0) return 0;
  const auto kept = static_cast<int>(kMostKeptBytes / (int64_t{vocab_size} * 4));
  const int rows = std::min({kMaxSpanRows, max_rows, kept});
  return std::max(rows / span.num_rows, 1) * span.num_rows;
}

bool can_be_shared(DraftMethod method) {
  return method != DraftMethod::kMedusa && method != DraftMethod::kMlpSpeculator;
}

void check_ranks(const DrafterConfig& drafter, int num_ranks) {
  const int size = drafter.draft_tensor_parallel_size;
  if (size > num_ranks) {
    throw InvalidArgument(
        "draft_tensor_parallel_size",
        str_cat(size, " is more than the target's tensor_parallel_size, ", num_ranks));
  }
  if (size > 1 && !can_be_shared(drafter.method)) {
    throw InvalidArgument("draft_tensor_parallel_size",
                          str_cat("a head of method '", name_of(drafter.method),
                                  "' drafts on one device; leave it out or write 1"));
  }
}

// Lets the layers of a head that reads its target's keys and values count the layers of the last
// stage, which drafts. Throws InvalidArgument where its ranks do not have what the head reads.
void find_target_kv(DraftHeadConfig& head, const DrafterConfig& drafter, const ModelConfig& target,
                    const RankCoordinates& place) {
  const int num_ranks = place.ranks != nullptr ? place.ranks->size() : 1;
  const int size = drafter.draft_tensor_parallel_size;
  if (size != 0 && size != num_ranks) {
    throw InvalidArgument(
        "draft_tensor_parallel_size",
        str_cat(size, ", but ", head.model.architecture, " reads keys and values that ", num_ranks,
                " ranks share: leave it out or write ", num_ranks));
  }
  RankCoordinates last = place;
  last.stage = place.num_stages - 1;
  const int first_layer = last.first_layer(target.num_layers);
  const ModelShard of_target(target, num_ranks);
  const ModelShard of_head(head.model, num_ranks);
  for (LayerSpec& layer : head.model.layers) {
    const int source = layer.kv_source;
    const auto& theirs =
        of_target.attention(target.layers[static_cast<size_t>(source)].heads).all_heads.by_rank;
    const auto& ours = of_head.attention(layer.heads).all_heads.by_rank;
    const bool has_same = std::ranges::equal(ours, theirs, [](const auto& a, const auto& b) {
      return a.first_kv_head == b.first_kv_head && a.num_kv_heads == b.num_kv_heads;
    });
    if (!has_same) {
      throw InvalidArgument(
          "tensor_parallel_size",
          str_cat(num_ranks, " ranks would share the ", layer.heads.num_heads, " heads of ",
                  head.model.architecture, " otherwise than the target's KV heads: write 1"));
    }
    if (source < first_layer) {
      throw InvalidArgument(
          "pipeline_parallel_size",
          str_cat(head.model.architecture, " reads the keys and values of layer ", source,
                  " of the target, and the last stage begins at layer ", first_layer, ": write 1"));
    }
    layer.kv_source -= first_layer;
  }
}

}  // namespace

DraftModels::DraftModels(const EngineConfig& config, const ModelConfig& target,
                         const RankCoordinates& coordinates)
    : config_(config), target_(target), coordinates_(coordinates) {
  const SpeculativeConfig& speculative = config.speculative;
  const DraftHeadTarget head_target{.config = target, .directory = config.model};
  for (int id = 0; id < static_cast<int>(speculative.drafters.size()); ++id) {
    const DrafterConfig& drafter = speculative.drafters[static_cast<size_t>(id)];
    if (has_model(drafter.method))
      check_ranks(drafter, coordinates.ranks != nullptr ? coordinates.ranks->size() : 1);
    if (!is_draft_head(drafter.method)) continue;
    DraftHeadConfig head = load_draft_head_config(drafter, head_target);
    check_depth(head, speculative);
    if (head.model.reads_target_kv) find_target_kv(head, drafter, target, coordinates);
    if (!heads_.empty() && !head.taps.reads_same(taps_)) {
      throw InvalidArgument("drafters",
                            "two heads that read different states of the target cannot draft "
                            "together: leave one out");
    }
    const int least_width = std::max(taps_.least_width, head.taps.least_width);
    taps_ = head.taps;
    taps_.least_width = least_width;
    heads_.emplace(id, std::move(head));
  }
}

void DraftModels::load(Backend& backend, const ModelRunner& target, int max_model_len) {
  choose_sizes(backend);
  const std::vector<DrafterConfig>& drafters = config_.speculative.drafters;
  for (int id = 0; id < static_cast<int>(drafters.size()); ++id) {
    const DrafterConfig& drafter = drafters[static_cast<size_t>(id)];
    if (!has_model(drafter.method)) continue;
    const int num_sharing = drafter.draft_tensor_parallel_size;
    Communicator* const ranks = coordinates_.ranks;
    if (!coordinates_.is_last()) continue;
    if (ranks != nullptr && ranks->rank() >= num_sharing && !is_replicated(id)) continue;
    if (ranks != nullptr && num_sharing > 1 && num_sharing < ranks->size()) {
      subgroups_.emplace(id, ranks->subgroup(0, num_sharing));
    }
    load(id, backend, target, max_model_len);
  }
  device_draft_ = find_device_draft(max_model_len);
}

void DraftModels::choose_sizes(Backend& backend) {
  std::optional<GroupSpeed> speed;
  std::vector<DrafterConfig>& drafters = config_.speculative.drafters;
  for (int id = 0; id < static_cast<int>(drafters.size()); ++id) {
    DrafterConfig& drafter = drafters[static_cast<size_t>(id)];
    int& size = drafter.draft_tensor_parallel_size;
    if (!has_model(drafter.method) || size != 0) continue;
    size = 1;
    if (coordinates_.ranks == nullptr || !coordinates_.is_last() || !can_be_shared(drafter.method))
      continue;
    if (heads_.contains(id) && heads_.at(id).model.reads_target_kv) {
      size = coordinates_.ranks->size();  // each has a share of the target's KV
      continue;
    }
    const FactsFormats formats = {.dtype = std::string(name_of(backend.act_dtype())),
                                  .quantization = drafter.quantization};
    std::vector<ModelFacts> facts = heads_.contains(id) ? facts_of(heads_.at(id), target_, formats)
                                                        : model_facts(drafter.model, formats);
    std::erase_if(facts, [&](const ModelFacts& model) {
      return model.num_ranks > coordinates_.ranks->size();
    });
    if (!speed.has_value()) speed = measure_group(backend, *coordinates_.ranks);
    size = choose_draft_size(facts, *speed);
    if (coordinates_.ranks->rank() == 0) {
      log_info(name_of(drafter.method), " drafts on ", size, " of ", coordinates_.ranks->size(),
               " devices");
    }
  }
}

// A step on GPUs has no time for messages from one that drafts to others that wait.
bool DraftModels::is_replicated(int id) const {
  const int size = config_.speculative.drafters[static_cast<size_t>(id)].draft_tensor_parallel_size;
  return size == 1 && coordinates_.ranks != nullptr &&
         resolve_device(config_.device).kind == DeviceKind::kGpu;
}

Communicator* DraftModels::ranks_of(int id) const {
  const auto subgroup = subgroups_.find(id);
  if (subgroup != subgroups_.end()) return subgroup->second.get();
  return config_.speculative.drafters[static_cast<size_t>(id)].draft_tensor_parallel_size > 1
             ? coordinates_.ranks
             : nullptr;
}

DraftModels::Loading DraftModels::draft_model_loading(int id, Backend& backend,
                                                      int max_model_len) const {
  const DrafterConfig& drafter = config_.speculative.drafters[static_cast<size_t>(id)];
  ModelConfig model = load_model_config(drafter.model);
  model.random_weights = target_.random_weights;
  check_vocabulary(model, target_);
  if (model.has_states()) {
    throw InvalidArgument(
        "model", str_cat("the draft model ", drafter.model, " (", model.architecture,
                         ") has recurrent layers, which only targets may have; choose one "
                         "whose layers all have attention, or draft by 'ngram' or 'suffix'"));
  }
  check_stored_as(drafter.quantization, model.stored_format);
  const RankCoordinates coordinates = {.ranks = ranks_of(id)};
  ModelShard(model, coordinates,
             "draft_tensor_parallel_size");  // refuses sizes before anything is loaded
  const int longest = std::min(max_model_len, max_positions(model));
  return {.make =
              [=, &backend](int max_rows) {
                return std::make_unique<Decoder>(model, drafter.model, backend, longest, max_rows,
                                                 parse_quantization(drafter.quantization),
                                                 ModelParts{}, coordinates);
              },
          .longest = longest,
          .is_parallel = drafter.parallel_drafting,
          .mask_token =
              drafter.parallel_drafting ? load_mask_token(drafter.model, model.vocab_size) : -1};
}

DraftModels::Loading DraftModels::draft_head_loading(int id, Backend& backend,
                                                     const ModelRunner& target, int max_model_len) {
  const DraftHeadConfig& head = heads_.at(id);
  const DrafterConfig& drafter = config_.speculative.drafters[static_cast<size_t>(id)];
  const ModelParts* target_parts = &dynamic_cast<const Decoder&>(target.model()).parts();
  Communicator* const ranks = ranks_of(id);
  if (ranks != coordinates_.ranks ||
      !coordinates_.is_first()) {  // the target's ends are shared by others
    const auto [borrowed, is_new] = borrowed_.try_emplace(drafter.draft_tensor_parallel_size);
    if (is_new) {
      borrowed->second = load_ends(target_, config_.model, parse_quantization(config_.quantization),
                                   backend, {.ranks = ranks});
    }
    target_parts = &borrowed->second;
  }
  const Quantization quantization = parse_quantization(drafter.quantization);
  // Masks stand at positions past the last token's.
  const int longest = max_model_len + head.span.num_rows;
  return {.make =
              [=, this, &backend](int max_rows) {
                const DraftHeadTarget head_target{.config = target_, .directory = config_.model};
                return load_draft_head(heads_.at(id), {.target = head_target,
                                                       .target_parts = *target_parts,
                                                       .coordinates = {.ranks = ranks},
                                                       .quantization = quantization,
                                                       .backend = backend,
                                                       .max_model_len = longest,
                                                       .max_rows = max_rows});
              },
          .longest = max_model_len,
          .max_depth = head.max_depth,
          .is_parallel = head.is_parallel,
          .mask_token = head.eagle.mask_token,
          .span = head.span};
}

void DraftModels::load(int id, Backend& backend, const ModelRunner& target, int max_model_len) {
  const DrafterConfig& drafter = config_.speculative.drafters[static_cast<size_t>(id)];
  const bool is_draft_head = heads_.contains(id);
  const Loading loading = is_draft_head ? draft_head_loading(id, backend, target, max_model_len)
                                        : draft_model_loading(id, backend, max_model_len);
  const int longest = drafter.max_model_len > 0 ? std::min(loading.longest, drafter.max_model_len)
                                                : loading.longest;
  const SpeculativeConfig& speculative = config_.speculative;
  // A pass of heads that draft all levels leaves a row for each; a backend may pad the rows to the
  // next power of two.
  const int rows_per_root =
      loading.is_parallel && loading.mask_token < 0 && loading.span.num_rows == 0
          ? static_cast<int>(std::bit_ceil(static_cast<unsigned>(loading.max_depth)))
          : 1;
  const int max_rows =
      std::max({config_.max_num_batched_tokens, speculative.widest_level(),
                speculative.num_speculative_tokens, rows_per_root, loading.span.num_rows});
  const int max_span_rows = most_span_rows(loading.span, target_.vocab_size, max_rows);
  auto runner = std::make_unique<ModelRunner>(
      backend,
      RunnerLimits{.max_model_len = longest,
                   .max_rows = max_rows,
                   .max_logit_rows = std::min(kDraftLogitRows, max_rows),
                   .max_kept_rows = max_span_rows},
      loading.make);
  if (is_draft_head) runner->set_features(target.feature_shape());
  const ModelConfig& model = runner->model().config();
  // A pass takes its time to read the weights, all of them.
  const double relative_cost = static_cast<double>(runner->model().pass_bytes()) /
                               static_cast<double>(target.model().pass_bytes());
  models_.push_back(
      {.options = {.id = id,
                   .sampling = draft_sampling(drafter.sample_method, speculative.verification),
                   .min_confidence = drafter.min_confidence,
                   .max_rows = max_rows / rows_per_root,
                   .max_model_len = longest,
                   .vocab_size = target_.vocab_size,
                   .relative_cost = relative_cost,
                   .is_draft_head = is_draft_head,
                   .num_layers = model.reads_target_kv ? 0 : model.num_layers,
                   .reads_target_kv = model.reads_target_kv,
                   .max_depth = loading.max_depth,
                   .is_parallel = loading.is_parallel,
                   .mask_token = loading.mask_token,
                   .span = loading.span,
                   .max_span_rows = max_span_rows,
                   .shape = StaticTree(config_.speculative.speculative_token_tree)},
       .runner = std::move(runner)});
}

std::optional<DraftModels::DeviceDraft> DraftModels::find_device_draft(int max_model_len) const {
  const SpeculativeConfig& config = config_.speculative;
  if (models_.size() != 1 || config.drafters.size() != 1) return std::nullopt;
  const bool is_everywhere =
      coordinates_.ranks == nullptr || ranks_of(0) == coordinates_.ranks || is_replicated(0);
  if (!is_everywhere) return std::nullopt;
  const auto& [options, runner] = models_[0];
  if (runner->num_tokens() != options.vocab_size || options.max_model_len < max_model_len) {
    return std::nullopt;
  }
  if (options.min_confidence > 0 || options.shape.is_given()) return std::nullopt;
  if (options.is_parallel && options.span.num_rows == 0) return std::nullopt;
  if (max_unseen_after(options.kind(), config.num_speculative_tokens) > kMaxUnseen) {
    return std::nullopt;
  }
  // Weighed draws at a node of a tree would share one distribution.
  if (options.sampling == DraftSampling::kIndependent && config.tree_width > 1) return std::nullopt;
  return DeviceDraft{.runner = runner.get(),
                     .sampling = options.sampling,
                     .kind = options.kind(),
                     .span = options.span};
}

int64_t DraftModels::cache_block_bytes(const KvFormat& format) const {
  int64_t bytes = 0;
  for (const Model& model : models_) bytes += model.runner->cache_block_bytes(format);
  return bytes;
}

int DraftModels::num_kv_heads() const {
  int most = 0;
  for (const Model& model : models_) {
    most = std::max(most, model.runner->model().config().most_kv_heads());
  }
  return most;
}

void DraftModels::rehearse(const KvFormat& format) {
  for (const Model& model : models_) model.runner->rehearse(format);
}

int DraftModels::num_spare_blocks(const ModelDrafterOptions& options,
                                  const KvFormat& format) const {
  const int num_rows = options.span.num_rows;
  if (num_rows == 0) return 0;
  // Of a pass of the host, or of the seats of a device step.
  const int num_spans = std::max(options.max_span_rows / num_rows, config_.max_num_seqs);
  return num_spans * num_blocks_for(num_rows - 1, format.block_size);
}

int64_t DraftModels::spare_cache_bytes(const KvFormat& format) const {
  int64_t bytes = 0;
  for (const Model& model : models_) {
    bytes += num_spare_blocks(model.options, format) * model.runner->cache_block_bytes(format);
  }
  return bytes;
}

void DraftModels::allocate_caches(int num_blocks, const KvFormat& format,
                                  const ModelRunner& target) {
  for (const Model& model : models_) {
    const bool reads_kv = model.options.reads_target_kv;
    model.runner->allocate_cache(
        num_blocks, format,
        {.target = reads_kv ? target.cache().layers() : std::span<const PagedKvView>(),
         .num_spare = num_spare_blocks(model.options, format)});
    if (model.options.is_draft_head) model.runner->set_features(target.features());
  }
}

const DraftModels::Model& DraftModels::find(int id) const {
  const auto model = std::ranges::find(models_, id, [](const Model& m) { return m.options.id; });
  SPECDEC_CHECK(model != models_.end());
  return *model;
}

ModelRunner& DraftModels::runner(int id) const { return *find(id).runner; }

std::vector<ModelRunner*> DraftModels::runners() const {
  std::vector<ModelRunner*> runners;
  const std::vector<DrafterConfig>& drafters = config_.speculative.drafters;
  for (int id = 0; id < static_cast<int>(drafters.size()); ++id) {
    if (!has_model(drafters[static_cast<size_t>(id)].method)) continue;
    const auto model = std::ranges::find(models_, id, [](const Model& m) { return m.options.id; });
    runners.push_back(model != models_.end() ? model->runner.get() : nullptr);
  }
  return runners;
}

std::unique_ptr<ModelDrafter> DraftModels::make_drafter(int id, const BlockPool& pool) {
  const Model& model = find(id);
  return std::make_unique<ModelDrafter>(*model.runner, pool, model.options);
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
