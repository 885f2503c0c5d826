// A decoder's buffers other than its weights.
#pragma once

#include <vector>

#include "backend/backend.h"
#include "model/config.h"

namespace specdec {

// Intermediate results of one step, allocated once for the largest. "act" is the backend's
// activation dtype.
struct DecoderWorkspace {
  DecoderWorkspace(const ModelConfig& config, Backend& backend, int max_rows);

  Buffer hidden;           // [max_rows, hidden] float32: the residual stream
  Buffer hidden_spare;     // likewise; output of norms on the stream or on a block's output
  Buffer embedded;         // [max_rows, embed_dim] float32, with embedding projections only
  Buffer q;                // [max_rows, num_heads * head_dim] act, of the layer with the most
  Buffer mixed;            // [max_rows, widest] act: what attention or another mixer gives
  Buffer attention_gates;  // [max_rows, num_heads * head_dim] float32, of gated attention
  Buffer inner;            // [max_rows, inner] act, of dense MLPs
  Buffer normed;           // [max_rows, hidden] act, with experts: what router and experts read
  Buffer router;           // [max_rows, num_experts] float32
  Buffer block_sum;        // [max_rows, hidden] float32, with norms of the experts' outputs
  Buffer per_layer;        // [max_rows, num_layers * dim] float32, with per-layer embeddings
  Buffer per_layer_inner;  // [max_rows, dim] act
  Buffer laurel;           // [max_rows, rank] float32
};

struct Rope {
  Buffer cos;  // [max_positions, rotary_dim / 2] float32
  Buffer sin;
  Buffer query_scales;  // [max_positions] float32; empty without
  int rotary_dim = 0;
};

// One per ModelConfig::ropes, for positions up to max_model_len.
std::vector<Rope> make_ropes(const ModelConfig& config, Backend& backend, int max_model_len);

}  // namespace specdec
