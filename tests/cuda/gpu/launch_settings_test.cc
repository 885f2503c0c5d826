// The environment variable for launch settings, and its line in the log.
#include "cuda/gpu/launch_settings.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "specdec/error.h"
#include "specdec/log.h"
#include "testing/device_kinds.h"
#include "testing/text.h"
#include "testing/thrown.h"

namespace specdec::cuda {
namespace {

using specdec::testing::has_text;

bool operator==(const LaunchSettings& a, const LaunchSettings& b) {
  return a.overlap == b.overlap && a.carveout == b.carveout && a.peer_memory == b.peer_memory &&
         a.meeting == b.meeting && a.wide_rows == b.wide_rows &&
         a.fewest_stream_rows == b.fewest_stream_rows && a.work_lists == b.work_lists;
}

TEST(LaunchSettings, WordsChangeWhatTheyName) {
  const std::vector<std::pair<const char*, LaunchSettings>> cases = {
      {"", {}},
      {"no_overlap", {.overlap = false}},
      {"own_carveouts", {.carveout = std::nullopt}},
      {"carveout=72", {.carveout = 72}},
      {"carveout=0", {.carveout = 0}},
      {"no_peer_memory", {.peer_memory = false}},
      {"no_meeting", {.meeting = false}},
      {"wide_rows", {.wide_rows = true}},
      {"streaming=1", {.fewest_stream_rows = 1}},
      {"no_plan", {.work_lists = false}},
      {"no_overlap,own_carveouts", {.overlap = false, .carveout = std::nullopt}},
      {"no_plan,carveout=58,no_overlap", {.overlap = false, .work_lists = false}}};
  for (const auto& [words, settings] : cases) {
    EXPECT_TRUE(parse_launch_settings(words) == settings) << words;
  }
  EXPECT_EQ(describe({}), "programmatic dependent launch on, carveout 58%");
  EXPECT_EQ(describe({.fewest_stream_rows = 3}),
            "programmatic dependent launch on, carveout 58%, streaming from 3 rows");
  EXPECT_EQ(
      describe(parse_launch_settings("no_overlap,own_carveouts,no_meeting,wide_rows,no_plan")),
      "programmatic dependent launch off, the driver's carveouts, no blocks that meet, wide "
      "projections, no work lists of attention");
}

std::string refusal_of(const char* words) {
  return specdec::testing::error_of<InvalidArgument>([&] { parse_launch_settings(words); }).what();
}

TEST(LaunchSettings, OtherWordsAreRefusedByName) {
  for (const char* words : {"overlap", "no_overlap ", "no_overlap;own_carveouts", ",",
                            "no_overlap,,own_carveouts", "carveout"}) {
    const std::string message = refusal_of(words);
    EXPECT_TRUE(has_text(message, "SPECDEC_CUDA_LAUNCH"));
    EXPECT_TRUE(has_text(message, "'own_carveouts'"));
  }
}

TEST(LaunchSettings, CarveoutsAreNumbersOfPerCent) {
  for (const char* words : {"carveout=", "carveout=101", "carveout=-1", "carveout=72%"}) {
    const std::string message = refusal_of(words);
    EXPECT_TRUE(has_text(message, "SPECDEC_CUDA_LAUNCH"));
    EXPECT_TRUE(has_text(message, words));
    EXPECT_TRUE(has_text(message, "0 to 100"));
  }
}

TEST(LaunchSettings, StreamingIsANumberOfRows) {
  for (const char* words : {"streaming=", "streaming=0", "streaming=all"}) {
    EXPECT_TRUE(has_text(refusal_of(words), words));
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
