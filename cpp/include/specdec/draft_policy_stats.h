// Statistics of the automatic draft length.
#pragma once

#include <cstdint>

namespace specdec {

// A decision is one request in one step that could have drafted.
struct DraftPolicyStats {
  int64_t num_decisions = 0;
  int64_t num_without_drafts = 0;   // decisions to verify nothing
  int64_t num_drafted_tokens = 0;   // drafted in all decisions
  int64_t num_verified_tokens = 0;  // drafts that were worth a row of the target's pass
  int64_t num_probes = 0;           // tries of a drafter that did not pay, to see if it does now
  int64_t num_measuring_steps = 0;  // steps with fewer drafts than best, to learn their cost
  // A pause: over dozens of steps next to nothing is verified of what could be.
  bool is_paused = false;
  int64_t num_pauses_too_costly = 0;  // drafts take longer than the tokens they should add
  int64_t num_pauses_no_credit = 0;   // drafts have lost as much time as they may
  double saved_seconds = 0;           // against decoding without drafts, by the measured costs

  // Mean number of verified drafts, over decisions to verify some; 0 without such decisions.
  double mean_draft_length() const {
    const int64_t with_drafts = num_decisions - num_without_drafts;
    return with_drafts == 0 ? 0.0 : static_cast<double>(num_verified_tokens) / with_drafts;
  }
};

}  // namespace specdec
