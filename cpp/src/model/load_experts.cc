#include "model/load_experts.h"

#include <algorithm>
#include <array>
#include <vector>

#include "core/str_cat.h"
#include "specdec/error.h"

namespace specdec {
namespace {

// `gate` and `up` hold only this rank's rows, `down` a whole matrix.
void add_expert(TensorLoader& loader, const WeightView& gate, const WeightView& up,
                const WeightView& down, const SharedSums& sums, Experts& experts) {
  const std::array gate_up = {gate, up};
  experts.storage.push_back(loader.pack(MatrixRole::kExpert, gate_up, {.gated = true}));
  experts.gate_up.push_back(experts.storage.back().get());
  experts.storage.push_back(loader.pack(MatrixRole::kExpert, std::array{down}, {.sums = &sums}));
  experts.down.push_back(experts.storage.back().get());
}

void load_apart(TensorLoader& loader, const std::string& block, int64_t inner, Experts& experts) {
  const int64_t hidden = loader.config().hidden_size;
  const auto& [gate_name, up_name, down_name] = loader.config().names.expert;
  const SharedSums sums = loader.inner_sums(static_cast<int>(inner));
  const auto own_rows = [&](const std::string& name) {
    const RowRange own = {sums.slices.begin(), sums.slices.in_features()};
    return loader.read_rows({name, inner, {own}}, hidden).front();
  };
  for (int expert = 0; expert < loader.config().num_experts; ++expert) {
    const std::string gate = str_cat(block, ".", expert, ".", gate_name, ".weight");
    const std::string up = str_cat(block, ".", expert, ".", up_name, ".weight");
    const std::string down = str_cat(block, ".", expert, ".", down_name, ".weight");
    add_expert(loader, own_rows(gate), own_rows(up), loader.read_matrix(down, hidden, inner), sums,
               experts);
    for (const std::string& name : {gate, up, down}) loader.release(name);
  }
}

void load_stacked(TensorLoader& loader, const std::string& block, int64_t inner, Experts& experts) {
  const int64_t hidden = loader.config().hidden_size;
  const int64_t count = loader.config().num_experts;
  const std::string gate_up_name = block + ".gate_up_proj";
  const std::string down_name = block + ".down_proj";
  const SharedSums sums = loader.inner_sums(static_cast<int>(inner));
  const int64_t begin = sums.slices.begin(), own = sums.slices.in_features();
  std::vector<RowRange> gate_up_rows, down_rows;
  for (int64_t expert = 0; expert < count; ++expert) {
    for (const int64_t matrix : {2 * expert, 2 * expert + 1}) {
      gate_up_rows.push_back({matrix * inner + begin, own});
    }
    down_rows.push_back({expert * hidden, hidden});
  }
  const auto gate_up = loader.read_stack(gate_up_name, {count, 2 * inner, hidden}, gate_up_rows);
  const auto down = loader.read_stack(down_name, {count, hidden, inner}, down_rows);
  for (size_t expert = 0; expert < down.size(); ++expert) {
    add_expert(loader, gate_up[2 * expert], gate_up[2 * expert + 1], down[expert], sums, experts);
  }
  loader.release(gate_up_name);
  loader.release(down_name);
}

// All experts of a layer run as one operation, so they must have equal formats.
void check_alike(const TensorLoader& loader, const std::string& block, const Experts& experts) {
  const auto differs = [](const std::vector<const PackedLinear*>& weights) {
    return std::ranges::any_of(weights, [&](const PackedLinear* weight) {
      return weight->format() != weights.front()->format();
    });
  };
  if (!differs(experts.gate_up) && !differs(experts.down)) return;
  throw CheckpointError(loader.source(), block,
                        "experts of a layer are stored in different formats; give "
                        "quantization='none', or one that makes them alike");
}

}  // namespace

Experts load_experts(TensorLoader& loader, const std::string& layer, const LayerSpec& spec) {
  Experts experts;
  const ModelConfig& config = loader.config();
  const bool is_stacked = loader.contains(layer + "mlp.experts.gate_up_proj");
  const std::string router = layer + std::string(is_stacked ? "mlp.gate" : config.names.router);
  const std::string block = layer + std::string(is_stacked ? "mlp.experts" : config.names.experts);
  experts.router = loader.matrix(MatrixRole::kFloat, {{router + ".weight", config.num_experts}},
                                 config.hidden_size);
  (is_stacked ? load_stacked : load_apart)(loader, block, spec.inner_size, experts);
  check_alike(loader, block, experts);
  return experts;
}

}  // namespace specdec
