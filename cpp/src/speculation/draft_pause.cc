#include "speculation/draft_pause.h"

#include <cstdio>

#include "core/str_cat.h"

namespace specdec {
namespace {

constexpr double kMemory = 32;  // steps over which the share is averaged
// Far apart, so that a workload between the two does not fill a log.
constexpr double kPausedBelow = 0.05;
constexpr double kResumedAbove = 0.25;

std::string two_digits(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f", value);
  return text;
}

std::string sentence_of_pause(const DraftRefusal& refusal) {
  const std::string_view what = refusal.reason == DraftRefusal::Reason::kTooCostly
                                    ? "drafts cost more time than they are expected to save"
                                    : "drafts have lost as much time as they may";
  return str_cat("drafting is paused: ", what, "; the likeliest draft makes a step ",
                 two_digits(refusal.step_factor),
                 " times as long and is accepted with probability ",
                 two_digits(refusal.acceptance));
}

}  // namespace

bool DraftPause::record(const std::optional<DraftRefusal>& refusal) {
  share_ += ((refusal.has_value() ? 0.0 : 1.0) - share_) / kMemory;
  num_paused_steps_ += is_paused_ ? 1 : 0;
  if (!is_paused_ && share_ < kPausedBelow && refusal.has_value()) {
    is_paused_ = true;
    num_paused_steps_ = 0;
    last_ = *refusal;
    ++num_pauses_[static_cast<int>(refusal->reason)];
    return true;
  }
  if (is_paused_ && share_ > kResumedAbove) {
    is_paused_ = false;
    return true;
  }
  return false;
}

std::string DraftPause::sentence() const {
  if (is_paused_) return sentence_of_pause(last_);
  return str_cat("drafting is resumed: drafts pay again, ", num_paused_steps_,
                 " steps after the pause began");
}

}  // namespace specdec
