#include "speculation/composite_drafter.h"

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

std::vector<DraftRequest*> CompositeDrafter::select(const Drafter&,
                                                    std::span<DraftRequest> requests) {
  std::vector<DraftRequest*> selected;
  for (DraftRequest& request : requests) {
    const int num_drafts = request.tree->num_drafts();
    if (merge_ ? num_drafts < request.max_nodes : num_drafts == 0) selected.push_back(&request);
  }
  return selected;
}

void CompositeDrafter::draft(std::span<DraftRequest> requests) {
  std::vector<DraftRequest> batch;
  for (const auto& drafter : drafters_) {
    std::vector<DraftRequest*> selected = select(*drafter, requests);
    std::erase_if(selected, [](const DraftRequest* request) { return request->error != nullptr; });
    if (selected.empty()) continue;
    batch.clear();
    for (const DraftRequest* request : selected) batch.push_back(*request);
    run(*drafter, batch);
    for (size_t i = 0; i < batch.size(); ++i) selected[i]->error = batch[i].error;
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
