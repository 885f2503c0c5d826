// AltUp (Baykal et al., 2023), as Gemma 3n has it: several residual streams side by side, of which
// every layer computes one. Before a layer all streams are predicted from each other, after it all
// are corrected by what the layer changed in its own.
#pragma once

#include "backend/backend.h"
#include "model/config.h"
#include "model/parts.h"

namespace specdec {

class ResidualStreams {
 public:
  ResidualStreams(const ModelConfig& config, const StreamEnds& ends, Backend& backend,
                  int max_rows);

  // Each [num_rows, hidden] float32. The first holds the embeddings when a pass begins.
  float* first() { return stream(0); }
  const float* active() const { return streams_.as<float>() + active_ * stride_; }

  // Makes the others from the first.
  void begin(int num_rows);
  // Predicts the streams, and copies the active one to `hidden`, for the layer to compute.
  void predict(const Layer& layer, float* hidden, int num_rows);
  // Corrects the streams by `hidden`, the layer's result.
  void correct(const Layer& layer, const float* hidden, int num_rows);
  // Adds norm(x) to all streams but the first.
  void add_to_others(const Norm& norm, const float* x, int num_rows);
  // hidden = the mean of all streams, each mapped back. `spare` is space like `hidden`.
  void end(float* hidden, float* spare, int num_rows);

 private:
  float* stream(int index) { return streams_.as<float>() + index * stride_; }
  StreamsView view(int num_rows);
  void find_modalities(const StreamMixing& mixing, const float* x, int num_rows);

  const StreamEnds& ends_;
  Backend& backend_;
  int num_streams_, active_, dim_;
  int64_t stride_;
  Buffer streams_;     // [num_streams, max_rows, hidden] float32
  Buffer modalities_;  // [max_rows, num_streams] float32
};

}  // namespace specdec
