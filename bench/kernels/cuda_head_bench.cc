// The cost of an EAGLE-3 head relative to its target on a GPU.
//
//   cuda_head_bench --model=DIR --head=DIR [--device=cuda|emulated] [--context=1024]
//                   [--load_format=auto|dummy] [--greedy] [--budget=SECONDS] [--json=FILE]
//
// Passes are the layer, the final norm and the head as one captured graph, over requests whose
// keys, values and features are random, with the head's matrices in int8 and as the checkpoint has
// them. `draft_pass` is a level of so many drafts of each request, `catch_up` the first pass over
// so many committed tokens of each, the root among them. `bytes` are those of the weights the pass
// reads and of the keys and values; `of_read` is their rate over that of reading memory, measured
// in the same run, `over_read` its inverse; `of_target` what the tokens before the root add, over a
// pass of the target over one row of each request; `over_plain` such a pass that stores its states
// for a head over one that does not; `sampled_us` what a greedy choice with as many candidates as
// drafts takes, the host's wait included. With --greedy the likeliest tokens are found without
// logits where the device does so and no more than one of each row is wanted: of committed tokens,
// and of one draft of each request. The JSON file has the launches of the head's passes, too. With
// --load_format=dummy both directories have a config.json only, and weights are made up.
#include <memory>
#include <string>
#include <vector>

#include "common/pass_bench.h"
#include "kv/block_pool.h"
#include "kv/block_table.h"
#include "model/decoder.h"
#include "model/draft_heads/draft_head_config.h"
#include "runtime/batch_inputs.h"

namespace specdec::bench {
namespace {

constexpr int kBlockSize = 16;
constexpr int kMostRowsEach = 16;
constexpr int kMostRows = 256;

struct HeadOptions : PassOptions {
  std::string head;
  int context = 1024;
};

HeadOptions parse(int argc, char** argv) {
  HeadOptions options;
  options.parse(
      argc, argv,
      {{"--head", &options.head, 1, /*is_needed=*/true}, {"--context", &options.context}});
  return options;
}

// Requests whose tokens both models have seen, up to the root.
struct Texts {
  Texts(int num_requests, int context)
      : pool(num_requests * num_blocks_for(context + kMostRowsEach, kBlockSize)) {
    for (int i = 0; i < num_requests; ++i) {
      tables.emplace_back(kBlockSize).reserve(pool, context + kMostRowsEach);
    }
  }
  BlockPool pool;
  std::vector<BlockTable> tables;
};

class HeadBench : PassBench {
 public:
  explicit HeadBench(const HeadOptions& options)
      : PassBench("cuda_head_bench", options, kMostRows), options_(options) {
    drafter_.method = DraftMethod::kEagle3;
    drafter_.model = options.head;
    head_config_ = load_draft_head_config(drafter_, head_target());
    target_ = std::make_unique<Decoder>(config_, options.model, gpu_.backend(), max_len(),
                                        kMostRows, Quantization::kAuto);
  }

  int run() {
    for (const char* quantization : {"int8", "none"}) {
      std::unique_ptr<Model> head =
          load_draft_head(head_config_, {.target = head_target(),
                                         .target_parts = target_->parts(),
                                         .quantization = parse_quantization(quantization),
                                         .backend = gpu_.backend(),
                                         .max_model_len = max_len(),
                                         .max_rows = kMostRows});
      const std::vector<int> batches =
          options_.shared.smoke ? std::vector{1} : std::vector{1, 4, 16};
      for (const int batch : batches) {
        if (!has_time(str_cat(quantization, ", batch ", batch))) continue;
        measure(*head, quantization, batch);
      }
    }
    return report_.finish();
  }

 private:
  DraftHeadTarget head_target() const { return {config_, options_.model}; }
  int max_len() const { return options_.context + kMostRowsEach; }

  // `features`: of the head, random numbers.
  struct Requests {
    Texts texts;
    GpuRequests of_target;
    GpuRequests of_draft_head;
    Buffer feature_rows;
    PagedRowsView features;
  };

  void measure(Model& head, const char* quantization, int batch) {
    Requests requests = {
        .texts = Texts(batch, options_.context),
        .of_target = GpuRequests(gpu_, config_, batch, options_.context, kMostRowsEach),
        .of_draft_head = GpuRequests(gpu_, head.config(), batch, options_.context, kMostRowsEach),
        .feature_rows = {},
        .features = {}};
    const int64_t num_slots = int64_t{requests.texts.pool.num_blocks() + 1} * kBlockSize;
    const int width = head_config_.taps.width(config_.hidden_size);
    const DType act = gpu_.backend().act_dtype();
    requests.feature_rows = gpu_.random(static_cast<size_t>(num_slots * width) * size_of(act), act);
    requests.features = {
        .rows = requests.feature_rows.data(), .num_slots = num_slots, .width = width};

    const double plain = target_seconds(requests, /*stores=*/false);
    const double storing = target_seconds(requests, /*stores=*/true);
    Record target = record("target_pass", quantization, batch, 1, plain);
    target.counters.emplace_back("over_plain", storing / plain);
    report_.add(target);

    double of_root = 0;
    for (const int rows_each : {1, 2, 5, 8}) {
      const double seconds = head_seconds(head, requests, 0, rows_each);
      if (rows_each == 1) of_root = seconds;
      Record catch_up =
          head_record("catch_up", head, requests, quantization, batch, rows_each, seconds);
      catch_up.counters.emplace_back("of_target", (seconds - of_root) / plain);
      report_.add(catch_up);
    }
    for (const int width_each : {1, 4, 8}) {
      const double seconds = head_seconds(head, requests, 1, width_each);
      Record draft =
          head_record("draft_pass", head, requests, quantization, batch, width_each, seconds);
      const double sampled =
          sample_seconds(batch * width_each, {.temperature = 0.0f, .num_candidates = width_each},
                         head.config().vocab_size, head.draft_vocabulary());
      draft.counters.emplace_back("sampled_us", 1e6 * sampled);
      report_.add(draft);
    }
  }

