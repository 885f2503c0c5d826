#include "speculation/grammar_drafter.h"

#include <algorithm>
#include <vector>

#include "speculation/grammar_path.h"

namespace specdec {
namespace {

// Forced tokens are accepted unless another constraint forbids them, such as allowed_token_ids.
constexpr float kConfidence = 0.98f;

}  // namespace

void GrammarDrafter::draft(std::span<DraftRequest> requests) {
  draft_each(requests, pool_, [this](DraftRequest& request) {
    int node = DraftTree::kRoot;
    float survival = 1.0f;
    int depth = 0;
    for (const int32_t token : request.grammar->forced_tokens()) {
      if (++depth > request.max_depth) return;
      survival *= kConfidence;
      node = add_draft(request, node, token, survival, id_);
      if (node < 0) return;
    }
  });
}

void cut_forbidden(const DraftRequest& request) {
  const DraftTree& tree = *request.tree;
  std::vector<char> kept(tree.num_nodes(), 0);
  kept[DraftTree::kRoot] = 1;
  for (int node = 1; node < tree.num_nodes(); ++node) {
    const int parent = tree.parents()[node];
    if (kept[parent] == 0) continue;
    kept[node] = request.grammar->allows(tree.path(parent), tree.tokens()[node]) ? 1 : 0;
  }
  if (std::ranges::find(kept, 0) != kept.end()) request.tree->keep_only(kept);
}

}  // namespace specdec
