#include "cuda/factory.h"

#include <cuda_runtime.h>

#include <utility>

#include "core/log.h"
#include "core/str_cat.h"
#include "cuda/backend/cuda_backend.h"
#include "cuda/gemm/cutlass.h"
#include "cuda/gemm/gemms.h"
#include "cuda/gpu/launch_settings.h"
#include "cuda/gpu_survey.h"
#include "specdec/error.h"

namespace specdec::cuda {
namespace {

// Needs no driver and makes no context on a GPU.
GpuSurvey survey_gpus() {
  GpuSurvey survey;
  cudaRuntimeGetVersion(&survey.runtime_version);
  cudaDriverGetVersion(&survey.driver_version);
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) {
    survey.error = cudaGetErrorString(status);
    cudaGetLastError();  // clears the error
    return survey;
  }
  for (int index = 0; index < count; ++index) {
    Gpu& gpu = survey.gpus.emplace_back();
    cudaDeviceProp properties{};
    if (cudaGetDeviceProperties(&properties, index) != cudaSuccess) continue;
    gpu = {.model = properties.name,
           .memory_bytes = static_cast<int64_t>(properties.totalGlobalMem),
           .num_multiprocessors = properties.multiProcessorCount,
           .compute_capability = 10 * properties.major + properties.minor};
  }
  return survey;
}

}  // namespace

bool is_built() { return true; }

std::string build_note() {
  return str_cat("built for ", SPECDEC_CUDA_ARCHITECTURES, ", ", cutlass_note());
}

std::vector<DeviceInfo> list_cuda_devices() {
  const GpuSurvey survey = survey_gpus();
  std::vector<DeviceInfo> devices;
  for (int index = 0; index < static_cast<int>(survey.gpus.size()); ++index) {
    const Gpu& gpu = survey.gpus[index];
    devices.push_back(
        {.name = str_cat("cuda:", index),
         .model = gpu.model,
         .memory_bytes = gpu.memory_bytes,
         .num_threads = gpu.num_multiprocessors,
         .isa = str_cat(gpu.compute_capability / 10, ".", gpu.compute_capability % 10),
         .unusable = problem_of_gpu(survey, index, SPECDEC_CUDA_ARCHITECTURES)});
  }
  return devices;
}

std::string gpu_problem() { return problem_of(survey_gpus(), SPECDEC_CUDA_ARCHITECTURES); }

std::unique_ptr<Backend> make_cuda_backend(int index, const BackendConfig& config) {
  const std::string problem = problem_of_gpu(survey_gpus(), index, SPECDEC_CUDA_ARCHITECTURES);
  if (!problem.empty()) {
    throw Unavailable(str_cat("device cuda:", index, " is not available: ", problem,
                              ". device=\"cpu\" runs without a GPU"));
  }
  const LaunchSettings settings = launch_settings_of_environment();
  std::unique_ptr<Device> device = make_cuda_device(index);
  device->set_launch_settings(settings);
  FoundGemms found;
  if (!config.deterministic) found = find_gemms(device->properties());
  for (const auto& gemm : found.gemms) log_info("timed on cuda:", index, ": ", gemm->name());
  for (const std::string& each : found.absent) log_info("not used on cuda:", index, ": ", each);
  auto backend =
      std::make_unique<CudaBackend>(std::move(device), native::kernel_table(), config.act_dtype,
                                    CudaOptions::of(config), std::move(found.gemms));
  backend->projection_chooser().set_timer(event_seconds);
  return backend;
}

}  // namespace specdec::cuda
