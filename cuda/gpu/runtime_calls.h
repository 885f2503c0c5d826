// Errors and handles of the CUDA runtime.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <string>

#include "core/log.h"
#include "core/str_cat.h"
#include "specdec/error.h"

namespace specdec::cuda {

inline void check(cudaError_t status, const std::string& what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // clears an error that is not sticky
  throw DeviceError(
      str_cat(what, ": ", cudaGetErrorName(status), ": ", cudaGetErrorString(status)));
}

// For destructors. At the end of the process the runtime may be gone already. Once a kernel has
// failed, every call fails in the same way, so only the first failure is logged.
inline void log_failure(cudaError_t status, const char* what) {
  if (status == cudaSuccess || status == cudaErrorCudartUnloading) return;
  static std::atomic<cudaError_t> last = cudaSuccess;
  if (last.exchange(status) == status) return;
  log_warning(str_cat(what, ": ", cudaGetErrorString(status)));
}

// Owns a handle of the runtime.
template <class Handle, cudaError_t (*kDestroy)(Handle)>
class Owned {
 public:
  Owned() = default;
  ~Owned() {
    if (handle_ != nullptr) log_failure(kDestroy(handle_), "destroying a CUDA object");
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;

  Handle get() const { return handle_; }
  Handle* out() { return &handle_; }

 private:
  Handle handle_ = nullptr;
};

}  // namespace specdec::cuda
