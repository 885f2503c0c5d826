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

// The shortest of some runs: what else the machine does only makes them longer.
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

double bytes_per_weight(Quantization quantization) {
  switch (quantization) {
    case Quantization::kInt8:
    case Quantization::kFp8:
      return 1.0;
    case Quantization::kInt4:
      return 0.5625;  // a float16 scale for every 32
    default:
      return 2.0;
  }
}

}  // namespace

DraftPassWork draft_pass_work(const ModelConfig& config, Quantization quantization) {
  const int64_t hidden = config.hidden_size;
  int64_t num_weights = config.vocab_size * hidden;
  for (const LayerSpec& layer : config.layers) {
    const int64_t heads = 2 * int64_t{config.num_heads} + 2 * int64_t{config.num_kv_heads};
    const int matrices = layer.mlp == MlpKind::kPlain ? 2 : 3;
    const int copies = layer.mlp == MlpKind::kExperts ? config.num_experts_per_token : 1;
    num_weights += heads * config.head_dim * hidden;
    num_weights += int64_t{matrices} * copies * layer.inner_size * hidden;
  }
  return {.weight_bytes = static_cast<int64_t>(static_cast<double>(num_weights) *
                                               bytes_per_weight(quantization)),
          .num_exchanges = 2 * config.num_layers + 1};  // the head's, too
}

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
  const auto product_of = [&](const PackedLinear& weight) {
    backend.linear({.weight = &weight,
                    .in = {.x = row.data(), .dtype = DType::kF32, .num_rows = 1},
                    .out = out.as<float>()});
    backend.read(out.as<float>(), first);  // once it is there
  };
  const auto rate = [&] {
    return static_cast<double>(weight->size_bytes()) /
           shortest(kProbePasses, [&] { product_of(*weight); });
  };
  GroupSpeed speed;
  product_of(*weight);
  if (ranks.rank() == 0) speed.bytes_per_second_alone = rate();
  ranks.barrier();
  speed.bytes_per_second_together = rate();
  const double with_exchange = shortest(kProbeExchanges, [&] { product_of(*shared); });
  const double without = shortest(kProbeExchanges, [&] { product_of(*alone); });
  speed.exchange_seconds = std::max(with_exchange - without, 0.0);
  std::vector<std::byte> message;
  MessageWriter(message).put(speed);
  ranks.broadcast(message, 0);
  return MessageReader(message).get<GroupSpeed>();
}

int choose_draft_size(const DraftPassWork& work, const GroupSpeed& speed,
                      std::span<const int> sizes) {
  SPECDEC_CHECK(!sizes.empty());
  const auto seconds = [&](int size) {
    const auto bytes = static_cast<double>(work.weight_bytes);
    return size == 1 ? bytes / speed.bytes_per_second_alone
                     : bytes / (size * speed.bytes_per_second_together) +
                           work.num_exchanges * speed.exchange_seconds;
  };
  return *std::ranges::min_element(sizes, {}, seconds);
}

}  // namespace specdec
