// The parts that make up a decoder. Parts are shared: a decoder may be given another decoder's
// parts instead of loading its own, as a draft head uses its target's embedding and LM head.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/shared_heads.h"
#include "model/config.h"
#include "model/rank_coordinates.h"
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
  std::shared_ptr<const PackedLinear> lm_head;     // a tied table reads this matrix; null: not tied
  std::shared_ptr<const EmbeddingTable> tokens;    // [vocab, embed_dim]
  std::shared_ptr<const PackedLinear> project_in;  // [hidden, embed_dim], null without
  std::shared_ptr<const EmbeddingTable> positions;  // [positions, hidden], null without
  int position_offset = 0;
  float scale = 1.0f;  // factor of the rows of `tokens`
};

struct Experts {
  Linear router;          // [num_experts, hidden]
  Buffer selection_bias;  // float32 [num_experts]; empty without
  Buffer gate_up_bias;    // float32 [num_experts, 2 * inner], gates first; empty without
  Buffer down_bias;       // float32 [num_experts, hidden]
  std::vector<std::unique_ptr<const PackedLinear>> storage;
  std::vector<const PackedLinear*> gate_up;  // by expert, into storage: [2 * inner, hidden]
  std::vector<const PackedLinear*> down;     // [hidden, inner]
  Buffer scales;  // float32 [num_experts], of the experts' weights; empty without
  // Where the MLP beside the experts has norms of its own (NormPlacement::kInputAndOutput), these
  // are the experts'; else empty.
  Norm router_norm;  // of what the router reads
  Norm input_norm;
  Norm output_norm;
};

// Per-layer embeddings: of a token, [num_layers, dim] values.
struct PerLayerEmbedding {
  int dim = 0;
  std::unique_ptr<const EmbeddingTable> tokens;  // [vocab, num_layers * dim]
  float token_scale = 1.0f;                      // factor of its rows
  // The normalised projection of the usual embedding is added.
  std::unique_ptr<const PackedLinear> projection;  // [num_layers * dim, hidden]
  float projection_scale = 1.0f;
  Norm norm;  // of dim values
};

// What a layer does with its values: stream += norm(out (activation(gate stream) * values)).
struct PerLayerBlock {
  std::unique_ptr<const PackedLinear> gate;  // [dim, hidden]; null without
  std::unique_ptr<const PackedLinear> out;   // [hidden, dim]
  Norm output_norm;
};

// What a layer does to residual streams side by side, of which it computes one: before it they are
// predicted, after it corrected (PredictStreamsArgs, CorrectStreamsArgs).
struct StreamMixing {
  Norm router_norm;                            // with the factor of what the router reads
  std::unique_ptr<const PackedLinear> router;  // [num_streams, hidden]; null without streams
  Buffer prediction;                           // float32 [num_streams^2, num_streams]
  Buffer correction;                           // float32 [num_streams, num_streams]
};

// Added beside attention: the layer's normalised input, and norm(right left input).
struct Laurel {
  std::unique_ptr<const PackedLinear> left;   // [rank, hidden]; null without
  std::unique_ptr<const PackedLinear> right;  // [hidden, rank]
  Norm norm;
};

// What takes the place of attention in a recurrent layer, up to the projection of its result, which
// is Layer::attention_out.
struct RecurrentMixer {
  // Mixer::kShortConv: [3 * channels, hidden]: input gates, output gates, values.
  // Mixer::kGatedDelta: queries, keys, values, gates of the output. Mixer::kMamba2: gates of the
  // output, values, keys (B), queries (C), steps.
  std::unique_ptr<const PackedLinear> in;
  Buffer in_bias;                             // float32 [rows of in]; empty without
  std::unique_ptr<const PackedLinear> gates;  // [2 * heads, hidden] of kGatedDelta: gates, steps
  Buffer conv_weight;                         // float32, as in ShortConvArgs
  Buffer conv_bias;                           // empty without
  Buffer decay_rates;                         // float32 [heads], as in RecurrenceArgs
  Buffer step_bias;
  Buffer skip;
  Buffer norm_weight;      // float32 [heads * value_dim]; empty without
  int norm_groups = 0;     // of kMamba2; with norm_heads of all ranks
  SharedHeads norm_heads;  // of all ranks, where they share groups of the norm
};

struct Layer {
  LayerSpec spec;
  AttentionHeads heads;   // of this rank
  SharedHeads all_heads;  // of all ranks
  Norm attention_norm;    // empty without a norm, like mlp_norm
  Norm embedding_norm;    // for AttentionInput::kWithEmbedding
  Linear qkv;             // q, k and v in one matrix; q alone with a kv_source
  Buffer q_norm;          // float32 [head_dim], of all heads [rows of q]; empty without
  Buffer k_norm;
  Buffer v_norm;
  Buffer sinks;                                        // float32 [num_heads]; empty without
  std::unique_ptr<const PackedLinear> attention_gate;  // [rows of q, hidden], or null
  StateShape state;                                    // of this rank
  RecurrentMixer mixer;
  Linear attention_out;
  Norm attention_output_norm;  // empty without
  Norm mlp_norm;
  Linear mlp_in;  // gate and up in one matrix, or the first matrix of a plain MLP
  Linear mlp_out;
  ActivationConstants activation_constants;
  Norm mlp_output_norm;  // empty without
  Experts experts;       // run instead of mlp_in and mlp_out, or beside them
  std::unique_ptr<const PackedLinear>
      shared_gate;          // [1, hidden] of the MLP beside experts, or null
  Norm shared_output_norm;  // of the MLP beside experts; empty without
  PerLayerBlock per_layer;
  StreamMixing mixing;
  Laurel laurel;
  std::unique_ptr<const PackedLinear> sparse_gate;  // [whole inner, hidden]: mlp_in has the ups
  int64_t sparse_begin = 0;                         // the first of this rank's gates
  float stream_scale = 1.0f;                        // of the residual stream behind the layer
};

