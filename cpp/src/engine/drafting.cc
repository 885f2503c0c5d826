#include "engine/drafting.h"

#include <algorithm>
#include <memory>
#include <new>
#include <utility>

#include "core/log.h"
#include "speculation/custom_drafter.h"
#include "speculation/grammar_drafter.h"
#include "speculation/ngram_drafter.h"
#include "speculation/prediction_drafter.h"
#include "speculation/replay_drafter.h"
#include "speculation/suffix_drafter.h"

namespace specdec {

Drafting::Drafting(const SpeculativeConfig& config, int vocab_size, DraftModels& models,
                   const BlockPool& pool, ThreadPool& threads, int num_groups)
    : config_(config),
      schedule_(config),
      static_tree_(config.speculative_token_tree),
      trees_(static_cast<size_t>(num_groups)) {
  std::vector<std::unique_ptr<Drafter>> drafters;
  for (const DrafterConfig& drafter : config_.drafters) {
    const int id = static_cast<int>(drafters.size());
    drafters.push_back(make_drafter(id, vocab_size, models, pool, threads));
    drafter_stats_.push_back({.name = std::string(name_of(drafter.method))});
  }
  prediction_drafter_ = static_cast<int>(drafters.size());
  drafters.push_back(std::make_unique<PredictionDrafter>(prediction_drafter_, &threads));
  drafter_stats_.push_back({.name = "prediction"});
  drafters.push_back(std::make_unique<GrammarDrafter>(static_cast<int>(drafters.size()), &threads));
  drafter_stats_.push_back({.name = "grammar"});
  drafters_ = std::make_unique<Drafters>(std::move(drafters), config_.merge_drafters,
                                         config_.adapts(), &threads);
}

std::unique_ptr<Drafter> Drafting::make_drafter(int id, int vocab_size, DraftModels& models,
                                                const BlockPool& pool, ThreadPool& threads) {
  const DrafterConfig& config = config_.drafters[id];
  switch (config.method) {
    case DraftMethod::kNgram:
      return std::make_unique<NgramDrafter>(config, id);
    case DraftMethod::kSuffix:
      return std::make_unique<SuffixDrafter>(config, id, vocab_size, &threads);
    case DraftMethod::kReplay:
      return std::make_unique<ReplayDrafter>(config, id, vocab_size, &threads);
    case DraftMethod::kCustom:
      return std::make_unique<CustomDrafterAdapter>(config.custom, id, vocab_size);
    default:
      break;
  }
  auto drafter = models.make_drafter(id, pool);
  if (models.device_draft().has_value()) device_drafter_ = drafter.get();
  return drafter;
}

// A draft head reads features of its target's passes, so it is timed after the target, on the same
// blocks. A model with one pass for all levels runs passes of another kind, whose cost is learned
// in steps.
void Drafting::time_passes(ModelRunner& target, const DraftModels& models, int max_rows,
                           const BlockTable& blocks, PassClock clock) {
  DraftPolicy* policy = drafters_->policy();
  if (policy == nullptr) return;
  const std::vector<TimedPass> passes = specdec::time_passes(target, max_rows, blocks, clock);
  policy->start_from(passes);
  for (size_t id = 0; id < config_.drafters.size(); ++id) {
    if (drafters_->traits(id).cost != DrafterTraits::Cost::kPerLevel) continue;
    const auto drafter = static_cast<int>(id);
    policy->start_from(drafter, time_draft_passes(models.runner(drafter),
                                                  is_draft_head(config_.drafters[id].method),
                                                  passes, blocks, clock));
  }
}

DraftBudget Drafting::budget() const {
  const DraftPolicy* policy = drafters_->policy();
  DraftBudget budget{.wanted = [this, policy](const Sequence& sequence, int num_decoding) {
    const int depth = sequence.max_draft_depth(schedule_.num_speculative_tokens(num_decoding));
    const int limit =
        static_tree_.is_given() ? static_tree_.num_nodes(depth) : tree_shape().num_nodes(depth);
    return policy == nullptr ? limit : policy->draft_budget(sequence.ordinal, limit);
  }};
  if (policy != nullptr) budget.most_held = policy->most_held();
  return budget;
}

DraftRequest Drafting::request_for(const ScheduledSequence& scheduled, int max_depth,
                                   CompletionState& completion, DraftTree& tree) const {
  const Sequence& sequence = *scheduled.sequence;
  // Everything is verified where lengths are fixed: a slot for each node.
  const int draft_budget = scheduled.draft_budget;
  const bool adapts = drafters_->policy() != nullptr;
  const int max_nodes = adapts ? config_.max_nodes() : draft_budget;
  return {.sequence = sequence.ordinal,
          .tokens = sequence.tokens(),
          .max_depth = std::min(max_nodes, sequence.max_draft_depth(max_depth)),
          .max_nodes = max_nodes,
          .draft_budget = draft_budget,
          .tree_width = config_.tree_width,
          .num_remaining = sequence.max_num_tokens() - sequence.num_tokens(),
          .num_prompt_tokens = sequence.num_prompt_tokens(),
          .prediction = completion.request.params.prediction,
          .cache_salt = sequence.cache_salt,
          .blocks = &sequence.blocks,
          .rows = &completion,
          .grammar = completion.grammar(),
          .tree = &tree,
          .error = {}};
}

DraftPlan Drafting::begin_step(const ExecutionPlan& plan) {
  DraftPolicy* policy = drafters_->policy();
  if (policy == nullptr) return {};
  const auto num_decoding = static_cast<int>(
      std::ranges::count_if(plan.sequences, [](const ScheduledSequence& scheduled) {
        return std::holds_alternative<Decoding>(scheduled.sequence->state);
      }));
  return policy->begin_step(num_decoding, plan.num_rows - num_decoding);
}

std::vector<Failure> Drafting::draft(
    ExecutionPlan& plan, DraftPlan& step,
    const std::function<CompletionState&(const Sequence&)>& completion_of) {
  group_ = (group_ + 1) % trees_.size();
  std::vector<DraftTree>& trees = trees_[group_];
  trees.resize(std::max(trees.size(), plan.sequences.size()));
  has_tree_.assign(plan.sequences.size(), false);
  const int max_depth = schedule_.num_speculative_tokens(plan.num_decoding);
  std::vector<DraftRequest> requests;
  std::vector<size_t> indices;
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    const ScheduledSequence& scheduled = plan.sequences[i];
    const Sequence& sequence = *scheduled.sequence;
    if (scheduled.draft_budget == 0 || sequence.max_draft_depth(max_depth) == 0) continue;
    trees[i].reset(sequence.tokens().back());
    requests.push_back(request_for(scheduled, max_depth, completion_of(sequence), trees[i]));
    indices.push_back(i);
  }
  std::vector<Failure> failures;
  if (requests.empty()) return failures;
  drafters_->draft(step, requests);
  for (size_t r = 0; r < requests.size(); ++r) {
    const size_t i = indices[r];
    if (requests[r].error) {
      failures.push_back({requests[r].sequence, message_of(requests[r].error)});
      trees[i].reset(plan.sequences[i].sequence->tokens().back());
    }
    trees[i].truncate(plan.sequences[i].draft_budget);
    has_tree_[i] = trees[i].num_drafts() > 0;
    plan.set_num_drafts(i, trees[i].num_drafts());
  }
  return failures;
}

