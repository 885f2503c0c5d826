#include "engine/speculator.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "core/str_cat.h"
#include "engine/limits.h"
#include "runtime/draft_model_drafter.h"
#include "specdec/error.h"
#include "speculation/composite_drafter.h"
#include "speculation/custom_drafter.h"
#include "speculation/ngram_drafter.h"
#include "speculation/suffix_drafter.h"

namespace specdec {
namespace {

constexpr int kDraftLogitRows = 64;
// Padding of one vocabulary may differ from another's; more is another tokenizer.
constexpr int kMaxVocabularyPadding = 1024;

void check_vocabulary(const ModelConfig& draft, const ModelConfig& target) {
  if (std::abs(draft.vocab_size - target.vocab_size) <= kMaxVocabularyPadding) return;
  throw InvalidArgument("model", str_cat("the draft model has a vocabulary of ", draft.vocab_size,
                                         " tokens and the target one of ", target.vocab_size,
                                         "; a draft model must share the target's tokenizer"));
}

const char* method_name(DraftMethod method) {
  switch (method) {
    case DraftMethod::kNgram:
      return "ngram";
    case DraftMethod::kSuffix:
      return "suffix";
    case DraftMethod::kDraftModel:
      return "draft_model";
    case DraftMethod::kCustom:
      break;
  }
  return "custom";
}

}  // namespace

Speculator::Speculator(const EngineConfig& config, Backend& backend, const ModelConfig& target,
                       int max_model_len)
    : config_(config.speculative),
      max_rows_(std::max(config.max_num_batched_tokens, config.speculative.tree_width)),
      vocab_size_(target.vocab_size),
      schedule_(config.speculative) {
  for (const DrafterConfig& drafter : config_.drafters) {
    runners_.emplace_back();
    max_lens_.push_back(max_model_len);
    drafter_stats_.push_back({.name = method_name(drafter.method)});
    if (drafter.method != DraftMethod::kDraftModel) continue;
    ModelConfig model = load_model_config(drafter.model);
    model.random_weights = target.random_weights;
    check_vocabulary(model, target);
    max_lens_.back() = std::min(max_model_len, max_positions(model));
    if (drafter.max_model_len > 0) {
      max_lens_.back() = std::min(max_lens_.back(), drafter.max_model_len);
    }
    runners_.back() = std::make_unique<ModelRunner>(
        model, drafter.model, backend,
        RunnerLimits{.max_model_len = max_lens_.back(),
                     .max_rows = max_rows_,
                     .max_logit_rows = std::min(kDraftLogitRows, max_rows_)},
        parse_quantization(drafter.quantization));
    weight_bytes_ += runners_.back()->decoder().weight_bytes();
  }
  device_draft_ = find_device_draft(max_model_len);
}

int64_t Speculator::cache_block_bytes(const KvFormat& format) const {
  int64_t bytes = 0;
  for (const auto& runner : runners_) {
    if (runner != nullptr) bytes += runner->cache_block_bytes(format);
  }
  return bytes;
}

int Speculator::num_kv_heads() const {
  int most = 0;
  for (const auto& runner : runners_) {
    if (runner != nullptr) most = std::max(most, runner->decoder().config().num_kv_heads);
  }
  return most;
}

void Speculator::rehearse(const KvFormat& format) {
  for (const auto& runner : runners_) {
    if (runner != nullptr) runner->rehearse(format);
  }
}

void Speculator::start(const BlockPool& pool, const KvFormat& format, int64_t target_weight_bytes) {
  std::vector<std::unique_ptr<Drafter>> drafters;
  std::vector<double> relative_costs;
  for (size_t i = 0; i < config_.drafters.size(); ++i) {
    // A pass reads every weight, which is what it takes its time for.
    relative_costs.push_back(runners_[i] == nullptr
                                 ? 0.0
                                 : static_cast<double>(runners_[i]->decoder().weight_bytes()) /
                                       static_cast<double>(target_weight_bytes));
    drafters.push_back(make_drafter(i, pool, format));
    parts_.push_back(drafters.back().get());
  }
  drafter_ = combine(std::move(drafters), relative_costs);
}

std::unique_ptr<Drafter> Speculator::combine(std::vector<std::unique_ptr<Drafter>> drafters,
                                             const std::vector<double>& relative_costs) {
  if (config_.adapts()) {
    std::vector<AdaptiveDrafter::Part> parts;
    for (size_t i = 0; i < drafters.size(); ++i) {
      parts.push_back({.drafter = std::move(drafters[i]), .relative_cost = relative_costs[i]});
    }
    auto adaptive = std::make_unique<AdaptiveDrafter>(std::move(parts), config_.merge_drafters,
                                                      config_.max_nodes());
    adaptive_ = adaptive.get();
    return adaptive;
  }
  if (drafters.size() == 1) return std::move(drafters[0]);
  return std::make_unique<CompositeDrafter>(std::move(drafters), config_.merge_drafters);
}

std::unique_ptr<Drafter> Speculator::make_drafter(size_t index, const BlockPool& pool,
                                                  const KvFormat& format) {
  const DrafterConfig& config = config_.drafters[index];
  const int id = static_cast<int>(index);
  switch (config.method) {
    case DraftMethod::kNgram:
      return std::make_unique<NgramDrafter>(config, id);
    case DraftMethod::kSuffix:
      return std::make_unique<SuffixDrafter>(config, id);
    case DraftMethod::kCustom:
      return std::make_unique<CustomDrafterAdapter>(config.custom, id, vocab_size_);
    case DraftMethod::kDraftModel:
      break;
  }
  runners_[index]->allocate_cache(pool.num_blocks(), format);
  kv_cache_bytes_ += runners_[index]->cache().size_bytes();
  auto drafter =
      std::make_unique<DraftModelDrafter>(std::move(runners_[index]), pool,
                                          DraftModelOptions{.id = id,
                                                            .sampling = config.sampling,
                                                            .min_confidence = config.min_confidence,
                                                            .max_rows = max_rows_,
                                                            .max_model_len = max_lens_[index],
                                                            .vocab_size = vocab_size_});
  model_drafter_ = drafter.get();
  return drafter;
}

int Speculator::depth_limit(const Sequence& sequence) const {
  const int wanted =
      sequence.params.num_speculative_tokens.value_or(config_.num_speculative_tokens);
  return std::min(wanted, schedule_.num_speculative_tokens(num_decoding_));
}

int Speculator::budget(const Sequence& sequence, int num_decoding) {
  num_decoding_ = num_decoding;
  const int limit =
      tree_shape().num_nodes(std::min(depth_limit(sequence), sequence.max_draft_depth()));
  return adaptive_ == nullptr ? limit : adaptive_->num_slots(sequence.ordinal, limit);
}

void Speculator::begin_step(const ExecutionPlan& plan) {
  if (adaptive_ == nullptr) return;
  const auto num_decoding = static_cast<int>(
      std::ranges::count_if(plan.sequences, [](const ScheduledSequence& scheduled) {
        return std::holds_alternative<Decoding>(scheduled.sequence->state);
      }));
  adaptive_->begin_step(num_decoding, plan.num_rows - num_decoding);
}

std::vector<Failure> Speculator::draft(
    ExecutionPlan& plan, const std::function<CompletionState&(const Sequence&)>& completion_of) {
  trees_.resize(std::max(trees_.size(), plan.sequences.size()));
  has_tree_.assign(plan.sequences.size(), false);
  requests_.clear();
  begin_step(plan);
  std::vector<size_t> indices;
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    const ScheduledSequence& scheduled = plan.sequences[i];
    const Sequence& sequence = *scheduled.sequence;
    const int longest =
        adaptive_ == nullptr ? scheduled.max_draft_depth : sequence.max_draft_depth();
    const int max_depth = std::min(longest, depth_limit(sequence));
    if (scheduled.num_draft_slots == 0 || max_depth < 1) continue;
    trees_[i].reset(sequence.tokens().back());
    requests_.push_back({.sequence = sequence.ordinal,
                         .tokens = sequence.tokens(),
                         .num_prompt_tokens = sequence.num_prompt_tokens(),
                         .max_depth = max_depth,
                         .max_nodes = scheduled.num_draft_slots,
                         .tree_width = config_.tree_width,
                         .num_remaining = sequence.max_num_tokens() - sequence.num_tokens(),
                         .blocks = &sequence.blocks,
                         .rows = &completion_of(sequence),
                         .tree = &trees_[i],
                         .error = {}});
    indices.push_back(i);
  }
  std::vector<Failure> failures;
  if (requests_.empty()) return failures;
  drafter_->draft(requests_);
  for (size_t r = 0; r < requests_.size(); ++r) {
    const size_t i = indices[r];
    if (requests_[r].error) {
      failures.push_back({requests_[r].sequence, message_of(requests_[r].error)});
      trees_[i].reset(plan.sequences[i].sequence->tokens().back());
    }
    trees_[i].truncate(plan.sequences[i].num_draft_slots);
    has_tree_[i] = trees_[i].num_drafts() > 0;
    plan.set_num_drafts(i, trees_[i].num_drafts());
  }
  return failures;
}

