// Decides how much to draft and to verify, from the measured costs and gains of drafts. Pure:
// seconds and tokens are fed in, and the same inputs give the same decisions.
//
// A step of R requests that verifies a set of drafted nodes emits R plus the sum of their survival
// probabilities. It takes the seconds of drafting plus those of the target's pass over the rows.
// Survival never rises along a path, so the best set of each size is a prefix of all nodes sorted
// by survival, and one scan finds the size with the greatest rate. A plan therefore always chooses
// nodes, under one of two constraints: any nodes of any request, or whole levels of the trees of
// all requests. Pruning by tokens is lossless in exact verification only.
//
// Drafting must not cost more than it certainly gains, so extra seconds weigh more than measured.
// The loss of a step's drafts, if only as many are accepted as is certain so far, must stay within
// the credit (DraftCredit). A drafter that does not pay is probed at growing intervals within the
// same limits. DraftBeliefs estimates the gains of drafts, PassCost the cost of passes.
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
#include "speculation/draft_pause.h"
#include "speculation/draft_tree.h"
#include "speculation/draft_tuning.h"
#include "speculation/pass_cost.h"

namespace specdec {

// The cost of asking a drafter.
struct DrafterTraits {
  enum class Cost : uint8_t {
    kCheap,     // negligible beside a forward pass: asked in every step
    kPerCall,   // one call, however deep it drafts
    kPerLevel,  // it runs a model, one pass for each level of the tree
    kOnePass,   // it runs a model, one pass for all levels
  };
  Cost cost = Cost::kCheap;
  // For a model: the cost of a pass relative to a pass of the target. Used until passes are
  // measured.
  double relative_pass_cost = 0;
  // What it drafts from. It is asked only for requests that have it, in this order.
  enum class Source : uint8_t {
    kGrammar,     // the tokens that a request's grammar forces
    kPrediction,  // the answer that the caller predicted
    kText,        // the request's own tokens
  };
  Source source = Source::kText;

  bool is_cheap() const { return cost == Cost::kCheap; }
  bool has_model() const { return cost == Cost::kPerLevel || cost == Cost::kOnePass; }
};

// A drafted node whose children a model may draft in its next pass.
struct FrontierNode {
  uint64_t sequence = 0;
  const DraftTree* tree = nullptr;
  int node = 0;
  bool goes_on = true;  // out
};

// What a step will draft, and the outcome so far. Each step has its own plan, since the next step
// may be planned before the outcome of this one is known.
struct DraftPlan {
  // Some steps verify fewer drafts than would be best, to measure the cost of drafts.
  enum class Measuring : uint8_t { kNothing, kPlain, kHalf, kMost };
  int num_decoding = 0;     // requests
  int num_prompt_rows = 0;  // in addition to the decode rows
  Measuring measuring = Measuring::kNothing;
  double planned_rate = 0;  // tokens per second
  double draft_seconds = 0;
  int num_verified = 0;                                // drafts
  int num_tokens = 0;                                  // emitted for the requests
  std::optional<DraftRefusal> refusal = std::nullopt;  // set where drafts were possible
};

class DraftPolicy {
 public:
  explicit DraftPolicy(std::vector<DrafterTraits> drafters, const DraftTuning& tuning = {});
  // Starts from passes that were run before the first step only to be timed, by the target and by a
  // drafter's model.
  void start_from(std::span<const TimedPass> target);
  void start_from(int drafter, std::span<const TimedPass> passes);

  // The functions of one step, in the order in which they are called. Where the device drafts by
  // itself, only begin_step(), plan(), record() and end_step() are called.

  // Draft slots to reserve for a request whose draft budget is at most `limit`.
  int draft_budget(uint64_t sequence, int limit) const;
  // Draft slots of all requests together that prompt rows must leave free.
  int most_held() const;

  // Begins a step that decodes for `num_decoding` requests and runs `num_prompt_rows` rows of
  // prompts.
  DraftPlan begin_step(int num_decoding, int num_prompt_rows);

  // A request that a costly drafter may be asked for.
  struct Ask {
    uint64_t sequence = 0;
    int max_depth = 0;
    int num_unseen = 1;     // tokens the drafter's model has to run first, the root among them
    int num_remaining = 0;  // most tokens the request may still get
    const DraftTree* tree = nullptr;  // drafts of other drafters
    // Whether this drafter's drafts would replace them rather than add to them
    bool replaces = true;
    int depth = 0;  // out: how deep to draft; 0: not at all
  };
  // Which nodes a plan may take.
  struct Constraint {
    // False: any nodes of any request; the drafts are pruned before they are verified. True: the
    // trees of all requests get the same number of levels, and all of their nodes are verified.
    bool same_depth = false;
    TreeShape shape = {.width = 1, .max_nodes = std::numeric_limits<int>::max()};
  };
  // Decides how deep to draft for each request, from the outcomes of drafts at each depth. Returns
  // the greatest depth.
  int plan(DraftPlan& step, int drafter, std::span<Ask> asks, const Constraint& constraint);

  // Tokens per second of a request in the step with the best part of a cheap drafter's tree, as if
  // the request had the seconds of a step without drafts to itself; before passes are measured, the
  // expected tokens.
  double worth(const DraftPlan& step, uint64_t sequence, const DraftTree& tree);
  // The chance that a drafted node and its path are accepted.
  double survival(uint64_t sequence, const DraftTree& tree, int node) const {
    return beliefs_.survival(sequence, tree, node);
  }
  // Decides below which nodes a model goes on. Called before every pass after the first.
  void plan_pass(const DraftPlan& step, int drafter, std::span<FrontierNode> frontier) const;

