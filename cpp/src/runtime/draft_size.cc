#include "runtime/draft_size.h"

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "core/byte_message.h"
#include "core/check.h"
#include "core/k_slices.h"
#include "core/stopwatch.h"

namespace specdec {
namespace {

constexpr int64_t kProbeOutputs = 4096;
constexpr int64_t kProbeInputs = 4096;
constexpr int kProbePasses = 5;
constexpr int kProbeExchanges = 100;
constexpr int64_t kExchangeInputs = 64 * kNumSlices;

// The shortest time of several runs: other work of the machine only adds to a time.
template <class Run>
double shortest(int num_runs, const Run& run) {
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < num_runs; ++i) {
    double seconds = 0;
    {
      const Stopwatch watch(seconds);
      run();
    }
    best = std::min(best, seconds);
  }
  return best;
}

}  // namespace

GroupSpeed measure_group(Backend& backend, Communicator& ranks) {
  const std::vector<float> zeros(static_cast<size_t>(kProbeOutputs * kProbeInputs));
  const WeightView view = {.values = {.data = zeros.data(),
                                      .dtype = DType::kF32,
                                      .shape = {kProbeOutputs, kProbeInputs}}};
  const auto weight = backend.pack_linear({.parts = std::array{view}});
  // A sum of all ranks, and its product alone.
  const KSlices slices = KSlices::whole(kExchangeInputs, kExchangeInputs / kNumSlices);
  std::vector<SliceRun> runs;
  for (int rank = 0; rank < ranks.size(); ++rank) {
    runs.push_back(SliceRun::of_rank(rank, ranks.size()));
  }
  const KSlices own = slices.cut(runs[static_cast<size_t>(ranks.rank())]);
  const WeightView whole_columns = {.values = {.data = zeros.data(),
                                               .dtype = DType::kF32,
                                               .shape = {kProbeOutputs, kExchangeInputs}}};
  const auto shared = backend.pack_linear(
      {.parts = std::array{whole_columns}, .k_slices = &own, .ranks = &ranks, .rank_runs = runs});
  const WeightView own_columns = {.values = {.data = zeros.data(),
                                             .dtype = DType::kF32,
                                             .shape = {kProbeOutputs, own.in_features()}}};
  const auto alone = backend.pack_linear({.parts = std::array{own_columns}});
  const Buffer row = backend.allocate(kProbeInputs * sizeof(float), "a row");
  Buffer out = backend.allocate(kProbeOutputs * sizeof(float), "a row");
  std::array<float, 1> first;
  const auto project = [&](const PackedLinear& weight) {
    backend.linear({.weight = &weight,
                    .in = {.x = row.data(), .dtype = DType::kF32, .num_rows = 1},
                    .out = out.as<float>()});
    backend.read(out.as<float>(), first);  // once it is there
  };
  const auto rate = [&] {
    return static_cast<double>(weight->size_bytes()) /
           shortest(kProbePasses, [&] { project(*weight); });
  };
  GroupSpeed speed;
  project(*weight);
  if (ranks.rank() == 0) speed.bytes_per_second_alone = rate();
  ranks.barrier();
  speed.bytes_per_second_together = rate();
  const double with_exchange = shortest(kProbeExchanges, [&] { project(*shared); });
  const double without = shortest(kProbeExchanges, [&] { project(*alone); });
  speed.exchange_seconds = std::max(with_exchange - without, 0.0);
  std::vector<std::byte> message;
  MessageWriter(message).put(speed);
  ranks.broadcast(message, 0);
  return MessageReader(message).get<GroupSpeed>();
}

int choose_draft_size(std::span<const ModelFacts> facts, const GroupSpeed& speed) {
  SPECDEC_CHECK(!facts.empty());
  const auto seconds = [&](const ModelFacts& model) {
    return model.pass_bytes(1, 1, 0) / (model.num_ranks == 1 ? speed.bytes_per_second_alone
                                                             : speed.bytes_per_second_together) +
           model.num_exchanges() * speed.exchange_seconds;
  };
  return std::ranges::min_element(facts, {}, seconds)->num_ranks;
}

}  // namespace specdec
