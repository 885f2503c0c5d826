#include "cpu/cpu_backend.h"

#include <algorithm>

#include "core/check.h"
#include "core/host_memory.h"
#include "core/str_cat.h"
#include "cpu/cpu_info.h"
#include "specdec/error.h"

namespace specdec::cpu {
namespace {

constexpr int kMaxThreads = 1024;

}  // namespace

CpuBackend::CpuBackend(Isa isa, int num_threads, DType act_dtype, PrefetchInto into)
    : isa_(isa),
      act_dtype_(act_dtype),
      kernels_(kernel_table(isa, into)),
      pool_(num_threads > 0 ? num_threads : ThreadPool::default_num_threads()),
      sampler_(kernels_.sampling, pool_),
      projector_(kernels_, pool_) {
  SPECDEC_CHECK(act_dtype == DType::kF32 || act_dtype == DType::kBF16);
  SPECDEC_CHECK(is_supported(isa));
}

DeviceInfo CpuBackend::device_info() const { return cpu_device_info(); }

MemoryInfo CpuBackend::memory() const {
  return {.total_bytes = physical_memory_bytes(), .free_bytes = available_host_memory_bytes()};
}

Buffer CpuBackend::allocate(size_t size_bytes, const char* purpose) {
  return Buffer::host(size_bytes, purpose);
}

void CpuBackend::begin_step() { step_.emplace(pool_); }

void CpuBackend::end_step() { step_.reset(); }

DeviceInfo cpu_device_info() {
  return {.name = "cpu",
          .model = cpu_model_name(),
          .memory_bytes = physical_memory_bytes(),
          .num_threads = ThreadPool::default_num_threads(),
          .isa = std::string(name_of(best_isa()))};
}

std::unique_ptr<Backend> make_cpu_backend(const BackendConfig& config) {
  if (config.num_threads < 0 || config.num_threads > kMaxThreads) {
    throw InvalidArgument("num_threads", str_cat("must be 0 (one per physical core) to ",
                                                 kMaxThreads, ", not ", config.num_threads));
  }
  if (config.act_dtype != DType::kF32 && config.act_dtype != DType::kBF16) {
    throw InvalidArgument("dtype", str_cat("'", name_of(config.act_dtype),
                                           "' is not available on the CPU; use 'auto', "
                                           "'bfloat16' or 'float32', or a GPU"));
  }
  const int num_threads = config.num_threads > 0
                              ? config.num_threads
                              : std::max(1, ThreadPool::default_num_threads() / config.num_sharers);
  return std::make_unique<CpuBackend>(parse_isa(config.cpu_isa), num_threads, config.act_dtype);
}

}  // namespace specdec::cpu
