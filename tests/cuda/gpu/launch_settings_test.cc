// The variable of the environment that says how kernels are launched, and the line of the log.
#include "cuda/gpu/launch_settings.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "specdec/error.h"
#include "specdec/log.h"
#include "testing/device_kinds.h"
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
  const LaunchSettings apart = parse_launch_settings("no_peer_memory");
  EXPECT_TRUE(apart.overlap && apart.same_carveout);
  EXPECT_FALSE(apart.peer_memory);
  EXPECT_TRUE(defaults.peer_memory && serial.peer_memory && own.peer_memory);
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

TEST(LaunchSettings, AreLoggedOnceWhenStepsHaveBeenRehearsed) {
  for (const testing::DeviceKind kind : testing::device_kinds()) {
    const std::unique_ptr<CudaBackend> backend = testing::make_backend(kind, DType::kBF16);
    std::vector<std::string> lines;
    set_log_sink([&](LogLevel, const std::string& message) { lines.push_back(message); });
    const auto work = [] {};
    EXPECT_THROW(backend->rehearse([] { throw OutOfMemory("no room"); }), OutOfMemory);
    EXPECT_TRUE(lines.empty()) << "nothing was rehearsed to its end";
    backend->rehearse(work);
    backend->rehearse(work);
    set_log_sink(nullptr);
    ASSERT_EQ(lines.size(), 1u);
    EXPECT_TRUE(has_text(lines[0], backend->device().launch_note())) << lines[0];
  }
}

}  // namespace
}  // namespace specdec::cuda
