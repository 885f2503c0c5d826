// A GPU, or the emulated device, as the benchmarks use it: its backend, its clock, its ceiling.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "backend/backend.h"
#include "bench/kernels/cuda_probes.h"
#include "common/options.h"
#include "common/report.h"
#include "core/buffer.h"
#include "cuda/gpu/device.h"
#include "cuda/gpu/rehearsal_stream.h"

namespace specdec::bench {

// Random numbers between -1 and 1 as bfloat16 or float16.
std::vector<uint16_t> random_numbers(size_t count, DType dtype);

class Gpu {
 public:
  // On options.device. Throws Unavailable where there is none.
  explicit Gpu(const Options& options);

  Backend& backend() { return *backend_; }
  cuda::Device& device() { return *device_; }
  cuda::Stream& stream() { return *stream_; }
  const cuda::ProbeKernels& probes() const { return probes_; }
  int num_multiprocessors() const { return device_->properties().num_multiprocessors; }
  bool is_emulated() const { return is_emulated_; }

  // Device memory of random numbers between -1 and 1, of any dtype but integers.
  Buffer random(size_t size_bytes, DType dtype);

  // Median seconds of `work`. It runs once directly (to allocate the memory it keeps) and is then
  // captured in a graph. Each sample is the mean of back-to-back launches on a device that is busy
  // when the first one is queued, as in steps. With Options::list_launches the work is only
  // recorded, and functions that measure return kNotMeasured.
  double graph_seconds(int samples, const std::function<void()>& work);
  // The same for a model's pass: its first layer plans attention for all layers, as in the engine.
  double pass_seconds(int samples, const std::function<void()>& pass);
  // The launches of the graph that was measured last.
  const Launches& launches() const { return launches_; }
  // Median seconds of `work` without a graph, on the host's clock until the device is done.
  double host_seconds(int samples, const std::function<void()>& work);

  // The best bytes/s of reading `num_bytes` over several grids: the ceiling of kernels that read
  // weights or keys and values.
  double read_rate(int64_t num_bytes, int samples);

 private:
  // Does the work and notes its launches.
  void observe(const std::function<void()>& work);

  std::unique_ptr<Backend> backend_;
  cuda::Device* device_ = nullptr;  // of the backend
  cuda::RehearsalStream* stream_ = nullptr;
  cuda::ProbeKernels probes_;
  bool is_emulated_ = false;
  Launches launches_;
  int64_t num_passes_ = 0;
};

// A benchmark's main: returns run()'s result, or 3 with a message where there is no such device.
int run_on_gpu(const char* program, const std::function<int()>& run);

}  // namespace specdec::bench