const DraftTree* Speculator::tree(size_t index) const {
  return index < has_tree_.size() && has_tree_[index] ? &trees_[index] : nullptr;
}

void Speculator::record(const DraftTree& tree, CompletionState& completion,
                        const std::vector<int>& nodes) {
  int max_depth = 0;
  for (int node = 1; node < tree.num_nodes(); ++node) {
    max_depth = std::max(max_depth, tree.depth(node));
    ++drafter_stats_[tree.drafter(node)].num_draft_tokens;
  }
  for (int node : nodes) ++drafter_stats_[tree.drafter(node)].num_accepted_tokens;
  const int num_accepted = static_cast<int>(nodes.size());
  completion.acceptance.record(tree.num_drafts(), max_depth, num_accepted);
  acceptance_.record(tree.num_drafts(), max_depth, num_accepted);
}

void Speculator::record_tokens(const Sequence& sequence, std::span<const int32_t> tokens) {
  if (adaptive_ != nullptr) adaptive_->record_tokens(sequence.ordinal, tokens);
}

std::optional<Speculator::DeviceDraft> Speculator::find_device_draft(int max_model_len) const {
  if (runners_.size() != 1 || runners_[0] == nullptr) return std::nullopt;
  if (runners_[0]->vocab_size() != vocab_size_ || max_lens_[0] < max_model_len) return std::nullopt;
  const DrafterConfig& config = config_.drafters[0];
  if (config.sampling == DraftSampling::kIndependent) {
    const bool is_weighed = config_.verification == Verification::kRejection ||
                            config_.verification == Verification::kBlock;
    // Tries of a tree's node share a distribution.
    if (!is_weighed || config_.tree_width > 1) return std::nullopt;
  }
  if (config.min_confidence > 0) return std::nullopt;
  return DeviceDraft{.runner = runners_[0].get(), .sampling = config.sampling};
}

