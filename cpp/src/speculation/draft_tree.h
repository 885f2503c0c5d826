// The tokens drafted for one request and step: a tree below the last committed token. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/step_rules.h"
#include "specdec/speculative_config.h"

namespace specdec {

inline TreeShape tree_shape_of(const SpeculativeConfig& config) {
  return {.width = config.tree_width, .max_nodes = config.max_nodes()};
}

class DraftTree {
 public:
  static constexpr int kRoot = 0;

  // One attempt of a drafter at the token after a node. Rejection verification walks a node's
  // attempts in the order in which they were made. A deterministic attempt has no distribution (q
  // is one at its token). Attempts drawn without replacement from one distribution share its index.
  struct Attempt {
    int child = 0;          // node that holds the token
    int distribution = -1;  // index for distribution(); -1: deterministic
    float survival = 0;     // of this attempt alone; truncate() ranks attempts by it
    int order = 0;          // among all attempts of the tree, by when they were made
  };

  // A drafter's estimate for a node's token, given that the parent is accepted.
  struct Proposal {
    int drafter = 0;
    float confidence = 0;
    float survival = 0;    // of the path, as the drafter gave it
    bool is_first = true;  // whether it is the drafter's first token after this parent
  };

  // Starts over with the last committed token as root.
  void reset(int32_t root_token);

  // Adds a deterministic child of `parent` (parents before children), or finds the existing child
  // with that token. `survival` is the estimated probability that the node is accepted; it is
  // capped by its parent's, and an existing child keeps the larger value. `confidence` is the
  // probability of the token alone, given its parent; it may be omitted where it follows from the
  // drafter's survivals along the path. Returns the node.
  int add(int parent, int32_t token, float survival, int drafter, float confidence = -1);
  // The same for a token drawn from distribution `distribution`. If the tree is verified by
  // rejection, `survival` may depend on the path above, on the distribution and on how many tokens
  // were drawn from it, but not on the token itself: keeping a draw because it is likely would
  // favour likely tokens twice. `survival` is capped by that of the previous draw from the same
  // distribution.
  int add_sampled(int parent, int32_t token, float survival, int drafter, int distribution);

  // Keeps a normalised distribution [vocab_size] and returns its index.
  int add_distribution(std::vector<float> probabilities);
  std::span<const float> distribution(int index) const { return distributions_[index]; }
  std::span<const Attempt> attempts(int node) const { return attempts_[node]; }

  // Keeps the max_drafts nodes of largest survival (ties: the earlier node). Their ancestors are
  // among them, since survival never rises along a path. Nodes are renumbered in order.
  //
  // Rejection verification stays lossless, because the choice of attempts does not depend on the
  // tokens they drew. Attempts are ranked, not nodes: an attempt stays while the attempts ranked
  // above it hold fewer than max_drafts nodes, even if its own token is kept anyway. The attempts
  // kept of one distribution are its first draws, so each still knows the earlier ones.
  void truncate(int max_drafts);

  // Keeps the marked nodes [num_nodes], which must include the root and every marked node's parent,
  // with all their attempts. Lossless in exact verification only: the choice may depend on the
  // tokens.
  void keep_only(std::span<const char> nodes);

  int num_nodes() const { return static_cast<int>(tokens_.size()); }
  int num_drafts() const { return num_nodes() - 1; }
  bool is_chain() const;                                         // no node has two children
  std::span<const int32_t> tokens() const { return tokens_; }    // [num_nodes], root first
  std::span<const int32_t> parents() const { return parents_; }  // [num_nodes], root's is -1
  int depth(int node) const { return depths_[node]; }
  float survival(int node) const { return survivals_[node]; }
  // The first drafter that proposed the node; proposals() has all of them.
  int drafter(int node) const { return proposals_[node].front().drafter; }
  std::span<const Proposal> proposals(int node) const { return proposals_[node]; }
  // Null: this drafter did not propose the node
  const Proposal* find_proposal(int node, int drafter) const;
  // Whether this drafter, or any other drafter, proposed a child of the node.
  bool has_child_of(int node, int drafter) const;
  bool has_child_of_others(int node, int drafter) const;
  int find_child(int parent, int32_t token) const;  // -1: none
  // Tokens after the root down to `node`, in order; empty for the root.
  std::vector<int32_t> path(int node) const;

  // Throws InternalError if an invariant does not hold.
  void check_integrity() const;

 private:
  int find_or_add(int parent, int32_t token, float survival);
  // Records a drafter's first proposal of a node.
  void propose(int parent, int node, float survival, int drafter, float confidence);
  void keep_only(std::span<const char> nodes, std::span<const char> attempts);

  std::vector<int32_t> tokens_;
  std::vector<int32_t> parents_;
  std::vector<int32_t> depths_;
  std::vector<float> survivals_;
  std::vector<std::vector<Attempt>> attempts_;    // [num_nodes or more], memory is kept for reuse
  std::vector<std::vector<Proposal>> proposals_;  // by node
  int num_attempts_ = 0;                          // made since reset(); the next attempt's order
  std::vector<std::vector<float>> distributions_;
};

}  // namespace specdec
