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

  // One try of a drafter at the token after a node, in the order they were made: what rejection
  // verification walks. A deterministic try has no distribution (q is one at its token). Tries
  // drawn without replacement from one distribution name the same one.
  struct Attempt {
    int child = 0;          // node that holds the token
    int distribution = -1;  // index for distribution(); -1: deterministic
    float survival = 0;     // this try's own: truncate() ranks tries by it
    int order = 0;          // of all tries of the tree, by when they were made
  };

  // What a drafter thinks of a node's token, where the node before is accepted.
  struct Proposal {
    int drafter = 0;
    float confidence = 0;
    float survival = 0;    // of the path, as the drafter told it
    bool is_first = true;  // of the drafter's tokens after the same parent
  };

  // Starts over with the last committed token as root.
  void reset(int32_t root_token);

  // Adds a deterministic child of `parent` (parents before children), or finds the one there is
  // with that token. `survival` is the estimated probability that the node is accepted; it is
  // capped by its parent's, and an existing child keeps the larger one. `confidence` is the same
  // for the token alone, given its parent; it may be left out where the drafter's survivals of the
  // path say it. Returns the node.
  int add(int parent, int32_t token, float survival, int drafter, float confidence = -1);
  // The same for a token drawn from distribution `distribution`. Here `survival` may depend on the
  // path above, on the distribution and on how many tokens were drawn from it, but not on which
  // token came out if the tree is verified by rejection: keeping a draw because it is likely would
  // favour likely tokens twice. It is capped by the survival of the draw before from the same
  // distribution.
  int add_sampled(int parent, int32_t token, float survival, int drafter, int distribution);

  // Keeps a normalised distribution [vocab_size] and returns its index.
  int add_distribution(std::vector<float> probabilities);
  std::span<const float> distribution(int index) const { return distributions_[index]; }
  std::span<const Attempt> attempts(int node) const { return attempts_[node]; }

  // Keeps the max_drafts nodes of largest survival (ties: the earlier one); ancestors stay, since
  // survival never rises along a path. Nodes are renumbered in order.
  //
  // Rejection verification stays lossless, since which tries are kept does not depend on the tokens
  // they drew. Tries, not nodes, are ranked: one is kept while fewer than max_drafts nodes are held
  // by the tries that rank above it, even if it fell on a token that is kept anyway. Of the draws
  // from one distribution a prefix stays, so each still knows those drawn before it.
  void truncate(int max_drafts);

  // Keeps the nodes [num_nodes] marked, the root and every node's parent among them, with all tries
  // that fell on them. Lossless in exact verification only: the choice may depend on the tokens.
  void keep_only(std::span<const char> nodes);

  int num_nodes() const { return static_cast<int>(tokens_.size()); }
  int num_drafts() const { return num_nodes() - 1; }
  bool is_chain() const;                                         // no node has two children
  std::span<const int32_t> tokens() const { return tokens_; }    // [num_nodes], root first
  std::span<const int32_t> parents() const { return parents_; }  // [num_nodes], root's is -1
  int depth(int node) const { return depths_[node]; }
  float survival(int node) const { return survivals_[node]; }
  // The first that proposed the node; proposals() has all of them.
  int drafter(int node) const { return proposals_[node].front().drafter; }
  std::span<const Proposal> proposals(int node) const { return proposals_[node]; }
  const Proposal* find_proposal(int node, int drafter) const;  // null: it did not propose the node
  // Whether the drafter, or one besides it, proposed a child.
  bool has_child_of(int node, int drafter) const;
  bool has_child_of_others(int node, int drafter) const;
  int find_child(int parent, int32_t token) const;  // -1: none
  // Tokens after the root down to `node`, in order; empty for the root.
  std::vector<int32_t> path(int node) const;

  // Throws InternalError if an invariant does not hold.
  void check_integrity() const;

 private:
  int find_or_add(int parent, int32_t token, float survival);
  // Counts the first proposal of each drafter.
  void propose(int parent, int node, float survival, int drafter, float confidence);
  void keep_only(std::span<const char> nodes, std::span<const char> attempts);

  std::vector<int32_t> tokens_;
  std::vector<int32_t> parents_;
  std::vector<int32_t> depths_;
  std::vector<float> survivals_;
  std::vector<std::vector<Attempt>> attempts_;    // [num_nodes or more], memory is kept for reuse
  std::vector<std::vector<Proposal>> proposals_;  // the same
  int num_attempts_ = 0;                          // made since reset(): the next one's order
  std::vector<std::vector<float>> distributions_;
};

}  // namespace specdec
