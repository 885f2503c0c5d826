// The variable of the environment that says how kernels are launched.
#include "cuda/gpu/launch_settings.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "specdec/error.h"
#include "testing/text.h"

namespace specdec::cuda {
namespace {

using specdec::testing::has_text;

TEST(LaunchSettings, WordsChangeWhatTheyName) {
  const LaunchSettings defaults = parse_launch_settings("");
  EXPECT_TRUE(defaults.overlap);
  EXPECT_TRUE(defaults.same_carveout);
  const LaunchSettings serial = parse_launch_settings("no_overlap");
  EXPECT_FALSE(serial.overlap);
  EXPECT_TRUE(serial.same_carveout);
  const LaunchSettings own = parse_launch_settings("own_carveouts");
  EXPECT_TRUE(own.overlap);
  EXPECT_FALSE(own.same_carveout);
  for (const char* both : {"no_overlap,own_carveouts", "own_carveouts,no_overlap"}) {
    const LaunchSettings settings = parse_launch_settings(both);
    EXPECT_FALSE(settings.overlap || settings.same_carveout) << both;
  }
}

TEST(LaunchSettings, OtherWordsAreRefusedByName) {
  for (const char* words :
       {"overlap", "no_overlap ", "no_overlap;own_carveouts", ",", "no_overlap,,own_carveouts"}) {
    try {
      parse_launch_settings(words);
      ADD_FAILURE() << "taken: '" << words << "'";
    } catch (const InvalidArgument& error) {
      EXPECT_TRUE(has_text(error.what(), "SPECDEC_CUDA_LAUNCH")) << error.what();
      EXPECT_TRUE(has_text(error.what(), "'own_carveouts'")) << error.what();
    }
  }
}

TEST(LaunchSettings, AreThoseOfTheEnvironment) {
  ASSERT_EQ(setenv(kLaunchVariable, "no_overlap", 1), 0);
  EXPECT_FALSE(launch_settings_of_environment().overlap);
  ASSERT_EQ(unsetenv(kLaunchVariable), 0);
  EXPECT_TRUE(launch_settings_of_environment().overlap);
}

}  // namespace
}  // namespace specdec::cuda
