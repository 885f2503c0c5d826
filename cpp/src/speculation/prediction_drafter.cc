#include "speculation/prediction_drafter.h"

#include <algorithm>

namespace specdec {

void PredictionDrafter::draft(std::span<DraftRequest> requests) {
  draft_each(requests, nullptr,
             [this](const DraftRequest& request) { places_.try_emplace(request.sequence); });
  draft_each(requests, pool_, [this](DraftRequest& request) {
    PredictionPlace& place = places_.at(request.sequence);
    const auto answer = request.tokens.subspan(request.num_prompt_tokens);
    place.follow(request.prediction, answer);
    const int match = place.match_length();
    request.match_length = match;
    if (place.has_left() && match < kLeastMatch) return;
    // Laplace's rule of succession: after k tokens that were right, the next one is right with
    // (k + 1) / (k + 2). Over a path of them the factors cancel.
    const auto left = request.prediction.subspan(place.next());
    const int depth = std::min(request.max_depth, static_cast<int>(left.size()));
    int node = DraftTree::kRoot;
    for (int i = 0; i < depth && node >= 0; ++i) {
      const float survival = static_cast<float>(match + 1) / static_cast<float>(match + i + 2);
      node = add_draft(request, node, left[i], survival, id_);
    }
  });
}

int64_t PredictionDrafter::memory_bytes() const {
  return static_cast<int64_t>(places_.size() * sizeof(decltype(places_)::value_type));
}

}  // namespace specdec
