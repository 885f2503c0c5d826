// What the automatic draft length decided, and what came of it.
#pragma once

#include <cstdint>

namespace specdec {

// A decision is one request in one step that could have drafted.
struct DraftPolicyStats {
  int64_t num_decisions = 0;
  int64_t num_without_drafts = 0;   // decisions to verify nothing
  int64_t num_drafted_tokens = 0;   // of all decisions
  int64_t num_verified_tokens = 0;  // of those, what was worth a row
  int64_t num_probes = 0;           // drafts of a drafter not expected to pay, to see if it would
  int64_t num_measuring_steps = 0;  // steps with fewer drafts than best, to measure their cost
  double saved_seconds = 0;         // beside decoding without drafts, by the measured costs

  // Verified tokens of a decision for some; 0 without any.
  double mean_draft_length() const {
    const int64_t with_drafts = num_decisions - num_without_drafts;
    return with_drafts == 0 ? 0.0 : static_cast<double>(num_verified_tokens) / with_drafts;
  }
};

}  // namespace specdec
