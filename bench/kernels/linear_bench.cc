// The projections of a decoder's step at the shapes of real models, one by one and together, and
// the passes that go with them, by number of rows.
//
// A record of "projections" is the whole step; those of its parts ("project_qkv", ...) are sums
// over its layers, which run in the order of the model, so that weights come from memory. `bytes`
// are those of the weights. The same threads read a buffer of the step's size after every step: the
// ceiling `read_gb_per_s`. `peak_gflop_per_s` is the rate of the operands the weights are
// multiplied as. A record of "linear: down, one sum" is the same product without the slices of k
// that decoders sum it in (core/k_slices.h), not a part of the step: each layer runs both, one
// after the other, so that `slices_cost`, the median of their ratios less 1, stands on a busy
// machine too. --format=act|int8|int8_grouped|int4_grouped|... chooses how weights are stored;
// int4_table has the values of MXFP4, or with --wide-table values of 8 bits.
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "common/bandwidth.h"
#include "common/matrix_peak.h"
#include "common/models.h"
#include "common/options.h"
#include "common/paged_request.h"
#include "common/report.h"
#include "common/timing.h"
#include "core/k_slices.h"
#include "core/thread_pool.h"
#include "cpu/isa.h"
#include "testing/quantized_matrix.h"

namespace specdec::bench {
namespace {

constexpr int kContext = 512;
constexpr int64_t kMaxLayerBytes = 512 << 20;  // beyond any cache: more layers add nothing
constexpr double kMeasureSeconds = 0.4;        // of each number of rows, at least
constexpr int kMinSamples = 5;

// Bytes, operations and times of one operation of the step.
struct Part {
  double bytes = 0;
  double flops = 0;
  bool is_extra = false;  // not of the step
  std::vector<double> seconds;
  std::vector<double> ratios;  // of each call to the same product in one sum
};

constexpr const char* kOneSum = ", one sum";

// Layers as in the model, with random weights, and what a step reads and writes.
class Step {
 public:
  Step(const ModelShape& model, const Options& options, bool wide_table, int max_rows)
      : model_(model),
        backend_(make_cpu_backend(options)),
        request_(model, *backend_, kContext, max_rows) {
    const int64_t q_width = int64_t{model.num_heads} * model.head_dim;
    const int64_t qkv_width = q_width + 2LL * model.num_kv_heads * model.head_dim;
    source_ = Buffer::host(size_of(options.dtype) * model.vocab_size * model.hidden, "a bench");
    PagedRequest::fill(source_, options.dtype);
    // Codes of a checkpoint, for formats that take no floats.
    const bool has_zeros = options.format == WeightFormat::kInt4GroupedZero;
    if (has_zeros || options.format == WeightFormat::kInt4Table) {
      codes_.emplace(model.vocab_size, model.hidden, 4, false, 1);
      has_zeros ? codes_->add_zeros(2) : codes_->add_table(2);
      if (!has_zeros && !wide_table)
        codes_->table = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    }
    for (int i = 0; i < model.num_layers; ++i) {
      layers_.push_back({.qkv = pack(qkv_width, model.hidden, options),
                         .out = pack_sliced(model.hidden, q_width, model.head_dim, options),
                         .out_plain = pack(model.hidden, q_width, options),
                         .gate_up = pack(model.intermediate, model.hidden, options, true),
                         .down = pack_sliced(model.hidden, model.intermediate, 64, options),
                         .down_plain = pack(model.hidden, model.intermediate, options)});
    }
    head_ = pack(model.vocab_size, model.hidden, options);
    embedding_ = backend_->embedding_from(*head_);
    weight_bytes_ = static_cast<double>(head_->size_bytes());
    for (const Layer& layer : layers_) {
      for (const auto* weight : {&layer.qkv, &layer.out, &layer.gate_up, &layer.down}) {
        weight_bytes_ += static_cast<double>((*weight)->size_bytes());
      }
    }
    norm_weight_.assign(model.hidden, 1.0f);
    norm_ = {.weight = norm_weight_.data()};
    rope_.assign(static_cast<size_t>(kContext + max_rows) * model.head_dim / 2, 0.5f);
    tokens_.assign(max_rows, 0);
    for (int row = 0; row < max_rows; ++row) tokens_[row] = 31 * row % model.vocab_size;
    residual_.assign(static_cast<size_t>(max_rows) * model.hidden, 0.01f);
    const int64_t act_width = std::max<int64_t>(q_width, model.intermediate);
    act_ = Buffer::host(size_of(options.dtype) * max_rows * act_width, "a bench");
    logits_.resize(static_cast<size_t>(std::min(max_rows, kSampled)) * model.vocab_size);
  }

  Backend& backend() { return *backend_; }
  double weight_bytes() const { return weight_bytes_; }

