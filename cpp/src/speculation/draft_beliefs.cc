#include "speculation/draft_beliefs.h"

#include <algorithm>

namespace specdec {

DraftBeliefs::DraftBeliefs(int num_drafters)
    : num_drafters_(num_drafters), acceptance_(num_drafters) {}

DraftBeliefs::Request& DraftBeliefs::of(uint64_t sequence) {
  const auto [it, is_new] = requests_.try_emplace(sequence);
  if (is_new) {
    it->second.acceptance = acceptance_.new_request();
    it->second.match_lengths.assign(num_drafters_, 0);
  }
  return it->second;
}

const DraftBeliefs::Request* DraftBeliefs::find(uint64_t sequence) const {
  const auto it = requests_.find(sequence);
  return it == requests_.end() ? nullptr : &it->second;
}

DraftEvidence DraftBeliefs::evidence_of(const Request& request, const DraftTree& tree, int node,
                                        const DraftTree::Proposal& proposal) {
  using Others = DraftEvidence::Others;
  const int drafter = proposal.drafter;
  const int match = request.match_lengths[drafter];
  Others others = Others::kNothing;
  if (tree.proposals(node).size() > 1) {
    others = Others::kSameToken;
  } else if (tree.has_child_of_others(tree.parents()[node], drafter)) {
    others = Others::kOtherTokens;
  }
  return {.drafter = drafter,
          .strength = tree.depth(node) + std::max(match - 1, 0),
          .confidence = proposal.confidence,
          .is_first = proposal.is_first,
          .others = others};
}

AcceptanceModel::Chance DraftBeliefs::acceptance_of(const Request& request, const DraftTree& tree,
                                                    int node) const {
  AcceptanceModel::Chance best;
  for (const DraftTree::Proposal& proposal : tree.proposals(node)) {
    const auto [expected, least] =
        acceptance_.chance(request.acceptance, evidence_of(request, tree, node, proposal));
    best.expected = std::max(best.expected, expected);
    best.least = std::max(best.least, least);
  }
  return best;
}

double DraftBeliefs::survival(uint64_t sequence, const DraftTree& tree, int node) const {
  const Request& request = requests_.at(sequence);
  double survival = 1.0;
  for (; node != DraftTree::kRoot; node = tree.parents()[node]) {
    survival *= acceptance_of(request, tree, node).expected;
  }
  return survival;
}

void DraftBeliefs::add_nodes(const Request& request, const DraftTree& tree, int index,
                             std::vector<DraftCandidate>& candidates) const {
  const size_t first = candidates.size();
  for (int node = 1; node < tree.num_nodes(); ++node) {
    const int parent = tree.parents()[node];
    const auto [expected, least] = acceptance_of(request, tree, node);
    DraftCandidate candidate{
        .survival = expected, .least_survival = least, .request = index, .node = node};
    if (parent != DraftTree::kRoot) {
      const DraftCandidate& above = candidates[first + parent - 1];
      candidate.survival *= above.survival;
      candidate.least_survival *= above.least_survival;
    }
    candidates.push_back(candidate);
  }
}

void DraftBeliefs::add_depths(const Request& request, int drafter, int max_depth,
                              const DraftTree* others, int index,
                              std::vector<DraftCandidate>& candidates) const {
  std::vector<double> missed(max_depth + 1, 1.0);  // chance that no draft of the others is right
  if (others != nullptr) {
    std::vector<DraftCandidate> nodes;
    add_nodes(request, *others, index, nodes);
    for (const DraftCandidate& other : nodes) {
      const int depth = others->depth(other.node);
      if (depth <= max_depth) missed[depth] = std::max(missed[depth] - other.survival, 0.0);
    }
  }
  AcceptanceModel::Chance survival{.expected = 1.0, .least = 1.0};
  double worth = 1.0;
  double least_worth = 1.0;
  for (int depth = 1; depth <= max_depth; ++depth) {
    const auto [expected, least] =
        acceptance_.chance(request.acceptance, {.drafter = drafter, .strength = depth});
    survival.expected *= expected;
    survival.least *= least;
    worth = std::min(worth, survival.expected * missed[depth]);
    least_worth = std::min(least_worth, survival.least * missed[depth]);
    candidates.push_back(
        {.survival = worth, .least_survival = least_worth, .request = index, .node = depth});
  }
}

void DraftBeliefs::expect(Request& request, const DraftTree& tree,
                          std::span<const DraftTree> others) const {
  request.pending.clear();
  const auto add = [&](const DraftTree& drafted) {
    std::vector<Pending>& nodes = request.pending.emplace_back().nodes;
    nodes.emplace_back();
    for (int node = 1; node < drafted.num_nodes(); ++node) {
      nodes.push_back(
          {.token = drafted.tokens()[node], .parent = drafted.parents()[node], .evidence = {}});
      for (const DraftTree::Proposal& proposal : drafted.proposals(node)) {
        nodes.back().evidence.push_back(evidence_of(request, drafted, node, proposal));
      }
    }
  };
  add(tree);
  for (const DraftTree& other : others) add(other);
}

void DraftBeliefs::expect_levels(Request& request, int drafter, int num_levels,
                                 std::span<const int32_t> right) {
  request.pending.clear();
  std::vector<Pending>& nodes = request.pending.emplace_back().nodes;
  nodes.emplace_back();
  for (int level = 1; level <= num_levels; ++level) {
    const bool is_right = level <= static_cast<int>(right.size());
    nodes.push_back({.token = is_right ? right[level - 1] : -1,
                     .parent = level - 1,
                     .evidence = {{.drafter = drafter, .strength = level}}});
  }
}

void DraftBeliefs::record_no_draft(Request& request, int drafter) {
  acceptance_.record(request.acceptance, {.drafter = drafter, .strength = 1}, false);
}

void DraftBeliefs::record(Request& request, std::span<const int32_t> tokens,
                          const std::function<void(int drafter)>& when_right) {
  acceptance_.forget(request.acceptance, static_cast<int>(tokens.size()));
  for (const int32_t token : tokens) {
    if (request.pending.empty()) return;
    std::erase_if(request.pending, [&](PendingTree& tree) {
      int next = -1;
      for (int node = tree.last + 1; node < static_cast<int>(tree.nodes.size()); ++node) {
        const Pending& pending = tree.nodes[node];
        if (pending.parent != tree.last) continue;
        const bool is_right = pending.token == token;
        if (is_right) next = node;
        for (const DraftEvidence& evidence : pending.evidence) {
          if (is_right) when_right(evidence.drafter);
          acceptance_.record(request.acceptance, evidence, is_right);
        }
      }
      tree.last = next;
      return next < 0;
    });
    request.probe_depth = 0;
  }
}

}  // namespace specdec
