#include "speculation/ngram_drafter.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <queue>
#include <utility>

namespace specdec {
namespace {

// Each drafted token lowers the survival by this factor, in addition to the frequencies.
constexpr float kDecay = 0.85f;

// The `offset`-th token after an occurrence that ended before tokens[end].
int32_t token_after(std::span<const int32_t> tokens, int end, int offset) {
  const int period = static_cast<int>(tokens.size()) - end;
  return tokens[end + offset % period];
}

// Occurrences followed by the same token, latest first.
struct Continuation {
  int32_t token = 0;
  std::vector<int> ends;
};

// Most frequent first, then most recent.
std::vector<Continuation> continuations(std::span<const int32_t> tokens,
                                        const std::vector<int>& ends, int offset, int max_width) {
  std::vector<Continuation> found;
  for (const int end : ends) {
    const int32_t token = token_after(tokens, end, offset);
    auto it = std::find_if(found.begin(), found.end(),
                           [&](const Continuation& c) { return c.token == token; });
    if (it == found.end()) it = found.insert(found.end(), Continuation{.token = token, .ends = {}});
    it->ends.push_back(end);
  }
  std::stable_sort(found.begin(), found.end(), [](const Continuation& a, const Continuation& b) {
    return a.ends.size() > b.ends.size();
  });
  if (static_cast<int>(found.size()) > max_width) found.resize(max_width);
  return found;
}

}  // namespace

NgramDrafter::NgramDrafter(const DrafterConfig& config, int id)
    : min_length_(config.prompt_lookup_min), max_length_(config.prompt_lookup_max), id_(id) {}

void NgramDrafter::draft(std::span<DraftRequest> requests) {
  draft_each(requests, nullptr, [this](DraftRequest& request) {
    NgramIndex& index =
        indexes_.try_emplace(request.sequence, min_length_, max_length_).first->second;
    std::optional<NgramIndex::Match> match = index.find_longest(request.tokens);
    request.match_length = match ? match->length : 0;
    std::vector<int> ends;  // latest first
    for (int i = 0; match && i < kMaxOccurrences; ++i, match = index.previous(*match)) {
      ends.push_back(match->end);
    }
    if (ends.empty()) return;
    if (request.tree_width > 1) {
      draft_tree(request, ends);
    } else {
      draft_chain(request, ends);
    }
  });
}

void NgramDrafter::draft_chain(const DraftRequest& request, const std::vector<int>& ends) const {
  std::vector<int> agreeing = ends;
  int node = DraftTree::kRoot;
  for (int i = 0; i < request.max_depth; ++i) {
    const int32_t token = token_after(request.tokens, ends[0], i);
    std::erase_if(agreeing, [&](int end) { return token_after(request.tokens, end, i) != token; });
    const float frequency = static_cast<float>(agreeing.size()) / static_cast<float>(ends.size());
    const float survival = frequency * std::pow(kDecay, static_cast<float>(i + 1));
    node = add_draft(request, node, token, survival, id_);
    if (node < 0) return;
  }
}

void NgramDrafter::draft_tree(const DraftRequest& request, const std::vector<int>& ends) const {
  struct Candidate {
    float survival = 0;
    int order = 0;  // order of discovery, for ties
    int parent = 0;
    int depth = 0;
    Continuation continuation;
    bool operator<(const Candidate& other) const {
      return survival != other.survival ? survival < other.survival : order > other.order;
    }
  };
  std::priority_queue<Candidate> candidates;
  int order = 0;
  const auto expand = [&](int node, int depth, float survival, const std::vector<int>& among) {
    if (depth == request.max_depth) return;
    for (Continuation& next : continuations(request.tokens, among, depth, request.tree_width)) {
      const float share = static_cast<float>(next.ends.size()) / static_cast<float>(among.size());
      candidates.push({survival * share * kDecay, order++, node, depth + 1, std::move(next)});
    }
  };
  expand(DraftTree::kRoot, 0, 1.0f, ends);
  while (!candidates.empty()) {
    const Candidate best = candidates.top();
    candidates.pop();
    const int node = add_draft(request, best.parent, best.continuation.token, best.survival, id_);
    if (node < 0) return;
    expand(node, best.depth, best.survival, best.continuation.ends);
  }
}

void NgramDrafter::finish(const FinishedSequence& finished) { indexes_.erase(finished.sequence); }

int64_t NgramDrafter::memory_bytes() const {
  int64_t bytes = 0;
  for (const auto& [sequence, index] : indexes_) {
    bytes += index.memory_bytes() + static_cast<int64_t>(sizeof(index) + sizeof(sequence));
  }
  return bytes;
}

}  // namespace specdec
