#include "model/recurrent_mixers.h"

#include <algorithm>

namespace specdec {

RecurrentMixers::RecurrentMixers(const ModelConfig& config, Backend& backend, int max_rows)
    : backend_(backend), norm_eps_(config.norm_eps) {
  int64_t in = 0, gates = 0, conv = 0, result = 0;
  for (const LayerSpec& layer : config.layers) {
    const StateShape& shape = layer.state;
    if (layer.mixer == Mixer::kShortConv) in = std::max(in, int64_t{3} * shape.conv_channels);
    if (shape.num_heads == 0) continue;
    const bool is_delta = layer.mixer == Mixer::kGatedDelta;
    const int64_t num_steps = is_delta ? 0 : shape.num_heads;
    in = std::max(in, shape.conv_channels + shape.value_size() + num_steps);
    if (is_delta) gates = std::max(gates, int64_t{2} * shape.num_heads);
    conv = std::max<int64_t>(conv, shape.conv_channels);
    result = std::max(result, shape.value_size());
  }
  const auto allocate = [&](Buffer& buffer, int64_t width) {
    if (width == 0) return;
    buffer = backend.allocate(static_cast<size_t>(max_rows * width) * sizeof(float),
                              "decoder workspace");
  };
  allocate(in_, in);
  allocate(gates_, gates);
  allocate(conv_, conv);
  allocate(result_, result);
}

void RecurrentMixers::run(const Layer& layer, const ProjectionInput& rows, const BatchView& batch,
                          const LayerStateView& state, void* out) {
  const RecurrentMixer& mixer = layer.mixer;
  backend_.linear({.weight = mixer.in.get(),
                   .in = rows,
                   .bias = mixer.in_bias.as<float>(),
                   .out = in_.as<float>()});
  if (layer.spec.mixer == Mixer::kShortConv) return run_short_conv(mixer, batch, state, out);
  if (layer.spec.mixer == Mixer::kMamba2) return run_mamba2(mixer, batch, state, out);
  run_delta(mixer, rows, batch, state, out);
}

void RecurrentMixers::run_short_conv(const RecurrentMixer& mixer, const BatchView& batch,
                                     const LayerStateView& state, void* out) {
  const float* in = in_.as<float>();
  const int64_t channels = state.shape.conv_channels;
  backend_.short_conv({.x = in + 2 * channels,
                       .input_gates = in,
                       .output_gates = in + channels,
                       .stride = 3 * channels,
                       .weight = mixer.conv_weight.as<float>(),
                       .bias = mixer.conv_bias.as<float>(),
                       .batch = &batch,
                       .state = state,
                       .out = out,
                       .out_dtype = backend_.act_dtype()});
}

// The columns of in_: queries, keys and values of the convolution, gates of the output.
void RecurrentMixers::run_delta(const RecurrentMixer& mixer, const ProjectionInput& rows,
                                const BatchView& batch, const LayerStateView& state, void* out) {
  const StateShape& shape = state.shape;
  convolve(mixer, in_.as<float>(), batch, state);
  backend_.linear({.weight = mixer.gates.get(), .in = rows, .out = gates_.as<float>()});
  RecurrenceArgs args = recurrence_args(mixer, batch, state);
  args.kind = RecurrenceKind::kGatedDelta;
  args.queries = conv_.as<float>();
  args.keys = args.queries + shape.key_size();
  args.values = args.keys + shape.key_size();
  args.gates = gates_.as<float>();
  args.steps = args.gates + shape.num_heads;
  args.step_stride = int64_t{2} * shape.num_heads;
  backend_.recurrence(args);
  GatedNormArgs norm = norm_args(mixer, batch, out);
  norm.gates = in_.as<float>() + shape.conv_channels;
  norm.num_groups = shape.num_heads;
  norm.dim = shape.value_dim;
  backend_.gated_norm(norm);
}

// The columns of in_: gates of the output, values, keys and queries of the convolution, steps.
void RecurrentMixers::run_mamba2(const RecurrentMixer& mixer, const BatchView& batch,
                                 const LayerStateView& state, void* out) {
  const StateShape& shape = state.shape;
  float* const conv_in = in_.as<float>() + shape.value_size();
  convolve(mixer, conv_in, batch, state);
  RecurrenceArgs args = recurrence_args(mixer, batch, state);
  args.kind = RecurrenceKind::kStateSpace;
  args.values = conv_.as<float>();
  args.keys = conv_.as<float>() + shape.value_size();
  args.queries = args.keys + shape.key_size();
  args.steps = conv_in + shape.conv_channels;
  args.step_stride = mixer.in->out_features();
  backend_.recurrence(args);
  GatedNormArgs norm = norm_args(mixer, batch, out);
  norm.gates = in_.as<float>();
  norm.gates_first = true;
  const bool is_shared = mixer.norm_heads.ranks != nullptr;
  const int num_heads = is_shared ? mixer.norm_heads.num_heads() : shape.num_heads;
  norm.num_groups = mixer.norm_groups;
  norm.dim = num_heads / mixer.norm_groups * shape.value_dim;
  norm.shared_heads = is_shared ? &mixer.norm_heads : nullptr;
  backend_.gated_norm(norm);
}

void RecurrentMixers::convolve(const RecurrentMixer& mixer, const float* x, const BatchView& batch,
                               const LayerStateView& state) {
  backend_.short_conv({.x = x,
                       .stride = mixer.in->out_features(),
                       .weight = mixer.conv_weight.as<float>(),
                       .bias = mixer.conv_bias.as<float>(),
                       .silu = true,
                       .batch = &batch,
                       .state = state,
                       .out = conv_.data(),
                       .out_dtype = DType::kF32});
}

RecurrenceArgs RecurrentMixers::recurrence_args(const RecurrentMixer& mixer, const BatchView& batch,
                                                const LayerStateView& state) {
  return {.stride = state.shape.conv_channels,
          .decay_rates = mixer.decay_rates.as<float>(),
          .step_bias = mixer.step_bias.as<float>(),
          .skip = mixer.skip.as<float>(),
          .batch = &batch,
          .state = state,
          .out = result_.as<float>()};
}

GatedNormArgs RecurrentMixers::norm_args(const RecurrentMixer& mixer, const BatchView& batch,
                                         void* out) const {
  return {.x = result_.as<float>(),
          .gate_stride = mixer.in->out_features(),
          .weight = mixer.norm_weight.as<float>(),
          .eps = norm_eps_,
          .num_rows = batch.num_rows,
          .out = out};
}

}  // namespace specdec
