// What drafts are believed to be worth: how likely each drafted token is accepted, learned from
// what became of earlier ones, for all requests and for each by itself. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <unordered_map>
#include <vector>

#include "speculation/acceptance_model.h"
#include "speculation/draft_tree.h"

namespace specdec {

// A node that could be drafted or verified.
struct DraftCandidate {
  double survival = 0;        // the chance that the node and its path are accepted
  double least_survival = 0;  // by what was seen so far
  int request = 0;
  int node = 0;  // of a tree; of a plan its depth, since there is no tree yet
};

class DraftBeliefs {
 public:
  // A drafted node whose fate the text will show.
  struct Pending {
    int32_t token = 0;
    int parent = 0;
    std::vector<DraftEvidence> evidence;  // of each drafter that proposed it
  };
  struct Request {
    RequestAcceptance acceptance;
    std::vector<int> match_lengths;  // by drafter
    std::vector<Pending> pending;    // the tree drafted last, its root first; empty: none
    int pending_node = 0;            // the last node with which the text agrees
    int recent_length = 0;           // of drafts that were verified, fading in their absence
    int num_output_tokens = 0;
    int asked_drafter = -1;  // in this step
    int probe_depth = 0;     // > 0: it was only asked to see how the drafter does
  };

  explicit DraftBeliefs(int num_drafters);

  Request& of(uint64_t sequence);
  const Request* find(uint64_t sequence) const;  // null: nothing is known of it
  void finish(uint64_t sequence) { requests_.erase(sequence); }

  // The chance that a drafted node is accepted, and with it its path.
  double survival(uint64_t sequence, const DraftTree& tree, int node) const;
  // That a node is accepted once its parent was, by the drafter that is surest of it.
  AcceptanceModel::Chance acceptance_of(const Request& request, const DraftTree& tree,
                                        int node) const;
  // The same for a token at a depth that a drafter has not drafted yet.
  double acceptance_at(const Request& request, int drafter, int depth) const {
    return acceptance_.probability(request.acceptance, {.drafter = drafter, .strength = depth});
  }
  // The nodes of a drafted tree.
  void add_nodes(const Request& request, const DraftTree& tree, int index,
                 std::vector<DraftCandidate>& candidates) const;
  // The levels that a drafter could draft. `others`: drafts that stay beside its own, or null; a
  // level is then worth what it adds to them, since its token, if right, may be among theirs.
  void add_depths(const Request& request, int drafter, int max_depth, const DraftTree* others,
                  int index, std::vector<DraftCandidate>& candidates) const;

  // Remembers a whole draft, since the text shows later how far it would have been right.
  void expect(Request& request, const DraftTree& tree) const;
  // ... of which only the path that was right is known: the nodes of a level were right or wrong
  // together. `right` are the tokens that were accepted.
  static void expect_levels(Request& request, int drafter, int num_levels,
                            std::span<const int32_t> right);
  // A drafter was asked and drafted nothing.
  void record_no_draft(Request& request, int drafter);
  // What the request got. Calls `when_right` with each drafter of a drafted token that was right.
  void record(Request& request, std::span<const int32_t> tokens,
              const std::function<void(int drafter)>& when_right);

 private:
  static DraftEvidence evidence_of(const Request& request, const DraftTree& tree, int node,
                                   const DraftTree::Proposal& proposal);

  int num_drafters_;
  AcceptanceModel acceptance_;
  std::unordered_map<uint64_t, Request> requests_;
};

}  // namespace specdec
