#include "model/load_experts.h"

#include <algorithm>
#include <array>

#include "core/str_cat.h"
#include "specdec/error.h"

namespace specdec {
namespace {

void add_expert(TensorLoader& loader, const WeightView& gate, const WeightView& up,
                const WeightView& down, Experts& experts) {
  experts.storage.push_back(loader.pack(MatrixRole::kLayer, std::array{gate, up}, /*gated=*/true));
  experts.gate_up.push_back(experts.storage.back().get());
  experts.storage.push_back(loader.pack(MatrixRole::kLayer, std::array{down}));
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
               loader.read_matrix(up, inner, hidden), loader.read_matrix(down, hidden, inner),
               experts);
    for (const std::string& name : {gate, up, down}) loader.release(name);
  }
}

void load_stacked(TensorLoader& loader, const std::string& block, int64_t inner, Experts& experts) {
  const int64_t hidden = loader.config().hidden_size;
  const int64_t count = loader.config().num_experts;
  const std::string gate_up_name = block + ".gate_up_proj";
  const std::string down_name = block + ".down_proj";
  const TensorView gate_up = loader.read(gate_up_name, std::array{count, 2 * inner, hidden});
  const TensorView down = loader.read(down_name, std::array{count, hidden, inner});
  // Rows [index * num_rows, + num_rows) of the stack taken as one tall matrix.
  const auto slice = [](const TensorView& stack, int64_t index, int64_t num_rows) {
    const int64_t row_bytes = stack.shape[2] * static_cast<int64_t>(size_of(stack.dtype));
    return WeightView{
        .values = {.data = static_cast<const char*>(stack.data) + index * num_rows * row_bytes,
                   .dtype = stack.dtype,
                   .shape = {num_rows, stack.shape[2]}}};
  };
  for (int64_t expert = 0; expert < count; ++expert) {
    add_expert(loader, slice(gate_up, 2 * expert, inner), slice(gate_up, 2 * expert + 1, inner),
               slice(down, expert, hidden), experts);
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
