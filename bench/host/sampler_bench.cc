// The sampler's median time per row, and how many reads of the row's logits it equals ("reads").
// One read is measured in the same run, on the same threads: the pass that finds a row's maximum,
// the least any sampler can do.
//
//   sampler_bench --benchmark_format=json
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <string>
#include <vector>

#include "core/thread_pool.h"
#include "cpu/isa.h"
#include "cpu/kernel_table.h"
#include "cpu/sampler.h"

namespace specdec {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Shaped like a language model's: a bulk, and a few dozen tokens far above it.
std::vector<float> model_like_logits(int num_rows, int vocab_size) {
  std::mt19937 random(1);
  std::normal_distribution<float> bulk(-2.0f, 2.5f);
  std::uniform_real_distribution<float> peak(6.0f, 16.0f);
  std::vector<float> logits(static_cast<size_t>(num_rows) * vocab_size);
  for (float& x : logits) x = bulk(random);
  for (int row = 0; row < num_rows; ++row) {
    for (int i = 0; i < 40; ++i) {
      logits[static_cast<size_t>(row) * vocab_size + random() % vocab_size] = peak(random);
    }
  }
  return logits;
}

double median(std::vector<double>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double seconds_of_one_read(const cpu::SamplingKernels& kernels, const std::vector<float>& logits,
                           int num_rows, ThreadPool& pool) {
  const int vocab_size = static_cast<int>(logits.size()) / num_rows;
  std::vector<double> seconds;
  for (int repeat = 0; repeat < 101; ++repeat) {
    const auto start = Clock::now();
    pool.parallel_for(num_rows, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t row = begin; row < end; ++row) {
        benchmark::DoNotOptimize(kernels.argmax(logits.data() + row * vocab_size, vocab_size));
      }
    });
    seconds.push_back(seconds_since(start));
  }
  return median(seconds);
}

struct Workload {
  std::string name;
  SampleRow params;
};

void sample(benchmark::State& state, const Workload& workload, int vocab_size, int num_rows) {
  const auto kernels = cpu::kernel_table(cpu::best_isa()).sampling;
  ThreadPool pool(ThreadPool::default_num_threads());
  ThreadPool::StepScope hot(pool);
  cpu::Sampler sampler(kernels, pool);
  const std::vector<float> logits = model_like_logits(num_rows, vocab_size);
  std::vector<float> work(logits.size());
  std::vector<SampleRow> rows(num_rows, workload.params);
  std::vector<SampleResult> results(num_rows);
  const double read_seconds = seconds_of_one_read(kernels, logits, num_rows, pool);

  int64_t position = 0;
  std::vector<double> all_seconds;
  for (auto _ : state) {
    // The logits are overwritten; a head's output is as warm in the caches as this copy.
    std::copy(logits.begin(), logits.end(), work.begin());
    for (SampleRow& row : rows) row.position = ++position;
    const auto start = Clock::now();
    sampler.sample(
        {.logits = work.data(), .rows = rows, .vocab_size = vocab_size, .results = results});
    const double seconds = seconds_since(start);
    state.SetIterationTime(seconds);
    all_seconds.push_back(seconds);
  }
  const double typical = median(all_seconds);
  state.counters["us_per_row"] = typical * 1e6 / num_rows;
  state.counters["reads"] = typical / read_seconds;
  state.counters["read_GB_per_s"] = static_cast<double>(logits.size()) * 4 / read_seconds / 1e9;
}

}  // namespace
}  // namespace specdec

int main(int argc, char** argv) {
  using specdec::SampleRow;
  std::vector<specdec::TokenCount> counts;
  for (int i = 0; i < 1000; ++i) counts.push_back({i * 40, i % 3});
  SampleRow penalties = {.temperature = 0.7f,
                         .top_p = 0.9f,
                         .repetition_penalty = 1.1f,
                         .presence_penalty = 0.1f,
                         .frequency_penalty = 0.1f,
                         .counts = counts};
  const std::vector<specdec::Workload> workloads = {
      {"greedy", {.temperature = 0.0f}},
      {"temperature_1", {}},
      {"temperature_0.7_top_k_50_top_p_0.9", {.temperature = 0.7f, .top_k = 50, .top_p = 0.9f}},
      {"temperature_1_top_p_0.95", {.top_p = 0.95f}},
      {"penalties_temperature_0.7_top_p_0.9", penalties},
      {"greedy_logprobs_5", {.temperature = 0.0f, .num_logprobs = 5, .want_logprobs = true}},
      {"temperature_1_logprobs_5", {.num_logprobs = 5, .want_logprobs = true}},
  };
  for (const auto& workload : workloads) {
    for (const int vocab_size : {49152, 151936}) {
      for (const int num_rows : {1, 8, 64}) {
        const std::string name = workload.name + "/vocab:" + std::to_string(vocab_size) +
                                 "/rows:" + std::to_string(num_rows);
        benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) {
          specdec::sample(state, workload, vocab_size, num_rows);
        })->UseManualTime();
      }
    }
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
