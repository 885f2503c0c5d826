#include "cuda/gpu/launch_settings.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "core/str_cat.h"
#include "specdec/error.h"

namespace specdec::cuda {
namespace {

constexpr std::string_view kCarveout = "carveout=";
constexpr std::string_view kStreaming = "streaming=";
constexpr int kMostRows = 1'000'000;

// The number behind `name` in a word.
int number_in(std::string_view word, std::string_view name, const char* what, int least, int most) {
  const std::string_view digits = word.substr(name.size());
  int value = -1;
  const auto end = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (end.ec != std::errc() || end.ptr != digits.data() + digits.size() || value < least ||
      value > most) {
    throw InvalidArgument(kLaunchVariable,
                          str_cat("'", word, "' needs a whole ", what, ", ", least, " to ", most));
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
      settings.carveout = number_in(word, kCarveout, "number of per cent", 0, 100);
    } else if (word == "no_peer_memory") {
      settings.peer_memory = false;
    } else if (word == "no_meeting") {
      settings.meeting = false;
    } else if (word == "wide_rows") {
      settings.wide_rows = true;
    } else if (word.starts_with(kStreaming)) {
      settings.fewest_stream_rows = number_in(word, kStreaming, "number of rows", 1, kMostRows);
    } else if (word == "no_plan") {
      settings.work_lists = false;
    } else {
      throw InvalidArgument(
          kLaunchVariable,
          str_cat("'", word, "' is none of its words; give some of 'no_overlap', 'no_meeting', ",
                  "'no_plan', 'no_peer_memory', 'wide_rows', 'streaming=N', and 'own_carveouts' ",
                  "or 'carveout=N', with commas ", "between them, or do not set it"));
    }
  }
  return settings;
}

std::string describe(const LaunchSettings& settings) {
  const std::string carveout =
      settings.carveout ? str_cat("carveout ", *settings.carveout, "%") : "the driver's carveouts";
  const std::optional<int>& fewest = settings.fewest_stream_rows;
  const std::string streaming = fewest ? str_cat(", streaming from ", *fewest, " rows") : "";
  return str_cat("programmatic dependent launch ", settings.overlap ? "on" : "off", ", ", carveout,
                 settings.meeting ? "" : ", no blocks that meet",
                 settings.wide_rows ? ", wide projections" : "", streaming,
                 settings.work_lists ? "" : ", no work lists of attention");
}

LaunchSettings launch_settings_of_environment() {
  const char* words = std::getenv(kLaunchVariable);
  return parse_launch_settings(words != nullptr ? words : "");
}

}  // namespace specdec::cuda
