// The cost of a draft head relative to its target: a pass, catching up with accepted tokens and
// with a prompt, and the states that a target stores for a head that does not draft.
//
// Target and head have the shapes of real models, made-up weights, and 512 tokens in their caches;
// --format=act|int8 is the target's, the head's matrices are int8, its default. Every pass of a
// head comes after one of the target, which leaves nothing of the head in the caches, and so does
// the read of a buffer of the head's size. Ratios are medians over rounds of figures
// that were measured next to each other:
//   over_read       seconds of the pass over those of reading its weights
//   again_over_read the same of a second pass at once after, over a second read: what does not fit
//                   in the caches still comes from memory
//   of_target       seconds that catching up adds over those of a pass of the target; of a prompt,
//                   the head's pass over its tokens over the target's
//   over_plain      a pass of the target that stores its states over one that does not
#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "common/bandwidth.h"
#include "common/config_directory.h"
#include "common/models.h"
#include "common/options.h"
#include "common/report.h"
#include "common/timed_backend.h"
#include "common/timing.h"
#include "core/thread_pool.h"
#include "kv/block_pool.h"
#include "kv/block_table.h"
#include "model/decoder.h"
#include "model/draft_heads/draft_head_config.h"
#include "runtime/batch_inputs.h"
#include "runtime/feature_cache.h"
#include "runtime/kv_cache.h"

namespace specdec::bench {
namespace {

constexpr int kContext = 512;  // tokens before the root
constexpr int kBlockSize = 16;
constexpr int kMostDrafts = 64;

struct HeadKind {
  const char* name;
  DraftMethod method;
  bool cuts_vocabulary;  // EAGLE-3 by a matrix of its own, EAGLE-1 by a token map
};
constexpr HeadKind kKinds[] = {{"eagle3", DraftMethod::kEagle3, true},
                               {"eagle, token map", DraftMethod::kEagle, true},
                               {"eagle", DraftMethod::kEagle, false}};

struct Target {
  ModelShape shape;
  int draft_vocab_size;
  bool is_whole = true;  // all of its layers
};

std::vector<Target> targets(const Options& options) {
  if (options.smoke) return {{.shape = kTinyModel, .draft_vocab_size = 64}};
  ModelShape large = gpu_models().back();
  large.num_layers = 4;
  return {{.shape = models().front(), .draft_vocab_size = 8192},
          {.shape = gpu_models().front(), .draft_vocab_size = 32000},
          {.shape = large, .draft_vocab_size = 32000, .is_whole = false}};
}

nlohmann::json head_config_of(const Target& target, const HeadKind& kind) {
  nlohmann::json config = config_of(target.shape);
  const int layers = target.shape.num_layers;
  config["num_hidden_layers"] = 1;
  if (kind.method != DraftMethod::kEagle3) return config;
  config["draft_vocab_size"] = target.draft_vocab_size;
  config["eagle_aux_hidden_state_layer_ids"] = layers < 8
                                                   ? std::vector{layers - 2, layers - 1, layers}
                                                   : std::vector{2, layers / 2, layers - 3};
  return config;
}

// One sequence that target and head both run.
struct Sequence {
  Sequence() : pool(num_blocks_for(kContext + kMostDrafts, kBlockSize)), blocks(kBlockSize) {
    blocks.reserve(pool, kContext + kMostDrafts);
  }
  BlockPool pool;
  BlockTable blocks;
};

// A model, its KV and its sampler: what a step does with it, on the clock.
class TimedModel {
 public:
  TimedModel(Model& model, TimedBackend& backend)
      : model_(model),
        backend_(backend),
        cache_(backend, cache_shape(model, backend), num_blocks()) {
    logits_.resize(static_cast<size_t>(kMostDrafts) * model.config().vocab_size);
  }

  struct Pass {
    int level = 0;
    bool kv_only = false;
    int num_sampled = 1;  // the last rows
    int num_candidates = 0;
  };
  // Seconds of `fill`, the rows it puts into a batch, and their samples.
  template <class Fill>
  double run(bool of_draft_head, const Pass& pass, const Taps& taps, const PagedRowsView& features,
             const Fill& fill) {
    backend_.begin_step();
    const Stopwatch watch;
    BatchInputs inputs(of_draft_head ? RowFeatures::kOfPreviousToken : RowFeatures::kNone);
    fill(inputs);
    model_.forward({.batch = backend_.stage(inputs.view()),
                    .kv_layers = cache_.layers(),
                    .taps = taps,
                    .features = features,
                    .level = pass.level,
                    .kv_only = pass.kv_only});
    if (!pass.kv_only) sample(inputs.num_rows(), pass);
    const double seconds = watch.seconds();
    backend_.end_step();
    return seconds;
  }