  // Records the seconds of a drafter's pass over `num_rows` rows, or of a call for that many
  // requests.
  void record_pass(DraftPlan& step, int drafter, int num_rows, double seconds);
  // Records the length of the match that a drafter continues for a request; 0: it found none.
  void record_match(uint64_t sequence, int drafter, int match_length);

  struct Draft {
    uint64_t sequence = 0;
    DraftTree* tree = nullptr;  // in: as drafted, may be empty; out: what to verify
    int max_nodes = 0;
    std::span<const DraftTree> others = {};  // drafts that this tree was preferred to
  };
  // Prunes the trees of all requests that could draft.
  void choose(DraftPlan& step, std::span<const Draft> drafts);

  // The outcome of a step for one request.
  struct Outcome {
    uint64_t sequence = 0;
    std::span<const int32_t> tokens;  // emitted in the step
    // For a request that was planned at the same depth as all others.
    struct Levels {
      int drafter = 0;
      int num_levels = 0;  // drafted; 0: no drafts
      int num_drafts = 0;  // verified
      int num_accepted = 0;
    };
    std::optional<Levels> levels = std::nullopt;
  };
  void record(DraftPlan& step, const Outcome& outcome);
  // Records the seconds of the step's target pass, sampling and commit. Returns whether drafting is
  // paused by this step, or resumed, which pause() tells of.
  bool end_step(const DraftPlan& step, double seconds);

  // Forgets a finished request.
  void finish(uint64_t sequence, int num_output_tokens);

  const DraftPolicyStats& stats() const { return stats_; }
  const DraftPause& pause() const { return pause_; }

 private:
  using Request = DraftBeliefs::Request;
  using Candidate = DraftCandidate;
  // The first candidates, up to the size of greatest value.
  struct Prefix {
    size_t size = 0;
    double value = 0;
  };
  // Tokens that drafts are expected to add.
  struct Gain {
    double expected = 0;
    double least = 0;
  };
  // The prefix with the greatest value(size, gain); empty if no prefix beats it.
  template <class Value>
  static Prefix best_prefix(std::span<const Candidate> candidates, double value_of_none,
                            const Value& value);
  // A drafter's cost in this step, as nodes are added.
  class DraftingCost;

  void add_depths(int drafter, const Ask& ask, int index, std::vector<Candidate>& candidates);
  double caution() const { return 1.0 + tuning_.caution; }
  double verify_seconds(const DraftPlan& step, int num_drafts) const;
  // The seconds that drafts add to verify_seconds().
  double extra_seconds(const DraftPlan& step, int num_drafts) const;
  // Predicted seconds of this step's decode rows alone, without drafts. Prompt rows cost the same
  // with and without drafts, so they are left out.
  double decode_seconds(const DraftPlan& step) const;
  // Expected decoded tokens per second, with extra seconds weighed by caution().
  double rate(const DraftPlan& step, double gain, int num_drafts, double draft_seconds) const;
  // The same without drafting; 0 where verifying the drafts could lose more than the credit.
  double safe_rate(const DraftPlan& step, const Gain& gain, int num_drafts) const;
  // The same for one request, as worth() says.
  double request_rate(const DraftPlan& step, double gain, int num_drafts,
                      double draft_seconds) const;
  double catch_up_share(int drafter, const Ask& ask) const;
  // The other drafters' drafts that would be verified along with this drafter's: their number and
  // gain.
  std::pair<int, Gain> best_of_others(const DraftPlan& step, std::span<const Ask> asks);
  bool own_draft_is_better(const DraftPlan& step, int drafter, const Ask& ask);
  // What a plan chooses from, beside the nodes.
  struct Drafting {
    int drafter = 0;
    std::span<const Ask> asks;
    const Constraint& constraint;
    int num_others = 0;         // drafts of other drafters that would be verified, too
    double gain_of_others = 0;  // their expected tokens
  };
  // The best prefix of the nodes. Gains count as `hope` deviations above what is expected.
  Prefix best_to_draft(const DraftPlan& step, const Drafting& drafting,
                       std::span<const Candidate> nodes, double hope) const;
  Prefix best_levels(const DraftPlan& step, const Drafting& drafting,
                     std::vector<Candidate>& nodes) const;
  double probe_loss(const DraftPlan& step, int drafter, std::span<const Ask> asks, int depth,
                    const TreeShape& shape);
  int probe(const DraftPlan& step, int drafter, std::span<Ask> asks, const Constraint& constraint);
  double without_outliers(const PassCost& cost, int num_rows, double seconds) const;
  // Notes why a step verifies none of the drafts whose likeliest node survives with that chance and
  // takes so many seconds; nothing where the step measures plain decoding.
  void refuse(DraftPlan& step, double survival, double seconds, bool is_worth_it) const;
  bool record_pause(const DraftPlan& step);
  void keep(DraftPlan& step, const Draft& draft, std::span<const char> chosen);
  static void fade(int& recent, int now);
  void count_decision(DraftPlan& step, Request& request, int num_drafted, int num_verified);

  DraftTuning tuning_;
  std::vector<DrafterTraits> drafters_;
  DraftBeliefs beliefs_;
  DraftCredit credit_;
  PassCost target_;
  std::vector<PassCost> passes_;  // by drafter
  DraftPolicyStats stats_;
  DraftPause pause_;

  double typical_output_ = 128;  // tokens of a request
  struct Probing {
    int64_t last = 0;  // the step of the last probe
    int64_t interval = 0;
  };
  std::vector<Probing> probing_;  // by drafter
  int64_t num_steps_ = 0;
  int64_t steps_since_measured_ = 0;  // with drafts
  double last_gain_ = 0;              // gain of drafts over no drafts, as a share
  int recent_verified_ = 0;           // recent drafts per step, fading while there are none

  // Kept to reuse their memory.
  std::vector<Candidate> candidates_;
  std::vector<char> chosen_;
};

}  // namespace specdec
