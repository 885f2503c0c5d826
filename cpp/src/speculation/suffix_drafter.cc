#include "speculation/suffix_drafter.h"

#include <vector>

#include "core/check.h"

namespace specdec {
namespace {

void add_to_tree(const SuffixDraft& draft, const DraftRequest& request, int id) {
  std::vector<int> added;  // the tree's node for each drafted token, -1 where the tree was full
  added.reserve(draft.nodes.size());
  for (const SuffixDraft::Node& drafted : draft.nodes) {
    const int parent = drafted.parent < 0 ? DraftTree::kRoot : added[drafted.parent];
    const float survival = static_cast<float>(drafted.probability);
    added.push_back(parent < 0 ? -1 : add_draft(request, parent, drafted.token, survival, id));
  }
}

}  // namespace

SuffixDrafter::SuffixDrafter(const DrafterConfig& config, int id, ThreadPool* pool,
                             int64_t max_shared_bytes)
    : max_tree_depth_(config.suffix_max_tree_depth),
      max_shared_(config.suffix_max_cached_requests),
      max_shared_bytes_(max_shared_bytes),
      max_spec_factor_(config.suffix_max_spec_factor),
      min_token_prob_(config.suffix_min_token_prob),
      id_(id),
      pool_(pool),
      shared_(config.suffix_max_tree_depth) {}

void SuffixDrafter::draft(std::span<DraftRequest> requests) {
  draft_each(requests, nullptr, [this](const DraftRequest& request) {
    own_.try_emplace(request.sequence, max_tree_depth_);
  });
  draft_each(requests, pool_, [this](DraftRequest& request) {
    SuffixTree& own = own_.at(request.sequence);
    SPECDEC_CHECK_LE(own.open_length(), static_cast<int>(request.tokens.size()));
    for (const int32_t token : request.tokens.subspan(own.open_length())) own.append(token);

    const SuffixDraftLimits limits{.max_depth = request.max_depth,
                                   .max_nodes = request.max_nodes,
                                   .tree_width = request.tree_width,
                                   .max_spec_factor = max_spec_factor_,
                                   .min_token_prob = min_token_prob_};
    const SuffixDraft local = own.draft_open(limits);
    const SuffixDraft global = shared_.draft(request.tokens, limits);
    const SuffixDraft& best = global.score > local.score ? global : local;
    request.match_length = best.nodes.empty() ? 0 : best.match_length;
    add_to_tree(best, request, id_);
  });
}

void SuffixDrafter::finish(uint64_t sequence, std::span<const int32_t> tokens,
                           int num_prompt_tokens) {
  own_.erase(sequence);
  if (max_shared_ > 0) share(tokens.subspan(num_prompt_tokens));
}

void SuffixDrafter::share(std::span<const int32_t> output) {
  if (output.empty()) return;
  for (const int32_t token : output) shared_.append(token);
  shared_.close_sequence();
  while (shared_.num_closed() > max_shared_ ||
         (shared_.num_closed() > 0 && shared_.used_bytes() > max_shared_bytes_)) {
    shared_.evict_oldest();
  }
}

int64_t SuffixDrafter::memory_bytes() const {
  int64_t bytes = shared_.memory_bytes();
  for (const auto& [sequence, tree] : own_) {
    bytes += tree.memory_bytes() + static_cast<int64_t>(sizeof(tree) + sizeof(sequence));
  }
  return bytes;
}

}  // namespace specdec