  static int num_blocks() { return num_blocks_for(kContext + kMostDrafts, kBlockSize); }

 private:
  static KvCacheShape cache_shape(const Model& model, const Backend& backend) {
    std::vector<KvLayerShape> layers;
    for (const LayerSpec& layer : model.config().layers) {
      layers.push_back(
          {.num_kv_heads = layer.heads.num_kv_heads, .head_dim = layer.heads.head_dim});
    }
    return {.layers = layers, .format = {.block_size = kBlockSize, .dtype = backend.act_dtype()}};
  }
  void sample(int num_rows, const Pass& pass) {
    std::vector<int32_t> row_ids(pass.num_sampled);
    std::iota(row_ids.begin(), row_ids.end(), num_rows - pass.num_sampled);
    model_.compute_logits(backend_.stage_ids(row_ids), pass.num_sampled, logits_.data(),
                          pass.level);
    const std::vector<SampleRow> rows(
        pass.num_sampled, SampleRow{.temperature = 0.0f, .num_candidates = pass.num_candidates});
    std::vector<SampleResult> results(pass.num_sampled);
    const DraftVocabulary own = model_.draft_vocabulary();
    backend_.sample({.logits = logits_.data(),
                     .rows = rows,
                     .vocab_size = model_.config().vocab_size,
                     .token_ids = own.token_ids,
                     .target_vocab_size = own.target_vocab_size,
                     .results = results});
  }

  Model& model_;
  TimedBackend& backend_;
  KvCache cache_;
  std::vector<float> logits_;
};

// A loaded target and what its passes take.
class TargetModel {
 public:
  TargetModel(const Target& target, const Options& options)
      : target_(target),
        directory_(std::string("draft_head_bench-") + target.shape.name, config_of(target.shape)),
        backend_(make_cpu_backend(options)),
        timed_(*backend_) {
    ModelConfig config = load_model_config(directory_.path());
    config.random_weights = true;
    backend_->begin_step();
    decoder_ = std::make_unique<Decoder>(
        config, directory_.path(), timed_, kContext + kMostDrafts, kContext,
        options.format == WeightFormat::kInt8 ? Quantization::kInt8 : Quantization::kNone);
    backend_->end_step();
    model_ = std::make_unique<TimedModel>(*decoder_, timed_);
  }

  // The rows of tokens from base_len on; a prompt samples the last alone.
  double run(int num_rows, int base_len, const Taps& taps) {
    return model_->run(/*of_draft_head=*/false, {}, taps, {}, [&](BatchInputs& inputs) {
      inputs.add_chain(tokens(num_rows), base_len, sequence_.blocks);
    });
  }
  // Tokens that differ.
  std::vector<int32_t> tokens(int count) const {
    std::vector<int32_t> ids(count);
    for (int i = 0; i < count; ++i) ids[i] = (31 * i + 7) % target_.draft_vocab_size;
    return ids;
  }

  const Target& target() const { return target_; }
  const std::string& name() const { return name_; }
  DraftHeadTarget head_target() const { return {decoder_->config(), directory_.path()}; }
  const Decoder& decoder() const { return *decoder_; }
  TimedBackend& backend() { return timed_; }
  const BlockTable& blocks() const { return sequence_.blocks; }

 private:
  Target target_;
  std::string name_ = target_.shape.name;
  ConfigDirectory directory_;
  std::unique_ptr<Backend> backend_;
  TimedBackend timed_;
  Sequence sequence_;
  std::unique_ptr<Decoder> decoder_;
  std::unique_ptr<TimedModel> model_;
};

// A head of a target.
class HeadModel {
 public:
  HeadModel(TargetModel& target, const HeadKind& kind)
      : target_(target),
        directory_(std::string("draft_head_bench-head-") + target.name(),
                   head_config_of(target.target(), kind)) {
    DrafterConfig drafter;
    drafter.method = kind.method;
    drafter.model = directory_.path();
    if (kind.cuts_vocabulary && kind.method == DraftMethod::kEagle) {
      drafter.token_map.resize(target.target().draft_vocab_size);
      std::iota(drafter.token_map.begin(), drafter.token_map.end(), 0);
    }
    const DraftHeadTarget head_target = target.head_target();
    const DraftHeadConfig config = load_draft_head_config(drafter, head_target);
    target.backend().begin_step();
    head_ = load_draft_head(config, {.target = head_target,
                                     .target_parts = target.decoder().parts(),
                                     .quantization = parse_quantization(drafter.quantization),
                                     .backend = target.backend(),
                                     .max_model_len = kContext + kMostDrafts,
                                     .max_rows = kContext});
    target.backend().end_step();
    taps_.spec = config.taps;
    features_ = std::make_unique<FeatureCache>(target.backend(),
                                               config.taps.width(target.target().shape.hidden),
                                               kBlockSize, TimedModel::num_blocks());
    taps_.features = features_->rows();
    model_ = std::make_unique<TimedModel>(*head_, target.backend());
  }

