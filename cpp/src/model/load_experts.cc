#include "model/load_experts.h"

#include <algorithm>
#include <array>

#include "core/str_cat.h"
#include "specdec/error.h"

namespace specdec {
namespace {

// `gate` and `up` are whole matrices, of the tensor `name`.
void add_expert(TensorLoader& loader, const WeightView& gate, const WeightView& up,
                const WeightView& down, const std::string& name, Experts& experts) {
  const SharedSums sums = loader.inner_sums(static_cast<int>(down.in_features()));
  const RowRange own = {sums.slices.begin(), sums.slices.in_features()};
  const std::array gate_up = {loader.rows_of(gate, own, name), loader.rows_of(up, own, name)};
  experts.storage.push_back(loader.pack(MatrixRole::kLayer, gate_up, {.gated = true}));
  experts.gate_up.push_back(experts.storage.back().get());
  experts.storage.push_back(loader.pack(MatrixRole::kLayer, std::array{down}, {.sums = &sums}));
  experts.down.push_back(experts.storage.back().get());
}

void load_apart(TensorLoader& loader, const std::string& block, int64_t inner, Experts& experts) {
  const int64_t hidden = loader.config().hidden_size;
  const auto& [gate_name, up_name, down_name] = loader.config().names.expert;
  for (int expert = 0; expert < loader.config().num_experts; ++expert) {
    const std::string gate = str_cat(block, ".", expert, ".", gate_name, ".weight");
    const std::string up = str_cat(block, ".", expert, ".", up_name, ".weight");
    const std::string down = str_cat(block, ".", expert, ".", down_name, ".weight");
    add_expert(loader, loader.read_matrix(gate, inner, hidden),
               loader.read_matrix(up, inner, hidden), loader.read_matrix(down, hidden, inner), gate,
               experts);
    for (const std::string& name : {gate, up, down}) loader.release(name);
  }
}

void load_stacked(TensorLoader& loader, const std::string& block, int64_t inner, Experts& experts) {
  const int64_t hidden = loader.config().hidden_size;
  const int64_t count = loader.config().num_experts;
  const std::string gate_up_name = block + ".gate_up_proj";
  const std::string down_name = block + ".down_proj";
  // Each stack taken as one tall matrix.
  const auto read = [&](const std::string& name, int64_t rows_each, int64_t in_features) {
    const TensorView stack = loader.read(name, std::array{count, rows_each, in_features});
    return WeightView{.values = {.data = stack.data,
                                 .dtype = stack.dtype,
                                 .shape = {count * rows_each, in_features}}};
  };
  const WeightView gate_up = read(gate_up_name, 2 * inner, hidden);
  const WeightView down = read(down_name, hidden, inner);
  for (int64_t expert = 0; expert < count; ++expert) {
    const int64_t gate = 2 * expert * inner;
    add_expert(loader, loader.rows_of(gate_up, {gate, inner}, gate_up_name),
               loader.rows_of(gate_up, {gate + inner, inner}, gate_up_name),
               loader.rows_of(down, {expert * hidden, hidden}, down_name), gate_up_name, experts);
  }
  loader.release(gate_up_name);
  loader.release(down_name);
}

// Products of all experts of a layer are one operation.
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
