// Decides, from what the CUDA runtime reports, which GPUs this build can run on, and why not on
// others.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace specdec::cuda {

struct Gpu {
  std::string model;
  int64_t memory_bytes = 0;
  int num_multiprocessors = 0;
  int compute_capability = 0;  // 80, 90, ...
};

// CUDA versions are 1000 * major + 10 * minor, as the runtime gives them.
struct GpuSurvey {
  int driver_version = 0;   // the newest CUDA the driver runs; 0: no driver
  int runtime_version = 0;  // of this build
  std::string error;        // why the GPUs could not be counted; else empty
  std::vector<Gpu> gpus;    // by index
};

// Whether kernels compiled for `architectures`, as CMake lists them ("90a-real, 80-virtual"), run
// on a GPU. 80 is the lowest compute capability with kernels.
bool has_kernels_for(int compute_capability, std::string_view architectures);

// Why no GPU can be used, and the remedy; empty if at least one works.
std::string problem_of(const GpuSurvey& survey, std::string_view architectures);
// The same for one GPU.
std::string problem_of_gpu(const GpuSurvey& survey, int index, std::string_view architectures);

}  // namespace specdec::cuda