  // The last `num_rows` committed tokens, the root among them, and drafts of the root.
  double catch_up(int num_rows) {
    return run({.num_candidates = 1}, [&](BatchInputs& inputs) {
      inputs.add_chain(target_.tokens(num_rows), kContext + 1 - num_rows, target_.blocks(),
                       /*keeps_state=*/true);
    });
  }
  // A level of `width` drafts that follow the root.
  double draft(int width) {
    const TimedModel::Pass pass = {.level = 1, .num_sampled = width, .num_candidates = width};
    return run(pass, [&](BatchInputs& inputs) {
      const std::vector<int32_t> depths(width, 1);
      const std::vector<int> parents(width, 0);
      std::vector<uint64_t> masks;
      for (int i = 0; i < width; ++i) masks.push_back(uint64_t{1} | uint64_t{2} << i);
      inputs.add_tree_level(target_.tokens(width), depths, 1, masks, 1, kContext, target_.blocks(),
                            parents);
    });
  }
  // The KV of a prompt but for its last token, which comes with the drafts. The first has no row.
  double read_prompt() {
    return run({.kv_only = true}, [&](BatchInputs& inputs) {
      inputs.add_chain(target_.tokens(kContext - 2), 1, target_.blocks());
    });
  }

  // Bytes of weights that passes of drafts read, without weights that only committed tokens need.
  double draft_bytes() const {
    const auto& decoder = dynamic_cast<const Decoder&>(*head_);
    const FeatureFusion& fusion = *decoder.parts().fusion;
    double bytes = catch_up_bytes();
    if (fusion.fuses_states) return bytes;
    for (const FeatureFusion::Part& part : fusion.parts) {
      bytes -= static_cast<double>(part.weight->size_bytes());
    }
    return bytes;
  }
  double catch_up_bytes() const { return static_cast<double>(head_->pass_bytes()); }
  int64_t feature_bytes() const {
    return FeatureCache::block_bytes(target_.backend(), taps_.features.width, 1);
  }
  const Taps& taps() const { return taps_; }

 private:
  template <class Fill>
  double run(const TimedModel::Pass& pass, const Fill& fill) {
    return model_->run(/*of_draft_head=*/true, pass, ModelPass::kNoTaps, taps_.features, fill);
  }

  TargetModel& target_;
  ConfigDirectory directory_;
  std::unique_ptr<Model> head_;
  Taps taps_;
  std::unique_ptr<FeatureCache> features_;
  std::unique_ptr<TimedModel> model_;
};

// A pass of the head that is measured, and its figures by round.
struct Case {
  const char* kernel;
  int rows;
  double bytes;
  std::function<double()> run;
  std::vector<double> seconds = {}, over_read = {}, again_over_read = {}, of_target = {};
  std::map<std::string, std::vector<double>> shares = {};
};

class Measurement {
 public:
  Measurement(TargetModel& target, const HeadKind& kind, const Options& options, ThreadPool& pool)
      : target_(target),
        head_(target, kind),
        options_(options),
        shape_(target.name() + " " + kind.name),
        probe_(static_cast<size_t>(head_.catch_up_bytes()), pool) {
    const double bytes = head_.catch_up_bytes();
    for (const int rows : {1, 2, 3, 5, 8}) {
      cases_.push_back({"catch_up", rows, bytes, [this, rows] { return head_.catch_up(rows); }});
    }
    for (const int width : {1, 4, 8}) {
      cases_.push_back(
          {"draft_pass", width, head_.draft_bytes(), [this, width] { return head_.draft(width); }});
    }
  }

  void run(Report& report) {
    read_prompt();  // the caches hold numbers before anything reads them
    prompt_of_target_.clear();
    prompt_seconds_.clear();
    const Stopwatch watch;
    const auto wants_more = [&] { return !options_.smoke && watch.seconds() < kMeasureSeconds; };
    for (int round = -1; round < options_.samples(kRounds) || wants_more(); ++round) {
      run_round(round);
    }
    if (target_.target().is_whole) {
      for (int i = 0; i < options_.samples(kPrompts); ++i) read_prompt();
    }
    add_records(report);
  }
  // Whether the target stored states where no head asked for them.
  bool stores_for_nobody() const { return stores_for_nobody_; }

 private:
  static constexpr int kRounds = 10;  // at least
  static constexpr double kMeasureSeconds = 8;
  static constexpr int kPrompts = 5;

