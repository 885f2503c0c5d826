// What drafting without a model costs a step: it must stay far below a forward pass and must not
// grow with the context.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <random>
#include <vector>

#include "spec/draft_tree.h"
#include "spec/ngram_drafter.h"
#include "spec/suffix_drafter.h"

namespace specdec {
namespace {

constexpr int kStepTokens = 2;  // appended between steps

// Text with a skewed vocabulary in which passages of 20 tokens come back.
std::vector<int32_t> text_of(int num_tokens, unsigned seed) {
  std::mt19937 random(seed);
  std::geometric_distribution<int32_t> rank(0.02);
  std::vector<int32_t> text;
  while (static_cast<int>(text.size()) < num_tokens) {
    const int size = static_cast<int>(text.size());
    if (size > 100 && random() % 4 == 0) {
      const int from = static_cast<int>(random() % (size - 20));
      for (int i = 0; i < 20; ++i) text.push_back(text[from + i]);
    } else {
      for (int i = 0; i < 20; ++i) text.push_back(rank(random));
    }
  }
  text.resize(num_tokens);
  return text;
}

// One request drafts after every two tokens. Arguments: tokens of the context, tree width.
void run_steps(benchmark::State& state, Drafter& drafter) {
  const int context = static_cast<int>(state.range(0));
  const int tree_width = static_cast<int>(state.range(1));
  constexpr int kSteps = 500;
  const std::vector<int32_t> text = text_of(context + kStepTokens * kSteps, 1);
  DraftTree tree;
  uint64_t sequence = 0;
  int step = kSteps;
  const auto draft = [&](int num_tokens) {
    tree.reset(text[num_tokens - 1]);
    DraftRequest request;
    request.sequence = sequence;
    request.tokens = {text.data(), static_cast<size_t>(num_tokens)};
    request.max_depth = 8;
    request.max_nodes = 8 * tree_width;
    request.tree_width = tree_width;
    request.tree = &tree;
    drafter.draft({&request, 1});
  };
  int64_t num_drafts = 0;
  for (auto _ : state) {
    if (step == kSteps) {
      state.PauseTiming();
      drafter.finish(sequence++, {}, 0);
      draft(context);
      step = 0;
      state.ResumeTiming();
    }
    draft(context + kStepTokens * ++step);
    num_drafts += tree.num_drafts();
  }
  state.counters["drafts"] =
      benchmark::Counter(static_cast<double>(num_drafts), benchmark::Counter::kAvgIterations);
  state.counters["memory"] = static_cast<double>(drafter.memory_bytes());
}

void BM_NgramStep(benchmark::State& state) {
  NgramDrafter drafter(DrafterConfig{}, 0);
  run_steps(state, drafter);
}
BENCHMARK(BM_NgramStep)->ArgsProduct({{512, 8192, 65536}, {1, 4}});

void BM_SuffixStep(benchmark::State& state) {
  SuffixDrafter drafter(DrafterConfig{}, 0);
  run_steps(state, drafter);
}
BENCHMARK(BM_SuffixStep)->ArgsProduct({{512, 8192, 65536}, {1, 4}});

// The same beside the outputs of 1000 finished requests.
void BM_SuffixStepWithSharedTree(benchmark::State& state) {
  SuffixDrafter drafter(DrafterConfig{}, 0);
  for (unsigned i = 0; i < 1000; ++i) drafter.finish(1000000 + i, text_of(500, i + 1), 0);
  run_steps(state, drafter);
}
BENCHMARK(BM_SuffixStepWithSharedTree)->ArgsProduct({{512, 8192}, {1, 4}});

// A finished output of 500 tokens is shared and the oldest evicted.
void BM_SuffixShareAndEvict(benchmark::State& state) {
  DrafterConfig config;
  config.suffix_max_cached_requests = 1000;
  SuffixDrafter drafter(config, 0);
  std::vector<std::vector<int32_t>> outputs;
  for (unsigned i = 0; i < 1000; ++i) outputs.push_back(text_of(500, i));
  uint64_t sequence = 0;
  for (const auto& output : outputs) drafter.finish(sequence++, output, 0);
  for (auto _ : state) {
    drafter.finish(sequence, outputs[sequence % outputs.size()], 0);
    ++sequence;
  }
  state.SetItemsProcessed(state.iterations() * 500);
  state.counters["bytes/token"] = static_cast<double>(drafter.memory_bytes()) / (1000 * 500);
}
BENCHMARK(BM_SuffixShareAndEvict);

// Building a tree of 32 drafts and cutting it to half.
void BM_DraftTreeBuildAndTruncate(benchmark::State& state) {
  DraftTree tree;
  for (auto _ : state) {
    tree.reset(0);
    for (int i = 0; i < 32; ++i) tree.add(i / 2, i, 1.0f / static_cast<float>(i + 1), 0);
    tree.truncate(16);
    benchmark::DoNotOptimize(tree.num_drafts());
  }
}
BENCHMARK(BM_DraftTreeBuildAndTruncate);

}  // namespace
}  // namespace specdec

BENCHMARK_MAIN();