int Speculator::longest_draft(const Sequence& sequence) const {
  return sequence.params.num_speculative_tokens.value_or(config_.num_speculative_tokens);
}

int Speculator::plan_levels(std::span<const Sequence* const> sequences, int limit, int num_unseen) {
  const auto num_decoding = static_cast<int>(sequences.size());
  limit = std::min(limit, schedule_.num_speculative_tokens(num_decoding));
  if (adaptive_ == nullptr) return limit;
  std::vector<DraftPolicy::Ask> asks;
  for (const Sequence* sequence : sequences) {
    asks.push_back({.sequence = sequence->ordinal,
                    .max_depth = num_levels(*sequence, limit),
                    .num_unseen = num_unseen,
                    .num_remaining = sequence->max_num_tokens() - sequence->num_tokens()});
  }
  adaptive_->begin_step(num_decoding, 0);
  return adaptive_->plan_levels(asks, tree_shape());
}

int Speculator::num_levels(const Sequence& sequence, int num_passes) const {
  return std::max(0, std::min({num_passes, longest_draft(sequence), sequence.max_draft_depth()}));
}

void Speculator::record_levels(CompletionState& completion, int num_passes,
                               const SequenceOutcome& outcome) {
  const Sequence& sequence = completion.sequence;
  const auto num_drafts = static_cast<int>(outcome.drafts.size());
  const auto num_accepted = static_cast<int>(outcome.accepted.size());
  if (adaptive_ != nullptr) {
    adaptive_->record_levels({.sequence = sequence.ordinal,
                              .num_levels = num_levels(sequence, num_passes),
                              .num_drafts = num_drafts,
                              .num_accepted = num_accepted,
                              .num_tokens = static_cast<int>(outcome.tokens.size())});
  }
  if (num_drafts == 0) return;
  std::vector<int> depths = {0};  // by node
  for (const int32_t parent : outcome.parents) depths.push_back(depths[parent] + 1);
  const int max_depth = std::ranges::max(depths);
  drafter_stats_[0].num_draft_tokens += num_drafts;
  drafter_stats_[0].num_accepted_tokens += num_accepted;
  completion.acceptance.record(num_drafts, max_depth, num_accepted);
  acceptance_.record(num_drafts, max_depth, num_accepted);
}

void Speculator::record_passes(int num_passes, int num_rows, double seconds) {
  if (adaptive_ != nullptr) adaptive_->record_passes(num_passes, num_rows, seconds);
}

void Speculator::end_step(double seconds) {
  if (adaptive_ != nullptr) adaptive_->end_step(seconds);
}

void Speculator::finish(const Sequence& sequence) {
  drafter_->finish(sequence.ordinal, sequence.tokens(), sequence.num_prompt_tokens());
}

void Speculator::fill_stats(EngineStats& stats) const {
  stats.acceptance = acceptance_;
  stats.drafters = drafter_stats_;
  if (adaptive_ != nullptr) stats.draft_policy = adaptive_->stats();
  for (size_t i = 0; i < parts_.size(); ++i) {
    stats.drafters[i].memory_bytes = parts_[i]->memory_bytes();
  }
}

int64_t Speculator::weight_bytes() const { return weight_bytes_; }
int64_t Speculator::kv_cache_bytes() const { return kv_cache_bytes_; }

}  // namespace specdec
