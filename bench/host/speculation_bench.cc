// The cost per step of drafting without a model, and of a tree beside its forward pass. Both must
// stay far below the time of the pass and must not grow with the context.
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "common/options.h"
#include "common/report.h"
#include "common/timing.h"
#include "kv/block_pool.h"
#include "kv/block_table.h"
#include "runtime/batch_inputs.h"
#include "speculation/draft_tree.h"
#include "speculation/ngram_drafter.h"
#include "speculation/suffix_drafter.h"
#include "speculation/verification.h"

namespace specdec::bench {
namespace {

constexpr int kStepTokens = 2;  // appended between steps
constexpr int kSteps = 500;     // of a sequence
constexpr int kVocabSize = 1 << 16;

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

// One request that drafts after every two tokens.
Record drafter_record(const std::string& kernel, Drafter& drafter, int context, int tree_width,
                      const Options& options) {
  const int num_steps = options.smoke ? 5 : kSteps;
  const std::vector<int32_t> text = text_of(context + kStepTokens * num_steps, 1);
  DraftTree tree;
  uint64_t sequence = 0;
  const auto draft = [&](int num_tokens) {
    tree.reset(text[num_tokens - 1]);
    DraftRequest request;
    request.sequence = sequence;
    request.tokens = {text.data(), static_cast<size_t>(num_tokens)};
    request.max_depth = 8;
    request.max_nodes = request.draft_budget = 8 * tree_width;
    request.tree_width = tree_width;
    request.tree = &tree;
    drafter.draft({&request, 1});
  };
  std::vector<double> seconds;
  int64_t num_drafts = 0;
  for (int i = 0; i < options.samples(9); ++i) {
    if (i > 0) drafter.finish({sequence++, {}, 0});
    draft(context);  // reads the whole context
    const Stopwatch watch;
    for (int step = 1; step <= num_steps; ++step) {
      draft(context + kStepTokens * step);
      num_drafts += tree.num_drafts();
    }
    seconds.push_back(watch.seconds() / num_steps);
  }
  drafter.finish({sequence, {}, 0});
  return {.kernel = kernel,
          .shape = "context " + std::to_string(context) + ", width " + std::to_string(tree_width),
          .seconds = median(seconds),
          .counters = {{"drafts", static_cast<double>(num_drafts) / num_steps /
                                      static_cast<double>(seconds.size())},
                       {"memory_mb", static_cast<double>(drafter.memory_bytes()) * 1e-6}}};
}

void bench_drafters(const Options& options, Report& report) {
  const int num_shared = options.smoke ? 10 : 1000;
  for (int tree_width : {1, 4}) {
    for (int context : options.smoke ? std::vector{512} : std::vector{512, 8192, 65536}) {
      if (options.selects("n-gram")) {
        NgramDrafter drafter(DrafterConfig{}, 0);
        report.add(drafter_record("n-gram: draft", drafter, context, tree_width, options));
      }
      if (options.selects("suffix")) {
        SuffixDrafter drafter(DrafterConfig{}, 0, kVocabSize);
        report.add(drafter_record("suffix: draft", drafter, context, tree_width, options));
        for (int i = 0; i < num_shared; ++i) {
          drafter.finish({1'000'000 + static_cast<uint64_t>(i),
                          text_of(500, static_cast<unsigned>(i + 1)), 0});
        }
        report.add(
            drafter_record("suffix: draft, shared tree", drafter, context, tree_width, options));
      }
    }
  }
}

// A finished output of 500 tokens is shared and the oldest evicted.
void bench_sharing(const Options& options, Report& report) {
  if (!options.selects("suffix")) return;
  const size_t num_shared = options.smoke ? 10 : 1000;
  DrafterConfig config;
  config.suffix_max_cached_requests = static_cast<int>(num_shared);
  SuffixDrafter drafter(config, 0, kVocabSize);
  std::vector<std::vector<int32_t>> outputs;
  for (unsigned i = 0; i < num_shared; ++i) outputs.push_back(text_of(500, i));
  uint64_t sequence = 0;
  for (const auto& output : outputs) drafter.finish({sequence++, output, 0});
  const double seconds = seconds_per_call(options.samples(9), options.batch_seconds(), [&] {
    drafter.finish({sequence, outputs[sequence % outputs.size()], 0});
    ++sequence;
  });
  const double num_tokens = 500.0 * static_cast<double>(num_shared);
  report.add({.kernel = "suffix: share, evict",
              .shape = "500 tokens",
              .seconds = seconds,
              .counters = {
                  {"ns_per_token", seconds * 1e9 / 500},
                  {"bytes_per_token", static_cast<double>(drafter.memory_bytes()) / num_tokens}}});
}

void bench_tree(const Options& options, Report& report) {
  const auto time = [&](const std::string& kernel, int num_drafts,
                        const std::function<void()>& body) {
    if (!options.selects(kernel)) return;
    report.add({.kernel = kernel,
                .shape = std::to_string(num_drafts) + " drafts",
                .rows = num_drafts + 1,
                .seconds = seconds_per_call(options.samples(21), options.batch_seconds(), body)});
  };
  BlockPool pool(64);
  BlockTable blocks(16);
  blocks.reserve(pool, 1024);
  for (int num_drafts : {8, 32, 63}) {
    DraftTree tree;
    const auto build = [&] {
      tree.reset(0);
      for (int i = 0; i < num_drafts; ++i) {
        tree.add(i / 2, i, 1.0f / static_cast<float>(i + 1), 0);
      }
    };
    time("tree: build", num_drafts, build);
    time("tree: build, truncate to half", num_drafts, [&] {
      build();
      tree.truncate(num_drafts / 2);
    });
    build();
    BatchInputs inputs;
    time("tree: batch and masks", num_drafts, [&] {
      inputs.clear();
      inputs.add_tree(tree.tokens(), tree.parents(), 512, blocks);
      keep(inputs.view());
    });
    std::vector<int32_t> sampled(tree.num_nodes());
    for (int i = 0; i <= num_drafts; ++i) sampled[i] = 2 * i;  // the first child, down to a leaf
    time("tree: verify", num_drafts, [&] { keep(accept_exact(tree, sampled)); });
  }
}

int run(const Options& options) {
  Report report("speculation_bench", options);
  bench_drafters(options, report);
  bench_sharing(options, report);
  bench_tree(options, report);
  return report.finish();
}

}  // namespace
}  // namespace specdec::bench

int main(int argc, char** argv) {
  return specdec::bench::run(specdec::bench::parse_options(argc, argv));
}
