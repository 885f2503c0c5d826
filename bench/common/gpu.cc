#include "common/gpu.h"

#include <algorithm>
#include <cstdio>
#include <random>
#include <vector>

#include "common/launch_work.h"
#include "common/timing.h"
#include "core/check.h"
#include "cuda/backend/cuda_backend.h"
#include "cuda/factory.h"
#include "cuda/gpu/launch_settings.h"
#include "cuda/gpu/start_rule.h"
#include "specdec/error.h"

namespace specdec::bench {
namespace {

constexpr size_t kRandomBytes = size_t{32} << 20;  // repeated to fill larger buffers
constexpr int kNotAvailable = 3;                   // exit status
// Time of a graph's launches between two events: the first launch's way to an idle device, about
// 10 us, must not matter.
constexpr double kBurstSeconds = 4e-3;
constexpr int kMostLaunches = 64;

// An H100 or H200, with memory for any model: none of it is touched.
constexpr cuda::EmulatedSize kListedDevice = {.num_multiprocessors = 132,
                                              .memory_bytes = int64_t{1} << 42};

std::unique_ptr<Backend> backend_for(const Options& options) {
  const BackendConfig config = {.device = options.device,
                                .act_dtype = options.dtype,
                                .deterministic = !options.nondeterministic};
  return options.list_launches ? cuda::make_emulated_backend(config, kListedDevice)
                               : make_backend(config);
}

LaunchRecord record_of(const cuda::Device& device, const cuda::KernelLaunch& launch,
                       bool starts_early) {
  const cuda::LaunchConfig& config = launch.config;
  LaunchRecord record = {
      .name = launch.name,
      .grid = {static_cast<int>(config.grid.x), static_cast<int>(config.grid.y),
               static_cast<int>(config.grid.z)},
      .threads = static_cast<int>(config.block.x * config.block.y * config.block.z),
      .shared_bytes = static_cast<int64_t>(config.shared_bytes),
      .starts_early = starts_early,
      .lets_next_early = config.lets_next_start_early,
      .work = work_of(launch)};
  if (const auto resources = device.resources_of(launch.function)) {
    record.registers = resources->registers;
    record.static_shared_bytes = resources->static_shared_bytes;
  }
  return record;
}

}  // namespace

std::vector<uint16_t> random_numbers(size_t count, DType dtype) {
  std::vector<uint16_t> numbers(count);
  std::minstd_rand generator(7);
  std::uniform_real_distribution<float> uniform(-1, 1);
  const size_t first = std::min(count, kRandomBytes / sizeof(uint16_t));
  for (size_t i = 0; i < first; ++i) {
    const float number = uniform(generator);
    numbers[i] = dtype == DType::kF16 ? float_to_half(number) : to_bfloat16(number).bits;
  }
  for (size_t i = first; i < count; ++i) numbers[i] = numbers[i - first];
  return numbers;
}

Gpu::Gpu(const Options& options)
    : backend_(backend_for(options)), is_emulated_(options.device == "emulated") {
  auto& backend = dynamic_cast<cuda::CudaBackend&>(*backend_);
  device_ = &backend.device();
  stream_ = &backend.stream();
  device_->set_launch_settings(options.launch ? cuda::parse_launch_settings(*options.launch)
                                              : cuda::launch_settings_of_environment());
  probes_ = is_emulated_ ? cuda::emulated::probe_kernels() : cuda::native::probe_kernels();
  SPECDEC_CHECK(probes_.read != nullptr);
  stream_->set_rehearsing(options.list_launches);
}

Buffer Gpu::random(size_t size_bytes, DType dtype) {
  if (stream_->is_rehearsing()) return device_->allocate(size_bytes, "a bench");
  const size_t first = std::min(size_bytes, kRandomBytes);
  std::vector<float> floats(dtype == DType::kF32 ? first / sizeof(float) : 0);
  std::minstd_rand generator(7);
  std::uniform_real_distribution<float> uniform(-1, 1);
  for (float& value : floats) value = uniform(generator);
  std::vector<uint16_t> halves;
  if (dtype != DType::kF32) halves = random_numbers(first / sizeof(uint16_t), dtype);
  const void* host = dtype == DType::kF32 ? static_cast<const void*>(floats.data()) : halves.data();
  Buffer buffer = device_->allocate(size_bytes, "a bench");
  stream_->copy_to_device(buffer.data(), host, first);
  for (size_t done = first; done < size_bytes; done += first) {
    stream_->copy(buffer.as<char>() + done, buffer.data(), std::min(first, size_bytes - done));
  }
  stream_->synchronize();
  return buffer;
}

void Gpu::observe(const std::function<void()>& work) {
  launches_ = {};
  cuda::StartRule rule;
  stream_->set_observer([&](const cuda::KernelLaunch& launch) {
    std::vector<LaunchRecord>& kinds = launches_.kinds;
    const LaunchRecord record = record_of(*device_, launch, rule.starts_early(launch.config));
    const auto kind = std::ranges::find(kinds, record);
    launches_.order.push_back(static_cast<int>(kind - kinds.begin()));
    if (kind == kinds.end()) kinds.push_back(record);
  });
  work();
  stream_->set_observer(nullptr);
}

double Gpu::graph_seconds(int samples, const std::function<void()>& work) {
  if (stream_->is_rehearsing()) {
    observe(work);
    return kNotMeasured;
  }
  work();
  stream_->synchronize();
  stream_->begin_capture();
  observe(work);
  const std::unique_ptr<cuda::Graph> graph = stream_->end_capture();
  launches_.num_others = graph->num_nodes() - static_cast<int>(launches_.order.size());
  const std::unique_ptr<cuda::Event> begin = device_->make_event();
  const std::unique_ptr<cuda::Event> end = device_->make_event();
  const auto seconds_each = [&](int launches) {
    stream_->launch(*graph);  // the device is busy when `begin` is queued
    stream_->record(*begin);
    for (int i = 0; i < launches; ++i) stream_->launch(*graph);
    stream_->record(*end);
    end->wait();
    return device_->seconds_between(*begin, *end) / launches;
  };
  int launches = 1;
  if (!is_emulated_) {
    const double once = std::max(seconds_each(1), kBurstSeconds / kMostLaunches);
    launches = std::max(1, static_cast<int>(kBurstSeconds / once));
  }
  std::vector<double> seconds;
  for (int i = 0; i < samples; ++i) seconds.push_back(seconds_each(launches));
  return median(seconds);
}

double Gpu::pass_seconds(int samples, const std::function<void()>& pass) {
  const RecordKey key = {.owner = this, .shape = {++num_passes_}};
  return graph_seconds(samples, [&] { backend_->run_recorded(key, pass); });
}

double Gpu::host_seconds(int samples, const std::function<void()>& work) {
  if (stream_->is_rehearsing()) return kNotMeasured;
  std::vector<double> seconds;
  for (int i = -2; i < samples; ++i) {
    stream_->synchronize();
    const Stopwatch watch;
    work();
    stream_->synchronize();
    if (i >= 0) seconds.push_back(watch.seconds());
  }
  return median(seconds);
}

double Gpu::read_rate(int64_t num_bytes, int samples) {
  if (stream_->is_rehearsing()) return kNotMeasured;
  const Buffer data = random(static_cast<size_t>(num_bytes), DType::kBF16);
  Buffer sink = device_->allocate(sizeof(uint32_t), "a bench");
  double best = 0;
  for (int blocks_each : {1, 2, 4, 16}) {
    const cuda::ReadProbe probe = {.data = data.data(),
                                   .num_bytes = num_bytes,
                                   .sink = sink.as<uint32_t>(),
                                   .num_blocks = blocks_each * num_multiprocessors()};
    const double seconds = graph_seconds(samples, [&] { probes_.read(*stream_, probe); });
    best = std::max(best, static_cast<double>(num_bytes) / seconds);
  }
  return best;
}

int run_on_gpu(const char* program, const std::function<int()>& run) {
  try {
    return run();
  } catch (const Unavailable& error) {
    std::fprintf(stderr, "not run: %s\n", error.what());
    return kNotAvailable;
  } catch (const Error& error) {
    std::fprintf(stderr, "%s: %s\n", program, error.what());
    return 1;
  }
}

}  // namespace specdec::bench
