// The packed weights of a decoder, loaded from a checkpoint directory.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "model/config.h"
#include "specdec/quantization.h"

namespace specdec {

struct LinearWeights {
  std::unique_ptr<PackedLinear> weight;
  Buffer bias;  // float32 [out_features], empty without
};

struct NormWeights {
  Buffer weight;  // float32
  Buffer bias;    // empty for RMS norms
};

struct ExpertWeights {
  std::unique_ptr<PackedLinear> router;  // [num_experts, hidden]
  std::vector<std::unique_ptr<PackedLinear>> storage;
  std::vector<const PackedLinear*> gate_up;  // by expert, into storage: [2 * inner, hidden]
  std::vector<const PackedLinear*> down;     // [hidden, inner]
};

struct LayerWeights {
  NormWeights attention_norm;
  LinearWeights qkv;  // q, k and v in one matrix
  Buffer q_norm;      // float32 [head_dim], empty without
  Buffer k_norm;
  LinearWeights attention_out;
  NormWeights mlp_norm;
  LinearWeights mlp_in;  // gate and up in one matrix, or the one of a plain MLP
  LinearWeights mlp_out;
  ExpertWeights experts;  // instead of mlp_in and mlp_out
};

struct DecoderWeights {
  std::unique_ptr<PackedLinear> head;         // [vocab, embed_dim]
  std::unique_ptr<EmbeddingTable> embedding;  // [vocab, embed_dim]; the head's storage when tied
  std::unique_ptr<EmbeddingTable> positions;  // [positions, hidden], null with rotary embedding
  std::unique_ptr<PackedLinear> project_in;   // [hidden, embed_dim], null without
  std::unique_ptr<PackedLinear> project_out;  // [embed_dim, hidden], null without
  std::vector<LayerWeights> layers;
  NormWeights final_norm;  // empty without

  int64_t num_parameters = 0;      // a tied table counts once
  int64_t size_bytes = 0;          // resident, as packed
  std::set<WeightFormat> formats;  // of the matrices, routers and learned positions aside
};

// Checks every tensor's shape against the config before it is packed. Throws CheckpointError naming
// the tensor; warns about tensors the decoder does not use.
DecoderWeights load_decoder_weights(const ModelConfig& config, const std::string& directory,
                                    Quantization quantization, Backend& backend);

}  // namespace specdec
