#include "model/load_mixer.h"

#include <array>
#include <cmath>
#include <numeric>

#include "core/check.h"
#include "core/str_cat.h"

namespace specdec {
namespace {

class MixerLoader {
 public:
  MixerLoader(TensorLoader& loader, const std::string& layer, const LayerSpec& spec)
      : loader_(loader),
        config_(loader.config()),
        names_(config_.names),
        block_(str_cat(layer, names_.mixer, ".")),
        spec_(spec),
        shape_(spec.state) {}

  RecurrentMixer load() {
    RecurrentMixer mixer;
    switch (spec_.mixer) {
      case Mixer::kShortConv:
        load_in({int64_t{3} * shape_.conv_channels}, mixer);
        break;
      case Mixer::kGatedDelta:
        load_delta_in(mixer);
        break;
      case Mixer::kMamba2:
        load_in({shape_.value_size() + shape_.conv_channels + shape_.num_heads}, mixer);
        break;
      case Mixer::kAttention:
        SPECDEC_CHECK(false);
    }
    load_conv(mixer);
    if (shape_.num_heads > 0) load_recurrence(mixer);
    return mixer;
  }

  // The projection of the mixer's result.
  Linear load_out() {
    const int64_t inputs = shape_.num_heads > 0 ? shape_.value_size() : shape_.conv_channels;
    const SharedSums sums = loader_.inner_sums(static_cast<int>(inputs));
    return loader_.linear({{str_cat(block_, names_.mixer_out), config_.hidden_size}}, inputs,
                          config_.mixer_bias, {.sums = &sums});
  }

 private:
  using Names = std::array<std::string_view, 2>;

  // Tensors of so many rows, whose names come without ".weight".
  std::vector<TensorPart> parts(const Names& names, std::span<const int64_t> rows) const {
    std::vector<TensorPart> parts;
    for (size_t i = 0; i < rows.size(); ++i) {
      parts.push_back({str_cat(block_, names[i], ".weight"), rows[i]});
    }
    return parts;
  }

  // One tensor that has all of `part_rows` of each key head together.
  std::vector<TensorPart> parts_by_head(const Names& names,
                                        std::span<const int64_t> part_rows) const {
    const int64_t rows = std::accumulate(part_rows.begin(), part_rows.end(), int64_t{0});
    TensorPart part = {str_cat(block_, names[0], ".weight"), rows * shape_.num_key_heads};
    // Random rows need no order, and a backend may make them up itself.
    if (!config_.random_weights) part.order = parts_apart(shape_.num_key_heads, part_rows);
    return {part};
  }

  void load_in(std::initializer_list<int64_t> rows, RecurrentMixer& mixer) {
    const std::span<const int64_t> sizes(rows.begin(), rows.size());
    mixer.in =
        loader_.matrix(MatrixRole::kLayer, parts(names_.mixer_in, sizes), config_.hidden_size);
    if (!config_.mixer_bias) return;
    SPECDEC_CHECK_EQ(rows.size(), 1u);  // no family needs more
    mixer.in_bias = loader_.vector({{str_cat(block_, names_.mixer_in[0], ".bias"), sizes[0]}});
  }

  void load_delta_in(RecurrentMixer& mixer) {
    const int64_t hidden = config_.hidden_size;
    std::vector<TensorPart> gates;
    if (names_.mixer_by_key_head) {
      const int64_t heads = shape_.num_heads / shape_.num_key_heads;
      const int64_t keys = shape_.key_dim, values = heads * shape_.value_dim;
      mixer.in = loader_.matrix(
          MatrixRole::kLayer,
          parts_by_head(names_.mixer_in, std::array{keys, keys, values, values}), hidden);
      gates = parts_by_head(names_.mixer_gates, std::array{heads, heads});
    } else {
      load_in({shape_.conv_channels, shape_.value_size()}, mixer);
      const int64_t heads = shape_.num_heads;
      gates = parts(names_.mixer_gates, std::array{heads, heads});
    }
    mixer.gates = loader_.matrix(MatrixRole::kFloat, gates, hidden);
  }

  void load_conv(RecurrentMixer& mixer) {
    const std::string name = str_cat(block_, names_.mixer_conv);
    const int64_t channels = shape_.conv_channels;
    mixer.conv_weight = loader_.vector_of(
        loader_.read_floats(name + ".weight", {channels, 1, int64_t{shape_.conv_width}}));
    if (config_.conv_bias) mixer.conv_bias = loader_.vector({{name + ".bias", channels}});
  }

  void load_recurrence(RecurrentMixer& mixer) {
    const int64_t heads = shape_.num_heads;
    std::vector<float> rates = loader_.read_floats(block_ + "A_log", {heads});
    for (float& rate : rates) rate = -std::exp(rate);
    mixer.decay_rates = loader_.vector_of(rates);
    mixer.step_bias = loader_.vector({{block_ + "dt_bias", heads}});
    if (spec_.mixer == Mixer::kMamba2) mixer.skip = loader_.vector({{block_ + "D", heads}});
    mixer.norm_weight = load_norm();
  }

  // Plain weights, without the config's norm_offset. The heads of Gated DeltaNet share them.
  Buffer load_norm() {
    const std::string name = str_cat(block_, names_.mixer_norm, ".weight");
    if (spec_.mixer == Mixer::kMamba2) return loader_.vector({{name, shape_.value_size()}});
    const std::vector<float> shared = loader_.read_floats(name, {int64_t{shape_.value_dim}});
    std::vector<float> weights;
    for (int head = 0; head < shape_.num_heads; ++head) {
      weights.insert(weights.end(), shared.begin(), shared.end());
    }
    return loader_.vector_of(weights);
  }

  TensorLoader& loader_;
  const ModelConfig& config_;
  const TensorNames& names_;
  std::string block_;  // prefix of the names of its tensors
  const LayerSpec& spec_;
  const StateShape& shape_;
};

}  // namespace

std::vector<RowRange> parts_apart(int num_heads, std::span<const int64_t> part_rows) {
  const int64_t rows_of_head = std::accumulate(part_rows.begin(), part_rows.end(), int64_t{0});
  std::vector<RowRange> order;
  int64_t first = 0;  // of the part, in a head's rows
  for (const int64_t rows : part_rows) {
    for (int head = 0; head < num_heads; ++head) {
      order.push_back({head * rows_of_head + first, rows});
    }
    first += rows;
  }
  return order;
}

void load_mixer(TensorLoader& loader, const std::string& prefix, Layer& layer) {
  const TensorNames& names = loader.config().names;
  if (!names.attention_norm.empty()) {
    layer.attention_norm = loader.norm(str_cat(prefix, names.attention_norm));
  }
  MixerLoader mixer(loader, prefix, layer.spec);
  layer.state = layer.spec.state;
  layer.mixer = mixer.load();
  layer.attention_out = mixer.load_out();
  if (layer.spec.norms_output()) {
    layer.attention_output_norm = loader.output_norm(str_cat(prefix, names.attention_output_norm));
  }
}

}  // namespace specdec
