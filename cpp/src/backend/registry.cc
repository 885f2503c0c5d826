// The only file that names the backends.
#include <charconv>
#include <string_view>

#include "backend/backend.h"
#include "core/str_cat.h"
#include "cpu/cpu_backend.h"
#include "cpu/isa.h"
#include "cuda/factory.h"
#include "specdec/error.h"

namespace specdec {
namespace {

constexpr const char* kEmulated = "emulated";

// The index in "cuda" (0) or "cuda:N"; -1 when the name is no such device.
int parse_cuda_index(std::string_view device) {
  if (device == "cuda") return 0;
  constexpr std::string_view kPrefix = "cuda:";
  if (!device.starts_with(kPrefix)) return -1;
  const std::string_view digits = device.substr(kPrefix.size());
  int index = -1;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), index);
  return error == std::errc() && end == digits.data() + digits.size() ? index : -1;
}

// The rank's GPU among those that this build supports; the CPU where there is none.
DeviceChoice best_device(int rank) {
  bool has_gpu = false;
  for (const DeviceInfo& gpu : cuda::list_cuda_devices()) {
    if (!gpu.unusable.empty()) continue;
    if (rank-- == 0) return {.name = gpu.name, .kind = DeviceKind::kGpu};
    has_gpu = true;
  }
  if (has_gpu) throw InvalidArgument("device", "there are fewer usable GPUs than ranks");
  return {.name = "cpu", .kind = DeviceKind::kCpu};
}

}  // namespace

DeviceChoice resolve_device(std::string_view device, int rank) {
  if (device == "auto") return best_device(rank);
  if (device == "cpu") return {.name = "cpu", .kind = DeviceKind::kCpu};
  if (device == kEmulated) return {.name = kEmulated, .kind = DeviceKind::kGpu};
  const int cuda_index = parse_cuda_index(device);
  if (cuda_index >= 0)
    return {.name = str_cat("cuda:", cuda_index + rank), .kind = DeviceKind::kGpu};
  throw InvalidArgument("device", str_cat("unknown device '", device,
                                          "'; choose \"auto\", \"cpu\", \"cuda\" or \"cuda:N\""));
}

std::unique_ptr<Backend> make_backend(const BackendConfig& config) {
  const DeviceChoice device = resolve_device(config.device);
  if (device.kind == DeviceKind::kCpu) return cpu::make_cpu_backend(config);
  if (device.name == kEmulated) return cuda::make_emulated_backend(config);
  return cuda::make_cuda_backend(parse_cuda_index(device.name), config);
}

std::vector<DeviceInfo> list_devices() {
  std::vector<DeviceInfo> devices{cpu::cpu_device_info()};
  for (DeviceInfo& device : cuda::list_cuda_devices()) devices.push_back(std::move(device));
  return devices;
}

std::string gpu_problem() { return cuda::gpu_problem(); }

BuildInfo build_info() {
  BuildInfo info{.version = SPECDEC_VERSION,
                 .compiler = SPECDEC_COMPILER,
                 .build_type = SPECDEC_BUILD_TYPE,
                 .has_cuda = cuda::is_built(),
                 .cuda_note = cuda::build_note(),
                 .has_emulated_device = cuda::is_emulation_built(),
                 .cpu_isas = {}};
  for (cpu::Isa isa : cpu::compiled_isas()) info.cpu_isas.emplace_back(name_of(isa));
  return info;
}

}  // namespace specdec
