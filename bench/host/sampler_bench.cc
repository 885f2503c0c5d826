// The sampler by settings, vocabulary and rows. `reads` is how many reads of the rows' logits a
// call equals, a read being what the same threads take for as many bytes, measured in turns: one is
// the least a sampler can do that looks at every logit.
#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "common/bandwidth.h"
#include "common/options.h"
#include "common/report.h"
#include "common/timing.h"
#include "core/thread_pool.h"

namespace specdec::bench {
namespace {

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

struct Settings {
  std::string name;
  SampleRow row;
};

std::vector<Settings> all_settings() {
  static const std::vector<TokenCount> kCounts = [] {
    std::vector<TokenCount> counts;
    for (int i = 0; i < 1000; ++i) counts.push_back({i * 40, i % 3});
    return counts;
  }();
  return {
      {"greedy", {.temperature = 0.0f}},
      {"temperature 1", {}},
      {"temperature 0.7, top k 50, top p 0.9", {.temperature = 0.7f, .top_k = 50, .top_p = 0.9f}},
      {"top p 0.95", {.top_p = 0.95f}},
      {"penalties, 0.7, top p 0.9",
       {.temperature = 0.7f,
        .top_p = 0.9f,
        .repetition_penalty = 1.1f,
        .presence_penalty = 0.1f,
        .frequency_penalty = 0.1f,
        .counts = kCounts}},
      {"greedy, 5 logprobs", {.temperature = 0.0f, .num_logprobs = 5, .want_logprobs = true}},
      {"temperature 1, 5 logprobs", {.num_logprobs = 5, .want_logprobs = true}},
  };
}

void bench_sampler(const Settings& settings, int vocab_size, int num_rows, Backend& backend,
                   const Options& options, Report& report) {
  ThreadPool pool(options.num_threads);
  const std::vector<float> logits = model_like_logits(num_rows, vocab_size);
  std::vector<float> work(logits.size());
  std::vector<SampleRow> rows(num_rows, settings.row);
  std::vector<SampleResult> results(num_rows);
  ReadBandwidth probe(logits.size() * sizeof(float), pool);
  std::vector<double> seconds, read_rates;
  int64_t position = 0;
  for (int i = 0; i < options.samples(101); ++i) {
    // The logits are overwritten; a head's output is as warm in the caches as this copy.
    std::copy(logits.begin(), logits.end(), work.begin());
    for (SampleRow& row : rows) row.position = ++position;
    backend.begin_step();
    const Stopwatch watch;
    backend.sample(
        {.logits = work.data(), .rows = rows, .vocab_size = vocab_size, .results = results});
    seconds.push_back(watch.seconds());
    backend.end_step();
    read_rates.push_back(static_cast<double>(probe.size_bytes()) / probe.read_seconds());
  }
  const double bytes = static_cast<double>(logits.size() * sizeof(float));
  const double typical = median(seconds);
  report.add({.kernel = "sample: " + settings.name,
              .shape = "vocabulary " + std::to_string(vocab_size),
              .rows = num_rows,
              .threads = options.num_threads,
              .seconds = typical,
              .bytes = bytes,
              .read_rate = median(read_rates),
              .counters = {{"us_per_row", typical * 1e6 / num_rows},
                           {"reads", typical * median(read_rates) / bytes}}});
}

int run(const Options& options) {
  Report report("sampler_bench", options);
  const auto backend = make_cpu_backend(options);
  for (const Settings& settings : all_settings()) {
    if (!options.selects(settings.name)) continue;
    for (int vocab_size : options.smoke ? std::vector{49152} : std::vector{49152, 151936}) {
      for (int num_rows : options.smoke ? std::vector{1} : std::vector{1, 8, 64}) {
        bench_sampler(settings, vocab_size, num_rows, *backend, options, report);
      }
    }
  }
  return report.finish();
}

}  // namespace
}  // namespace specdec::bench

int main(int argc, char** argv) {
  return specdec::bench::run(specdec::bench::parse_options(argc, argv));
}
