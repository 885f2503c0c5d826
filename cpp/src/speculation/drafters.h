// The drafters of an engine. Together they draft one tree per request.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/thread_pool.h"
#include "speculation/draft_policy.h"
#include "speculation/drafter.h"

namespace specdec {

// Without merging, a request gets the drafts of one drafter: cheap drafters are asked first, then
// the others in the order given. Where draft lengths are fixed, the first that has drafts is taken;
// where they adapt, the cheap drafter whose drafts are worth most by what it got right lately after
// matches of that length (DraftPolicy::worth). With merging, all drafters add to one tree, in the
// order given, until it is full. The drafter of a request's prediction is asked first. Tokens that
// a grammar forces come before all drafts and do not count as drafts here: cheap drafters add to
// them, a model drafts them anew. Drafts that the request's grammar forbids are cut.
//
// Where draft lengths adapt, a DraftPolicy learns from measured seconds. It decides for which
// requests the costly drafters are asked, how deep they draft, and how many of the drafts are
// verified. Cheap drafters are asked in every step and may draft more than there are slots: later
// text shows which of their drafts were right, whether they were verified or not.
class Drafters {
 public:
  // Grammars are asked on the pool's threads which tokens they forbid. The pool is borrowed; null:
  // the calling thread alone.
  Drafters(std::vector<std::unique_ptr<Drafter>> drafters, bool merge, bool adapts,
           ThreadPool* pool = nullptr);

  // Adds drafts to the trees of all requests. Failed requests have an error and, where lengths
  // adapt, no drafts. `step`: the plan that the policy has begun.
  void draft(DraftPlan& step, std::span<DraftRequest> requests);
  void finish(const FinishedSequence& finished);
  int64_t memory_bytes(size_t index) const { return drafters_[index]->memory_bytes(); }
  DrafterTraits traits(size_t index) const { return drafters_[index]->traits(); }
  DraftPolicy* policy() { return policy_.has_value() ? &*policy_ : nullptr; }
  const DraftPolicy* policy() const { return policy_.has_value() ? &*policy_ : nullptr; }

 private:
  // The requests that drafter `index` is asked for, given the drafts of earlier drafters.
  std::vector<DraftRequest*> select(DraftPlan& step, int index, std::span<DraftRequest> requests);
  // Whether the tree has drafts that no grammar forced.
  bool has_free_drafts(const DraftTree& tree) const;
  // Whether its drafts are compared with those of other cheap drafters.
  bool competes(int index) const;
  // Runs a drafter that competes: of its drafts and those that a request had before, the better
  // ones stay in the request's tree, the others go to rivals_.
  void compete(DraftPlan& step, int index, std::span<DraftRequest* const> asked,
               std::span<DraftRequest> requests);
  // Removes drafts that no grammar forced.
  void keep_forced(DraftTree& tree) const;
  static void start_over(std::span<DraftRequest* const> requests);
  static void keep_to_grammar(DraftRequest& request);
  void run(DraftPlan& step, int index, std::span<DraftRequest* const> requests);
  void prune(DraftPlan& step, std::span<const DraftRequest> requests);

  std::vector<std::unique_ptr<Drafter>> drafters_;
  std::vector<int> order_;  // in which drafters are asked
  bool merge_;
  ThreadPool* pool_;
  std::optional<DraftPolicy> policy_;  // empty where lengths are fixed
  // By request of the step: drafts of cheap drafters that others were preferred to.
  std::vector<std::vector<DraftTree>> rivals_;

  // Kept to reuse their memory.
  std::vector<DraftRequest> batch_;
  std::vector<DraftPolicy::Ask> asks_;
  std::vector<DraftPolicy::Draft> drafts_;
};

}  // namespace specdec
