// When drafting is paused: over some time the policy verifies next to nothing of what it could.
// Nothing depends on a pause; a log line and a metric tell of it, and why. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace specdec {

// Why a step that could have drafts has none.
struct DraftRefusal {
  enum class Reason : uint8_t {
    kTooCostly,  // drafts take longer than the tokens they are expected to add
    kNoCredit,   // they might pay, but could lose more than is left of what drafts may lose
  };
  Reason reason = Reason::kTooCostly;
  double acceptance = 0;   // the chance that the likeliest draft is accepted
  double step_factor = 1;  // seconds of the step with that draft, over those of the step without
};

class DraftPause {
 public:
  // Records a step that has drafts, or was refused them. Returns whether drafting is paused by this
  // step, or resumed.
  bool record(const std::optional<DraftRefusal>& refusal);
  // What the last change was, and why.
  std::string sentence() const;

  bool is_paused() const { return is_paused_; }
  int64_t num_pauses(DraftRefusal::Reason reason) const {
    return num_pauses_[static_cast<int>(reason)];
  }

 private:
  double share_ = 1.0;  // of recent steps that have drafts, older steps counting less
  bool is_paused_ = false;
  int64_t num_pauses_[2] = {};  // by reason
  int64_t num_paused_steps_ = 0;
  DraftRefusal last_;  // that paused
};

}  // namespace specdec
