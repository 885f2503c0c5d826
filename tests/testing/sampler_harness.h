// Runs the CPU sampler of one instruction set over rows of logits.
#pragma once

#include <algorithm>
#include <random>
#include <span>
#include <vector>

#include "core/thread_pool.h"
#include "cpu/isa.h"
#include "cpu/kernel_table.h"
#include "cpu/sampler.h"

namespace specdec::testing {

inline std::vector<cpu::Isa> supported_isas() {
  std::vector<cpu::Isa> result;
  for (const cpu::Isa isa : cpu::compiled_isas()) {
    if (cpu::is_supported(isa)) result.push_back(isa);
  }
  return result;
}

class SamplerHarness {
 public:
  explicit SamplerHarness(cpu::Isa isa = cpu::best_isa(), int num_threads = 1)
      : kernels_(cpu::kernel_table(isa).sampling), pool_(num_threads), sampler_(kernels_, pool_) {}

  const cpu::SamplingKernels& kernels() const { return kernels_; }

  // `logits` [rows.size(), vocab_size]; taken by value because sampling overwrites them.
  std::vector<SampleResult> sample(std::vector<float> logits, std::span<const SampleRow> rows,
                                   LogprobsMode mode = LogprobsMode::kRaw) {
    std::vector<SampleResult> results(rows.size());
    sampler_.sample({.logits = logits.data(),
                     .rows = rows,
                     .vocab_size = static_cast<int>(logits.size() / rows.size()),
                     .logprobs_mode = mode,
                     .results = results});
    return results;
  }

  SampleResult sample_one(const std::vector<float>& logits, const SampleRow& row,
                          LogprobsMode mode = LogprobsMode::kRaw) {
    return sample(logits, std::span(&row, 1), mode).front();
  }

  // How often each token is drawn from `logits` at positions 0, 1, ... with params' seed.
  std::vector<int64_t> draw_counts(const std::vector<float>& logits, SampleRow params,
                                   int num_draws) {
    constexpr int kBatch = 500;
    std::vector<int64_t> counts(logits.size());
    std::vector<SampleRow> rows(kBatch, params);
    std::vector<SampleResult> results(kBatch);
    std::vector<float> batch(kBatch * logits.size());
    for (int first = 0; first < num_draws; first += kBatch) {
      for (int i = 0; i < kBatch; ++i) {
        rows[i].position = first + i;
        std::copy(logits.begin(), logits.end(), batch.begin() + i * logits.size());
      }
      sampler_.sample({.logits = batch.data(),
                       .rows = rows,
                       .vocab_size = static_cast<int>(logits.size()),
                       .results = results});
      for (const SampleResult& result : results) ++counts[result.token_id];
    }
    return counts;
  }

  void sample_in_place(const SampleArgs& args) { sampler_.sample(args); }

 private:
  cpu::SamplingKernels kernels_;
  ThreadPool pool_;
  cpu::Sampler sampler_;
};

inline std::vector<float> normal_logits(int vocab_size, float scale, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> logits(vocab_size);
  for (float& x : logits) x = normal(random);
  return logits;
}

}  // namespace specdec::testing
