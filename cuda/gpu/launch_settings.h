// How kernels are launched, as somebody says who compares ways or looks for a fault.
#pragma once

#include <string_view>

#include "cuda/gpu/device.h"

namespace specdec::cuda {

// The variable of the environment that names them.
inline constexpr const char* kLaunchVariable = "SPECDEC_CUDA_LAUNCH";

// Words with commas between them: "no_overlap" for LaunchSettings::overlap = false,
// "own_carveouts" for same_carveout = false, "no_peer_memory" for peer_memory = false; none for the
// defaults. Throws InvalidArgument that
// names the variable and the words there are.
LaunchSettings parse_launch_settings(std::string_view words);

// Those of the variable; the defaults where it is not set.
LaunchSettings launch_settings_of_environment();

}  // namespace specdec::cuda
