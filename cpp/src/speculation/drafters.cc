#include "speculation/drafters.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/stopwatch.h"
#include "specdec/error.h"
#include "speculation/grammar_drafter.h"

namespace specdec {
namespace {

using Source = DrafterTraits::Source;

bool has_source(const DraftRequest& request, Source source) {
  switch (source) {
    case Source::kGrammar:
      return request.grammar != nullptr;
    case Source::kPrediction:
      return !request.prediction.empty();
    case Source::kText:
      return true;
  }
  return true;
}

}  // namespace

Drafters::Drafters(std::vector<std::unique_ptr<Drafter>> drafters, bool merge, bool adapts,
                   ThreadPool* pool)
    : drafters_(std::move(drafters)), order_(drafters_.size()), merge_(merge), pool_(pool) {
  std::vector<DrafterTraits> traits;
  for (const auto& drafter : drafters_) traits.push_back(drafter->traits());
  std::iota(order_.begin(), order_.end(), 0);
  if (!merge) std::ranges::stable_partition(order_, [&](int i) { return traits[i].is_cheap(); });
  std::ranges::stable_sort(order_, {}, [&](int i) { return traits[i].source; });
  if (adapts) policy_.emplace(std::move(traits));
}

void Drafters::draft(DraftPlan& step, std::span<DraftRequest> requests) {
  rivals_.assign(requests.size(), {});
  for (const int index : order_) {
    const std::vector<DraftRequest*> asked = select(step, index, requests);
    if (asked.empty()) continue;
    if (competes(index)) {
      compete(step, index, asked, requests);
    } else {
      run(step, index, asked);
    }
  }
  if (policy_.has_value()) prune(step, requests);
}

std::vector<DraftRequest*> Drafters::select(DraftPlan& step, int index,
                                            std::span<DraftRequest> requests) {
  const Drafter& drafter = *drafters_[index];
  const bool asks_policy = policy_.has_value() && !drafter.traits().is_cheap();
  std::vector<DraftRequest*> selected;
  for (DraftRequest& request : requests) {
    if (request.error != nullptr) continue;
    if (!has_source(request, drafter.traits().source)) continue;
    const int num_drafts = request.tree->num_drafts();
    const bool has_room = merge_ ? num_drafts < request.max_nodes
                                 : competes(index) || !has_free_drafts(*request.tree);
    if (asks_policy || has_room) selected.push_back(&request);
  }
  if (!asks_policy) {
    if (!merge_ && drafter.traits().has_model()) start_over(selected);
    return selected;
  }

  asks_.clear();
  for (const DraftRequest* request : selected) {
    const bool has_drafts = request->tree->num_drafts() > 0;
    const int draft_budget =
        drafter.traits().has_model() ? request->draft_budget : request->max_nodes;
    asks_.push_back({.sequence = request->sequence,
                     .max_depth = std::min(request->max_depth, draft_budget),
                     .num_unseen = drafter.num_unseen(*request),
                     .num_remaining = request->num_remaining,
                     .tree = has_drafts ? request->tree : nullptr,
                     .replaces = !merge_});
  }
  policy_->plan(step, index, asks_, {.same_depth = false});
  auto ask = asks_.begin();
  std::erase_if(selected, [&](const DraftRequest*) { return (ask++)->depth == 0; });
  if (!merge_) start_over(selected);
  return selected;
}

bool Drafters::has_free_drafts(const DraftTree& tree) const {
  for (int node = 1; node < tree.num_nodes(); ++node) {
    if (drafters_[tree.drafter(node)]->traits().source != Source::kGrammar) return true;
  }
  return false;
}

bool Drafters::competes(int index) const {
  const DrafterTraits traits = drafters_[index]->traits();
  return policy_.has_value() && !merge_ && traits.is_cheap() && traits.source != Source::kGrammar;
}

void Drafters::compete(DraftPlan& step, int index, std::span<DraftRequest* const> asked,
                       std::span<DraftRequest> requests) {
  std::vector<DraftRequest*> contested;
  const auto rivals_of = [&](const DraftRequest* request) -> std::vector<DraftTree>& {
    return rivals_[request - requests.data()];
  };
  for (DraftRequest* request : asked) {
    if (!has_free_drafts(*request->tree)) continue;
    contested.push_back(request);
    rivals_of(request).push_back(*request->tree);
    keep_forced(*request->tree);
  }
  run(step, index, asked);
  for (DraftRequest* request : contested) {
    DraftTree& before = rivals_of(request).back();
    const bool is_better =
        has_free_drafts(*request->tree) && policy_->worth(step, request->sequence, *request->tree) >
                                               policy_->worth(step, request->sequence, before);
    if (!is_better) std::swap(*request->tree, before);
    if (!has_free_drafts(before)) rivals_of(request).pop_back();
  }
}

// Forced tokens were drafted first, so they keep their places.
void Drafters::keep_forced(DraftTree& tree) const {
  DraftTree forced;
  forced.reset(tree.tokens()[DraftTree::kRoot]);
  for (int node = 1; node < tree.num_nodes(); ++node) {
    const int drafter = tree.drafter(node);
    if (drafters_[drafter]->traits().source != Source::kGrammar) break;
    forced.add(tree.parents()[node], tree.tokens()[node], tree.survival(node), drafter);
  }
  tree = std::move(forced);
}

void Drafters::start_over(std::span<DraftRequest* const> requests) {
  for (DraftRequest* request : requests) request->tree->reset(request->tokens.back());
}

// If a grammar fails on a drafted path, decoding may never reach that token. So the request merely
// has no drafts in this step, and the error is thrown only when decoding gets there.
void Drafters::keep_to_grammar(DraftRequest& request) {
  try {
    if (request.error != nullptr) std::rethrow_exception(request.error);
    cut_forbidden(request);
  } catch (const GrammarError&) {
    request.error = nullptr;
    request.tree->reset(request.tokens.back());
  } catch (...) {
    request.error = std::current_exception();
  }
}

void Drafters::run(DraftPlan& step, int index, std::span<DraftRequest* const> requests) {
  Drafter& drafter = *drafters_[index];
  batch_.clear();
  for (const DraftRequest* request : requests) batch_.push_back(*request);
  for (DraftRequest& request : batch_) {
    request.policy = policy();
    request.step = &step;
  }
  double seconds = 0;
  {
    const Stopwatch watch(seconds);
    drafter.draft(batch_);
  }
  std::vector<DraftRequest*> constrained;
  for (DraftRequest& request : batch_) {
    if (request.grammar != nullptr) constrained.push_back(&request);
  }
  for_each_index(pool_, constrained.size(), [&](size_t i) { keep_to_grammar(*constrained[i]); });
  for (size_t i = 0; i < batch_.size(); ++i) requests[i]->error = batch_[i].error;
  if (!policy_.has_value()) return;
  if (drafter.traits().has_model()) {
    for (const TimedPass& pass : drafter.passes()) {
      policy_->record_pass(step, index, pass.num_rows, pass.seconds);
    }
    return;
  }
  policy_->record_pass(step, index, static_cast<int>(batch_.size()), seconds);
  for (const DraftRequest& request : batch_) {
    policy_->record_match(request.sequence, index, request.match_length);
  }
}

void Drafters::prune(DraftPlan& step, std::span<const DraftRequest> requests) {
  drafts_.clear();
  for (size_t i = 0; i < requests.size(); ++i) {
    const DraftRequest& request = requests[i];
    if (request.error != nullptr) request.tree->reset(request.tokens.back());
    drafts_.push_back({.sequence = request.sequence,
                       .tree = request.tree,
                       .max_nodes = request.draft_budget,
                       .others = rivals_[i]});
  }
  policy_->choose(step, drafts_);
}

void Drafters::finish(const FinishedSequence& finished) {
  if (policy_.has_value()) {
    policy_->finish(finished.sequence,
                    static_cast<int>(finished.tokens.size()) - finished.num_prompt_tokens);
  }
  for (const auto& drafter : drafters_) drafter->finish(finished);
}

}  // namespace specdec
