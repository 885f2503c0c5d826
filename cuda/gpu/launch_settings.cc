#include "cuda/gpu/launch_settings.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "core/str_cat.h"
#include "specdec/error.h"

namespace specdec::cuda {
namespace {

constexpr std::string_view kCarveout = "carveout=";

int percentage(std::string_view digits) {
  int value = -1;
  const auto end = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (end.ec != std::errc() || end.ptr != digits.data() + digits.size() || value < 0 ||
      value > 100) {
    throw InvalidArgument(kLaunchVariable, str_cat("'", kCarveout, digits,
                                                   "' needs a whole number of per cent, 0 to 100"));
  }
  return value;
}

}  // namespace

LaunchSettings parse_launch_settings(std::string_view words) {
  LaunchSettings settings;
  while (!words.empty()) {
    const size_t length = std::min(words.find(','), words.size());
    const std::string_view word = words.substr(0, length);
    words.remove_prefix(std::min(length + 1, words.size()));
    if (word == "no_overlap") {
      settings.overlap = false;
    } else if (word == "own_carveouts") {
      settings.carveout.reset();
    } else if (word.starts_with(kCarveout)) {
      settings.carveout = percentage(word.substr(kCarveout.size()));
    } else if (word == "no_peer_memory") {
      settings.peer_memory = false;
    } else if (word == "no_meeting") {
      settings.meeting = false;
    } else if (word == "no_streaming") {
      settings.streaming = false;
    } else if (word == "no_plan") {
      settings.work_lists = false;
    } else {
      throw InvalidArgument(
          kLaunchVariable,
          str_cat("'", word, "' is none of its words; give some of 'no_overlap', 'no_meeting', ",
                  "'no_streaming', 'no_plan', 'no_peer_memory', and 'own_carveouts' or "
                  "'carveout=N', with commas ",
                  "between them, or do not set it"));
    }
  }
  return settings;
}

std::string describe(const LaunchSettings& settings) {
  const std::string carveout =
      settings.carveout ? str_cat("carveout ", *settings.carveout, "%") : "the driver's carveouts";
  return str_cat("programmatic dependent launch ", settings.overlap ? "on" : "off", ", ", carveout,
                 settings.meeting ? "" : ", no blocks that meet",
                 settings.streaming ? "" : ", no streaming projections",
                 settings.work_lists ? "" : ", no work lists of attention");
}

LaunchSettings launch_settings_of_environment() {
  const char* words = std::getenv(kLaunchVariable);
  return parse_launch_settings(words != nullptr ? words : "");
}

}  // namespace specdec::cuda
