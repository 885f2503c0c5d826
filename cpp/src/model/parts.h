// The parts that a decoder is made of. Parts are shared: a decoder may be given another one's
// instead of loading its own, as a draft head takes its target's embedding and head.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "model/config.h"
#include "model/rank_place.h"
#include "specdec/quantization.h"

namespace specdec {

struct Linear {
  std::unique_ptr<const PackedLinear> weight;
  Buffer bias;  // float32 [out_features], empty without
};

struct Norm {
  NormKind kind = NormKind::kRms;
  float eps = 0.0f;
  Buffer weight;  // float32 [hidden]
  Buffer bias;    // empty for RMS norms

  NormParams params() const {
    return {.kind = kind, .weight = weight.as<float>(), .bias = bias.as<float>(), .eps = eps};
  }
};

// From token ids to the residual stream.
struct Embedding {
  std::shared_ptr<const PackedLinear> head;         // whose storage a tied table reads, or null
  std::shared_ptr<const EmbeddingTable> tokens;     // [vocab, embed_dim]
  std::shared_ptr<const PackedLinear> project_in;   // [hidden, embed_dim], null without
  std::shared_ptr<const EmbeddingTable> positions;  // [positions, hidden], null without
  int position_offset = 0;
  float scale = 1.0f;  // of the rows of `tokens`
};

struct Experts {
  std::unique_ptr<const PackedLinear> router;  // [num_experts, hidden]
  std::vector<std::unique_ptr<const PackedLinear>> storage;
  std::vector<const PackedLinear*> gate_up;  // by expert, into storage: [2 * inner, hidden]
  std::vector<const PackedLinear*> down;     // [hidden, inner]
};

struct Layer {
  LayerSpec spec;
  Norm attention_norm;  // empty without; so is mlp_norm
  Norm embedding_norm;  // of AttentionInput::kWithEmbedding
  Linear qkv;           // q, k and v in one matrix
  Buffer q_norm;        // float32 [head_dim], of all heads [rows of q]; empty without
  Buffer k_norm;
  Linear attention_out;
  Norm attention_output_norm;  // empty without
  Norm mlp_norm;
  Linear mlp_in;  // gate and up in one matrix, or the one of a plain MLP
  Linear mlp_out;
  Norm mlp_output_norm;  // empty without
  Experts experts;       // instead of mlp_in and mlp_out
};

// From normalised rows of the residual stream to logits.
struct Head {
  std::shared_ptr<const PackedLinear> project_out;  // [embed_dim, hidden], null without
  std::shared_ptr<const PackedLinear> weight;       // [vocab, embed_dim]
  float scale = 1.0f;                               // of the logits, before soft_cap
  float soft_cap = 0.0f;                            // of the logits; 0: none
  // Of a draft head that scores part of its target's vocabulary: the target's id of every row of
  // `weight`; empty: all of it.
  Buffer token_ids;
  int target_vocab_size = 0;
};

// Of a draft head: from features of the target, at the token before a row's, to what the first
// layer reads.
struct FeatureFusion {
  struct Part {
    int column = 0;                              // of the row of features
    Norm norm;                                   // of the part; empty without
    std::unique_ptr<const PackedLinear> weight;  // [hidden, width]
  };
  std::vector<Part> parts;
  // [hidden, hidden], of the token's embedding, which is added; null: the first layer reads it.
  std::unique_ptr<const PackedLinear> embedding;
  Buffer bias;
  Buffer mask_features;       // float32, of rows whose text is not known yet; empty: there are none
  bool fuses_states = false;  // the head's own states are fused as features are; else they take
                              // the place of the sum
  bool normed_residual = false;
  bool feeds_back_normed = false;
};

struct ModelParts {
  std::shared_ptr<const FeatureFusion> fusion;  // of a draft head; else null
  std::shared_ptr<const Embedding> embedding;
  std::vector<std::shared_ptr<const Layer>> layers;
  std::shared_ptr<const Norm> final_norm;  // null without
  std::shared_ptr<const Head> head;
};

struct LoadedParts {
  ModelParts parts;
  // Of what was loaded, not of what was given.
  int64_t num_parameters = 0;      // a tied table counts once
  int64_t size_bytes = 0;          // resident, as packed
  size_t bytes_read = 0;           // of the checkpoint's files
  std::set<WeightFormat> formats;  // of the matrices, routers and learned positions aside
};

class TensorLoader;
// A layer whose tensors' names begin with `prefix`.
std::shared_ptr<const Layer> load_layer(TensorLoader& loader, const std::string& prefix,
                                        const LayerSpec& spec);

// Loads the embedding, the layers, the final norm and the head, but for those that are `given`.
// Checks every tensor's shape against the config before it is packed. Throws CheckpointError naming
// the tensor; warns about tensors the decoder does not use.
// Loads the share of the rank at `place`.
LoadedParts load_parts(const ModelConfig& config, const std::string& directory,
                       Quantization quantization, Backend& backend, ModelParts given = {},
                       const RankPlace& place = {});
// The embedding and the head alone.
ModelParts load_ends(const ModelConfig& config, const std::string& directory,
                     Quantization quantization, Backend& backend, const RankPlace& place);

}  // namespace specdec
