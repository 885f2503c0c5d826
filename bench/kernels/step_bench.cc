// One step of a real model at a context: the cost of one row and of verifying several rows, how
// near both are to the memory floor, and where the time goes.
//
//   step_bench --model=DIR [--rows=1,2,4,8,16] [--context=512] [--dtype=bfloat16]
//              [--quantization=auto|none|int8|int4] [--threads=N] [--repeats=40] [--json=FILE]
//              [--load_format=auto|dummy]
//
// Each round runs a step of every size and reads a buffer of the weights' and the cache's size:
// `of_read` is the speed at which a step consumed those bytes over the speed of that read, and
// `over_1` the time over that of one row; both are medians over rounds. Experts that no row chose
// are not consumed; `experts` is of_read of the experts' operations alone.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "common/bandwidth.h"
#include "common/options.h"
#include "common/timed_backend.h"
#include "common/timing.h"
#include "core/thread_pool.h"
#include "kv/block_pool.h"
#include "kv/block_table.h"
#include "runtime/model_runner.h"

namespace specdec::bench {
namespace {

constexpr int kBlockSize = 16;
constexpr int kChunk = 512;       // rows of a step that fills the cache
constexpr int kMaxVerified = 64;  // more rows are a prompt chunk: only the last one is sampled

struct StepOptions {
  Options shared;
  std::string model;
  int context = 512;
  int repeats = 40;
  Quantization quantization = Quantization::kAuto;
  LoadFormat load_format = LoadFormat::kAuto;
};

StepOptions parse(int argc, char** argv) {
  StepOptions options;
  options.shared = parse_options(argc, argv, {"cpu"},
                                 {{"--model", &options.model, 1, /*is_needed=*/true},
                                  {"--context", &options.context},
                                  {"--repeats", &options.repeats},
                                  {"--quantization", &options.quantization},
                                  {"--load_format", &options.load_format}});
  if (options.shared.rows.empty()) options.shared.rows = {1, 2, 4, 8, 16};
  return options;
}

// A model with one sequence of `context` tokens in its cache.
class Workload {
 public:
  explicit Workload(const StepOptions& options)
      : backend_(make_cpu_backend(options.shared)),
        timed_(*backend_),
        context_(options.context),
        num_blocks_((options.context + std::ranges::max(options.shared.rows) + kBlockSize - 1) /
                    kBlockSize),
        pool_(num_blocks_),
        blocks_(kBlockSize) {
    ModelConfig config = load_model_config(options.model);
    config.random_weights = options.load_format == LoadFormat::kDummy;
    const int max_len = num_blocks_ * kBlockSize;
    runner_ = std::make_unique<ModelRunner>(
        config, options.model, timed_,
        RunnerLimits{.max_model_len = max_len,
                     .max_rows = std::max(kChunk, std::ranges::max(options.shared.rows)),
                     .max_logit_rows = kMaxVerified},
        options.quantization);
    const KvFormat format = {.block_size = kBlockSize, .dtype = options.shared.dtype};
    runner_->allocate_cache(num_blocks_, format);
    kv_bytes_ = runner_->cache_block_bytes(format) * context_ / kBlockSize;
    has_states_ = config.has_states();
    if (has_states_) {
      runner_->allocate_states(/*num_slots=*/1, /*num_records=*/2 * kMaxVerified);
      state_bytes_ = 2 * StateCache::slot_bytes(runner_->state_shapes());
    }
    blocks_.reserve(pool_, max_len);
    vocab_size_ = config.vocab_size;
    for (int begin = 0; begin < context_; begin += kChunk) {
      run(std::min(kChunk, context_ - begin), begin);
    }
  }

  double step_seconds(int rows) { return run(rows, context_); }
  std::map<std::string, double> take_seconds() { return timed_.take_seconds(); }
  TimedBackend::ExpertBytes take_expert_bytes() { return timed_.take_expert_bytes(); }
  int64_t weight_bytes() const { return runner_->model().weight_bytes(); }
  int64_t bytes() const { return weight_bytes() + kv_bytes_ + state_bytes_; }
  int num_threads() const { return backend_->num_threads(); }

 private:
  // Rows of a prompt, or one row and its drafts, half as many of which the step before accepted.
  StateAccess state_access(int rows, int base_len) const {
    StateAccess access;
    access.slot_in = base_len == 0 ? -1 : 0;
    if (rows > kMaxVerified || base_len < context_) {
      access.stores = {{rows, 0}};
      return access;
    }
    for (int i = 0; i < (rows - 1) / 2; ++i) access.pending.push_back(kMaxVerified + i);
    access.stores = {{static_cast<int32_t>(access.pending.size()) + 1, 0}};
    return access;
  }

