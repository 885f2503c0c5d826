#include "model/load_experts.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <vector>

#include "core/str_cat.h"
#include "model/gathered_rows.h"
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

// A matrix whose rows were the columns of another.
class Transposed {
 public:
  explicit Transposed(const WeightView& matrix)
      : rows_(matrix.in_features()), cols_(matrix.rows()), values_(matrix.rows() * rows_) {
    std::vector<float> row(static_cast<size_t>(rows_));
    for (int64_t i = 0; i < cols_; ++i) {
      to_floats(static_cast<const std::byte*>(matrix.values.data) +
                    i * rows_ * static_cast<int64_t>(size_of(matrix.values.dtype)),
                matrix.values.dtype, row.size(), row.data());
      for (int64_t j = 0; j < rows_; ++j) values_[j * cols_ + i] = row[j];
    }
  }
  WeightView view() const {
    return {.values = {.data = values_.data(), .dtype = DType::kF32, .shape = {rows_, cols_}}};
  }

 private:
  int64_t rows_, cols_;
  std::vector<float> values_;
};

// All experts in two tensors: gates and ups, and downs.
class StackedExperts {
 public:
  StackedExperts(TensorLoader& loader, const std::string& layer, int64_t inner)
      : loader_(loader),
        names_(loader.config().names),
        gate_up_(str_cat(layer, names_.stacked_experts[0])),
        down_(str_cat(layer, names_.stacked_experts[1])),
        inner_(inner),
        sums_(loader.inner_sums(static_cast<int>(inner))),
        own_{sums_.slices.begin(), sums_.slices.in_features()} {}

  void load(Experts& experts) {
    const int64_t hidden = loader_.config().hidden_size;
    for (int expert = 0; expert < loader_.config().num_experts; ++expert) {
      const Part gate_up = part(gate_up_, expert, 2 * inner_, hidden);
      const Part down = part(down_, expert, hidden, inner_);
      if (names_.stacked_alternates) {
        const GatheredRows gates(own_of_alternating(gate_up.view, 0));
        const GatheredRows ups(own_of_alternating(gate_up.view, 1));
        add_expert(loader_, gates.view(), ups.view(), down.view, sums_, experts);
      } else {
        const auto rows = [&](int64_t first) {
          return loader_.rows_of(gate_up_, gate_up.view, {first + own_.begin, own_.count});
        };
        add_expert(loader_, rows(0), rows(inner_), down.view, sums_, experts);
      }
    }
    for (const std::string& name : {gate_up_, down_}) loader_.release(name);
  }

 private:
  struct Part {
    WeightView view;  // [rows, in_features]
    std::optional<Transposed> transposed = {};
  };

  Part part(const std::string& name, int expert, int64_t rows, int64_t in_features) {
    const int64_t count = loader_.config().num_experts;
    if (!names_.stacked_transposed || !loader_.contains_plain(name)) {
      const RowRange own = {expert * rows, rows};
      return {loader_.read_stack(name, {count, rows, in_features}, own)};
    }
    const RowRange own = {expert * in_features, in_features};
    Part part;
    part.transposed.emplace(loader_.read_stack(name, {count, in_features, rows}, own));
    part.view = part.transposed->view();
    return part;
  }
  std::vector<WeightView> own_of_alternating(const WeightView& gate_up, int64_t parity) const {
    std::vector<WeightView> rows = every_row(gate_up, parity, 2);
    return {rows.begin() + own_.begin, rows.begin() + own_.end()};
  }

  TensorLoader& loader_;
  const TensorNames& names_;
  std::string gate_up_, down_;
  int64_t inner_;
  SharedSums sums_;
  RowRange own_;  // this rank's inner features
};

// This rank's biases of all experts.
void load_biases(TensorLoader& loader, const std::string& layer, int64_t inner, Experts& experts) {
  const ModelConfig& config = loader.config();
  const int64_t count = config.num_experts, hidden = config.hidden_size;
  const SharedSums sums = loader.inner_sums(static_cast<int>(inner));
  const bool alternates = config.names.stacked_alternates;
  const auto name_of = [&](int matrix) {
    return str_cat(layer, config.names.stacked_experts[matrix], "_bias");
  };
  const std::vector<float> stored = loader.read_floats(name_of(0), {count, 2 * inner});
  std::vector<float> gate_up;
  for (int64_t expert = 0; expert < count; ++expert) {
    for (int64_t part = 0; part < 2; ++part) {
      for (int64_t i = sums.slices.begin(); i < sums.slices.begin() + sums.slices.in_features();
           ++i) {
        gate_up.push_back(
            stored[expert * 2 * inner + (alternates ? 2 * i + part : part * inner + i)]);
      }
    }
  }
  experts.gate_up_bias = loader.vector_of(gate_up);
  experts.down_bias = loader.vector_of(loader.read_floats(name_of(1), {count, hidden}));
}

// Norms beside those of the MLP that stands beside the experts.
void load_norms(TensorLoader& loader, const std::string& layer, Experts& experts) {
  const ModelConfig& config = loader.config();
  experts.input_norm = loader.norm(str_cat(layer, config.names.experts_norm));
  experts.output_norm = loader.output_norm(str_cat(layer, config.names.experts_output_norm));
  // The router's norm has no weights; its factors serve as weights.
  std::vector<float> scales =
      loader.read_floats(str_cat(layer, config.names.router_scale), {config.hidden_size});
  for (float& scale : scales) scale /= std::sqrt(static_cast<float>(config.hidden_size));
  experts.router_norm = {.eps = config.norm_eps, .weight = loader.vector_of(scales), .bias = {}};
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
  const TensorNames& names = config.names;
  const bool is_stacked = loader.contains(str_cat(layer, names.stacked_experts[0]));
  // transformers 5 holds experts stacked, with the router of every family under this name.
  constexpr const char* kRouterOfStack = "mlp.gate";
  const std::string own_router = str_cat(layer, names.router);
  const std::string router = is_stacked && !loader.contains(own_router + ".weight")
                                 ? str_cat(layer, kRouterOfStack)
                                 : own_router;
  experts.router.weight = loader.matrix(
      MatrixRole::kFloat, {{router + ".weight", config.num_experts}}, config.hidden_size);
  if (config.expert_biases)
    experts.router.bias = loader.vector({{router + ".bias", config.num_experts}});
  if (!names.selection_bias.empty()) {
    experts.selection_bias =
        loader.flat_vector(str_cat(layer, names.selection_bias), config.num_experts);
  }
  if (!names.expert_scales.empty()) {
    experts.scales = loader.vector({{str_cat(layer, names.expert_scales), config.num_experts}});
  }
  if (spec.norms_output()) load_norms(loader, layer, experts);
  const std::string block = str_cat(layer, names.experts);
  if (is_stacked) {
    StackedExperts(loader, layer, spec.inner_size).load(experts);
  } else {
    load_apart(loader, block, spec.inner_size, experts);
  }
  if (config.expert_biases) load_biases(loader, layer, spec.inner_size, experts);
  check_alike(loader, block, experts);
  return experts;
}

}  // namespace specdec
