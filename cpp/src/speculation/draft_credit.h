// The seconds that drafting may still lose: a small share of all seconds, plus part of the seconds
// that drafts have saved.
#pragma once

#include <algorithm>

#include "speculation/draft_tuning.h"

namespace specdec {

class DraftCredit {
 public:
  explicit DraftCredit(const DraftTuning& tuning) : tuning_(tuning) {}

  // Called after the first measured step; `plain_seconds` is the time of a step without drafts.
  void start(double plain_seconds) { seconds_ = tuning_.first_credit * plain_seconds; }
  // Adds the seconds that a step's drafts saved; negative: they lost time.
  void add(double saved_seconds) { seconds_ += saved_seconds; }
  // Called after each step with its seconds and the expected seconds of the same step without
  // drafts.
  void earn(double step_seconds, double plain_seconds) {
    seconds_ =
        std::min(seconds_ + tuning_.loss_share * step_seconds, tuning_.most_credit * plain_seconds);
  }

  bool covers(double seconds) const { return seconds <= seconds_; }
  double seconds() const { return std::max(seconds_, 0.0); }

 private:
  DraftTuning tuning_;
  double seconds_ = 0;
};

}  // namespace specdec
