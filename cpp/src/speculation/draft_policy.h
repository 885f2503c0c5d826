// Decides how much to draft and to verify, from what drafts were measured to cost and to bring.
// Pure: seconds and tokens are fed in, and the same ones give the same decisions.
//
// A step of R requests that verifies a set of drafted nodes emits R plus the sum of their survival
// probabilities, in the seconds of drafting and of the target's pass over the rows. Survival never
// rises along a path, so the best set of each size is a prefix of all nodes sorted by survival, and
// one scan finds the size with the greatest rate. Nodes are the only currency: a plan takes them
// under a constraint, either any nodes of any request, or whole levels of the trees of all
// requests. Pruning by tokens is lossless in exact verification only.
//
// Drafting must not cost more than it surely brings back. Extra seconds are therefore weighed
// heavier than measured. What a step's drafts lose if no more of them are accepted than is sure by
// now must fit what may be lost (DraftCredit). A drafter that does not pay is probed at growing
// intervals within the same limits. What drafts are worth is DraftBeliefs' subject, what passes
// cost PassCost's.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "specdec/draft_policy_stats.h"
#include "speculation/draft_beliefs.h"
#include "speculation/draft_credit.h"
#include "speculation/draft_tree.h"
#include "speculation/draft_tuning.h"
#include "speculation/pass_cost.h"

namespace specdec {

// What asking a drafter costs.
struct DrafterTraits {
  enum class Cost : uint8_t {
    kCheap,     // next to nothing beside a forward pass: it is asked in every step
    kPerCall,   // one call, however deep it drafts
    kPerLevel,  // it runs a model, one pass for each level of the tree
    kOnePass,   // it runs a model, one pass for all levels
  };
  Cost cost = Cost::kCheap;
  // Of a model: what a pass costs relative to the target's. Used until passes are measured.
  double relative_pass_cost = 0;
  // It drafts what a request's grammar forces: asked where there is one, before all others.
  bool drafts_forced = false;

  bool is_cheap() const { return cost == Cost::kCheap; }
  bool has_model() const { return cost == Cost::kPerLevel || cost == Cost::kOnePass; }
};

// A drafted node below which a model could go on in its next pass.
struct FrontierNode {
  uint64_t sequence = 0;
  const DraftTree* tree = nullptr;
  int node = 0;
  bool goes_on = true;  // out
};

// What is planned for a step, and what has become of it so far. It stays with the step, since
// others may be planned before its outcome is known.
struct DraftPlan {
  // Some steps take fewer drafts than would be best, to measure what those cost.
  enum class Measuring : uint8_t { kNothing, kPlain, kHalf, kMost };
  int num_decoding = 0;     // requests
  int num_prompt_rows = 0;  // beside their rows
  Measuring measuring = Measuring::kNothing;
  double planned_rate = 0;  // tokens a second
  double draft_seconds = 0;
  int num_verified = 0;  // drafts
  int num_tokens = 0;    // that the requests got
};

class DraftPolicy {
 public:
  explicit DraftPolicy(std::vector<DrafterTraits> drafters, const DraftTuning& tuning = {});
  // What passes of the target, and of a drafter's model, took that were run to be timed. Before the
  // first step.
  void start_from(std::span<const TimedPass> target);
  void start_from(int drafter, std::span<const TimedPass> passes);

  // The functions of one step, in the order in which they are called. Where the device drafts by
  // itself, only begin_step(), plan(), record() and end_step() are.

  // Draft slots to reserve for a request that may have `limit`.
  int num_slots(uint64_t sequence, int limit) const;
  // Of all requests' slots, those to keep free of rows of prompts.
  int most_held() const;

  // The step decodes for `num_decoding` requests, beside rows of prompts.
  DraftPlan begin_step(int num_decoding, int num_prompt_rows);

  // A request that a costly drafter may be asked for.
  struct Ask {
    uint64_t sequence = 0;
    int max_depth = 0;
    int num_unseen = 1;     // tokens the drafter's model has to run first, the root among them
    int num_remaining = 0;  // tokens the request may yet get
    const DraftTree* tree = nullptr;  // drafts of others
    bool replaces = true;             // this drafter's drafts would replace them, not add to them
    int depth = 0;                    // out: how deep to draft; 0: not at all
  };
  // Which nodes a plan may take.
  struct Constraint {
    // False: any nodes of any request. The drafts are pruned before they are verified. True: the
    // trees of all requests get equally many levels, and all of their nodes are verified.
    bool same_depth = false;
    TreeShape shape = {.width = 1, .max_nodes = std::numeric_limits<int>::max()};
  };
  // Decides how deep to draft for each request, going by how drafts of each depth fared. Returns
  // the depth of the deepest.
  int plan(DraftPlan& step, int drafter, std::span<Ask> asks, const Constraint& constraint);

