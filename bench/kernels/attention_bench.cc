// Attention of all layers of a model: decoding one token, verifying eight, and a prompt.
//
// Decoding is bound by memory: `of_read` is the speed at which keys and values were consumed over
// the speed at which the same threads read a buffer of the same size, the two measured in turn. A
// prompt is bound by arithmetic: `of_linear` is its rate over that of a float32 matrix product of
// the same kernel set that fits the caches. Arguments before Google Benchmark's own:
// --cpu_isa=NAME --threads=N --dtype=bfloat16|float32.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
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

struct Model {
  const char* name;
  int num_layers;
  int num_heads;
  int num_kv_heads;
  int head_dim;
};

constexpr Model kModels[] = {
    {"SmolLM2-135M", 30, 9, 3, 64},
    {"Qwen2.5-0.5B", 24, 14, 2, 64},
    {"Qwen2.5-1.5B", 28, 12, 2, 128},
};
constexpr int kBlockSize = 16;

struct Options {
  std::string cpu_isa = "auto";
  int num_threads = 0;
  DType dtype = DType::kBF16;
};

// One request with base_len committed tokens and num_rows new ones, its blocks in random order.
class Workload {
 public:
  Workload(const Model& model, const Options& options, int base_len, int num_rows)
      : model_(model),
        backend_(cpu::parse_isa(options.cpu_isa), options.num_threads, options.dtype) {
    const int num_blocks = (base_len + num_rows + kBlockSize - 1) / kBlockSize;
    // A pool several times as large, as it is beside other requests.
    const int pool_blocks = 4 * num_blocks;
    blocks_.resize(pool_blocks);
    std::iota(blocks_.begin(), blocks_.end(), 1);
    std::shuffle(blocks_.begin(), blocks_.end(), std::minstd_rand(1));
    cu_rows_ = {0, num_rows};
    base_len_ = base_len;
    for (int row = 0; row < num_rows; ++row) {
      const int slot = base_len + row;
      positions_.push_back(slot);
      slot_mapping_.push_back(int64_t{blocks_[slot / kBlockSize]} * kBlockSize + slot % kBlockSize);
    }
    batch_ = {.num_requests = 1,
              .num_rows = num_rows,
              .positions = positions_.data(),
              .slot_mapping = slot_mapping_.data(),
              .cu_rows = cu_rows_.data(),
              .base_lens = &base_len_,
              .block_tables = blocks_.data(),
              .max_blocks_per_request = pool_blocks};
    make_layers(options.dtype, pool_blocks + 1);
    const size_t q_bytes =
        size_t{size_of(options.dtype)} * num_rows * model.num_heads * model.head_dim;
    q_ = Buffer::host(q_bytes, "bench");
    out_ = Buffer::host(q_bytes, "bench");
    fill(q_, options.dtype);
  }

  cpu::CpuBackend& backend() { return backend_; }

  double step_seconds() {
    backend_.begin_step();
    const Stopwatch watch;
    for (const PagedKvView& layer : layers_) {
      backend_.tree_attention({.q = q_.data(),
                               .batch = &batch_,
                               .kv = layer,
                               .num_heads = model_.num_heads,
                               .scale = 0.125f,
                               .out = out_.data()});
    }
    const double seconds = watch.seconds();
    backend_.end_step();
    return seconds;
  }

  // Bytes of keys and values a step must read.
  double kv_bytes() const {
    return 2.0 * size_of(layers_[0].dtype) * model_.num_layers * model_.num_kv_heads *
           model_.head_dim * (base_len_ + batch_.num_rows);
  }
  // Multiplications and additions of scores and weighted values.
  double flops() const {
    const double rows = batch_.num_rows;
    const double visible = rows * base_len_ + rows * (rows + 1) / 2;
    return 4.0 * model_.num_layers * model_.num_heads * model_.head_dim * visible;
  }

 private:
  void make_layers(DType dtype, int num_blocks) {
    for (int i = 0; i < model_.num_layers; ++i) {
      PagedKvView layer = {.dtype = dtype,
                           .num_blocks = num_blocks,
                           .block_size = kBlockSize,
                           .num_kv_heads = model_.num_kv_heads,
                           .head_dim = model_.head_dim};
      for (void** part : {&layer.keys, &layer.values}) {
        buffers_.push_back(backend_.allocate(backend_.kv_layer_bytes(layer), "bench"));
        fill(buffers_.back(), dtype);
        *part = buffers_.back().data();
      }
      layers_.push_back(layer);
    }
  }
  static void fill(Buffer& buffer, DType dtype) {
    std::minstd_rand random(7);
    const size_t count = buffer.size_bytes() / size_of(dtype);
    for (size_t i = 0; i < count; ++i) {
      const float value = static_cast<float>(random() % 2000) / 1000.0f - 1.0f;
      if (dtype == DType::kF32) {
        buffer.as<float>()[i] = value;
      } else {
        buffer.as<BFloat16>()[i] = to_bfloat16(value);
      }
    }
  }

