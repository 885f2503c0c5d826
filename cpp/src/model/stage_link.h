// Rows of a pass between the stages of a model, which have a run of its layers each. What is tapped
// of a stage's layers travels with the rows to the last stage, where the features are.
#pragma once

#include <cstddef>
#include <vector>

#include "backend/backend.h"
#include "model/model.h"
#include "model/rank_place.h"

namespace specdec {

// `hidden` below: the residual stream of the pass's rows, [rows, hidden_size] float32.
class StageLink {
 public:
  // `first_layer`: the first of this stage's, among the whole model's.
  StageLink(const RankPlace& place, int first_layer, int hidden_size, Backend& backend)
      : place_(place), first_layer_(first_layer), hidden_size_(hidden_size), backend_(backend) {}

  bool is_first() const { return place_.is_first(); }
  bool is_last() const { return place_.is_last(); }

  // From the stage before, at the start of a pass: writes `hidden`.
  void receive(const ModelPass& pass, float* hidden);
  // Stores what the whole model's `layer` reads, where it is tapped, or keeps it for the last
  // stage.
  void tap_layer_input(const ModelPass& pass, int layer, const float* hidden);
  // To the stage behind, at the end of a pass.
  void send(const ModelPass& pass, const float* hidden);

 private:
  size_t num_values(const ModelPass& pass) const {
    return static_cast<size_t>(pass.batch.num_rows) * static_cast<size_t>(hidden_size_);
  }
  void keep(const ModelPass& pass, const float* hidden);

  RankPlace place_;
  int first_layer_;
  int hidden_size_;
  Backend& backend_;
  // float32 [*, rows, hidden_size]: what is tapped of the layers before, in their order, then the
  // residual stream.
  std::vector<float> kept_;
};

}  // namespace specdec
