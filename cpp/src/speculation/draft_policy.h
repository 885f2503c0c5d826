// How much to draft and to verify, by what it is measured to cost and to bring. Pure: seconds and
// accepted tokens are fed in, and the same ones give the same decisions.
//
// A step of R requests that verifies a set of drafted nodes emits R + the sum of their survival
// probabilities, in the seconds of drafting and of a pass over the rows. Survival never rises along
// a path, so the best set of each size is a prefix of all nodes by survival, and one scan finds the
// size of greatest rate. Drafts of free drafters are known by then. For others it is decided first
// whether to ask at all, by how drafts of that depth fared, and before every further pass whether
// it would pay. Pruning by tokens is lossless in exact verification only.
//
// Nothing may cost more than it is sure to bring back: extra seconds are weighed heavier than
// measured, more so while past drafts have lost time; and a drafter that does not pay is probed
// within a small share of all seconds, at growing intervals.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "specdec/draft_policy_stats.h"
#include "speculation/acceptance_model.h"
#include "speculation/draft_tree.h"
#include "speculation/pass_cost.h"

namespace specdec {

// What asking a drafter costs.
struct DrafterTraits {
  enum class Cost : uint8_t {
    kCheap,     // next to nothing beside a forward pass: it is asked in every step
    kPerCall,   // one call, however deep it drafts
    kPerLevel,  // it runs a model, one pass for each level of the tree
  };
  Cost cost = Cost::kCheap;
  // Of a model: what a pass costs relative to the target's. Used until passes are measured.
  double relative_pass_cost = 0;

  bool is_cheap() const { return cost == Cost::kCheap; }
  bool has_model() const { return cost == Cost::kPerLevel; }
};

// A drafted node below which a model could go on in its next pass.
struct FrontierNode {
  uint64_t sequence = 0;
  const DraftTree* tree = nullptr;
  int node = 0;
  bool goes_on = true;  // out
};

class DraftPolicy {
 public:
  explicit DraftPolicy(std::vector<DrafterTraits> drafters);

  // --- one step, in this order

  // Draft slots to reserve for a request that may have `limit`. Asked before the step begins.
  int num_slots(uint64_t sequence, int limit) const;

  // `num_decoding` requests, beside rows of prompts.
  void begin_step(int num_decoding, int num_prompt_rows);

  // A request a drafter that is not free may be asked for.
  struct Ask {
    uint64_t sequence = 0;
    int max_depth = 0;
    int num_unseen = 1;               // tokens the drafter has to catch up on, the root with them
    int num_remaining = 0;            // tokens the request may yet get
    const DraftTree* tree = nullptr;  // what others drafted for it, which its own would replace
    bool is_chosen = false;           // out
  };
  // Which requests to ask it for.
  void plan(int drafter, std::span<Ask> asks);

  // Below which nodes a sequential drafter goes on. Asked before every pass after the first.
  void plan_pass(int drafter, std::span<FrontierNode> frontier) const;

  // For steps whose drafts are decided before they run, level by level: how deep the tree of every
  // request may get, given that all that is drafted is verified. A level survives where the text
  // follows the tree so far. Instead of plan() and choose().
  int plan_levels(int drafter, std::span<const Ask> asks, const TreeShape& shape);
  // What became of a request in such a step.
  struct Levels {
    uint64_t sequence = 0;
    int num_levels = 0;  // drafted; 0: nothing was
    int num_drafts = 0;  // verified
    int num_accepted = 0;
    int num_tokens = 0;  // num_accepted + 1, fewer where the request ended
  };
  void record_levels(int drafter, const Levels& levels);

  // A pass of a drafter over so many rows, or a call for so many requests, took this long.
  void record_pass(int drafter, int num_rows, double seconds);
  // The match that a drafter continues for a request has this many tokens; 0: it found none.
  void record_match(uint64_t sequence, int drafter, int match_length);

  struct Draft {
    uint64_t sequence = 0;
    DraftTree* tree = nullptr;  // in: as drafted, may be empty; out: what to verify
    int max_nodes = 0;
  };
  // Prunes the trees of every request that could draft.
  void choose(std::span<const Draft> drafts);

