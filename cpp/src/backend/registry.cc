// The only file that names the backends there are.
#include <charconv>
#include <string_view>

#include "backend/backend.h"
#include "core/str_cat.h"
#include "cpu/cpu_backend.h"
#include "cpu/isa.h"
#include "cuda/cuda_devices.h"
#include "specdec/error.h"

namespace specdec {
namespace {

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

}  // namespace

std::unique_ptr<Backend> make_backend(const BackendConfig& config) {
  if (config.device == "auto" || config.device == "cpu") return cpu::make_cpu_backend(config);
  if (config.device == "emulated") return cuda::make_emulated_backend(config);
  const int cuda_index = parse_cuda_index(config.device);
  if (cuda_index >= 0) return cuda::make_cuda_backend(cuda_index, config);
  throw InvalidArgument("device", str_cat("unknown device '", config.device,
                                          "'; choose \"auto\", \"cpu\", \"cuda\" or \"cuda:N\""));
}

std::vector<DeviceInfo> list_devices() {
  std::vector<DeviceInfo> devices{cpu::cpu_device_info()};
  for (DeviceInfo& device : cuda::list_cuda_devices()) devices.push_back(std::move(device));
  return devices;
}

BuildInfo build_info() {
  BuildInfo info{.version = SPECDEC_VERSION,
                 .compiler = SPECDEC_COMPILER,
                 .build_type = SPECDEC_BUILD_TYPE,
                 .has_cuda = cuda::is_built(),
                 .cuda_note = cuda::build_note(),
                 .cpu_isas = {}};
  for (cpu::Isa isa : cpu::compiled_isas()) info.cpu_isas.emplace_back(name_of(isa));
  return info;
}

}  // namespace specdec