  // The chance that a drafted node is accepted, and with it its path.
  double survival(uint64_t sequence, const DraftTree& tree, int node) const {
    return beliefs_.survival(sequence, tree, node);
  }
  // Below which nodes a model goes on. Asked before every pass after the first.
  void plan_pass(const DraftPlan& step, int drafter, std::span<FrontierNode> frontier) const;

  // A pass of a drafter over so many rows, or a call for so many requests, took this long.
  void record_pass(DraftPlan& step, int drafter, int num_rows, double seconds);
  // The match that a drafter continues for a request has this many tokens; 0: it found none.
  void record_match(uint64_t sequence, int drafter, int match_length);

  struct Draft {
    uint64_t sequence = 0;
    DraftTree* tree = nullptr;  // in: as drafted, may be empty; out: what to verify
    int max_nodes = 0;
  };
  // Prunes the trees of all requests that could draft.
  void choose(DraftPlan& step, std::span<const Draft> drafts);

  // What became of a request.
  struct Outcome {
    uint64_t sequence = 0;
    std::span<const int32_t> tokens;  // it got in the step
    // Of a request that was planned for at the same depth as all others.
    struct Levels {
      int drafter = 0;
      int num_levels = 0;  // drafted; 0: none were
      int num_drafts = 0;  // verified
      int num_accepted = 0;
    };
    std::optional<Levels> levels = std::nullopt;
  };
  void record(DraftPlan& step, const Outcome& outcome);
  // The step's target pass, sampling and commit took so long.
  void end_step(const DraftPlan& step, double seconds);

  // The request is over.
  void finish(uint64_t sequence, int num_output_tokens);

  const DraftPolicyStats& stats() const { return stats_; }

 private:
  using Request = DraftBeliefs::Request;
  using Candidate = DraftCandidate;
  // The first candidates, up to where their value was greatest.
  struct Prefix {
    size_t size = 0;
    double value = 0;
  };
  // Tokens that drafts bring.
  struct Gain {
    double expected = 0;
    double least = 0;
  };
  // The prefix of greatest value(size, gain), or none if that of none is as great.
  template <class Value>
  static Prefix best_prefix(std::span<const Candidate> candidates, double value_of_none,
                            const Value& value);
  // What a drafter would cost in this step, as nodes are added.
  class DraftingCost;

  void add_depths(int drafter, const Ask& ask, int index, std::vector<Candidate>& candidates);
  double caution() const { return 1.0 + tuning_.caution; }
  double verify_seconds(const DraftPlan& step, int num_drafts) const;
  // What drafts add to it.
  double extra_seconds(const DraftPlan& step, int num_drafts) const;
  // Of the decoding requests without drafts, had the step no rows of prompts. Those take their time
  // with and without drafts, and a token that drafts bring saves none of it.
  double decode_seconds(const DraftPlan& step) const;
  // Expected tokens a second of decoding, with the extra seconds weighed by caution().
  double rate(const DraftPlan& step, double gain, int num_drafts, double draft_seconds) const;
  // The same without drafting; 0 where verifying the drafts could lose more than may be lost.
  double safe_rate(const DraftPlan& step, const Gain& gain, int num_drafts) const;
  double catch_up_share(int drafter, const Ask& ask) const;
  // The drafts of others that would be verified beside this drafter's, and what they bring.
  std::pair<int, Gain> best_of_others(const DraftPlan& step, std::span<const Ask> asks);
  bool own_draft_is_better(const DraftPlan& step, int drafter, const Ask& ask);
  int probe(const DraftPlan& step, int drafter, std::span<Ask> asks, const Constraint& constraint);
  double without_outliers(const PassCost& cost, int num_rows, double seconds) const;
  void keep(DraftPlan& step, Request& request, DraftTree& tree, std::span<const char> chosen);
  static void fade(int& recent, int now);
  void count_decision(DraftPlan& step, Request& request, int num_drafted, int num_verified);

  DraftTuning tuning_;
  std::vector<DrafterTraits> drafters_;
  DraftBeliefs beliefs_;
  DraftCredit credit_;
  PassCost target_;
  std::vector<PassCost> passes_;  // by drafter
  DraftPolicyStats stats_;

  double typical_output_ = 128;  // tokens of a request
  struct Probing {
    int64_t last = 0;  // step
    int64_t interval = 0;
  };
  std::vector<Probing> probing_;  // by drafter
  int64_t num_steps_ = 0;
  int64_t steps_since_measured_ = 0;  // with drafts
  double last_gain_ = 0;              // of drafts over none, as a share
  int recent_verified_ = 0;           // drafts of a step, fading in their absence

  // Kept for their memory.
  std::vector<Candidate> candidates_;
  std::vector<char> chosen_;
};

}  // namespace specdec
