// The target's pass of a step on a GPU: what decoding costs, what verifying K drafts costs beside
// it, and how near the memory floor both are.
//
//   cuda_step_bench --model=DIR [--device=cuda|emulated] [--contexts=1024,16384]
//                   [--batches=1,4,16,64] [--drafts=0,1,2,3,4,5,6,7] [--quantization=auto|...]
//                   [--load_format=auto|dummy] [--greedy] [--budget=SECONDS] [--json=FILE]
//
// A pass is all layers, the final norm and the head on every row, as one captured graph, over
// requests whose keys and values are random. `bytes` are those of the weights and of the keys and
// values; `of_read` is their rate over that of reading memory, measured in the same run; `over_0`
// the time over that of the same batch without drafts; `sampled_us` what a greedy choice from every
// row's logits takes after it, the host's wait included. The JSON file has the pass's launches,
// too. With --greedy a pass finds the likeliest token of every row where the device does so without
// logits. With --load_format=dummy the directory has a config.json only, and weights are made up.
// With --list-launches as well, launches are all there is, of a model of any size, without a GPU.
#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "common/gpu.h"
#include "common/gpu_requests.h"
#include "common/report.h"
#include "common/timing.h"
#include "model/config.h"
#include "model/decoder.h"
#include "specdec/error.h"
#include "specdec/quantization.h"

namespace specdec::bench {
namespace {

struct StepOptions {
  Options shared;
  std::string model;
  std::vector<int> contexts = {1024, 16384};
  std::vector<int> batches = {1, 4, 16, 64};
  std::vector<int> drafts = {0, 1, 2, 3, 4, 5, 6, 7};  // K; the first is what others are held to
  Quantization quantization = Quantization::kAuto;
  bool random_weights = false;
  bool greedy = false;
};

[[noreturn]] void refuse(const std::string& message) {
  std::cerr << "cuda_step_bench: " << message << "\n";
  std::exit(2);
}

std::vector<int> parse_list(const std::string& text) {
  std::vector<int> values;
  std::istringstream stream(text);
  for (std::string item; std::getline(stream, item, ',');) values.push_back(std::stoi(item));
  if (values.empty()) refuse("an empty list");
  return values;
}

// Takes its own arguments out and leaves the rest to parse_options.
StepOptions parse(int argc, char** argv) {
  StepOptions options;
  std::vector<char*> rest = {argv[0]};
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const size_t equals = std::min(argument.find('='), argument.size() - 1);
    const std::string name = argument.substr(0, equals);
    const std::string value = argument.substr(equals + 1);
    if (name == "--model") {
      options.model = value;
    } else if (name == "--contexts") {
      options.contexts = parse_list(value);
    } else if (name == "--batches") {
      options.batches = parse_list(value);
    } else if (name == "--drafts") {
      options.drafts = parse_list(value);
    } else if (name == "--quantization") {
      options.quantization = parse_quantization(value);
    } else if (name == "--load_format") {
      options.random_weights = is_dummy(value);
    } else if (argument == "--greedy") {
      options.greedy = true;
    } else {
      rest.push_back(argv[i]);
    }
  }
  options.shared = parse_options(static_cast<int>(rest.size()), rest.data(), {"cuda", "emulated"});
  if (options.model.empty()) refuse("--model=DIR is needed");
  return options;
}

class StepBench {
 public:
  explicit StepBench(const StepOptions& options)
      : options_(options),
        gpu_(options.shared),
        report_("cuda_step_bench", options.shared),
        config_(load_model_config(options.model)) {
    config_.random_weights = options.random_weights;
    // Batches are padded to powers of two.
    const auto most_rows =
        static_cast<unsigned>(most(options.batches) * (most(options.drafts) + 1));
    const int rows = static_cast<int>(2 * std::bit_ceil(most_rows));
    decoder_ = std::make_unique<Decoder>(config_, options.model, gpu_.backend(),
                                         most(options.contexts) + 16, rows, options.quantization);
    const size_t logits = static_cast<size_t>(rows) * config_.vocab_size;
    logits_ = gpu_.device().allocate(sizeof(float) * logits, "a bench");
    const bool smoke = options.shared.smoke;
    read_rate_ = gpu_.read_rate(smoke ? 1 << 18 : int64_t{2} << 30, samples());
  }

