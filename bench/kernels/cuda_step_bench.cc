// The target's pass of a step on a GPU: the cost of decoding and of verifying K drafts, and how
// near both are to the memory floor.
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
#include <string>
#include <vector>

#include "common/pass_bench.h"
#include "model/decoder.h"
#include "specdec/error.h"

namespace specdec::bench {
namespace {

struct StepOptions : PassOptions {
  std::vector<int> contexts = {1024, 16384};
  std::vector<int> batches = {1, 4, 16, 64};
  std::vector<int> drafts = {0, 1, 2, 3, 4, 5, 6, 7};  // K; the first is what others are held to
  Quantization quantization = Quantization::kAuto;

  int max_rows() const {
    // Batches are padded to powers of two.
    const int most_rows = std::ranges::max(batches) * (std::ranges::max(drafts) + 1);
    return static_cast<int>(2 * std::bit_ceil(static_cast<unsigned>(most_rows)));
  }
};

StepOptions parse(int argc, char** argv) {
  StepOptions options;
  options.parse(argc, argv,
                {{"--contexts", &options.contexts},
                 {"--batches", &options.batches},
                 {"--drafts", &options.drafts, 0},
                 {"--quantization", &options.quantization}});
  return options;
}

class StepBench : PassBench {
 public:
  explicit StepBench(const StepOptions& options)
      : PassBench("cuda_step_bench", options, options.max_rows()),
        options_(options),
        decoder_(config_, options.model, gpu_.backend(), std::ranges::max(options.contexts) + 16,
                 options.max_rows(), options.quantization) {}

  int run() {
    for (int context : options_.contexts) {
      for (int batch : options_.batches) {
        const std::string name = str_cat("context ", context, ", batch ", batch);
        if (!has_time(name)) continue;
        try {
          measure(context, batch);
        } catch (const OutOfMemory&) {
          std::printf("%s: not run: does not fit\n", name.c_str());
        }
      }
    }
    return report_.finish();
  }

 private:
  void measure(int context, int batch) {
    GpuRequests requests(gpu_, config_, batch, context, std::ranges::max(options_.drafts) + 1);
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
                   .bytes = static_cast<double>(decoder_.weight_bytes()) + kv_bytes,
                   .read_rate = read_rate_,
                   .counters = {{"over_0", seconds / without},
                                {"sampled_us",
                                 1e6 * sample_seconds(batch * rows_each, {.temperature = 0.0f},
                                                      config_.vocab_size)},
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
    // Before the capture: a copy between two kernels keeps the second from starting early.
    const int32_t* staged_ids = stage_first_rows(batch * rows_each);
    return gpu_.pass_seconds(samples(), [&] {
      decoder_.forward({view, requests.layers()});
      choose(decoder_, staged_ids, batch * rows_each);
    });
  }

  StepOptions options_;
  Decoder decoder_;
};

}  // namespace
}  // namespace specdec::bench

int main(int argc, char** argv) {
  using namespace specdec::bench;
  const StepOptions options = parse(argc, argv);
  return run_on_gpu(argv[0], [&] { return StepBench(options).run(); });
}
