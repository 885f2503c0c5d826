// Host-side bookkeeping: what one step costs before and after the device has its turn.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "kv/block_pool.h"
#include "kv/prefix_cache.h"
#include "sched/scheduler.h"

namespace specdec {
namespace {

constexpr int kBlockSize = 16;
constexpr int kNumBlocks = 65536;

std::vector<int32_t> prompt_of(int num_tokens, int32_t first) {
  std::vector<int32_t> prompt(num_tokens);
  std::iota(prompt.begin(), prompt.end(), first);
  return prompt;
}

void BM_BlockPoolAllocateAndRelease(benchmark::State& state) {
  BlockPool pool(kNumBlocks);
  for (auto _ : state) benchmark::DoNotOptimize(pool.allocate());
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(BM_BlockPoolAllocateAndRelease);

// The cached prompt is found and held, then let go. Argument: tokens.
void BM_PrefixCacheMatch(benchmark::State& state) {
  const int num_tokens = static_cast<int>(state.range(0));
  BlockPool pool(kNumBlocks);
  PrefixCache cache(pool, kBlockSize);
  const std::vector<int32_t> prompt = prompt_of(num_tokens, 0);
  BlockTable table(kBlockSize);
  table.reserve(pool, num_tokens);
  cache.insert(prompt, table);
  for (auto _ : state) benchmark::DoNotOptimize(cache.match(prompt, num_tokens));
  state.SetItemsProcessed(state.iterations() * num_tokens);
}
BENCHMARK(BM_PrefixCacheMatch)->Arg(512)->Arg(8192);

// A sequence of blocks none of which is cached yet; the cache is full of older ones, so that every
// block it takes evicts another. Argument: tokens.
void BM_PrefixCacheInsertWithEviction(benchmark::State& state) {
  const int num_tokens = static_cast<int>(state.range(0));
  BlockPool pool(4 * num_tokens / kBlockSize);
  PrefixCache cache(pool, kBlockSize);
  int32_t first = 0;
  for (auto _ : state) {
    const std::vector<int32_t> tokens = prompt_of(num_tokens, first++);
    BlockTable table(kBlockSize);
    table.reserve(pool, num_tokens);
    cache.insert(tokens, table);
  }
  state.SetItemsProcessed(state.iterations() * num_tokens);
}
BENCHMARK(BM_PrefixCacheInsertWithEviction)->Arg(512)->Arg(8192);

// plan() and advance() with every sequence decoding, blocks filling up and entering the prefix
// cache. Sequences that reach their end are replaced. Arguments: sequences, tokens of a prompt.
void BM_SchedulerDecodeStep(benchmark::State& state) {
  const int num_sequences = static_cast<int>(state.range(0));
  const int num_prompt_tokens = static_cast<int>(state.range(1));
  SamplingParams params;
  params.max_tokens = 512;
  BlockPool pool(kNumBlocks);
  Scheduler scheduler({.max_num_seqs = num_sequences,
                       .max_num_batched_tokens = num_sequences * (num_prompt_tokens + 1),
                       .block_size = kBlockSize},
                      pool);
  std::vector<std::unique_ptr<Sequence>> sequences;
  uint64_t ordinal = 0;
  const auto add = [&](std::unique_ptr<Sequence>& sequence) {
    sequence =
        std::make_unique<Sequence>(ordinal, prompt_of(num_prompt_tokens, 1000 * (ordinal % 4096)),
                                   params, kBlockSize, num_prompt_tokens + 512);
    ++ordinal;
    scheduler.add(*sequence);
  };
  sequences.resize(num_sequences);
  for (auto& sequence : sequences) add(sequence);

  StepResult result;
  int64_t num_rows = 0;
  for (auto _ : state) {
    ExecutionPlan plan = scheduler.plan();
    result.tokens.assign(plan.sequences.size(), {7});
    num_rows += plan.num_rows;
    const std::vector<SequenceUpdate> updates = scheduler.advance(plan, result);
    if (!updates.front().finished) continue;
    for (auto& sequence : sequences) {
      if (sequence->is_finished()) add(sequence);
    }
  }
  state.counters["rows_per_step"] =
      static_cast<double>(num_rows) / static_cast<double>(state.iterations());
  for (auto& sequence : sequences) {
    if (!sequence->is_finished()) scheduler.finish(*sequence, FinishReason::kAbort);
  }
}
BENCHMARK(BM_SchedulerDecodeStep)->Args({1, 512})->Args({64, 512})->Args({64, 4096});

}  // namespace
}  // namespace specdec

BENCHMARK_MAIN();