  int run() {
    for (int context : options_.contexts) {
      for (int batch : options_.batches) {
        if (watch_.seconds() > options_.shared.budget_seconds) {
          std::printf("context %d, batch %d: not run: no time left\n", context, batch);
          continue;
        }
        try {
          measure(context, batch);
        } catch (const OutOfMemory&) {
          std::printf("context %d, batch %d: not run: does not fit\n", context, batch);
        }
      }
    }
    return report_.finish();
  }

 private:
  static int most(const std::vector<int>& values) {
    return *std::max_element(values.begin(), values.end());
  }
  int samples() const { return options_.shared.samples(15); }

  void measure(int context, int batch) {
    const ModelShape shape = {.name = "",
                              .num_layers = config_.num_layers,
                              .hidden = config_.hidden_size,
                              .num_heads = config_.num_heads,
                              .num_kv_heads = config_.num_kv_heads,
                              .head_dim = config_.head_dim,
                              .intermediate = config_.layers.front().inner_size,
                              .vocab_size = config_.vocab_size};
    GpuRequests requests(gpu_, shape, config_.num_layers, batch, context,
                         most(options_.drafts) + 1);
    double without = 0;
    for (int num_drafts : options_.drafts) {
      const int rows_each = num_drafts + 1;
      const double seconds = pass_seconds(requests, batch, rows_each);
      if (without == 0) without = seconds;
      const double kv_bytes = config_.num_layers * requests.layer_bytes(rows_each);
      report_.add({.kernel = num_drafts == 0 ? "decode" : "verify",
                   .shape = "context " + std::to_string(context) + " x" + std::to_string(batch),
                   .rows = batch * rows_each,
                   .threads = gpu_.num_multiprocessors(),
                   .seconds = seconds,
                   .bytes = static_cast<double>(decoder_->weight_bytes()) + kv_bytes,
                   .read_rate = read_rate_,
                   .counters = {{"over_0", seconds / without},
                                {"sampled_us", 1e6 * sample_seconds(batch * rows_each)},
                                {"context", context},
                                {"batch", batch},
                                {"drafts", num_drafts},
                                {"greedy", options_.greedy ? 1 : 0}},
                   .launches = gpu_.launches()});
    }
  }

  double pass_seconds(GpuRequests& requests, int batch, int rows_each) {
    gpu_.backend().begin_step();
    const BatchView view = requests.stage(rows_each);
    std::vector<int32_t> row_ids(static_cast<size_t>(batch) * rows_each);
    std::iota(row_ids.begin(), row_ids.end(), 0);
    // Before the capture: a copy between two kernels keeps the second from starting early.
    const int32_t* staged_ids = gpu_.backend().stage_ids(row_ids);
    return gpu_.pass_seconds(samples(), [&] {
      decoder_->forward({view, requests.layers()});
      const int num_rows = static_cast<int>(row_ids.size());
      if (!options_.greedy || !decoder_->best_tokens(staged_ids, num_rows, logits_.as<int32_t>())) {
        decoder_->compute_logits(staged_ids, num_rows, logits_.as<float>());
      }
    });
  }

  double sample_seconds(int num_rows) {
    std::vector<SampleRow> rows(num_rows, SampleRow{.temperature = 0.0f});
    std::vector<SampleResult> results(num_rows);
    return gpu_.host_seconds(options_.shared.samples(5), [&] {
      gpu_.backend().begin_step();
      gpu_.backend().sample({.logits = logits_.as<float>(),
                             .rows = rows,
                             .vocab_size = config_.vocab_size,
                             .results = results});
    });
  }

  StepOptions options_;
  Stopwatch watch_;
  Gpu gpu_;
  Report report_;
  ModelConfig config_;
  std::unique_ptr<Decoder> decoder_;
  Buffer logits_;
  double read_rate_ = 0;
};

}  // namespace
}  // namespace specdec::bench

int main(int argc, char** argv) {
  using namespace specdec::bench;
  const StepOptions options = parse(argc, argv);
  return run_on_gpu(argv[0], [&] { return StepBench(options).run(); });
}