  const Model& model_;
  cpu::CpuBackend backend_;
  std::vector<int32_t> blocks_, positions_, cu_rows_;
  std::vector<int64_t> slot_mapping_;
  int32_t base_len_ = 0;
  BatchView batch_;
  std::vector<Buffer> buffers_;
  std::vector<PagedKvView> layers_;
  Buffer q_, out_;
};

// The float32 matrix product the arithmetic of a prompt is compared with.
class LinearCeiling {
 public:
  explicit LinearCeiling(const Options& options)
      : backend_(cpu::parse_isa(options.cpu_isa), options.num_threads, DType::kF32),
        x_(kSize * kSize, 0.5f),
        out_(kSize * kSize) {
    const WeightView view{.values = {x_.data(), DType::kF32, {kSize, kSize}}};
    weight_ = backend_.pack_linear({.parts = {&view, 1}});
  }
  double flops_per_second() {
    backend_.begin_step();
    const Stopwatch watch;
    for (int i = 0; i < kRepeats; ++i) {
      backend_.linear({.weight = weight_.get(),
                       .in = {.x = x_.data(), .dtype = DType::kF32, .num_rows = kSize},
                       .out = out_.data()});
    }
    const double seconds = watch.seconds();
    backend_.end_step();
    return 2.0 * kRepeats * kSize * kSize * kSize / seconds;
  }

 private:
  static constexpr int kSize = 256;
  static constexpr int kRepeats = 8;
  cpu::CpuBackend backend_;
  std::vector<float> x_, out_;
  std::unique_ptr<PackedLinear> weight_;
};

void run_decode(benchmark::State& state, const Model& model, const Options& options) {
  Workload workload(model, options, static_cast<int>(state.range(0)),
                    static_cast<int>(state.range(1)));
  ThreadPool probe_pool(workload.backend().num_threads());
  ReadBandwidth probe(static_cast<size_t>(workload.kv_bytes()), probe_pool);
  workload.step_seconds();
  probe.read_seconds();
  std::vector<double> seconds, read_seconds;
  for (auto _ : state) {
    seconds.push_back(workload.step_seconds());
    state.SetIterationTime(seconds.back());
    read_seconds.push_back(probe.read_seconds());
  }
  const double rate = workload.kv_bytes() / median(seconds);
  const double read_rate = static_cast<double>(probe.size_bytes()) / median(read_seconds);
  state.counters["ms"] = median(seconds) * 1e3;
  state.counters["MB"] = workload.kv_bytes() / 1e6;
  state.counters["read_GBps"] = read_rate / 1e9;
  state.counters["of_read"] = rate / read_rate;
  state.SetLabel(workload.backend().isa());
}

void run_prompt(benchmark::State& state, const Model& model, const Options& options) {
  Workload workload(model, options, 0, static_cast<int>(state.range(0)));
  LinearCeiling ceiling(options);
  workload.step_seconds();
  ceiling.flops_per_second();
  std::vector<double> seconds, peak;
  for (auto _ : state) {
    seconds.push_back(workload.step_seconds());
    state.SetIterationTime(seconds.back());
    peak.push_back(ceiling.flops_per_second());
  }
  const double rate = workload.flops() / median(seconds);
  state.counters["ms"] = median(seconds) * 1e3;
  state.counters["gflops"] = rate / 1e9;
  state.counters["linear_gflops"] = median(peak) / 1e9;
  state.counters["of_linear"] = rate / median(peak);
  state.SetLabel(workload.backend().isa());
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
    } else {
      argv[kept++] = argv[i];
    }
  }
  argc = kept;
  return options;
}

void register_benchmarks(const Options& options) {
  for (const Model& model : kModels) {
    const std::string name = model.name;
    benchmark::RegisterBenchmark(
        (name + "/decode").c_str(),
        [&](benchmark::State& state) { run_decode(state, model, options); })
        ->ArgNames({"context", "rows"})
        ->ArgsProduct({{512, 4096}, {1, 8}})
        ->Iterations(15)
        ->UseManualTime()
        ->Unit(benchmark::kMillisecond);
    benchmark::RegisterBenchmark(
        (name + "/prompt").c_str(),
        [&](benchmark::State& state) { run_prompt(state, model, options); })
        ->ArgName("tokens")
        ->Arg(1000)
        ->Iterations(5)
        ->UseManualTime()
        ->Unit(benchmark::kMillisecond);
  }
}

}  // namespace
}  // namespace specdec::bench

int main(int argc, char** argv) {
  const specdec::bench::Options options = specdec::bench::take_options(argc, argv);
  specdec::bench::register_benchmarks(options);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