const DraftTree* Drafting::tree(size_t index) const {
  return index < has_tree_.size() && has_tree_[index] ? &trees_[group_][index] : nullptr;
}

PassesAhead Drafting::plan_passes(std::span<const Sequence* const> sequences, int limit,
                                  int num_unseen) {
  const auto num_decoding = static_cast<int>(sequences.size());
  limit = std::min(limit, schedule_.num_speculative_tokens(num_decoding));
  int deepest = 0;  // that a sequence wants
  for (const Sequence* sequence : sequences) {
    deepest = std::max(deepest, sequence->max_draft_depth(limit));
  }
  limit = deepest;
  DraftPolicy* policy = drafters_->policy();
  if (policy == nullptr) return {.num_passes = limit, .drafting = {}};
  std::vector<DraftPolicy::Ask> asks;
  for (const Sequence* sequence : sequences) {
    asks.push_back({.sequence = sequence->ordinal,
                    .max_depth = sequence->max_draft_depth(limit),
                    .num_unseen = num_unseen,
                    .num_remaining = sequence->max_num_tokens() - sequence->num_tokens()});
  }
  DraftPlan step = policy->begin_step(num_decoding, 0);
  const int num_passes = policy->plan(step, 0, asks, {.same_depth = true, .shape = tree_shape()});
  return {.num_passes = num_passes, .drafting = step};
}

