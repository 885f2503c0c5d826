// Passes the rows of a pass between the stages of a model, each of which has a run of the layers.
// States tapped from a stage's layers travel with the rows to the last stage, which stores the
// features.
#pragma once

#include <cstddef>
#include <vector>

#include "backend/backend.h"
#include "model/model.h"
#include "model/rank_coordinates.h"

namespace specdec {

// `hidden` below: the residual stream of the pass's rows, [rows, hidden_size] float32.
class StageLink {
 public:
  // `first_layer`: this stage's first layer in the whole model.
  StageLink(const RankCoordinates& coordinates, int first_layer, int hidden_size, Backend& backend)
      : coordinates_(coordinates),
        first_layer_(first_layer),
        hidden_size_(hidden_size),
        backend_(backend) {}

  bool is_first() const { return coordinates_.is_first(); }
  bool is_last() const { return coordinates_.is_last(); }

  // Receives from the previous stage at the start of a pass; writes `hidden`.
  void receive(const ModelPass& pass, float* hidden);
  // Stores the input of the whole model's `layer` where it is tapped, or keeps it for the last
  // stage.
  void tap_layer_input(const ModelPass& pass, int layer, const float* hidden);
  // Sends to the next stage at the end of a pass.
  void send(const ModelPass& pass, const float* hidden);

 private:
  size_t num_values(const ModelPass& pass) const {
    return static_cast<size_t>(pass.batch.num_rows) * static_cast<size_t>(hidden_size_);
  }
  void keep(const ModelPass& pass, const float* hidden);

  RankCoordinates coordinates_;
  int first_layer_;
  int hidden_size_;
  Backend& backend_;
  // float32 [*, rows, hidden_size]: the tapped states of earlier layers, in their order, then the
  // residual stream.
  std::vector<float> kept_;
};

}  // namespace specdec
