#include "speculation/draft_tree.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace specdec {

void DraftTree::reset(int32_t root_token) {
  for (int i = 0; i < num_nodes(); ++i) {
    attempts_[i].clear();
    proposals_[i].clear();
  }
  if (attempts_.empty()) attempts_.emplace_back();
  if (proposals_.empty()) proposals_.emplace_back();
  tokens_.assign(1, root_token);
  parents_.assign(1, -1);
  depths_.assign(1, 0);
  survivals_.assign(1, 1.0f);
  distributions_.clear();
  num_attempts_ = 0;
}

int DraftTree::find_child(int parent, int32_t token) const {
  for (const Attempt& attempt : attempts_[parent]) {
    if (tokens_[attempt.child] == token) return attempt.child;
  }
  return -1;
}

int DraftTree::find_or_add(int parent, int32_t token, float survival) {
  const int existing = find_child(parent, token);
  if (existing >= 0) {
    survivals_[existing] = std::max(survivals_[existing], survival);
    return existing;
  }
  const int node = num_nodes();
  if (static_cast<int>(attempts_.size()) == node) attempts_.emplace_back();
  if (static_cast<int>(proposals_.size()) == node) proposals_.emplace_back();
  parents_.push_back(parent);
  depths_.push_back(depths_[parent] + 1);
  survivals_.push_back(survival);
  // Last, so that a failed allocation above leaves the tree without the node
  tokens_.push_back(token);
  return node;
}

const DraftTree::Proposal* DraftTree::find_proposal(int node, int drafter) const {
  for (const Proposal& proposal : proposals_[node]) {
    if (proposal.drafter == drafter) return &proposal;
  }
  return nullptr;
}

bool DraftTree::has_child_of(int node, int drafter) const {
  return std::ranges::any_of(attempts_[node], [&](const Attempt& attempt) {
    return find_proposal(attempt.child, drafter) != nullptr;
  });
}

bool DraftTree::has_child_of_others(int node, int drafter) const {
  return std::ranges::any_of(attempts_[node], [&](const Attempt& attempt) {
    return std::ranges::any_of(proposals_[attempt.child], [&](const Proposal& proposal) {
      return proposal.drafter != drafter;
    });
  });
}

void DraftTree::propose(int parent, int node, float survival, int drafter, float confidence) {
  if (find_proposal(node, drafter) != nullptr) return;
  if (confidence < 0) {
    const Proposal* above = find_proposal(parent, drafter);
    const float told = above == nullptr ? survivals_[parent] : above->survival;
    confidence = told > 0 ? std::min(survival / told, 1.0f) : 0.0f;
  }
  const bool is_first = !has_child_of(parent, drafter);
  proposals_[node].push_back(
      {.drafter = drafter, .confidence = confidence, .survival = survival, .is_first = is_first});
}

int DraftTree::add(int parent, int32_t token, float survival, int drafter, float confidence) {
  SPECDEC_CHECK(parent >= 0 && parent < num_nodes());
  SPECDEC_CHECK_GE(survival, 0.0f);
  const float told = survival;
  survival = std::min(survival, survivals_[parent]);
  const int node = find_or_add(parent, token, survival);
  propose(parent, node, told, drafter, confidence);
  for (Attempt& attempt : attempts_[parent]) {
    if (attempt.child != node || attempt.distribution >= 0) continue;
    attempt.survival = std::max(attempt.survival, survival);
    return node;
  }
  attempts_[parent].push_back(
      {.child = node, .distribution = -1, .survival = survival, .order = num_attempts_++});
  return node;
}

int DraftTree::add_sampled(int parent, int32_t token, float survival, int drafter,
                           int distribution) {
  SPECDEC_CHECK(parent >= 0 && parent < num_nodes());
  SPECDEC_CHECK(distribution >= 0 && distribution < static_cast<int>(distributions_.size()));
  SPECDEC_CHECK_GE(survival, 0.0f);
  survival = std::min(survival, survivals_[parent]);
  for (const Attempt& attempt : attempts_[parent]) {
    if (attempt.distribution == distribution) survival = std::min(survival, attempt.survival);
  }
  const int node = find_or_add(parent, token, survival);
  propose(parent, node, survival, drafter, -1);
  attempts_[parent].push_back({.child = node,
                               .distribution = distribution,
                               .survival = survival,
                               .order = num_attempts_++});
  return node;
}

int DraftTree::add_distribution(std::vector<float> probabilities) {
  distributions_.push_back(std::move(probabilities));
  return static_cast<int>(distributions_.size()) - 1;
}

