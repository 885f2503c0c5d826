// All matrix products of one decoder step, at the shapes of real models, for a number of rows.
//
// `of_read` is the speed at which weights were consumed over the speed at which as many threads
// read a buffer of the same size right after, the median of such pairs: 1.0 is the memory floor.
// `gflops` is the arithmetic rate. Arguments before Google Benchmark's own: --cpu_isa=NAME
// --threads=N
// --dtype=bfloat16|float32 (of rows, and of weights whose format is act)
// --format=act|int8|int8_grouped|int8_grouped_min|int4_grouped|int4_grouped_min.
#include <benchmark/benchmark.h>

#include <cstring>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "common/read_bandwidth.h"
#include "common/timing.h"
#include "core/thread_pool.h"
#include "cpu/cpu_backend.h"
#include "cpu/isa.h"

namespace specdec::bench {
namespace {

struct Shape {
  int64_t out_features;
  int64_t in_features;
};

struct Model {
  const char* name;
  int num_layers;
  std::vector<Shape> layer;
  Shape head;
};

// Layers are cut off where the footprint is far beyond any cache.
const std::vector<Model>& models() {
  static const std::vector<Model> kModels = {
      {"SmolLM2-135M", 30, {{960, 576}, {576, 576}, {3072, 576}, {576, 1536}}, {49152, 576}},
      {"Qwen2.5-0.5B", 12, {{1152, 896}, {896, 896}, {9728, 896}, {896, 4864}}, {151936, 896}},
      {"Qwen2.5-1.5B",
       6,
       {{2048, 1536}, {1536, 1536}, {17920, 1536}, {1536, 8960}},
       {151936, 1536}},
  };
  return kModels;
}

struct Options {
  std::string cpu_isa = "auto";
  int num_threads = 0;
  DType dtype = DType::kBF16;
  WeightFormat format = WeightFormat::kAct;
};

WeightFormat parse_format(const std::string& name) {
  for (WeightFormat format :
       {WeightFormat::kAct, WeightFormat::kInt8, WeightFormat::kInt8Grouped,
        WeightFormat::kInt8GroupedMin, WeightFormat::kInt4Grouped, WeightFormat::kInt4GroupedMin}) {
    if (name_of(format) == name) return format;
  }
  throw std::invalid_argument("--format: unknown format '" + name + "'");
}

// Random values at the act dtype.
std::vector<uint8_t> random_matrix(int64_t count, DType dtype) {
  std::minstd_rand generator(1);
  std::vector<uint8_t> bytes(static_cast<size_t>(count) * size_of(dtype));
  for (int64_t i = 0; i < count; ++i) {
    const float value = static_cast<float>(generator() % 2000) / 1000.0f - 1.0f;
    if (dtype == DType::kF32) {
      std::memcpy(&bytes[i * 4], &value, 4);
    } else {
      const BFloat16 rounded = to_bfloat16(value);
      std::memcpy(&bytes[i * 2], &rounded, 2);
    }
  }
  return bytes;
}

std::vector<std::unique_ptr<PackedLinear>> pack_weights(const Model& model, DType dtype,
                                                        WeightFormat format, Backend& backend) {
  std::vector<std::unique_ptr<PackedLinear>> weights;
  const auto pack = [&](const Shape& shape, const std::vector<uint8_t>& source) {
    const WeightView view{
        .values = {source.data(), dtype, {shape.out_features, shape.in_features}}};
    weights.push_back(backend.pack_linear({.parts = {&view, 1}, .format = format}));
  };
  const int64_t head_size = model.head.out_features * model.head.in_features;
  const std::vector<uint8_t> source = random_matrix(head_size, dtype);
  for (int layer = 0; layer < model.num_layers; ++layer) {
    for (const Shape& shape : model.layer) pack(shape, source);
  }
  pack(model.head, source);
  return weights;
}

void run_step(benchmark::State& state, const Model& model, const Options& options) {
  const int rows = static_cast<int>(state.range(0));
  cpu::CpuBackend backend(cpu::parse_isa(options.cpu_isa), options.num_threads, options.dtype);
  const auto weights = pack_weights(model, options.dtype, options.format, backend);
  int64_t weight_bytes = 0;
  int64_t num_weights = 0;
  int64_t max_in = 0;
  for (const auto& weight : weights) {
    weight_bytes += weight->size_bytes();
    num_weights += weight->out_features() * weight->in_features();
    max_in = std::max(max_in, weight->in_features());
  }
  const std::vector<uint8_t> x = random_matrix(rows * max_in, options.dtype);
  std::vector<float> out(static_cast<size_t>(rows * model.head.out_features));
  ThreadPool probe_pool(backend.num_threads());
  ReadBandwidth probe(static_cast<size_t>(weight_bytes), probe_pool);

  const auto step = [&] {
    backend.begin_step();
    const Stopwatch watch;
    for (const auto& weight : weights) {
      backend.linear({.weight = weight.get(),
                      .in = {.x = x.data(), .dtype = options.dtype, .num_rows = rows},
                      .out = out.data()});
    }
    const double seconds = watch.seconds();
    backend.end_step();
    return seconds;
  };
  step();
  std::vector<double> step_seconds;
  std::vector<double> read_rates;
  std::vector<double> ratios;
  for (auto _ : state) {
    const double seconds = step();
    state.SetIterationTime(seconds);
    step_seconds.push_back(seconds);
    read_rates.push_back(static_cast<double>(probe.size_bytes()) / probe.read_seconds());
    ratios.push_back(static_cast<double>(weight_bytes) / seconds / read_rates.back());
  }
  const double seconds = median(step_seconds);
  state.counters["ms"] = seconds * 1e3;
  state.counters["GBps"] = static_cast<double>(weight_bytes) / seconds / 1e9;
  state.counters["read_GBps"] = median(read_rates) / 1e9;
  state.counters["of_read"] = median(ratios);
  state.counters["gflops"] = 2e-9 * static_cast<double>(num_weights) * rows / seconds;
  state.SetLabel(backend.isa());
}

// Takes our own options out of argv.
Options take_options(int& argc, char** argv) {
  Options options;
  int kept = 1;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    const std::string value(argument.substr(std::min(argument.find('=') + 1, argument.size())));
    if (argument.starts_with("--cpu_isa=")) {
      options.cpu_isa = value;
    } else if (argument.starts_with("--threads=")) {
      options.num_threads = std::stoi(value);
    } else if (argument.starts_with("--dtype=")) {
      options.dtype = value == "float32" ? DType::kF32 : DType::kBF16;
    } else if (argument.starts_with("--format=")) {
      options.format = parse_format(value);
    } else {
      argv[kept++] = argv[i];
    }
  }
  argc = kept;
  return options;
}

}  // namespace
}  // namespace specdec::bench

int main(int argc, char** argv) {
  using namespace specdec::bench;
  const Options options = take_options(argc, argv);
  for (const Model& model : models()) {
    benchmark::RegisterBenchmark(model.name,
                                 [&](benchmark::State& state) { run_step(state, model, options); })
        ->ArgName("rows")
        ->ArgsProduct({{1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 512}})
        ->Iterations(40)
        ->UseManualTime()
        ->Unit(benchmark::kMillisecond);
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
