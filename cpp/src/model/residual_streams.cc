#include "model/residual_streams.h"

#include "core/check.h"

namespace specdec {

ResidualStreams::ResidualStreams(const ModelConfig& config, const StreamEnds& ends,
                                 Backend& backend, int max_rows)
    : ends_(ends),
      backend_(backend),
      num_streams_(config.num_streams),
      active_(config.active_stream),
      dim_(config.hidden_size),
      stride_(int64_t{max_rows} * config.hidden_size) {
  SPECDEC_CHECK_LE(num_streams_, kMaxStreams);
  const auto allocate = [&](int64_t count) {
    return backend.allocate(static_cast<size_t>(count) * sizeof(float), "residual streams");
  };
  streams_ = allocate(num_streams_ * stride_);
  modalities_ = allocate(int64_t{max_rows} * num_streams_);
}

StreamsView ResidualStreams::view(int num_rows) {
  return {.data = streams_.as<float>(),
          .stride = stride_,
          .num_streams = num_streams_,
          .num_rows = num_rows,
          .dim = dim_};
}

void ResidualStreams::begin(int num_rows) {
  for (int i = 1; i < num_streams_; ++i) {
    backend_.linear({.weight = ends_.projections[i - 1].get(),
                     .in = {.x = first(), .dtype = DType::kF32, .num_rows = num_rows},
                     .out = stream(i)});
    backend_.match_magnitude({.x = stream(i),
                              .reference = first(),
                              .out = stream(i),
                              .num_rows = num_rows,
                              .dim = dim_});
  }
}

// How much of each stream a row calls for: tanh of the router's outputs.
void ResidualStreams::find_modalities(const StreamMixing& mixing, const float* x, int num_rows) {
  const NormParams norm = mixing.router_norm.params();
  constexpr float kTanh = 1.0f;  // 1 * tanh(y / 1)
  backend_.linear({.weight = mixing.router.get(),
                   .in = {.x = x, .dtype = DType::kF32, .norm = &norm, .num_rows = num_rows},
                   .out = modalities_.as<float>(),
                   .soft_cap = kTanh});
}

void ResidualStreams::predict(const Layer& layer, float* hidden, int num_rows) {
  find_modalities(layer.mixing, active(), num_rows);
  backend_.predict_streams({.streams = view(num_rows),
                            .modalities = modalities_.as<float>(),
                            .coefficients = layer.mixing.prediction.as<float>()});
  backend_.match_magnitude({.x = active(), .out = hidden, .num_rows = num_rows, .dim = dim_});
}

void ResidualStreams::correct(const Layer& layer, const float* hidden, int num_rows) {
  find_modalities(layer.mixing, hidden, num_rows);
  backend_.correct_streams({.streams = view(num_rows),
                            .active = active_,
                            .activated = hidden,
                            .modalities = modalities_.as<float>(),
                            .coefficients = layer.mixing.correction.as<float>()});
}

void ResidualStreams::add_to_others(const Norm& norm, const float* x, int num_rows) {
  for (int i = 1; i < num_streams_; ++i) {
    backend_.norm({.norm = norm.params(),
                   .x = x,
                   .out = stream(i),
                   .out_dtype = DType::kF32,
                   .num_rows = num_rows,
                   .dim = dim_,
                   .accumulate = true});
  }
}

void ResidualStreams::end(float* hidden, float* spare, int num_rows) {
  for (int i = 1; i < num_streams_; ++i) {
    const bool adds = i > 1;
    float* const mapped = adds ? spare : hidden;
    backend_.linear({.weight = ends_.unprojections[i - 1].get(),
                     .in = {.x = stream(i), .dtype = DType::kF32, .num_rows = num_rows},
                     .out = mapped});
    backend_.match_magnitude({.x = mapped,
                              .reference = first(),
                              .out = hidden,
                              .accumulate = adds,
                              .num_rows = num_rows,
                              .dim = dim_});
  }
  backend_.match_magnitude({.x = first(),
                            .out = hidden,
                            .accumulate = true,
                            .scale = 1.0f / static_cast<float>(num_streams_),
                            .num_rows = num_rows,
                            .dim = dim_});
}

}  // namespace specdec
