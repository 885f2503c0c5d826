#include "spec/composite_drafter.h"

#include <algorithm>
#include <utility>

namespace specdec {

CompositeDrafter::CompositeDrafter(std::vector<std::unique_ptr<Drafter>> drafters, bool merge)
    : drafters_(std::move(drafters)), merge_(merge) {
  if (merge_) return;
  std::stable_partition(drafters_.begin(), drafters_.end(),
                        [](const auto& drafter) { return drafter->is_free(); });
}

bool CompositeDrafter::is_free() const {
  return std::all_of(drafters_.begin(), drafters_.end(),
                     [](const auto& drafter) { return drafter->is_free(); });
}

void CompositeDrafter::draft(std::span<DraftRequest> requests) {
  const auto wants_more = [&](const DraftRequest& request) {
    if (request.error) return false;
    const int num_drafts = request.tree->num_drafts();
    return merge_ ? num_drafts < request.max_nodes : num_drafts == 0;
  };
  std::vector<DraftRequest> batch;
  std::vector<DraftRequest*> origins;  // of the batch
  for (const auto& drafter : drafters_) {
    batch.clear();
    origins.clear();
    for (DraftRequest& request : requests) {
      if (!wants_more(request)) continue;
      batch.push_back(request);
      origins.push_back(&request);
    }
    if (batch.empty()) return;
    drafter->draft(batch);
    for (size_t i = 0; i < batch.size(); ++i) origins[i]->error = batch[i].error;
  }
}

void CompositeDrafter::finish(uint64_t sequence, std::span<const int32_t> tokens,
                              int num_prompt_tokens) {
  for (const auto& drafter : drafters_) drafter->finish(sequence, tokens, num_prompt_tokens);
}

int64_t CompositeDrafter::memory_bytes() const {
  int64_t bytes = 0;
  for (const auto& drafter : drafters_) bytes += drafter->memory_bytes();
  return bytes;
}

}  // namespace specdec
