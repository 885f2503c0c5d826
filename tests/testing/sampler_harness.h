// Runs the CPU sampler of one instruction set over rows of logits.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "core/thread_pool.h"
#include "cpu/isa.h"
#include "cpu/kernel_table.h"
#include "cpu/sampler.h"

namespace specdec::testing {

// Rows of logits, sampled wherever run() does it.
class RowSampler {
 public:
  virtual ~RowSampler() = default;

  // Logits are in host memory; sampling may overwrite them.
  virtual void run(const SampleArgs& args) = 0;

  // `logits` [rows.size(), vocab_size]
  std::vector<SampleResult> sample(std::vector<float> logits, std::span<const SampleRow> rows,
                                   LogprobsMode mode = LogprobsMode::kRaw) {
    std::vector<SampleResult> results(rows.size());
    run({.logits = logits.data(),
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
};

class SamplerHarness final : public RowSampler {
 public:
  explicit SamplerHarness(cpu::Isa isa = cpu::best_isa(), int num_threads = 1)
      : kernels_(cpu::kernel_table(isa).sampling), pool_(num_threads), sampler_(kernels_, pool_) {}

  const cpu::SamplingKernels& kernels() const { return kernels_; }

  void run(const SampleArgs& args) override { sampler_.sample(args); }

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
      run({.logits = batch.data(),
           .rows = rows,
           .vocab_size = static_cast<int>(logits.size()),
           .results = results});
      for (const SampleResult& result : results) ++counts[result.token_id];
    }
    return counts;
  }

 private:
  cpu::SamplingKernels kernels_;
  ThreadPool pool_;
  cpu::Sampler sampler_;
};

}  // namespace specdec::testing
