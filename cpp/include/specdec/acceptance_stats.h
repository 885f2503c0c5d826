// Counts drafts and accepted drafts, per completion, engine or drafter.
#pragma once

#include <cstdint>
#include <vector>

namespace specdec {

struct AcceptanceStats {
  int64_t num_steps = 0;            // verifications with at least one draft
  int64_t num_draft_tokens = 0;     // drafts that were verified (nodes of a tree)
  int64_t num_accepted_tokens = 0;  // drafts that were accepted
  int64_t num_emitted_tokens = 0;   // in those steps: accepted drafts, plus one token per step
  // Of these drafts, those from SamplingParams::prediction
  int64_t num_predicted_draft_tokens = 0;
  int64_t num_predicted_accepted_tokens = 0;
  std::vector<int64_t> proposed_per_position;  // [depth - 1] steps that drafted to that depth
  std::vector<int64_t> accepted_per_position;  // [depth - 1] steps that kept that depth
  std::vector<int64_t> histogram;              // [number accepted] steps

  // A step whose deepest draft had `max_depth` and that kept `num_accepted` tokens of `num_drafts`.
  void record(int num_drafts, int max_depth, int num_accepted);
  void merge(const AcceptanceStats& other);
  double mean_acceptance_length() const;  // 1 + accepted / steps; 1 without steps
  double draft_acceptance_rate() const;   // accepted / draft tokens; 0 without drafts
};

}  // namespace specdec