  // Forward of `rows` tokens from `base_len` on and greedy sampling.
  double run(int rows, int base_len) {
    const int num_sampled = rows > kMaxVerified ? 1 : rows;
    std::vector<int32_t> tokens(rows), row_ids(num_sampled);
    for (int i = 0; i < rows; ++i) tokens[i] = (31 * (base_len + i) + 7) % vocab_size_;
    std::iota(row_ids.begin(), row_ids.end(), rows - num_sampled);
    std::vector<SampleRow> params(num_sampled);
    for (SampleRow& row : params) row.temperature = 0.0f;
    std::vector<SampleResult> results(num_sampled);
    BatchInputs inputs;
    const StateAccess states = state_access(rows, base_len);
    inputs.add_chain(tokens, base_len, blocks_, /*keeps_state=*/false,
                     has_states_ ? &states : nullptr);
    timed_.begin_step();
    const Stopwatch watch;
    runner_->forward(inputs);
    runner_->sample(row_ids, params, LogprobsMode::kRaw, results);
    const double seconds = watch.seconds();
    timed_.end_step();
    return seconds;
  }

  std::unique_ptr<Backend> backend_;
  TimedBackend timed_;
  int context_;
  int num_blocks_;
  BlockPool pool_;
  BlockTable blocks_;
  std::unique_ptr<ModelRunner> runner_;
  int64_t kv_bytes_ = 0;
  bool has_states_ = false;  // of recurrent layers
  int64_t state_bytes_ = 0;  // read and written by a step
  int vocab_size_ = 0;
};

struct Size {
  int rows = 0;
  std::vector<double> seconds;
  std::vector<double> over_one;
  std::vector<double> of_read;
  std::vector<double> experts;  // empty without
  std::map<std::string, std::vector<double>> shares;
};

std::vector<Size> measure(Workload& workload, const StepOptions& options) {
  ThreadPool probe_pool(workload.num_threads());
  ReadBandwidth probe(static_cast<size_t>(workload.bytes()), probe_pool);
  std::vector<Size> sizes;
  for (int rows : options.shared.rows) sizes.emplace_back().rows = rows;
  for (int round = -2; round < options.repeats; ++round) {  // two to warm up
    const double one = workload.step_seconds(1);
    const double byte_seconds = probe.read_seconds() / static_cast<double>(probe.size_bytes());
    workload.take_seconds();
    workload.take_expert_bytes();
    for (Size& size : sizes) {
      const double seconds = workload.step_seconds(size.rows);
      const auto parts = workload.take_seconds();
      const auto experts = workload.take_expert_bytes();
      if (round < 0) continue;
      const double read =
          byte_seconds * (static_cast<double>(workload.bytes()) - experts.all + experts.chosen);
      if (experts.all > 0) size.experts.push_back(byte_seconds * experts.chosen / parts.at("moe"));
      size.seconds.push_back(seconds);
      size.over_one.push_back(seconds / one);
      size.of_read.push_back(read / seconds);
      for (const auto& [name, part] : parts) size.shares[name].push_back(part / seconds);
    }
  }
  return sizes;
}

void report(const Workload& workload, const std::vector<Size>& sizes, const StepOptions& options) {
  std::printf("%s, context %d, %d threads, weights %.1f MB, with cache %.1f MB\n",
              options.model.c_str(), options.context, workload.num_threads(),
              static_cast<double>(workload.weight_bytes()) / 1e6,
              static_cast<double>(workload.bytes()) / 1e6);
  std::printf("%5s %9s %7s %8s   share of the step\n", "rows", "ms", "over_1", "of_read");
  nlohmann::json records = nlohmann::json::array();
  for (const Size& size : sizes) {
    std::printf("%5d %9.3f %7.3f %8.3f  ", size.rows, 1e3 * median(size.seconds),
                median(size.over_one), median(size.of_read));
    if (!size.experts.empty()) std::printf(" experts %.3f;", median(size.experts));
    nlohmann::json shares;
    for (const auto& [name, values] : size.shares) {
      std::printf(" %s %.1f%%", name.c_str(), 100 * median(values));
      shares[name] = median(values);
    }
    std::printf("\n");
    records.push_back({{"rows", size.rows},
                       {"seconds", median(size.seconds)},
                       {"over_one_row", median(size.over_one)},
                       {"fraction_of_read", median(size.of_read)},
                       {"experts", size.experts.empty() ? 0.0 : median(size.experts)},
                       {"shares", shares}});
  }
  if (options.shared.json.empty()) return;
  std::ofstream(options.shared.json) << nlohmann::json{{"model", options.model},
                                                       {"context", options.context},
                                                       {"threads", workload.num_threads()},
                                                       {"weight_bytes", workload.weight_bytes()},
                                                       {"bytes", workload.bytes()},
                                                       {"steps", records}}
                                            .dump(2)
                                     << "\n";
}

}  // namespace
}  // namespace specdec::bench

int main(int argc, char** argv) {
  using namespace specdec::bench;
  const StepOptions options = parse(argc, argv);
  Workload workload(options);
  report(workload, measure(workload, options), options);
}
