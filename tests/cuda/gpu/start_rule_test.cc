// When kernels start before earlier work on their stream is done.
#include "cuda/gpu/start_rule.h"

#include <gtest/gtest.h>

namespace specdec::cuda {
namespace {

LaunchConfig overlapping(bool lets_next_start_early, bool reads_before_wait) {
  LaunchConfig config;
  config.overlaps_previous = true;
  config.lets_next_start_early = lets_next_start_early;
  config.reads_before_wait = reads_before_wait;
  return config;
}

TEST(StartRule, AKernelStartsEarlyWhereItWaitsItself) {
  StartRule rule;
  EXPECT_FALSE(rule.starts_early({}));
  EXPECT_TRUE(rule.starts_early(overlapping(false, false)));
  EXPECT_TRUE(rule.starts_early(overlapping(true, false)));
  EXPECT_TRUE(rule.starts_early(overlapping(false, false)));
}

TEST(StartRule, AKernelThatReadsAheadStartsLateBehindOneThatLetsItStartEarly) {
  StartRule rule;
  rule.starts_early({});
  rule.starts_early(overlapping(true, false));
  EXPECT_FALSE(rule.starts_early(overlapping(false, true)));
  EXPECT_TRUE(rule.starts_early(overlapping(false, true)))
      << "the one before it does not let it start early";
}

TEST(StartRule, AKernelStartsLateBehindWhatIsNoKernelOfOurs) {
  StartRule rule;
  EXPECT_FALSE(rule.starts_early(overlapping(false, false))) << "nothing is before it";
  EXPECT_TRUE(rule.starts_early(overlapping(false, false)));
  rule.note_other_work();
  EXPECT_FALSE(rule.starts_early(overlapping(true, false)));
  EXPECT_TRUE(rule.starts_early(overlapping(false, false)));
}

}  // namespace
}  // namespace specdec::cuda
