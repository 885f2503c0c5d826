// Estimates how likely each drafted token is accepted, learned from the outcomes of earlier drafts,
// for all requests together and for each by itself. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <unordered_map>
#include <vector>

#include "speculation/acceptance_model.h"
#include "speculation/draft_tree.h"

namespace specdec {

// A node that could be drafted or verified next.
struct DraftCandidate {
  double survival = 0;        // the chance that the node and its path are accepted
  double least_survival = 0;  // a lower bound, given the outcomes so far
  int request = 0;
  int node = 0;  // index in a tree; in a plan, which has no tree yet, the depth
};

class DraftBeliefs {
 public:
  // A drafted node whose outcome the text will show.
  struct Pending {
    int32_t token = 0;
    int parent = 0;
    std::vector<DraftEvidence> evidence;  // one for each drafter that proposed the node
  };
  struct PendingTree {
    std::vector<Pending> nodes;  // the root first
    int last = 0;                // node that agrees with the text so far
  };
  struct Request {
    RequestAcceptance acceptance;
    std::vector<int> match_lengths;    // by drafter
    std::vector<PendingTree> pending;  // the tree drafted last, and those drafted beside it
    int recent_length = 0;  // recent number of verified drafts, fading while there are none
    int num_output_tokens = 0;
    int asked_drafter = -1;  // the drafter asked in this step
    int probe_depth = 0;     // > 0: it was only asked to see how the drafter does
  };

  explicit DraftBeliefs(int num_drafters);

  Request& of(uint64_t sequence);
  const Request* find(uint64_t sequence) const;  // null: the request is unknown
  void finish(uint64_t sequence) { requests_.erase(sequence); }

  // The chance that a drafted node and its path are accepted.
  double survival(uint64_t sequence, const DraftTree& tree, int node) const;
  // The chance that a node is accepted once its parent was, according to the drafter that is most
  // certain of it.
  AcceptanceModel::Chance acceptance_of(const Request& request, const DraftTree& tree,
                                        int node) const;
  // The same for a token at a depth that a drafter has not drafted yet.
  double acceptance_at(const Request& request, int drafter, int depth) const {
    return acceptance_.probability(request.acceptance, {.drafter = drafter, .strength = depth});
  }
  // Adds the nodes of a drafted tree.
  void add_nodes(const Request& request, const DraftTree& tree, int index,
                 std::vector<DraftCandidate>& candidates) const;
  // Adds the levels that a drafter could draft. `others`: other drafters' drafts that stay beside
  // its own, or null. A level then counts only for the chance it adds, since its token, if right,
  // may be among the others' drafts.
  void add_depths(const Request& request, int drafter, int max_depth, const DraftTree* others,
                  int index, std::vector<DraftCandidate>& candidates) const;

  // Remembers a whole draft, since later text shows how much of it would have been right, and the
  // drafts of other drafters that it was preferred to, from the same token on.
  void expect(Request& request, const DraftTree& tree, std::span<const DraftTree> others) const;
  // The same for a draft of which only the accepted path is known: all nodes of a level count as
  // right or wrong together. `right` are the accepted tokens.
  static void expect_levels(Request& request, int drafter, int num_levels,
                            std::span<const int32_t> right);
  // Records that a drafter was asked and drafted nothing.
  void record_no_draft(Request& request, int drafter);
  // Records the tokens that the request got. Calls `when_right` with each drafter of a drafted
  // token that was right.
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