  // Tokens a request got in the step.
  void record_tokens(uint64_t sequence, std::span<const int32_t> tokens);
  // The step's target pass, sampling and commit took so long.
  void end_step(double seconds);

  // The request is over.
  void finish(uint64_t sequence, int num_output_tokens);

  const DraftPolicyStats& stats() const { return stats_; }

 private:
  // A drafted node, and what became of those above it.
  struct Pending {
    int32_t token = 0;
    int parent = 0;
    DraftEvidence evidence;
  };
  struct RequestState {
    RequestAcceptance acceptance;
    std::vector<int> match_lengths;  // by drafter
    std::vector<Pending> pending;    // a whole drafted tree, its root first; empty: none
    int pending_node = 0;            // as far as the text agrees with it
    int recent_length = 0;           // of drafts that were worth it, fading
    int num_output_tokens = 0;
    int asked_drafter = -1;  // in this step
    int probe_depth = 0;     // > 0: only to see how the drafter does
  };
  // A drafted node of some request, or a depth to draft to.
  struct Candidate {
    double survival = 0;
    int request = 0;
    int node = 0;  // or depth
  };
  struct Rate {
    double tokens_per_second = 0;
    int num_candidates = 0;  // that make it
  };
  // What a drafter would cost in this step, as requests and levels are added.
  class DraftingCost;

  RequestState& state_of(uint64_t sequence);
  DraftEvidence evidence_of(const RequestState& state, const DraftTree& tree, int node) const;
  // Survival of every node, [num_nodes].
  void survivals_of(const RequestState& state, const DraftTree& tree,
                    std::vector<double>& survivals) const;
  std::vector<Candidate> depths_of(int drafter, std::span<const Ask> asks);
  // What extra seconds are weighed by.
  double caution() const;
  double verify_seconds(int num_drafts) const;
  // Tokens a second at the margin's weights.
  double rate(double gain, double verify, double draft) const;
  // The prefix of greatest rate, drafting paid for.
  Rate best_rate(std::span<const Candidate> candidates) const;
  bool own_draft_is_better(int drafter, const Ask& ask);
  void plan_probe(int drafter, std::span<Ask> asks);
  int probe_levels(int drafter, std::span<const Ask> asks, const TreeShape& shape, int deepest);
  static double without_outliers(const PassCost& cost, int num_rows, double seconds);
  double catch_up_share(int drafter, const Ask& ask) const;
  void keep(RequestState& state, DraftTree& tree, std::span<const char> chosen);

  std::vector<DrafterTraits> drafters_;
  AcceptanceModel acceptance_;
  PassCost target_;
  std::vector<PassCost> passes_;  // by drafter
  std::unordered_map<uint64_t, RequestState> requests_;
  DraftPolicyStats stats_;

  // Seconds that may be lost: earned as a share of all, and by drafts that paid, up to a limit.
  double credit_ = 0;
  double typical_output_ = 128;  // tokens of a request
  struct Probing {
    int64_t last = 0;  // step
    int64_t interval = 0;
  };
  std::vector<Probing> probing_;  // by drafter
  int64_t num_steps_ = 0;
  int64_t steps_since_measured_ = 0;  // with drafts
  double last_gain_ = 0;              // of drafts over none, as a share

  // The step under way.
  int num_decoding_ = 0;
  int num_prompt_rows_ = 0;
  // Steps with fewer drafts than would be best, to know what they cost.
  enum class Measuring : uint8_t { kNothing, kPlain, kHalf, kMost };
  Measuring measuring_ = Measuring::kNothing;
  double draft_seconds_ = 0;
  int num_verified_ = 0;
  int num_tokens_ = 0;
  double planned_rate_ = 0;  // tokens a second
  int num_asked_ = 0;

  // Kept for their memory.
  std::vector<Candidate> candidates_;
  std::vector<int> counts_;
  std::vector<double> survivals_;
  std::vector<char> chosen_;
};

}  // namespace specdec