  Record record(const char* kernel, const char* quantization, int batch, int rows_each,
                double seconds) const {
    return {.kernel = kernel,
            .shape = std::string(quantization) + " head x" + std::to_string(batch),
            .rows = batch * rows_each,
            .threads = gpu_.num_multiprocessors(),
            .seconds = seconds,
            .counters = {{"context", options_.context}, {"batch", batch}, {"each", rows_each}}};
  }
  Record head_record(const std::string& kernel, const Model& head, const Requests& requests,
                     const char* quantization, int batch, int rows_each, double seconds) const {
    Record result = record(kernel.c_str(), quantization, batch, rows_each, seconds);
    result.bytes = static_cast<double>(head.pass_bytes()) +
                   head.config().num_layers * requests.of_draft_head.layer_bytes(rows_each);
    if (kernel == "draft_pass") result.bytes -= fusion_bytes(head);
    result.read_rate = read_rate_;
    result.launches = gpu_.launches();
    result.counters.emplace_back("greedy", options_.greedy ? 1 : 0);
    result.counters.emplace_back("over_read", seconds * read_rate_ / result.bytes);
    return result;
  }
  // Bytes of weights that only committed tokens need.
  static double fusion_bytes(const Model& head) {
    double bytes = 0;
    for (const FeatureFusion::Part& part :
         dynamic_cast<const Decoder&>(head).parts().fusion->parts) {
      bytes += static_cast<double>(part.weight->size_bytes());
    }
    return bytes;
  }

  double target_seconds(Requests& requests, bool stores) {
    Taps taps;
    if (stores) taps = {.spec = head_config_.taps, .features = requests.features};
    gpu_.backend().begin_step();
    const BatchView view = requests.of_target.stage(1);
    const int32_t* staged_ids = stage_first_rows(view.num_requests);
    return gpu_.pass_seconds(samples(), [&] {
      target_->forward({.batch = view, .kv_layers = requests.of_target.layers(), .taps = taps});
      target_->compute_logits(staged_ids, view.num_requests, logits_.as<float>());
    });
  }

  double head_seconds(Model& head, Requests& requests, int level, int rows_each) {
    BatchInputs inputs(RowFeatures::kOfPreviousToken);
    std::vector<int32_t> row_ids;
    for (const BlockTable& blocks : requests.texts.tables) {
      const int first = add_rows(inputs, level, rows_each, blocks);
      for (int row = level == 0 ? rows_each - 1 : 0; row < rows_each; ++row) {
        row_ids.push_back(first + row);
      }
    }
    gpu_.backend().begin_step();
    const BatchView view = gpu_.backend().stage(inputs.view());
    const int32_t* staged_ids = gpu_.backend().stage_ids(row_ids);
    return gpu_.pass_seconds(samples(), [&] {
      head.forward({.batch = view,
                    .kv_layers = requests.of_draft_head.layers(),
                    .features = requests.features,
                    .level = level});
      choose(head, staged_ids, static_cast<int>(row_ids.size()), level == 0 || rows_each == 1,
             level);
    });
  }

  // Committed tokens up to the root at the end of the context, or drafts that all follow it.
  int add_rows(BatchInputs& inputs, int level, int rows_each, const BlockTable& blocks) const {
    std::vector<int32_t> tokens(rows_each);
    for (int i = 0; i < rows_each; ++i) tokens[i] = (31 * i + 7) % config_.vocab_size;
    if (level == 0) {
      return inputs.add_chain(tokens, options_.context + 1 - rows_each, blocks,
                              /*keeps_state=*/true);
    }
    const std::vector<int32_t> depths(rows_each, 1);
    const std::vector<int> parents(rows_each, 0);
    std::vector<uint64_t> masks;
    for (int i = 0; i < rows_each; ++i) masks.push_back(uint64_t{1} | uint64_t{2} << i);
    return inputs.add_tree_level(tokens, depths, 1, masks, 1, options_.context, blocks, parents);
  }

  HeadOptions options_;
  DrafterConfig drafter_;
  DraftHeadConfig head_config_;
  std::unique_ptr<Decoder> target_;
};

}  // namespace
}  // namespace specdec::bench

int main(int argc, char** argv) {
  using namespace specdec::bench;
  const HeadOptions options = parse(argc, argv);
  return run_on_gpu(argv[0], [&] { return HeadBench(options).run(); });
}
