// When kernels start before what is before them on the stream is done.
#include "cuda/gpu/start_rule.h"

#include <gtest/gtest.h>

namespace specdec::cuda {
namespace {

TEST(StartRule, AKernelStartsEarlyWhereItWaitsItself) {
  StartRule rule;
  EXPECT_FALSE(rule.starts_early({}));
  EXPECT_TRUE(rule.starts_early({.overlaps_previous = true}));
  EXPECT_TRUE(rule.starts_early({.overlaps_previous = true, .lets_next_start_early = true}));
  EXPECT_TRUE(rule.starts_early({.overlaps_previous = true}));
}

TEST(StartRule, AKernelThatReadsAheadStartsLateBehindOneThatLetsItStartEarly) {
  const LaunchConfig reads = {.overlaps_previous = true, .reads_before_wait = true};
  const LaunchConfig lets = {.overlaps_previous = true, .lets_next_start_early = true};
  StartRule rule;
  rule.starts_early(lets);
  EXPECT_FALSE(rule.starts_early(reads));
  EXPECT_TRUE(rule.starts_early(reads)) << "the one before it does not let it start early";
}

}  // namespace
}  // namespace specdec::cuda
