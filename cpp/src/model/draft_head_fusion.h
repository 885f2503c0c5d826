// The parts of a draft head's pass that a transformer lacks: its rows begin with features of the
// target, and its drafted rows leave states for their children.
#pragma once

#include "backend/backend.h"
#include "model/model.h"
#include "model/parts.h"

namespace specdec {

class DraftHeadFusion {
 public:
  // For passes of up to max_rows rows. `fusion` is borrowed.
  DraftHeadFusion(const FeatureFusion& fusion, int hidden_size, Backend& backend, int max_rows);

  // [max_rows, width of the embedding]: of a pass's tokens, written before fuse().
  float* token_rows() { return token_rows_.as<float>(); }
  // Writes the first layer's input to `hidden`, [rows, hidden_size]: the features of the token
  // before each row, instead of the row's own embedding or combined with it.
  void fuse(const ModelPass& pass, float* hidden);
  // The norms of the tokens' embeddings and of the residual stream, side by side, for
  // AttentionInput::kWithEmbedding.
  ProjectionInput join_embedding(const Layer& layer, float* hidden, int num_rows);
  // Stores the states that children of drafted rows read. `final_norm`: the draft head's, null
  // without.
  void store_states(const ModelPass& pass, const float* hidden, const NormParams* final_norm);

 private:
  const FeatureFusion& fusion_;
  int hidden_size_;
  Backend& backend_;
  Buffer token_rows_;  // [max_rows, width of the embedding] float32
  Buffer features_;    // [max_rows, widest part of the fusion] float32
  Buffer joined_;      // [max_rows, 2 * hidden_size] in the backend's activation dtype
  Buffer states_;      // [max_rows, width of a state] float32, where states are projected
};

}  // namespace specdec
