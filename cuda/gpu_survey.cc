#include "cuda/gpu_survey.h"

#include <algorithm>
#include <charconv>

#include "core/str_cat.h"

namespace specdec::cuda {
namespace {

constexpr int kLeastCapability = 80;

std::string version_name(int version) { return str_cat(version / 1000, ".", version % 1000 / 10); }

std::string capability_name(int capability) {
  return str_cat(capability / 10, ".", capability % 10);
}

// "90a-real" is machine code for one GPU only, "90-real" for its major version, "80-virtual" is
// code that the driver compiles for any later GPU, and "80" is both. "native" and "all" count as
// matching.
bool runs(int capability, std::string_view architecture) {
  int number = 0;
  const auto [end, error] =
      std::from_chars(architecture.data(), architecture.data() + architecture.size(), number);
  if (error != std::errc()) return true;
  const std::string_view rest = architecture.substr(end - architecture.data());
  if (rest.starts_with('a')) return capability == number;
  const bool same_major = capability / 10 == number / 10;
  if (rest.starts_with('f') || rest == "-real") return same_major && capability >= number;
  return capability >= number;
}

// Problems of the driver, reported before those of single GPUs.
std::string driver_problem(const GpuSurvey& survey) {
  if (survey.driver_version == 0) {
    return "no NVIDIA driver was found; install one, or give a container access to the GPUs";
  }
  if (survey.driver_version / 1000 < survey.runtime_version / 1000) {
    return str_cat("the NVIDIA driver is too old: it runs CUDA ",
                   version_name(survey.driver_version), " and this build needs ",
                   version_name(survey.runtime_version), "; update the driver");
  }
  if (survey.gpus.empty()) {
    const std::string reason = survey.error.empty() ? "" : str_cat(" (", survey.error, ")");
    return str_cat("the NVIDIA driver shows no GPU", reason,
                   "; check nvidia-smi and CUDA_VISIBLE_DEVICES");
  }
  return {};
}

}  // namespace

bool has_kernels_for(int compute_capability, std::string_view architectures) {
  if (compute_capability < kLeastCapability) return false;
  while (!architectures.empty()) {
    const size_t length = std::min(architectures.find_first_of(", "), architectures.size());
    if (length > 0 && runs(compute_capability, architectures.substr(0, length))) return true;
    architectures.remove_prefix(std::min(length + 1, architectures.size()));
  }
  return false;
}

std::string problem_of_gpu(const GpuSurvey& survey, int index, std::string_view architectures) {
  std::string problem = driver_problem(survey);
  if (!problem.empty()) return problem;
  const int count = static_cast<int>(survey.gpus.size());
  if (index >= count) {
    return str_cat("there ", count == 1 ? "is 1 GPU" : str_cat("are ", count, " GPUs"),
                   ", counted from cuda:0");
  }
  const Gpu& gpu = survey.gpus[index];
  if (gpu.compute_capability < kLeastCapability) {
    return str_cat(gpu.model, " has compute capability ", capability_name(gpu.compute_capability),
                   ", and the kernels need ", capability_name(kLeastCapability), " or later");
  }
  if (!has_kernels_for(gpu.compute_capability, architectures)) {
    return str_cat(gpu.model, " has compute capability ", capability_name(gpu.compute_capability),
                   ", and this build has kernels for ", architectures,
                   " only; build with -DSPECDEC_CUDA_ARCHS=", gpu.compute_capability);
  }
  return {};
}

std::string problem_of(const GpuSurvey& survey, std::string_view architectures) {
  std::string problem = driver_problem(survey);
  if (!problem.empty()) return problem;
  for (int index = 0; index < static_cast<int>(survey.gpus.size()); ++index) {
    const std::string of_gpu = problem_of_gpu(survey, index, architectures);
    if (of_gpu.empty()) return {};
    problem += str_cat(problem.empty() ? "" : "; ", "cuda:", index, ": ", of_gpu);
  }
  return problem;
}

}  // namespace specdec::cuda
