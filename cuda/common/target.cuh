// First include of every kernel source. The same sources are compiled by nvcc (namespace `native`)
// and by the host compiler for the emulation (namespace `emulated`).
//
// Rules that keep the sources valid for both: kernels are started by launch() only; the one dynamic
// shared array is named by SPECDEC_SHARED_BYTES; PTX is in ptx.cuh only; no static variables in
// kernels besides __shared__ ones.
#pragma once

#include <utility>

#include "cuda/gpu/device.h"

#ifdef SPECDEC_EMULATED
#include "cuda/emulation/cuda_language.h"
#define SPECDEC_TARGET emulated
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#define SPECDEC_TARGET native
#define SPECDEC_SHARED_BYTES(name) extern __shared__ __align__(1024) unsigned char name[]
#endif

namespace specdec::cuda::SPECDEC_TARGET {

// Runs `kernel` on the stream: launch("norm", stream, norm_kernel<Bf16>, config, params).
template <class... Params, class... Args>
void launch(const char* name, Stream& stream, void (*kernel)(Params...), const LaunchConfig& config,
            Args&&... args) {
  KernelLaunch record{.name = name, .config = config};
  record.function = reinterpret_cast<const void*>(kernel);
#ifdef SPECDEC_EMULATED
  record.body = [kernel, ... values = Params(args)]() { kernel(values...); };
#endif
  [&](Params... values) {
#ifdef SPECDEC_EMULATED
    (__builtin_clear_padding(&values), ...);  // padding may hold old pointers
#endif
    void* pointers[] = {&values..., nullptr};
    constexpr size_t kBytes[] = {sizeof(Params)..., 0};
    record.arguments = pointers;
    record.argument_bytes = kBytes;
    record.num_arguments = sizeof...(Params);
    stream.submit(record);
  }(std::forward<Args>(args)...);
}

}  // namespace specdec::cuda::SPECDEC_TARGET
