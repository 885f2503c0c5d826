// The operations of recurrent layers: Gated DeltaNet as in Qwen3.5-4B, for a decoded row, a
// verified chain of drafts and parts of a prompt.
//
// A step runs as many layers as the model has, each with a state of its own that comes from memory.
// `us_per_row_and_layer` is the whole time, `over_copy` that time over one of copying memory that
// reads and writes as many bytes as the layers' matrices have.
#include <string>
#include <vector>

#include "backend/backend.h"
#include "common/bandwidth.h"
#include "common/options.h"
#include "common/report.h"
#include "common/timing.h"
#include "core/thread_pool.h"
#include "testing/recurrent_world.h"

namespace specdec::bench {
namespace {

using testing::RecurrentChunk;
using testing::RecurrentInputs;
using testing::RecurrentStates;
using testing::RecurrentStep;

constexpr StateShape kShape = {.conv_channels = 8192,
                               .conv_width = 4,
                               .num_key_heads = 16,
                               .num_heads = 32,
                               .key_dim = 128,
                               .value_dim = 128};
constexpr int kMaxPending = 3;
constexpr int kDraftRows = 8;

// A root, after which the state is stored, and drafts that leave records; or a part of a prompt.
RecurrentChunk chunk_of(int rows, int slot) {
  RecurrentChunk chunk = {.slot_in = slot};
  for (int row = 0; row < rows; ++row) chunk.rows.push_back({.input = row, .parent = row - 1});
  if (rows != kDraftRows) {
    chunk.stores = {{rows, slot}};
    return chunk;
  }
  for (int i = 0; i < kMaxPending; ++i) chunk.pending.push_back(i);
  chunk.stores = {{kMaxPending + 1, slot}};
  for (int row = 1; row < rows; ++row) chunk.rows[row].record = kMaxPending + row;
  return chunk;
}

int run(const Options& options) {
  Report report("recurrent_bench", options);
  ThreadPool pool(options.num_threads);
  const std::unique_ptr<Backend> backend = make_cpu_backend(options);
  const int num_layers = options.smoke ? 2 : 24;
  const std::vector<int> row_counts = {1, kDraftRows, 64};
  const RecurrentInputs inputs(kShape, {}, row_counts.back(), 1);
  RecurrentStates states(kShape, num_layers, kMaxPending + kDraftRows, 2);
  const double bytes = 2.0 * sizeof(float) * kShape.matrix_size() * num_layers;
  CopyBandwidth probe(static_cast<size_t>(bytes), pool);
  for (const int rows : row_counts) {
    std::vector<std::unique_ptr<RecurrentStep>> steps;
    for (int layer = 0; layer < num_layers; ++layer) {
      const std::vector<RecurrentChunk> chunks = {chunk_of(rows, layer)};
      steps.push_back(std::make_unique<RecurrentStep>(inputs, states, chunks));
    }
    std::vector<double> conv, recurrence, copies;
    for (int i = 0; i < options.samples(rows == 64 ? 9 : 25); ++i) {
      copies.push_back(probe.copy_seconds());
      backend->begin_step();
      const Stopwatch conv_watch;
      for (const auto& step : steps) backend->short_conv(step->conv_args());
      conv.push_back(conv_watch.seconds());
      const Stopwatch watch;
      for (const auto& step : steps) backend->recurrence(step->recurrence_args());
      recurrence.push_back(watch.seconds());
      backend->end_step();
    }
    const auto add = [&](const char* kernel, const char* shape, double seconds, double copy) {
      if (!options.selects(kernel)) return;
      report.add({.kernel = kernel,
                  .shape = shape,
                  .rows = rows,
                  .threads = options.num_threads,
                  .seconds = seconds,
                  .counters = {{"us_per_row_and_layer", 1e6 * seconds / rows / num_layers},
                               {"over_copy", seconds / copy}}});
    };
    add("recurrence", "16 to 32 heads of 128x128", median(recurrence), median(copies));
    add("short_conv", "8192 channels", median(conv), kNotMeasured);
  }
  return report.finish();
}

}  // namespace
}  // namespace specdec::bench

int main(int argc, char** argv) {
  return specdec::bench::run(specdec::bench::parse_options(argc, argv));
}
