// What drafts are worth to a DraftPolicy, and what it learns from what became of them.
#include <algorithm>
#include <utility>

#include "speculation/draft_policy.h"

namespace specdec {

void DraftPolicy::record_match(uint64_t sequence, int drafter, int match_length) {
  state_of(sequence).match_lengths[drafter] = match_length;
}

DraftEvidence DraftPolicy::evidence_of(const RequestState& state, const DraftTree& tree, int node,
                                       const DraftTree::Proposal& proposal) {
  using Others = DraftEvidence::Others;
  const int drafter = proposal.drafter;
  const int match = state.match_lengths[drafter];
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

AcceptanceModel::Chance DraftPolicy::acceptance_of(const RequestState& state, const DraftTree& tree,
                                                   int node) const {
  AcceptanceModel::Chance best;
  for (const DraftTree::Proposal& proposal : tree.proposals(node)) {
    const auto [expected, least] =
        acceptance_.chance(state.acceptance, evidence_of(state, tree, node, proposal));
    best.expected = std::max(best.expected, expected);
    best.least = std::max(best.least, least);
  }
  return best;
}

// The nodes of a drafted tree.
void DraftPolicy::add_nodes(const RequestState& state, const DraftTree& tree, int request,
                            std::vector<Candidate>& candidates) const {
  const size_t first = candidates.size();
  for (int node = 1; node < tree.num_nodes(); ++node) {
    const int parent = tree.parents()[node];
    const auto [expected, least] = acceptance_of(state, tree, node);
    Candidate candidate{
        .survival = expected, .least_survival = least, .request = request, .node = node};
    if (parent != DraftTree::kRoot) {
      const Candidate& above = candidates[first + parent - 1];
      candidate.survival *= above.survival;
      candidate.least_survival *= above.least_survival;
    }
    candidates.push_back(candidate);
  }
}

// The levels that a drafter could draft. Where drafts of others stay, a level is worth what it adds
// to them: its token, if it is the right one, may be among theirs.
void DraftPolicy::add_depths(const RequestState& state, int drafter, const Ask& ask, int request,
                             std::vector<Candidate>& candidates) const {
  std::vector<double> missed(ask.max_depth + 1, 1.0);  // chance that no draft of others is right
  if (ask.tree != nullptr && !ask.replaces) {
    std::vector<Candidate> others;
    add_nodes(state, *ask.tree, request, others);
    for (const Candidate& other : others) {
      const int depth = ask.tree->depth(other.node);
      if (depth <= ask.max_depth) missed[depth] = std::max(missed[depth] - other.survival, 0.0);
    }
  }
  AcceptanceModel::Chance survival{.expected = 1.0, .least = 1.0};
  double worth = 1.0;
  double least_worth = 1.0;
  for (int depth = 1; depth <= ask.max_depth; ++depth) {
    const auto [expected, least] =
        acceptance_.chance(state.acceptance, {.drafter = drafter, .strength = depth});
    survival.expected *= expected;
    survival.least *= least;
    worth = std::min(worth, survival.expected * missed[depth]);
    least_worth = std::min(least_worth, survival.least * missed[depth]);
    candidates.push_back(
        {.survival = worth, .least_survival = least_worth, .request = request, .node = depth});
  }
}

double DraftPolicy::survival(uint64_t sequence, const DraftTree& tree, int node) const {
  const RequestState& state = requests_.at(sequence);
  double survival = 1.0;
  for (; node != DraftTree::kRoot; node = tree.parents()[node]) {
    survival *= acceptance_of(state, tree, node).expected;
  }
  return survival;
}

// Remembers the whole draft, since the text shows later how far it would have been right.
void DraftPolicy::keep(DraftPlan& step, RequestState& state, DraftTree& tree,
                       std::span<const char> chosen) {
  const auto num_chosen = static_cast<int>(std::ranges::count(chosen, 1)) - 1;
  if (tree.num_drafts() > 0 && (num_chosen > 0 || state.pending.empty())) {
    state.pending.assign(1, Pending{});
    state.pending_node = DraftTree::kRoot;
    for (int node = 1; node < tree.num_nodes(); ++node) {
      state.pending.push_back(
          {.token = tree.tokens()[node], .parent = tree.parents()[node], .evidence = {}});
      for (const DraftTree::Proposal& proposal : tree.proposals(node)) {
        state.pending.back().evidence.push_back(evidence_of(state, tree, node, proposal));
      }
    }
  }
  const int asked = std::exchange(state.asked_drafter, -1);
  if (asked >= 0 && !tree.has_child_of(DraftTree::kRoot, asked)) {
    acceptance_.record(state.acceptance, {.drafter = asked, .strength = 1}, false);
  }
  count_decision(step, state, tree.num_drafts(), num_chosen);
  if (num_chosen < tree.num_drafts()) tree.keep_only(chosen);
}

// The greater of what is now and most of what was.
void DraftPolicy::fade(int& recent, int now) { recent = std::max(now, recent - (recent + 3) / 4); }

void DraftPolicy::count_decision(DraftPlan& step, RequestState& state, int num_drafted,
                                 int num_verified) {
  ++stats_.num_decisions;
  stats_.num_drafted_tokens += num_drafted;
  stats_.num_verified_tokens += num_verified;
  if (num_verified == 0) ++stats_.num_without_drafts;
  step.num_verified += num_verified;
  fade(state.recent_length, num_verified);
}

// What the device drafted, as a path: the nodes of a level were right or wrong together.
void DraftPolicy::expect_levels(DraftPlan& step, RequestState& state, const Outcome& outcome) {
  const Outcome::Levels& levels = *outcome.levels;
  count_decision(step, state, levels.num_drafts, levels.num_drafts);
  state.asked_drafter = -1;
  state.pending.assign(1, Pending{});
  state.pending_node = DraftTree::kRoot;
  const int num_right = std::min(levels.num_accepted, static_cast<int>(outcome.tokens.size()));
  for (int level = 1; level <= levels.num_levels; ++level) {
    state.pending.push_back({.token = level <= num_right ? outcome.tokens[level - 1] : -1,
                             .parent = level - 1,
                             .evidence = {{.drafter = levels.drafter, .strength = level}}});
  }
}

void DraftPolicy::record(DraftPlan& step, const Outcome& outcome) {
  if (outcome.tokens.empty()) return;
  RequestState& state = state_of(outcome.sequence);
  const int num_tokens = static_cast<int>(outcome.tokens.size());
  state.num_output_tokens += num_tokens;
  step.num_tokens += num_tokens;
  acceptance_.forget(state.acceptance, num_tokens);
  if (outcome.levels.has_value()) expect_levels(step, state, outcome);
  for (const int32_t token : outcome.tokens) {
    if (state.pending.empty()) return;
    int next = -1;
    for (int node = state.pending_node + 1; node < static_cast<int>(state.pending.size()); ++node) {
      const Pending& pending = state.pending[node];
      if (pending.parent != state.pending_node) continue;
      const bool is_right = pending.token == token;
      if (is_right) next = node;
      for (const DraftEvidence& evidence : pending.evidence) {
        const bool is_probed = state.probe_depth > 0 && !drafters_[evidence.drafter].is_cheap();
        if (is_probed && is_right) probing_[evidence.drafter].interval = 1;
        acceptance_.record(state.acceptance, evidence, is_right);
      }
    }
    state.probe_depth = 0;
    if (next < 0) {
      state.pending.clear();
    } else {
      state.pending_node = next;
    }
  }
}

}  // namespace specdec
