// The kernels of a step one by one, at the shapes of Llama-3.2-1B and Llama-3.1-8B, each held
// against the rate at which the same GPU reads memory.
//
// A measurement is a graph of the same operation on as many sets of weights (or keys and values) as
// the L2 cache cannot hold, one after the other as in a step: seconds are of one operation, `bytes`
// what it must read. The sampler includes what waiting for its result costs the host.
// --format=act|int8|int4_grouped|... chooses how weights are stored, --filter a kernel or model.
// --nondeterministic measures projections of many rows, by the kernels that are for them alone.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "common/gpu.h"
#include "common/gpu_requests.h"
#include "common/report.h"
#include "common/timing.h"

namespace specdec::bench {
namespace {

constexpr int64_t kBeyondCache = int64_t{256} << 20;
constexpr int kMaxSets = 64;

int sets_for(double bytes) {
  return std::clamp(static_cast<int>(kBeyondCache / bytes) + 1, 1, kMaxSets);
}

class KernelBench {
 public:
  explicit KernelBench(const Options& options)
      : options_(options),
        gpu_(options),
        report_("cuda_kernel_bench", options),
        read_rate_(gpu_.read_rate(options.smoke ? 1 << 18 : int64_t{2} << 30, samples())) {}

  int run() {
    std::vector<ModelShape> models = gpu_models();
    if (options_.smoke) models = {kTinyModel};
    for (const ModelShape& model : models) projections(model);
    for (const ModelShape& model : models) attentions(model);
    sampler(models.front().vocab_size);
    return report_.finish();
  }

 private:
  std::vector<int> projected_rows() const {
    if (!options_.deterministic)
      return options_.smoke ? std::vector{130} : std::vector{128, 512, 2048};
    return options_.smoke ? std::vector{1, 3, 17} : std::vector{1, 4, 8, 16, 64};
  }
  int samples() const { return options_.samples(15); }
  bool wants(const std::string& kernel, const std::string& shape) const {
    return options_.selects(kernel + " " + shape) && watch_.seconds() < options_.budget_seconds;
  }

  void add(Record record) {
    record.threads = gpu_.num_multiprocessors();
    record.read_rate = read_rate_;
    report_.add(record);
  }

  void projections(const ModelShape& model);
  void projection(const ModelShape& model, const std::string& kernel, int64_t out_features,
                  int64_t in_features, bool gated);
  void attentions(const ModelShape& model);
  void sampler(int vocab_size);

  Options options_;
  Stopwatch watch_;
  Gpu gpu_;
  Report report_;
  double read_rate_;
};

void KernelBench::projections(const ModelShape& model) {
  const int64_t q_width = int64_t{model.num_heads} * model.head_dim;
  const int64_t qkv_width = q_width + 2LL * model.num_kv_heads * model.head_dim;
  projection(model, "qkv", qkv_width, model.hidden, false);
  projection(model, "attention_out", model.hidden, q_width, false);
  projection(model, "gate_up", 2LL * model.intermediate, model.hidden, true);
  projection(model, "down", model.hidden, model.intermediate, false);
  projection(model, "head", model.vocab_size, model.hidden, false);
}

// The launch of one projection as the decoder makes it, on given weights.
class ProjectionRun {
 public:
  ProjectionRun(Gpu& gpu, const ModelShape& model, const std::string& kernel, int64_t out_features,
                int64_t in_features, int num_rows)
      : gpu_(gpu), model_(model), kernel_(kernel), requests_(gpu, model, 1, num_rows, 64, 1) {
    const DType act = gpu.backend().act_dtype();
    gpu.backend().begin_step();
    batch_ = requests_.stage(1);
    const int staged_rows = batch_.num_rows;  // with padding
    rows_ = gpu.random(sizeof(float) * staged_rows * in_features, DType::kF32);
    act_rows_ = gpu.random(size_of(act) * staged_rows * in_features, act);
    out_ = gpu.device().allocate(sizeof(float) * staged_rows * out_features, "a bench");
    norm_weight_ = gpu.random(sizeof(float) * in_features, DType::kF32);
    rope_ = gpu.random(sizeof(float) * 65 * model.head_dim / 2, DType::kF32);
    norm_ = {.weight = norm_weight_.as<float>()};
    normed_ = {.x = rows_.data(), .norm = &norm_, .num_rows = staged_rows};
    acts_ = {.x = act_rows_.data(), .dtype = act, .num_rows = staged_rows};
  }

  void operator()(const PackedLinear& weight) {
    Backend& backend = gpu_.backend();
    if (kernel_ == "qkv") {
      backend.project_qkv({.weight = &weight,
                           .in = normed_,
                           .rope_cos = rope_.as<float>(),
                           .rope_sin = rope_.as<float>(),
                           .rotary_dim = model_.head_dim,
                           .num_heads = model_.num_heads,
                           .batch = &batch_,
                           .kv = requests_.layers().front(),
                           .q = out_.data()});
    } else if (kernel_ == "gate_up") {
      backend.activated_linear({.weight = &weight, .in = normed_, .out = out_.data()});
    } else if (kernel_ == "head") {
      backend.linear({.weight = &weight, .in = normed_, .out = out_.as<float>()});
    } else {
      backend.linear({.weight = &weight, .in = acts_, .out = out_.as<float>(), .accumulate = true});
    }
  }

