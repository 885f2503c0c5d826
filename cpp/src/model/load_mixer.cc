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
        whole_(spec.state),
        own_(loader.shard().state_of(spec)) {
    if (whole_.num_heads > 0) share_ = loader.shard().share_of(shared_heads_of(spec));
  }

  RecurrentMixer load() {
    RecurrentMixer mixer;
    switch (spec_.mixer) {
      case Mixer::kShortConv:
        load_in({{names_.mixer_in[0], int64_t{3} * whole_.conv_channels, thrice(channels())}},
                mixer);
        break;
      case Mixer::kGatedDelta:
        load_delta_in(mixer);
        break;
      case Mixer::kMamba2:
        load_mamba_in(mixer);
        load_norm_groups(mixer);
        break;
      case Mixer::kAttention:
        SPECDEC_CHECK(false);
    }
    load_conv(mixer);
    if (whole_.num_heads > 0) load_recurrence(mixer);
    return mixer;
  }

  // The projection of the mixer's result.
  Linear load_out() {
    const bool has_heads = whole_.num_heads > 0;
    const int64_t inputs = has_heads ? whole_.value_size() : whole_.conv_channels;
    const SharedSums sums = has_heads ? loader_.attention_sums(shared_heads_of(spec_))
                                      : loader_.inner_sums(static_cast<int>(inputs));
    return loader_.linear({{str_cat(block_, names_.mixer_out), config_.hidden_size}}, inputs,
                          config_.mixer_bias, {.sums = &sums});
  }

 private:
  // Rows of a tensor of the mixer, whose name comes without ".weight".
  struct Rows {
    std::string_view name;
    int64_t count = 0;                 // in all
    std::vector<RowRange> order = {};  // of those that this rank has; empty: all
  };

  // This rank's channels of a short convolution.
  RowRange channels() const {
    const KSlices slices = loader_.shard().inner_slices(whole_.conv_channels);
    return {slices.begin(), slices.in_features()};
  }
  std::vector<RowRange> thrice(RowRange range) const {
    std::vector<RowRange> order;
    for (int64_t part = 0; part < 3; ++part) {
      order.push_back({part * whole_.conv_channels + range.begin, range.count});
    }
    return order;
  }
  // This rank's heads, each with `rows` rows.
  RowRange own_heads(int64_t rows) const {
    return {share_.first_head * rows, share_.num_heads * rows};
  }
  RowRange own_key_heads(int64_t rows) const {
    return {share_.first_kv_head * rows, share_.num_kv_heads * rows};
  }
  // Of the rows of q, k and v, which are also the channels of the convolution.
  std::vector<RowRange> own_channels() const {
    if (spec_.mixer == Mixer::kShortConv) return {channels()};
    const RowRange values = own_heads(whole_.value_dim), keys = own_key_heads(whole_.key_dim);
    const int64_t num_values = whole_.value_size(), num_keys = whole_.key_size();
    const auto after = [](int64_t rows, RowRange range) {
      return RowRange{rows + range.begin, range.count};
    };
    if (spec_.mixer == Mixer::kMamba2) {
      return {values, after(num_values, keys), after(num_values + num_keys, keys)};
    }
    return {keys, after(num_keys, keys), after(2 * num_keys, values)};
  }

  std::vector<TensorPart> parts(const std::vector<Rows>& tensors) const {
    std::vector<TensorPart> parts;
    for (const Rows& rows : tensors) {
      parts.push_back({str_cat(block_, rows.name, ".weight"), rows.count, rows.order});
    }
    return parts;
  }

  void load_in(const std::vector<Rows>& tensors, RecurrentMixer& mixer) {
    mixer.in = loader_.matrix(MatrixRole::kLayer, parts(tensors), config_.hidden_size);
    if (!config_.mixer_bias) return;
    SPECDEC_CHECK_EQ(tensors.size(), 1u);  // no family needs more
    const Rows& rows = tensors[0];
    mixer.in_bias = loader_.vector({{str_cat(block_, rows.name, ".bias"), rows.count, rows.order}});
  }

  void load_mamba_in(RecurrentMixer& mixer) {
    const int64_t num_values = whole_.value_size(), channels = whole_.conv_channels;
    Rows rows = {names_.mixer_in[0], num_values + channels + whole_.num_heads};
    if (!loader_.shard().is_whole()) {
      rows.order = {own_heads(whole_.value_dim)};
      for (const RowRange& range : own_channels()) {
        rows.order.push_back({num_values + range.begin, range.count});
      }
      const RowRange steps = own_heads(1);
      rows.order.push_back({num_values + channels + steps.begin, steps.count});
    }
    load_in({rows}, mixer);
  }

  void load_norm_groups(RecurrentMixer& mixer) {
    const AttentionHeads heads = shared_heads_of(spec_);
    mixer.norm_groups = config_.mixer_norm_groups;
    if (loader_.shard().shares_norms(heads, mixer.norm_groups)) {
      mixer.norm_heads = loader_.shard().attention(heads).all_heads;
    } else {
      mixer.norm_groups = mixer.norm_groups * own_.num_heads / whole_.num_heads;
    }
  }

  void load_delta_in(RecurrentMixer& mixer) {
    const int64_t hidden = config_.hidden_size;
    std::vector<Rows> gates;
    if (names_.mixer_by_key_head) {
      const int64_t keys = whole_.key_dim, values = whole_.value_dim;
      load_in({rows_by_key_head(names_.mixer_in[0], {keys, keys}, {values, values})}, mixer);
      gates = {rows_by_key_head(names_.mixer_gates[0], {}, {1, 1})};
    } else {
      load_in({{names_.mixer_in[0], whole_.conv_channels, own_channels()},
               {names_.mixer_in[1], whole_.value_size(), {own_heads(whole_.value_dim)}}},
              mixer);
      gates = {{names_.mixer_gates[0], whole_.num_heads, {own_heads(1)}},
               {names_.mixer_gates[1], whole_.num_heads, {own_heads(1)}}};
    }
    mixer.gates = loader_.matrix(MatrixRole::kFloat, parts(gates), hidden);
  }

  // One tensor that has all rows of each key head together: its own, then those of its heads, each
  // in parts of so many rows per key head or head.
  Rows rows_by_key_head(std::string_view name, const std::vector<int64_t>& of_key_head,
                        const std::vector<int64_t>& of_head) const {
    const int64_t num_heads = whole_.num_heads / whole_.num_key_heads;  // per key head
    const int64_t stride = std::accumulate(of_key_head.begin(), of_key_head.end(), int64_t{0}) +
                           num_heads * std::accumulate(of_head.begin(), of_head.end(), int64_t{0});
    Rows rows = {name, stride * whole_.num_key_heads};
    if (config_.random_weights) {
      rows.order = apart(of_key_head, of_head);
      return rows;
    }
    int64_t first = 0;  // of the part, in a key head's rows
    for (const int64_t size : of_key_head) {
      for (int head = 0; head < share_.num_kv_heads; ++head) {
        rows.order.push_back({(share_.first_kv_head + head) * stride + first, size});
      }
      first += size;
    }
    for (const int64_t size : of_head) {
      for (int64_t head = share_.first_head; head < share_.first_head + share_.num_heads; ++head) {
        rows.order.push_back({head / num_heads * stride + first + head % num_heads * size, size});
      }
      first += num_heads * size;
    }
    return rows;
  }

  // The same rows where each part has those of all heads together, as random rows have: these need
  // no order, and a backend may make up all of them.
  std::vector<RowRange> apart(const std::vector<int64_t>& of_key_head,
                              const std::vector<int64_t>& of_head) const {
    if (loader_.shard().is_whole()) return {};
    std::vector<RowRange> order;
    int64_t first = 0;
    const auto add = [&](RowRange own, int64_t rows) {
      order.push_back({first + own.begin, own.count});
      first += rows;
    };
    for (const int64_t size : of_key_head) add(own_key_heads(size), whole_.num_key_heads * size);
    for (const int64_t size : of_head) add(own_heads(size), whole_.num_heads * size);
    return order;
  }

  void load_conv(RecurrentMixer& mixer) {
    const std::string name = str_cat(block_, names_.mixer_conv);
    const int64_t channels = whole_.conv_channels, width = whole_.conv_width;
    const std::vector<float> taps = loader_.read_floats(name + ".weight", {channels, 1, width});
    mixer.conv_weight = loader_.vector_of(chosen(taps, own_channels(), width));
    if (config_.conv_bias) {
      mixer.conv_bias = loader_.vector({{name + ".bias", channels, own_channels()}});
    }
  }

  // Runs of rows of `width` values each.
  static std::vector<float> chosen(std::span<const float> values, std::span<const RowRange> order,
                                   int64_t width) {
    std::vector<float> out;
    for (const RowRange& range : order) {
      const auto from = values.subspan(static_cast<size_t>(range.begin * width),
                                       static_cast<size_t>(range.count * width));
      out.insert(out.end(), from.begin(), from.end());
    }
    return out;
  }

  void load_recurrence(RecurrentMixer& mixer) {
    const int64_t heads = whole_.num_heads;
    const std::vector<RowRange> own = {own_heads(1)};
    std::vector<float> rates = chosen(loader_.read_floats(block_ + "A_log", {heads}), own, 1);
    for (float& rate : rates) rate = -std::exp(rate);
    mixer.decay_rates = loader_.vector_of(rates);
    mixer.step_bias = loader_.vector({{block_ + "dt_bias", heads, own}});
    if (spec_.mixer == Mixer::kMamba2) mixer.skip = loader_.vector({{block_ + "D", heads, own}});
    mixer.norm_weight = load_norm();
  }

  // Plain weights, without the config's norm_offset. The heads of Gated DeltaNet share them.
  Buffer load_norm() {
    const std::string name = str_cat(block_, names_.mixer_norm, ".weight");
    if (spec_.mixer == Mixer::kMamba2) {
      return loader_.vector({{name, whole_.value_size(), {own_heads(whole_.value_dim)}}});
    }
    const std::vector<float> shared = loader_.read_floats(name, {int64_t{whole_.value_dim}});
    std::vector<float> weights;
    for (int head = 0; head < own_.num_heads; ++head) {
      weights.insert(weights.end(), shared.begin(), shared.end());
    }
    return loader_.vector_of(weights);
  }

  TensorLoader& loader_;
  const ModelConfig& config_;
  const TensorNames& names_;
  std::string block_;  // prefix of the names of its tensors
  const LayerSpec& spec_;
  const StateShape& whole_;
  const StateShape own_;  // of this rank
  HeadShare share_;       // its heads; none of a short convolution
};

}  // namespace

void load_mixer(TensorLoader& loader, const std::string& prefix, Layer& layer) {
  const TensorNames& names = loader.config().names;
  if (!names.attention_norm.empty()) {
    layer.attention_norm = loader.norm(str_cat(prefix, names.attention_norm));
  }
  MixerLoader mixer(loader, prefix, layer.spec);
  layer.state = loader.shard().state_of(layer.spec);
  layer.mixer = mixer.load();
  layer.attention_out = mixer.load_out();
  if (layer.spec.norms_output()) {
    layer.attention_output_norm = loader.output_norm(str_cat(prefix, names.attention_output_norm));
  }
}

}  // namespace specdec
