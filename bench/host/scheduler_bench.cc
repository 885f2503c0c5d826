// Host-side bookkeeping: what one step costs before and after the device has its turn.
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "common/options.h"
#include "common/report.h"
#include "common/timing.h"
#include "kv/block_pool.h"
#include "kv/prefix_cache.h"
#include "runtime/batch_inputs.h"
#include "sched/scheduler.h"

namespace specdec::bench {
namespace {

constexpr int kBlockSize = 16;
constexpr int kNumBlocks = 65536;
constexpr int kOutputTokens = 512;

std::vector<int32_t> prompt_of(int num_tokens, int32_t first) {
  std::vector<int32_t> prompt(num_tokens);
  std::iota(prompt.begin(), prompt.end(), first);
  return prompt;
}

double typical(const Options& options, const std::function<void()>& body) {
  return seconds_per_call(options.samples(21), options.batch_seconds(), body);
}

double block_pool_seconds(const Options& options) {
  BlockPool pool(kNumBlocks);
  return typical(options, [&] { keep(pool.allocate()); });
}

// The cached prompt is found and held, then let go.
double match_seconds(const Options& options, int num_tokens) {
  BlockPool pool(kNumBlocks);
  PrefixCache cache(pool, kBlockSize);
  const std::vector<int32_t> prompt = prompt_of(num_tokens, 0);
  BlockTable table(kBlockSize);
  table.reserve(pool, num_tokens);
  cache.insert(prompt, table);
  return typical(options, [&] { keep(cache.match(prompt, num_tokens)); });
}

// A sequence of blocks none of which is cached yet; the cache is full of older ones, so that every
// block it takes evicts another.
double insert_seconds(const Options& options, int num_tokens) {
  BlockPool pool(4 * num_tokens / kBlockSize);
  PrefixCache cache(pool, kBlockSize);
  int32_t first = 0;
  return typical(options, [&] {
    const std::vector<int32_t> tokens = prompt_of(num_tokens, first++);
    BlockTable table(kBlockSize);
    table.reserve(pool, num_tokens);
    cache.insert(tokens, table);
  });
}

// Sequences that decode, blocks filling up and entering the prefix cache. One that reaches its end
// is replaced.
class Decoding {
 public:
  Decoding(int num_sequences, int num_prompt_tokens)
      : num_prompt_tokens_(num_prompt_tokens),
        pool_(kNumBlocks),
        scheduler_({.max_num_seqs = num_sequences,
                    .max_num_batched_tokens = num_sequences * (num_prompt_tokens + 1),
                    .block_size = kBlockSize},
                   pool_),
        sequences_(num_sequences) {
    params_.max_tokens = kOutputTokens;
    for (auto& sequence : sequences_) add(sequence);
  }
  ~Decoding() {
    for (auto& sequence : sequences_) {
      if (!sequence->is_finished()) scheduler_.finish(*sequence, FinishReason::kAbort);
    }
  }

  // plan(), the batch's inputs, and advance(). Returns the rows of the step.
  int step() {
    const ExecutionPlan plan = scheduler_.plan();
    inputs_.clear();
    for (const ScheduledSequence& scheduled : plan.sequences) {
      const Sequence& sequence = *scheduled.sequence;
      const int base_len = sequence.num_computed_tokens;
      inputs_.add_chain(sequence.tokens().subspan(base_len, scheduled.num_rows), base_len,
                        sequence.blocks);
    }
    keep(inputs_.view());
    result_.tokens.assign(plan.sequences.size(), {7});
    const std::vector<SequenceUpdate> updates = scheduler_.advance(plan, result_);
    if (updates.front().finished) {
      for (auto& sequence : sequences_) {
        if (sequence->is_finished()) add(sequence);
      }
    }
    return plan.num_rows;
  }

 private:
  void add(std::unique_ptr<Sequence>& sequence) {
    sequence = std::make_unique<Sequence>(
        ordinal_, prompt_of(num_prompt_tokens_, static_cast<int32_t>(1000 * (ordinal_ % 4096))),
        params_, kBlockSize, num_prompt_tokens_ + kOutputTokens);
    ++ordinal_;
    scheduler_.add(*sequence);
  }

  int num_prompt_tokens_;
  BlockPool pool_;
  Scheduler scheduler_;
  SamplingParams params_;
  std::vector<std::unique_ptr<Sequence>> sequences_;
  BatchInputs inputs_;
  StepResult result_;
  uint64_t ordinal_ = 0;
};

Record decode_record(int num_sequences, int num_prompt_tokens, const Options& options) {
  Decoding decoding(num_sequences, num_prompt_tokens);
  decoding.step();  // the prompts
  int64_t num_rows = 0;
  int64_t num_steps = 0;
  const double seconds = typical(options, [&] {
    num_rows += decoding.step();
    ++num_steps;
  });
  return {.kernel = "scheduler: decode step",
          .shape = "context " + std::to_string(num_prompt_tokens),
          .rows = num_sequences,
          .seconds = seconds,
          .counters = {
              {"rows_per_step", static_cast<double>(num_rows) / static_cast<double>(num_steps)}}};
}

int run(const Options& options) {
  Report report("scheduler_bench", options);
  const auto add = [&](const std::string& kernel, const std::string& shape, auto&& time) {
    if (options.selects(kernel)) {
      report.add({.kernel = kernel, .shape = shape, .seconds = time()});
    }
  };
  add("block_pool", "allocate, release", [&] { return block_pool_seconds(options); });
  for (int tokens : {512, 8192}) {
    const std::string shape = std::to_string(tokens) + " tokens";
    add("prefix_cache: match", shape, [&] { return match_seconds(options, tokens); });
    add("prefix_cache: insert, evict", shape, [&] { return insert_seconds(options, tokens); });
  }
  if (options.selects("scheduler")) {
    report.add(decode_record(1, 512, options));
    report.add(decode_record(8, 512, options));
    report.add(decode_record(64, 512, options));
    report.add(decode_record(64, 4096, options));
  }
  return report.finish();
}

}  // namespace
}  // namespace specdec::bench

int main(int argc, char** argv) {
  return specdec::bench::run(specdec::bench::parse_options(argc, argv));
}
