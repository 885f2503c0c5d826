#include "cuda/gpu/launch_settings.h"

#include <algorithm>
#include <cstdlib>

#include "core/str_cat.h"
#include "specdec/error.h"

namespace specdec::cuda {

LaunchSettings parse_launch_settings(std::string_view words) {
  LaunchSettings settings;
  while (!words.empty()) {
    const size_t length = std::min(words.find(','), words.size());
    const std::string_view word = words.substr(0, length);
    words.remove_prefix(std::min(length + 1, words.size()));
    if (word == "no_overlap") {
      settings.overlap = false;
    } else if (word == "own_carveouts") {
      settings.same_carveout = false;
    } else if (word == "no_peer_memory") {
      settings.peer_memory = false;
    } else {
      throw InvalidArgument(
          kLaunchVariable,
          str_cat("'", word, "' is none of its words; give some of 'no_overlap', ",
                  "'own_carveouts' and 'no_peer_memory' with commas between them, or do not set ",
                  "it"));
    }
  }
  return settings;
}

LaunchSettings launch_settings_of_environment() {
  const char* words = std::getenv(kLaunchVariable);
  return parse_launch_settings(words != nullptr ? words : "");
}

}  // namespace specdec::cuda