  // Adds the seconds of one step of `rows` rows to `parts`; returns those of its projections.
  double run(int rows, std::map<std::string, Part>& parts) {
    times_.clear();
    backend_->begin_step();
    time("embed", nullptr, rows, [&] {
      backend_->embed({.table = embedding_.get(),
                       .token_ids = tokens_.data(),
                       .out = residual_.data(),
                       .num_rows = rows});
    });
    time("norm", nullptr, rows, [&] {
      backend_->norm({.norm = norm_,
                      .x = residual_.data(),
                      .out = act_.data(),
                      .out_dtype = backend_->act_dtype(),
                      .num_rows = rows,
                      .dim = model_.hidden});
    });
    const ProjectionInput normed = {.x = residual_.data(), .norm = &norm_, .num_rows = rows};
    const ProjectionInput act = {
        .x = act_.data(), .dtype = backend_->act_dtype(), .num_rows = rows};
    for (size_t i = 0; i < layers_.size(); ++i) run_layer(i, rows, normed, act);
    ProjectionInput sampled = normed;
    sampled.num_rows = rows > kSampled ? 1 : rows;  // of a prompt only the last row is sampled
    time("linear: head", head_.get(), sampled.num_rows,
         [&] { backend_->linear({.weight = head_.get(), .in = sampled, .out = logits_.data()}); });
    backend_->end_step();

    Part all;
    double projections = 0;
    for (const auto& [name, part] : times_) {
      Part& sum = parts[name];
      sum.bytes = part.bytes;
      sum.flops = part.flops;
      sum.is_extra = part.is_extra;
      sum.seconds.push_back(part.seconds.front());
      sum.ratios.insert(sum.ratios.end(), part.ratios.begin(), part.ratios.end());
      if (part.flops == 0 || part.is_extra) continue;
      all.bytes += part.bytes;
      all.flops += part.flops;
      projections += part.seconds.front();
    }
    Part& sum = parts["projections"];
    sum.bytes = all.bytes;
    sum.flops = all.flops;
    sum.seconds.push_back(projections);
    return projections;
  }

 private:
  static constexpr int kSampled = 64;
  struct Layer {
    std::unique_ptr<PackedLinear> qkv, out, out_plain, gate_up, down, down_plain;
  };

  WeightView source(int64_t out_features, int64_t in_features, const Options& options) const {
    WeightView view{.values = {source_.data(), options.dtype, {out_features, in_features}}};
    if (codes_.has_value()) {
      view = codes_->view();
      view.values.shape = {out_features, in_features / 2};
    }
    return view;
  }

  std::unique_ptr<PackedLinear> pack(int64_t out_features, int64_t in_features,
                                     const Options& options, bool gated = false) {
    const WeightView view = source(out_features, in_features, options);
    const std::vector<WeightView> parts(gated ? 2 : 1, view);
    return backend_->pack_linear({.parts = parts, .format = options.format, .gated = gated});
  }

  // As in decoders whose k is cut in units of `unit` inputs.
  std::unique_ptr<PackedLinear> pack_sliced(int64_t out_features, int64_t in_features, int unit,
                                            const Options& options) {
    const WeightView view = source(out_features, in_features, options);
    const KSlices slices = KSlices::whole(in_features, std::lcm(unit, 64));
    return backend_->pack_linear(
        {.parts = {&view, 1}, .format = options.format, .k_slices = &slices});
  }

  // Alternates the order, because the second one finds the rows in the cache.
  void time_both(const std::string& name, const PackedLinear& sliced, const PackedLinear& plain,
                 int rows, const ProjectionInput& in) {
    double seconds[2] = {};
    for (const bool is_plain : {runs_plain_first_, !runs_plain_first_}) {
      const PackedLinear& weight = is_plain ? plain : sliced;
      seconds[is_plain] = time(is_plain ? name + kOneSum : name, &weight, rows, [&] {
        backend_->linear(
            {.weight = &weight, .in = in, .out = residual_.data(), .accumulate = true});
      });
      times_[is_plain ? name + kOneSum : name].is_extra = is_plain;
    }
    runs_plain_first_ = !runs_plain_first_;
    times_[name].ratios.push_back(seconds[0] / seconds[1]);
  }

  void run_layer(size_t index, int rows, const ProjectionInput& normed,
                 const ProjectionInput& act) {
    const Layer& layer = layers_[index];
    time("project_qkv", layer.qkv.get(), rows, [&] {
      backend_->project_qkv({.weight = layer.qkv.get(),
                             .in = normed,
                             .rope_cos = rope_.data(),
                             .rope_sin = rope_.data(),
                             .rotary_dim = model_.head_dim,
                             .num_heads = model_.num_heads,
                             .batch = &request_.batch(rows),
                             .kv = request_.layers()[index],
                             .q = act_.data()});
    });
    time_both("linear: attention out", *layer.out, *layer.out_plain, rows, act);
    time("activated_linear: gate, up", layer.gate_up.get(), rows, [&] {
      backend_->activated_linear({.weight = layer.gate_up.get(), .in = normed, .out = act_.data()});
    });
    time_both("linear: down", *layer.down, *layer.down_plain, rows, act);
  }

