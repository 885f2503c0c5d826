// How kernels are launched, as somebody says who compares ways or looks for a fault.
#pragma once

#include <string>
#include <string_view>

#include "cuda/gpu/device.h"

namespace specdec::cuda {

// The variable of the environment that names them.
inline constexpr const char* kLaunchVariable = "SPECDEC_CUDA_LAUNCH";

// Words with commas between them, none for the defaults: "no_overlap", "no_peer_memory",
// "no_meeting" and "no_plan" switch LaunchSettings::overlap, peer_memory, meeting and plans off,
// "carveout=N" sets carveout, "own_carveouts" leaves it to the driver. Throws InvalidArgument that
// names the variable and the words there are.
LaunchSettings parse_launch_settings(std::string_view words);

// For the log; peer memory has a line of its own.
std::string describe(const LaunchSettings& settings);

// Those of the variable; the defaults where it is not set.
LaunchSettings launch_settings_of_environment();

}  // namespace specdec::cuda
