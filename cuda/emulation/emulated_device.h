// A device that runs kernels on the CPU, for tests without a GPU.
#pragma once

#include <cstdint>
#include <memory>

#include "cuda/gpu/device.h"

namespace specdec::cuda {

// The order in which the threads of a block get to run.
enum class Schedule : uint8_t { kForward, kReverse, kRandom };

struct EmulationConfig {
  Schedule schedule = Schedule::kForward;
  uint32_t seed = 1;  // for kRandom
  int num_multiprocessors = 4;
  int compute_capability = 90;  // 80, 86 or 90: as reported, with that GPU's limits
  int64_t memory_bytes = int64_t{1} << 32;
};

std::unique_ptr<Device> make_emulated_device(const EmulationConfig& config);

}  // namespace specdec::cuda
