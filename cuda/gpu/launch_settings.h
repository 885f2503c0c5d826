// Reads LaunchSettings from the environment: for comparisons and for finding faults.
#pragma once

#include <string>
#include <string_view>

#include "cuda/gpu/device.h"

namespace specdec::cuda {

// The environment variable.
inline constexpr const char* kLaunchVariable = "SPECDEC_CUDA_LAUNCH";

// `words` are separated by commas; none means the defaults. "no_overlap", "no_peer_memory",
// "no_meeting" and "no_plan" switch LaunchSettings::overlap, peer_memory, meeting and work_lists
// off, "wide_rows" switches wide_rows on, "carveout=N" sets carveout, and "own_carveouts" leaves it
// to the driver; "streaming=N" sets fewest_stream_rows. Throws InvalidArgument that names the
// variable and the known words.
LaunchSettings parse_launch_settings(std::string_view words);

// A line for the log, without peer memory, which has a line of its own.
std::string describe(const LaunchSettings& settings);

// The variable's settings; the defaults if it is not set.
LaunchSettings launch_settings_of_environment();

}  // namespace specdec::cuda