void Drafting::record(DraftPlan& step, const StepRecord& record) {
  const Sequence& sequence = record.completion->sequence;
  const int num_drafts = record.tree == nullptr ? 0 : record.tree->num_drafts();
  const int num_accepted = static_cast<int>(record.accepted.size());
  if (DraftPolicy* policy = drafters_->policy()) {
    DraftPolicy::Outcome outcome{.sequence = sequence.ordinal, .tokens = record.tokens};
    if (record.num_passes.has_value()) {
      outcome.levels = {.drafter = 0,
                        .num_levels = sequence.max_draft_depth(*record.num_passes),
                        .num_drafts = num_drafts,
                        .num_accepted = num_accepted};
    }
    policy->record(step, outcome);
  }
  if (num_drafts == 0) return;
  if (record.num_passes.has_value()) {
    const int num_tokens = sequence.num_tokens();
    device_drafter_->ledger().set_seen(
        sequence.blocks, std::max(0, num_tokens - kMaxUnseen),
        num_seen_after(device_drafter_->kind(), num_tokens, num_drafts, num_accepted,
                       config_.tree_width > 1));
  }
  int deepest = 0;
  DrafterStats predicted;  // in this step
  for (int node = 1; node <= num_drafts; ++node) {
    deepest = std::max(deepest, record.tree->depth(node));
    ++drafter_stats_[record.tree->drafter(node)].num_draft_tokens;
    predicted.num_draft_tokens += record.tree->drafter(node) == prediction_drafter_ ? 1 : 0;
  }
  for (const int node : record.accepted) {
    ++drafter_stats_[record.tree->drafter(node)].num_accepted_tokens;
    predicted.num_accepted_tokens += record.tree->drafter(node) == prediction_drafter_ ? 1 : 0;
  }
  for (AcceptanceStats* stats : {&acceptance_, &record.completion->acceptance}) {
    stats->record(num_drafts, deepest, num_accepted);
    stats->num_predicted_draft_tokens += predicted.num_draft_tokens;
    stats->num_predicted_accepted_tokens += predicted.num_accepted_tokens;
  }
  const SamplingParams& params = sequence.params;
  if (params.record_draft_steps || params.record_draft_trees) {
    record.completion->draft_step = {
        .num_draft_tokens = num_drafts, .num_accepted_tokens = num_accepted, .tree = {}};
  }
  if (params.record_draft_trees) record.completion->draft_step->tree = drafted_tokens(record);
}

std::vector<DraftedToken> Drafting::drafted_tokens(const StepRecord& record) const {
  const DraftTree& tree = *record.tree;
  std::vector<DraftedToken> tokens;
  for (int node = 1; node < tree.num_nodes(); ++node) {
    DraftedToken& token = tokens.emplace_back();
    token.token_id = tree.tokens()[node];
    token.parent = tree.parents()[node] - 1;
    token.drafter = drafter_stats_[tree.drafter(node)].name;
    if (!record.num_passes.has_value()) token.probability = tree.proposals(node).front().confidence;
    token.is_accepted = std::ranges::find(record.accepted, node) != record.accepted.end();
  }
  return tokens;
}

void Drafting::record_passes(DraftPlan& step, int num_passes, int num_rows, double seconds) {
  DraftPolicy* policy = drafters_->policy();
  for (int i = 0; policy != nullptr && i < num_passes; ++i) {
    policy->record_pass(step, 0, num_rows, seconds / num_passes);
  }
}

void Drafting::end_step(const DraftPlan& step, double seconds) {
  DraftPolicy* policy = drafters_->policy();
  if (policy == nullptr) return;
  if (!policy->end_step(step, seconds)) return;
  try {
    log_info(policy->pause().sentence());
  } catch (const std::bad_alloc&) {
    // The step's tokens count for more than a line of the log.
  }
}

void Drafting::finish(const Sequence& sequence) {
  drafters_->finish({.sequence = sequence.ordinal,
                     .tokens = sequence.tokens(),
                     .num_prompt_tokens = sequence.num_prompt_tokens(),
                     .cache_salt = sequence.cache_salt});
}

void Drafting::fill_stats(EngineStats& stats) const {
  stats.acceptance = acceptance_;
  if (const DraftPolicy* policy = drafters_->policy()) stats.draft_policy = policy->stats();
  for (size_t i = 0; i < drafter_stats_.size(); ++i) {
    // Those of predictions and grammars are not shown where no request has had one.
    if (i >= config_.drafters.size() && drafter_stats_[i].num_draft_tokens == 0) continue;
    stats.drafters.push_back(drafter_stats_[i]);
    stats.drafters.back().memory_bytes = drafters_->memory_bytes(i);
  }
}

}  // namespace specdec
