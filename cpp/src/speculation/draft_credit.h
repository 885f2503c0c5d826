// Seconds that drafts may lose: a small share of all seconds, and part of what drafts have gained.
#pragma once

#include <algorithm>

#include "speculation/draft_tuning.h"

namespace specdec {

class DraftCredit {
 public:
  explicit DraftCredit(const DraftTuning& tuning) : tuning_(tuning) {}

  // The first step was measured: without drafts a step takes so long.
  void start(double plain_seconds) { seconds_ = tuning_.first_credit * plain_seconds; }
  // Drafts of a step saved so much time; negative: they lost it.
  void add(double saved_seconds) { seconds_ += saved_seconds; }
  // A step is over, which took so long and takes so long without drafts.
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