 private:
  Gpu& gpu_;
  ModelShape model_;
  std::string kernel_;
  GpuRequests requests_;
  Buffer rows_, act_rows_, out_, norm_weight_, rope_;
  NormParams norm_;
  ProjectionInput normed_, acts_;
  BatchView batch_;
};

void KernelBench::projection(const ModelShape& model, const std::string& kernel,
                             int64_t out_features, int64_t in_features, bool gated) {
  const std::string shape = std::string(model.name) + " " + std::string(name_of(options_.format));
  if (!wants(kernel, shape)) return;
  const DType act = gpu_.backend().act_dtype();
  const int64_t part_rows = gated ? out_features / 2 : out_features;
  const std::vector<uint16_t> source =
      random_numbers(static_cast<size_t>(part_rows * in_features), act);
  const WeightView view{.values = {source.data(), act, {part_rows, in_features}}};
  const std::vector<WeightView> parts(gated ? 2 : 1, view);
  const PackArgs pack = {.parts = parts, .format = options_.format, .gated = gated};
  std::vector<std::unique_ptr<PackedLinear>> weights;
  weights.push_back(gpu_.backend().pack_linear(pack));
  const double bytes = static_cast<double>(weights.front()->size_bytes());
  const int num_sets = options_.smoke ? 2 : sets_for(bytes);
  while (static_cast<int>(weights.size()) < num_sets) {
    weights.push_back(gpu_.backend().pack_linear(pack));
  }
  for (int num_rows : projected_rows()) {
    if (!wants(kernel, shape)) return;
    ProjectionRun run(gpu_, model, kernel, out_features, in_features, num_rows);
    const double seconds = gpu_.graph_seconds(samples(), [&] {
      for (const auto& weight : weights) run(*weight);
    });
    add({.kernel = kernel,
         .shape = shape,
         .rows = num_rows,
         .seconds = seconds / num_sets,
         .bytes = bytes,
         .flops = 2.0 * num_rows * static_cast<double>(out_features * in_features)});
  }
}

void KernelBench::attentions(const ModelShape& model) {
  struct Case {
    int context, num_requests, rows_each;
  };
  const std::vector<Case> cases =
      options_.smoke
          ? std::vector<Case>{{40, 1, 1}, {40, 2, 3}}
          : std::vector<Case>{{1024, 1, 1},  {1024, 1, 8},  {1024, 16, 1},  {1024, 16, 8},
                              {16384, 1, 1}, {16384, 1, 8}, {16384, 16, 1}, {16384, 16, 8}};
  const DType act = gpu_.backend().act_dtype();
  for (const Case& each : cases) {
    const std::string shape = std::string(model.name) + " context " + std::to_string(each.context) +
                              " x" + std::to_string(each.num_requests);
    if (!wants("attention", shape)) continue;
    const double layer_bytes = 2.0 * static_cast<double>(size_of(act)) * model.num_kv_heads *
                               model.head_dim * each.context * each.num_requests;
    const int num_layers = options_.smoke ? 1 : sets_for(layer_bytes);
    GpuRequests requests(gpu_, model, num_layers, each.num_requests, each.context, each.rows_each);
    const int num_rows = each.num_requests * each.rows_each;
    gpu_.backend().begin_step();
    const BatchView batch = requests.stage(each.rows_each);  // with padding
    const size_t q_bytes =
        size_of(act) * static_cast<size_t>(batch.num_rows) * model.num_heads * model.head_dim;
    const Buffer q = gpu_.random(q_bytes, act);
    Buffer out = gpu_.device().allocate(q_bytes, "a bench");
    const double seconds = gpu_.graph_seconds(samples(), [&] {
      for (const PagedKvView& layer : requests.layers()) {
        gpu_.backend().tree_attention({.q = q.data(),
                                       .batch = &batch,
                                       .kv = layer,
                                       .num_heads = model.num_heads,
                                       .scale = 0.125f,
                                       .out = out.data()});
      }
    });
    add({.kernel = "attention",
         .shape = shape,
         .rows = num_rows,
         .seconds = seconds / num_layers,
         .bytes = requests.layer_bytes(each.rows_each),
         .flops = 4.0 * num_rows * model.num_heads * model.head_dim * each.context});
  }
}

void KernelBench::sampler(int vocab_size) {
  struct Setting {
    const char* name;
    SampleRow row;
  };
  const std::vector<Setting> settings = {
      {"greedy", {.temperature = 0.0f}},
      {"temperature", {.temperature = 0.8f}},
      {"top_k, top_p", {.temperature = 0.8f, .top_k = 50, .top_p = 0.95f}},
      {"top_p", {.temperature = 0.8f, .top_p = 0.95f}},
      {"greedy, logprobs", {.temperature = 0.0f, .num_logprobs = 5, .want_logprobs = true}},
  };
  const std::string shape = "vocab " + std::to_string(vocab_size);
  for (const Setting& setting : settings) {
    for (int num_rows : options_.smoke ? std::vector{2} : std::vector{1, 16, 64}) {
      const std::string kernel = std::string("sample: ") + setting.name;
      if (!wants(kernel, shape)) continue;
      const size_t logits_bytes = sizeof(float) * static_cast<size_t>(num_rows) * vocab_size;
      Buffer logits = gpu_.random(logits_bytes, DType::kF32);
      std::vector<SampleRow> rows(num_rows, setting.row);
      for (int i = 0; i < num_rows; ++i) rows[i].position = i;
      std::vector<SampleResult> results(num_rows);
      const double seconds = gpu_.host_seconds(samples(), [&] {
        gpu_.backend().begin_step();
        gpu_.backend().sample({.logits = logits.as<float>(),
                               .rows = rows,
                               .vocab_size = vocab_size,
                               .results = results});
      });
      add({.kernel = kernel,
           .shape = shape,
           .rows = num_rows,
           .seconds = seconds,
           .bytes = static_cast<double>(logits_bytes)});
    }
  }
}

}  // namespace
}  // namespace specdec::bench

int main(int argc, char** argv) {
  using namespace specdec::bench;
  const Options options = parse_options(argc, argv, {"cuda", "emulated"});
  return run_on_gpu(argv[0], [&] { return KernelBench(options).run(); });
}