  template <class Operation>
  double time(const std::string& name, const PackedLinear* weight, int rows,
              Operation&& operation) {
    const Stopwatch watch;
    operation();
    const double seconds = watch.seconds();
    Part& part = times_[name];
    if (part.seconds.empty()) part.seconds.push_back(0);
    part.seconds.front() += seconds;
    if (weight == nullptr) return seconds;
    part.bytes += static_cast<double>(weight->size_bytes());
    part.flops += 2.0 * rows * static_cast<double>(weight->out_features()) *
                  static_cast<double>(weight->in_features());
    return seconds;
  }

  ModelShape model_;
  std::unique_ptr<Backend> backend_;
  PagedRequest request_;
  Buffer source_;
  std::optional<testing::QuantizedMatrix> codes_;
  std::vector<Layer> layers_;
  std::unique_ptr<PackedLinear> head_;
  std::unique_ptr<EmbeddingTable> embedding_;
  double weight_bytes_ = 0;
  NormParams norm_;
  std::vector<float> norm_weight_, rope_, residual_, logits_;
  std::vector<int32_t> tokens_;
  Buffer act_;
  bool runs_plain_first_ = false;
  std::map<std::string, Part> times_;
};

const char* operands_of(const Options& options) {
  switch (options.format) {
    case WeightFormat::kInt4Grouped:
    case WeightFormat::kInt4GroupedMin:
    case WeightFormat::kInt4GroupedZero:
      return "int4";
    case WeightFormat::kAct:
      return options.dtype == DType::kBF16 ? "bfloat16" : "float32";
    default:
      return "int8";
  }
}

ModelShape cut(ModelShape model, const Options& options) {
  const int64_t layer_weights =
      int64_t{model.hidden} * (2 * model.num_heads + 2 * model.num_kv_heads) * model.head_dim +
      3LL * model.hidden * model.intermediate;
  const int64_t layer_bytes = layer_weights * static_cast<int64_t>(size_of(options.dtype));
  model.num_layers =
      static_cast<int>(std::min<int64_t>(model.num_layers, kMaxLayerBytes / layer_bytes));
  if (options.smoke) {
    model.num_layers = 1;
    model.vocab_size = 2048;
  }
  return model;
}

void bench_rows(const ModelShape& model, Step& step, int rows, ReadBandwidth& probe, double peak,
                const Options& options, Report& report) {
  std::map<std::string, Part> parts;
  step.run(rows, parts);
  parts.clear();
  std::vector<double> read_rates;
  double total = 0;
  for (int i = 0; i < options.samples(kMinSamples) || (!options.smoke && total < kMeasureSeconds);
       ++i) {
    total += step.run(rows, parts);
    read_rates.push_back(static_cast<double>(probe.size_bytes()) / probe.read_seconds());
  }
  for (const auto& [name, part] : parts) {
    std::vector<std::pair<std::string, double>> counters;
    if (!part.ratios.empty()) counters.emplace_back("slices_cost", median(part.ratios) - 1);
    report.add({.kernel = name,
                .shape = std::string(model.name) + " " + std::string(name_of(options.format)),
                .rows = rows,
                .threads = options.num_threads,
                .seconds = median(part.seconds),
                .bytes = part.bytes,
                .flops = part.flops,
                .read_rate = median(read_rates),
                .peak_rate = peak,
                .counters = std::move(counters)});
  }
}

int run(const Options& options, bool wide_table) {
  Report report("linear_bench", options);
  ThreadPool pool(options.num_threads);
  const std::vector<MatrixPeak> peaks =
      measure_matrix_peaks(cpu::parse_isa(options.cpu_isa), pool, options.samples(100));
  std::vector<int> all_rows = options.smoke ? std::vector{1, 3} : step_rows();
  if (!options.smoke) all_rows.push_back(kPromptRows);
  for (const ModelShape& model : models()) {
    if (!options.selects(model.name) || (options.smoke && &model != &models().front())) continue;
    Step step(cut(model, options), options, wide_table, all_rows.back());
    ReadBandwidth probe(static_cast<size_t>(step.weight_bytes()), pool);
    for (int rows : all_rows) {
      bench_rows(model, step, rows, probe, peak_for(peaks, operands_of(options)), options, report);
    }
  }
  return report.finish();
}

}  // namespace
}  // namespace specdec::bench

int main(int argc, char** argv) {
  bool wide_table = false;
  const auto options =
      specdec::bench::parse_options(argc, argv, {"cpu"}, {{"--wide-table", &wide_table}});
  return specdec::bench::run(options, wide_table);
}