  // Seconds of a pass of the target, which leaves nothing of the head in the caches.
  double target_pass(bool stores) {
    target_.backend().take_seconds();
    const double seconds = target_.run(1, kContext, stores ? head_.taps() : ModelPass::kNoTaps);
    const bool has_stored = target_.backend().take_seconds().contains("store_rows");
    if (has_stored && !stores) stores_for_nobody_ = true;
    return seconds;
  }
  // Seconds a byte of the head's size takes to read, from memory and again at once.
  struct ReadSeconds {
    double once, again;
  };
  ReadSeconds read() {
    const auto num_bytes = static_cast<double>(probe_.size_bytes());
    const double once = probe_.read_seconds() / num_bytes;
    return {once, probe_.read_seconds() / num_bytes};
  }

  void run_round(int round) {
    double of_one_row = 0;
    for (size_t i = 0; i < cases_.size(); ++i) {
      Case& c = cases_[i];
      const bool plain_first = (round + static_cast<int>(i)) % 2 == 0;
      const double first = target_pass(!plain_first);
      const ReadSeconds read_seconds = read();
      const double second = target_pass(plain_first);
      const double seconds = c.run();
      const auto parts = target_.backend().take_seconds();
      const double again = c.run();
      if (i == 0) of_one_row = seconds;
      if (round < 0) continue;
      const double plain = plain_first ? first : second;
      read_rates_.push_back(1 / read_seconds.once);
      target_seconds_.push_back(plain);
      over_plain_.push_back((plain_first ? second : first) / plain);
      c.seconds.push_back(seconds);
      c.over_read.push_back(seconds / (c.bytes * read_seconds.once));
      c.again_over_read.push_back(again / (c.bytes * read_seconds.again));
      c.of_target.push_back((seconds - of_one_row) / plain);
      for (const auto& [name, part] : parts) c.shares[name].push_back(part / seconds);
    }
  }

  void read_prompt() {
    const double of_target = target_.run(kContext, 0, head_.taps());
    const double seconds = head_.read_prompt();
    prompt_seconds_.push_back(seconds);
    prompt_of_target_.push_back(seconds / of_target);
  }

  void add_records(Report& report) {
    const double read_rate = median(read_rates_);
    const bool is_whole = target_.target().is_whole;
    for (Case& c : cases_) {
      Record record = base_record(c.kernel, c.rows, median(c.seconds));
      record.bytes = c.bytes;
      record.read_rate = read_rate;
      record.counters = {{"over_read", median(c.over_read)},
                         {"again_over_read", median(c.again_over_read)}};
      if (c.kernel == std::string("catch_up") && is_whole) {
        record.counters.emplace_back("of_target", median(c.of_target));
      }
      for (const auto& [name, values] : c.shares) {
        record.counters.emplace_back("in_" + name, median(values));
      }
      report.add(record);
    }
    Record sleeping = base_record("target_pass", 1, median(target_seconds_));
    sleeping.counters = {{"over_plain", median(over_plain_)},
                         {"feature_bytes", static_cast<double>(head_.feature_bytes())}};
    report.add(sleeping);
    if (!is_whole) return;
    Record prompt = base_record("prompt", kContext, median(prompt_seconds_));
    prompt.counters = {{"of_target", median(prompt_of_target_)}};
    report.add(prompt);
  }
  Record base_record(const char* kernel, int rows, double seconds) const {
    return {.kernel = kernel,
            .shape = shape_,
            .rows = rows,
            .threads = options_.num_threads,
            .seconds = seconds};
  }

  TargetModel& target_;
  HeadModel head_;
  const Options& options_;
  std::string shape_;
  ReadBandwidth probe_;
  std::vector<Case> cases_;
  std::vector<double> read_rates_, over_plain_, target_seconds_;
  std::vector<double> prompt_seconds_, prompt_of_target_;
  bool stores_for_nobody_ = false;
};

int run(const Options& options) {
  if (options.format != WeightFormat::kAct && options.format != WeightFormat::kInt8) {
    std::fprintf(stderr, "--format is the target's here: act or int8\n");
    return 2;
  }
  Report report("draft_head_bench", options);
  ThreadPool pool(options.num_threads);
  for (const Target& target : targets(options)) {
    if (!options.selects(target.shape.name)) continue;
    TargetModel model(target, options);
    for (const HeadKind& kind : kKinds) {
      Measurement measurement(model, kind, options, pool);
      measurement.run(report);
      if (!measurement.stores_for_nobody()) continue;
      std::fprintf(stderr, "the target stored states though no head asked for them\n");
      return 1;
    }
  }
  return report.finish();
}

}  // namespace
}  // namespace specdec::bench

int main(int argc, char** argv) {
  return specdec::bench::run(specdec::bench::parse_options(argc, argv));
}
