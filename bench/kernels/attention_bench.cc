// Attention of all layers of a model: decoding, verifying and prompts.
//
// Decoding is bound by memory: `bytes` are the keys and values a step must read, and the ceiling is
// what the same threads read from a buffer of the same size after every step. A prompt is bound by
// arithmetic: its ceiling is the peak of the operands' dtype.
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "common/bandwidth.h"
#include "common/matrix_peak.h"
#include "common/models.h"
#include "common/options.h"
#include "common/paged_request.h"
#include "common/report.h"
#include "common/timing.h"
#include "core/thread_pool.h"
#include "cpu/isa.h"

namespace specdec::bench {
namespace {

class Attention {
 public:
  Attention(const ModelShape& model, const Options& options, int base_len, int max_rows)
      : model_(model),
        backend_(make_cpu_backend(options)),
        request_(model, *backend_, base_len, max_rows) {
    const size_t q_bytes = size_of(options.dtype) * max_rows * model.num_heads * model.head_dim;
    q_ = Buffer::host(q_bytes, "a bench");
    out_ = Buffer::host(q_bytes, "a bench");
    PagedRequest::fill(q_, options.dtype);
  }

  double seconds(int rows) {
    const BatchView& batch = request_.batch(rows);
    backend_->begin_step();
    const Stopwatch watch;
    for (const PagedKvView& layer : request_.layers()) {
      backend_->tree_attention({.q = q_.data(),
                                .batch = &batch,
                                .kv = layer,
                                .num_heads = model_.num_heads,
                                .scale = 0.125f,
                                .out = out_.data()});
    }
    const double seconds = watch.seconds();
    backend_->end_step();
    return seconds;
  }

  // Bytes of the keys and values of all tokens a step sees.
  double kv_bytes(int rows) const {
    PagedKvView kv = request_.layers().front();
    const double block = static_cast<double>(backend_->kv_layer_bytes(kv)) / kv.num_blocks;
    return 2.0 * model_.num_layers * block / kv.block_size * (request_.base_len() + rows);
  }
  // Multiplications and additions of scores and weighted values.
  double flops(int rows) const {
    const double visible = double(rows) * request_.base_len() + rows * (rows + 1.0) / 2;
    return 4.0 * model_.num_layers * model_.num_heads * model_.head_dim * visible;
  }

 private:
  ModelShape model_;
  std::unique_ptr<Backend> backend_;
  PagedRequest request_;
  Buffer q_, out_;
};

void bench_rows(const ModelShape& model, Attention& attention, int context, int rows,
                ThreadPool& pool, double peak, const Options& options, Report& report) {
  ReadBandwidth probe(static_cast<size_t>(attention.kv_bytes(rows)), pool);
  attention.seconds(rows);
  std::vector<double> seconds, read_rates;
  for (int i = 0; i < options.samples(rows > 64 ? 5 : 15); ++i) {
    seconds.push_back(attention.seconds(rows));
    read_rates.push_back(static_cast<double>(probe.size_bytes()) / probe.read_seconds());
  }
  report.add({.kernel = "tree_attention",
              .shape = std::string(model.name) + " context " + std::to_string(context),
              .rows = rows,
              .threads = options.num_threads,
              .seconds = median(seconds),
              .bytes = attention.kv_bytes(rows),
              .flops = attention.flops(rows),
              .read_rate = median(read_rates),
              .peak_rate = peak});
}

int run(const Options& options) {
  Report report("attention_bench", options);
  ThreadPool pool(options.num_threads);
  const std::vector<MatrixPeak> peaks =
      measure_matrix_peaks(cpu::parse_isa(options.cpu_isa), pool, options.samples(100));
  const double peak = peak_for(peaks, options.dtype == DType::kBF16 ? "bfloat16" : "float32");
  for (ModelShape model : models()) {
    if (!options.selects(model.name)) continue;
    if (options.smoke) model.num_layers = 1;
    for (int context : options.smoke ? std::vector{64} : std::vector{512, 4096}) {
      const std::vector<int> rows = options.smoke ? std::vector{1, 3} : step_rows();
      Attention attention(model, options, context, rows.back());
      for (int n : rows) bench_rows(model, attention, context, n, pool, peak, options, report);
    }
    const int prompt = options.smoke ? 32 : kPromptRows;
    Attention attention(model, options, 0, prompt);
    bench_rows(model, attention, 0, prompt, pool, peak, options, report);
  }
  return report.finish();
}

}  // namespace
}  // namespace specdec::bench

int main(int argc, char** argv) {
  return specdec::bench::run(specdec::bench::parse_options(argc, argv));
}
