#include "engine/adaptive_drafter.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "core/stopwatch.h"

namespace specdec {
namespace {

std::vector<DrafterTraits> traits_of(const std::vector<AdaptiveDrafter::Part>& parts) {
  std::vector<DrafterTraits> traits;
  for (const AdaptiveDrafter::Part& part : parts) {
    traits.push_back({.is_free = part.drafter->is_free(),
                      .is_sequential = part.relative_cost > 0,
                      .relative_cost = part.relative_cost});
  }
  return traits;
}

std::vector<std::unique_ptr<Drafter>> drafters_of(std::vector<AdaptiveDrafter::Part>& parts) {
  std::vector<std::unique_ptr<Drafter>> drafters;
  for (AdaptiveDrafter::Part& part : parts) drafters.push_back(std::move(part.drafter));
  return drafters;
}

std::vector<const Drafter*> pointers_to(const std::vector<AdaptiveDrafter::Part>& parts) {
  std::vector<const Drafter*> pointers;
  for (const AdaptiveDrafter::Part& part : parts) pointers.push_back(part.drafter.get());
  return pointers;
}

}  // namespace

AdaptiveDrafter::AdaptiveDrafter(std::vector<Part> parts, bool merge, int max_nodes)
    : AdaptiveDrafter(parts, pointers_to(parts), traits_of(parts), merge, max_nodes) {}

AdaptiveDrafter::AdaptiveDrafter(std::vector<Part>& parts, std::vector<const Drafter*> pointers,
                                 std::vector<DrafterTraits> traits, bool merge, int max_nodes)
    : CompositeDrafter(drafters_of(parts), merge),
      parts_(std::move(pointers)),
      traits_(traits),
      policy_(std::move(traits)),
      max_nodes_(max_nodes) {}

int AdaptiveDrafter::index_of(const Drafter& drafter) const {
  const auto it = std::ranges::find(parts_, &drafter);
  SPECDEC_CHECK(it != parts_.end());
  return static_cast<int>(it - parts_.begin());
}

// A model's KV takes the slots of its nodes; what is not verified takes none.
AdaptiveDrafter::Limits AdaptiveDrafter::limits_of(int drafter, const DraftRequest& request) const {
  if (!traits_[drafter].is_sequential) return {request.max_depth, max_nodes_};
  return {std::min(request.max_depth, request.max_nodes), request.max_nodes};
}

void AdaptiveDrafter::draft(std::span<DraftRequest> requests) {
  CompositeDrafter::draft(requests);
  drafts_.clear();
  for (const DraftRequest& request : requests) {
    // The engine ends what has failed.
    if (request.error != nullptr) request.tree->reset(request.tokens.back());
    drafts_.push_back(
        {.sequence = request.sequence, .tree = request.tree, .max_nodes = request.max_nodes});
  }
  policy_.choose(drafts_);
}

std::vector<DraftRequest*> AdaptiveDrafter::select(const Drafter& drafter,
                                                   std::span<DraftRequest> requests) {
  if (drafter.is_free()) return CompositeDrafter::select(drafter, requests);
  const int index = index_of(drafter);
  asks_.clear();
  std::vector<DraftRequest*> asked;
  for (DraftRequest& request : requests) {
    if (request.error != nullptr) continue;
    const DraftTree* tree = request.tree->num_drafts() > 0 ? request.tree : nullptr;
    asks_.push_back({.sequence = request.sequence,
                     .max_depth = limits_of(index, request).max_depth,
                     .num_unseen = drafter.num_unseen(request),
                     .num_remaining = request.num_remaining,
                     .tree = tree});
    asked.push_back(&request);
  }
  policy_.plan(index, asks_);
  std::vector<DraftRequest*> selected;
  for (size_t i = 0; i < asks_.size(); ++i) {
    if (!asks_[i].is_chosen) continue;
    if (!merges()) asked[i]->tree->reset(asked[i]->tokens.back());
    selected.push_back(asked[i]);
  }
  return selected;
}

void AdaptiveDrafter::run(Drafter& drafter, std::span<DraftRequest> batch) {
  const int index = index_of(drafter);
  for (DraftRequest& request : batch) {
    const Limits limits = limits_of(index, request);
    request.max_depth = limits.max_depth;
    request.max_nodes = limits.max_nodes;
    request.gate = this;
  }
  double seconds = 0;
  {
    const Stopwatch watch(seconds);
    drafter.draft(batch);
  }
  if (traits_[index].is_sequential) {
    for (const Drafter::Pass& pass : drafter.passes()) {
      policy_.record_pass(index, pass.num_rows, pass.seconds);
    }
    return;
  }
  policy_.record_pass(index, static_cast<int>(batch.size()), seconds);
  for (const DraftRequest& request : batch) {
    policy_.record_match(request.sequence, index, request.match_length);
  }
}

void AdaptiveDrafter::choose(int drafter, std::span<DraftGate::Node> nodes) {
  policy_.plan_pass(drafter, nodes);
}

void AdaptiveDrafter::finish(uint64_t sequence, std::span<const int32_t> tokens,
                             int num_prompt_tokens) {
  policy_.finish(sequence, static_cast<int>(tokens.size()) - num_prompt_tokens);
  CompositeDrafter::finish(sequence, tokens, num_prompt_tokens);
}

}  // namespace specdec
