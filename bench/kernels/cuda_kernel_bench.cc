// The kernels of a step one by one, at the shapes of Llama-3.2-1B and Llama-3.1-8B, each held
// against the rate at which the same GPU reads memory.
//
// A measurement is a graph of the same operation on as many sets of weights (or keys and values) as
// the L2 cache cannot hold, one after the other as in a step: seconds are of one operation, `bytes`
// what it must read. The sampler includes what waiting for its result costs the host.
// --format=act|int8|int4_grouped|... chooses how weights are stored, --filter a kernel or model,
// --rows how many rows products have. What tells most comes first: large shapes, then small ones,
// then the same products by cuBLASLt.
// --nondeterministic measures projections of many rows, each on every kernel and library there is.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "bench/kernels/cuda_projection_bench.h"
#include "common/gpu.h"
#include "common/gpu_requests.h"
#include "common/report.h"
#include "common/timing.h"

namespace specdec::bench {
namespace {

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
    ProjectionBench projections(gpu_, options_, watch_, [&](Record record) { add(record); });
    for (const ModelShape& model : models) {
      if (!options_.nondeterministic) attentions(model);
      projections.run(model);
    }
    if (options_.nondeterministic) return report_.finish();
    sampler(models.front().vocab_size);
    for (const ModelShape& model : models) projections.run_peer(model);
    return report_.finish();
  }

 private:
  int samples() const { return options_.samples(15); }
  bool wants(const std::string& kernel, const std::string& shape) const {
    return options_.selects(kernel + " " + shape) && watch_.seconds() < options_.budget_seconds;
  }

  void add(Record record) {
    record.threads = gpu_.num_multiprocessors();
    record.read_rate = read_rate_;
    report_.add(record);
  }

  void attentions(const ModelShape& model);
  void sampler(int vocab_size);

  Options options_;
  Stopwatch watch_;
  Gpu gpu_;
  Report report_;
  double read_rate_;
};

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
    // As in all layers of a pass but the first: the plan is there when the graph is recorded.
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
         .flops = 4.0 * num_rows * model.num_heads * model.head_dim * each.context,
         .counters = {{"context", each.context},
                      {"batch", each.num_requests},
                      {"sets", num_layers}},
         .launches = gpu_.launches()});
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