// Clusters of an LM head's rows, equally many in each, one after the other. Only tokens of the
// clusters that are likeliest for a state are scored (ClusterLogitsArgs).
struct TokenClusters {
  std::unique_ptr<const PackedLinear> centroids;  // [clusters, hidden]; null: all tokens are scored
  int num_kept = 0;

  int64_t num_clusters() const { return centroids->out_features(); }
};

// From normalised rows of the residual stream to logits.
struct LmHead {
  std::shared_ptr<const PackedLinear> project_out;  // [embed_dim, hidden], null without
  std::shared_ptr<const PackedLinear> weight;       // [vocab, embed_dim]
  float scale = 1.0f;                               // of the logits, before soft_cap
  float soft_cap = 0.0f;                            // of the logits; 0: none
  // For a draft head that scores only part of its target's vocabulary: the target's id for each row
  // of `weight`; empty: all of it.
  Buffer token_ids;
  int target_vocab_size = 0;
  TokenClusters clusters = {};
};

// For a draft head: makes the first layer's input from the target's features at the previous token.
struct FeatureFusion {
  struct Part {
    int column = 0;                              // first element in the row of features
    Norm norm;                                   // of the part; empty without
    std::unique_ptr<const PackedLinear> weight;  // [hidden, width]
  };
  std::vector<Part> parts;
  // [hidden, width of the embedding], applied to the token's embedding and added; null: the first
  // layer reads the embedding.
  std::unique_ptr<const PackedLinear> embedding;
  Norm embedding_norm;  // of that embedding; empty without
  Buffer bias;
  Buffer mask_features;       // float32, read where the text is not known yet; empty: not supported
  bool fuses_states = false;  // the head's own states are fused as features are; else they take
                              // the place of the sum
  bool normed_residual = false;
  bool feeds_back_normed = false;
  // [width of a state, hidden], applied to the state that a drafted row passes on; null: it passes
  // on the state itself.
  std::unique_ptr<const PackedLinear> feedback;
  // Of a head whose rows begin with embeddings, while the fused features of committed tokens, after
  // this norm, are what every layer makes their keys and values of (DFlash); else empty.
  Norm context_norm;

  bool makes_context() const { return !context_norm.weight.empty(); }
};

// For a draft head whose logits also depend on the token before the one they are of: what it adds
// to them, weight tokens[token before].
struct MarkovHead {
  int rank = 0;
  std::unique_ptr<const EmbeddingTable> tokens;  // [the target's vocab, rank]
  std::unique_ptr<const PackedLinear> weight;    // [vocab, rank]
};

// To residual streams other than the first, and back: [hidden, hidden] each.
struct StreamEnds {
  std::vector<std::unique_ptr<const PackedLinear>> projections;
  std::vector<std::unique_ptr<const PackedLinear>> unprojections;
};

struct ModelParts {
  std::shared_ptr<const FeatureFusion> fusion;  // of a draft head; else null
  std::shared_ptr<const Embedding> embedding;
  std::shared_ptr<const PerLayerEmbedding> per_layer;  // null without
  std::shared_ptr<const StreamEnds> streams;           // null without
  std::vector<std::shared_ptr<const Layer>> layers;
  std::shared_ptr<const Norm> final_norm;  // null without
  std::shared_ptr<const LmHead> lm_head;
  std::shared_ptr<const MarkovHead> markov;  // null without
};

struct LoadedParts {
  ModelParts parts;
  // Counts what was loaded, not what was given.
  int64_t num_parameters = 0;      // a tied table counts once
  int64_t size_bytes = 0;          // resident, as packed
  size_t bytes_read = 0;           // of the checkpoint's files
  std::set<WeightFormat> formats;  // of the matrices except routers and learned positions
};

class TensorLoader;
// Loads a layer whose tensor names begin with `prefix`.
std::shared_ptr<const Layer> load_layer(TensorLoader& loader, const std::string& prefix,
                                        const LayerSpec& spec);

// Loads this rank's share of the embedding, the layers, the final norm and the LM head, except for
// the parts that are `given`. Checks every tensor's shape against the config before packing. Throws
// CheckpointError naming the tensor; warns about tensors that the decoder does not use.
LoadedParts load_parts(const ModelConfig& config, const std::string& directory,
                       Quantization quantization, Backend& backend, ModelParts given = {},
                       const RankCoordinates& coordinates = {});
// Loads only the embedding and the LM head.
ModelParts load_ends(const ModelConfig& config, const std::string& directory,
                     Quantization quantization, Backend& backend,
                     const RankCoordinates& coordinates);

}  // namespace specdec