void DraftTree::truncate(int max_drafts) {
  SPECDEC_CHECK_GE(max_drafts, 0);
  // Even a tree with exactly max_drafts nodes may hold an attempt that must go: the lowest ranked
  // one, if its token is in the tree only because another drafter proposed it.
  if (num_drafts() < max_drafts) return;
  std::vector<Attempt> by_survival;
  for (int i = 0; i < num_nodes(); ++i) {
    by_survival.insert(by_survival.end(), attempts_[i].begin(), attempts_[i].end());
  }
  std::sort(by_survival.begin(), by_survival.end(), [](const Attempt& a, const Attempt& b) {
    return a.survival != b.survival ? a.survival > b.survival : a.order < b.order;
  });
  std::vector<char> keep_node(num_nodes(), 0);
  std::vector<char> keep_attempt(num_attempts_, 0);
  keep_node[kRoot] = 1;
  int num_kept = 0;
  for (const Attempt& attempt : by_survival) {
    if (num_kept == max_drafts) break;
    num_kept += !keep_node[attempt.child];
    keep_node[attempt.child] = 1;
    keep_attempt[attempt.order] = 1;
  }
  keep_only(keep_node, keep_attempt);
}

void DraftTree::keep_only(std::span<const char> nodes) {
  SPECDEC_CHECK_EQ(static_cast<int>(nodes.size()), num_nodes());
  SPECDEC_CHECK(nodes[kRoot]);
  for (int i = 1; i < num_nodes(); ++i) SPECDEC_CHECK(!nodes[i] || nodes[parents_[i]]);
  std::vector<char> attempts(num_attempts_, 0);
  for (const std::vector<Attempt>& tries : attempts_) {
    for (const Attempt& attempt : tries) attempts[attempt.order] = nodes[attempt.child];
  }
  keep_only(nodes, attempts);
}

void DraftTree::keep_only(std::span<const char> nodes, std::span<const char> attempts) {
  std::vector<int> renumbered(num_nodes(), -1);
  int kept = 0;
  for (int i = 0; i < num_nodes(); ++i) {
    if (nodes[i]) renumbered[i] = kept++;
  }
  for (int i = 0; i < num_nodes(); ++i) {
    std::vector<Attempt> tries = std::exchange(attempts_[i], {});
    std::vector<Proposal> proposals = std::exchange(proposals_[i], {});
    if (!nodes[i]) continue;
    std::erase_if(tries, [&](const Attempt& attempt) { return !attempts[attempt.order]; });
    const int node = renumbered[i];
    tokens_[node] = tokens_[i];
    parents_[node] = i == kRoot ? -1 : renumbered[parents_[i]];
    depths_[node] = depths_[i];
    survivals_[node] = i == kRoot ? 1.0f : 0.0f;
    for (Attempt& attempt : tries) attempt.child = renumbered[attempt.child];
    attempts_[node] = std::move(tries);
    proposals_[node] = std::move(proposals);
  }
  tokens_.resize(kept);
  parents_.resize(kept);
  depths_.resize(kept);
  survivals_.resize(kept);
  for (int i = 0; i < kept; ++i) {
    for (const Attempt& attempt : attempts_[i]) {
      survivals_[attempt.child] = std::max(survivals_[attempt.child], attempt.survival);
    }
  }
}

bool DraftTree::is_chain() const {
  for (int i = 1; i < num_nodes(); ++i) {
    if (parents_[i] != i - 1) return false;
  }
  return true;
}

std::vector<int32_t> DraftTree::path(int node) const {
  std::vector<int32_t> tokens(depths_[node]);
  for (int i = node; i != kRoot; i = parents_[i]) tokens[depths_[i] - 1] = tokens_[i];
  return tokens;
}

void DraftTree::check_integrity() const {
  SPECDEC_CHECK_GE(num_nodes(), 1);
  SPECDEC_CHECK_EQ(parents_[kRoot], -1);
  SPECDEC_CHECK_EQ(depths_[kRoot], 0);
  for (int i = 1; i < num_nodes(); ++i) {
    const int parent = parents_[i];
    SPECDEC_CHECK(parent >= 0 && parent < i);
    SPECDEC_CHECK_EQ(depths_[i], depths_[parent] + 1);
    SPECDEC_CHECK_GE(survivals_[i], 0.0f);
    SPECDEC_CHECK_LE(survivals_[i], survivals_[parent]);
    SPECDEC_CHECK_EQ(find_child(parent, tokens_[i]), i);  // also: siblings differ
    SPECDEC_CHECK(!proposals_[i].empty());
  }
  for (int i = 0; i < static_cast<int>(attempts_.size()); ++i) {
    if (i >= num_nodes()) SPECDEC_CHECK(attempts_[i].empty());
    int order = -1;
    for (const Attempt& attempt : attempts_[i]) {
      SPECDEC_CHECK(attempt.child > 0 && attempt.child < num_nodes());
      SPECDEC_CHECK_EQ(parents_[attempt.child], i);
      SPECDEC_CHECK_LE(attempt.survival, survivals_[attempt.child]);
      SPECDEC_CHECK_LT(order, attempt.order);
      SPECDEC_CHECK_LT(attempt.distribution, static_cast<int>(distributions_.size()));
      order = attempt.order;
    }
  }
}

}  // namespace specdec
