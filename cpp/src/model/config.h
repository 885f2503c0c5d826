// config.json of a checkpoint, resolved to what the decoder needs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "backend/op_args.h"
#include "model/tensor_names.h"
#include "specdec/checkpoint.h"

namespace specdec {

class JsonFields;

// kProportional: the planes of partial_rotary_factor turn as planes of the whole head, the others
// not at all.
enum class RopeKind : uint8_t {
  kDefault,
  kLinear,
  kDynamic,
  kLlama3,
  kYarn,
  kLongRope,
  kProportional
};

struct RopeConfig {
  RopeKind kind = RopeKind::kDefault;
  double theta = 10000.0;
  double partial_rotary_factor = 1.0;
  double factor = 1.0;
  int original_max_position_embeddings = 0;
  double low_freq_factor = 1.0;   // llama3
  double high_freq_factor = 4.0;  // llama3
  double beta_fast = 32.0;        // yarn
  double beta_slow = 1.0;         // yarn
  double attention_factor = 0.0;  // yarn, longrope; 0: derived from factor
  double mscale = 0.0;            // yarn
  double mscale_all_dim = 0.0;    // yarn
  bool truncate = true;           // yarn
  // longrope: what the frequency of each plane is divided by, where sequences may have up to
  // original_max_position_embeddings tokens and where they may have more.
  std::vector<double> short_factors = {};
  std::vector<double> long_factors = {};
  // max_position_embeddings does not count the positions that the scaling adds.
  bool adds_positions = true;
  // Queries at position p are multiplied by 1 + query_beta ln(1 + floor(p / original maximum)).
  double query_beta = 0.0;

  bool operator==(const RopeConfig&) const = default;
};

// Number of rows and inputs of a matrix that share a scale; 0: no block scales.
struct ScaleBlock {
  int rows = 0;
  int cols = 0;
};

// What config.json says of codes that their tensors do not show.
struct StoredScheme {
  ScaleBlock block;     // of 8-bit floats with block scales
  bool is_awq = false;  // packed words hold neighbouring outputs, else neighbouring inputs
  int zero_offset = 1;  // GPTQ: what to add to a stored zero
  int group_size = 0;   // inputs that share a scale, where all matrices have as many; 0: unknown
  bool needs_zeros = false;  // compressed-tensors: every matrix of integers has zeros
  bool keeps_codes = true;   // false: matrices of several tensors are read as float32
};

// Where a block, attention or MLP, has its norms.
enum class NormPlacement : uint8_t {
  kInput,           // on the rows that the block reads
  kInputAndOutput,  // also on the output that it adds to the residual stream (Gemma)
  kOutput,          // only on the output that it adds (OLMo 2)
  kResidual,        // on the residual stream, after the block has added to it (OPT-350m)
};

// RMS norms of q and k.
enum class QkNorm : uint8_t {
  kNone,
  kPerHead,   // each head by itself (Qwen3, Gemma 3)
  kAllHeads,  // all heads together (OLMo 2)
};

// Input of a layer's attention.
enum class AttentionInput : uint8_t {
  kNormed,  // the residual stream, normalised where NormPlacement says so
  kRaw,     // the residual stream without a norm (the first layer of EAGLE-1)
  // The normalised token embedding beside the normalised stream (EAGLE-3's first layer)
  kWithEmbedding,
};

enum class MlpKind : uint8_t { kGated, kPlain, kExperts };

// Heads of a layer's attention.
struct AttentionHeads {
  int num_heads = 0;
  int num_kv_heads = 0;  // a divisor of num_heads
  int head_dim = 0;

  int group_size() const { return num_heads / num_kv_heads; }
  int64_t q_size() const { return int64_t{num_heads} * head_dim; }
  int64_t kv_size() const { return int64_t{num_kv_heads} * head_dim; }  // of k, and of v
  bool operator==(const AttentionHeads&) const = default;
};

// What mixes a layer's rows with those before them.
enum class Mixer : uint8_t {
  kAttention,
  // The others keep a state of fixed size in place of keys and values.
  kShortConv,   // a gated short convolution (LFM2)
  kGatedDelta,  // Gated DeltaNet (Qwen3-Next, Qwen3.5)
  kMamba2,
};

// One layer's computation, where the layers of a model may differ.
struct LayerSpec {
  Mixer mixer = Mixer::kAttention;
  AttentionHeads heads;   // of attention; else all 0
  StateShape state = {};  // of the other mixers
  NormPlacement norms = NormPlacement::kInput;
  AttentionInput attention_input = AttentionInput::kNormed;
  int rope = 0;                     // index into ModelConfig::ropes; -1: positions are not rotated
  int sliding_window = 0;           // 0: full attention
  float attention_scale = 0.0f;     // factor of the products of q and k
  float attention_soft_cap = 0.0f;  // scores become cap * tanh(score / cap); 0: none
  int kv_source = -1;            // index of the layer whose keys and values it reads; -1: its own
  bool values_are_keys = false;  // v is the projection to k, before norm and rotation (K=V)
  bool is_parallel = false;      // the MLP reads the same residual stream as the attention
  bool in_order = false;         // of a DFlash head: rows see those before them, whatever masks say
  MlpKind mlp = MlpKind::kGated;
  int inner_size = 0;         // inner size of the MLP, or of each expert
  int shared_inner_size = 0;  // of the MLP beside the experts, which every token runs; 0: none
  // Gaussian top-k: gates that are not so many standard deviations above the row's mean become 0
  // (SparseGatesArgs).
  std::optional<float> gate_deviations = {};

  bool is_recurrent() const { return mixer != Mixer::kAttention; }
  bool norms_input() const {
    return norms == NormPlacement::kInput || norms == NormPlacement::kInputAndOutput;
  }
  bool norms_output() const {
    return norms == NormPlacement::kInputAndOutput || norms == NormPlacement::kOutput;
  }
};

struct ModelConfig {
  std::string architecture;  // "LlamaForCausalLM"
  std::string model_type;
  TensorNames names;                     // the family's
  DType checkpoint_dtype = DType::kF32;  // dtype / torch_dtype of config.json
  std::string stored_format;             // of matrices held in fewer bits: "gguf q4_k"; empty: none
  bool random_weights = false;           // generated, not read from the checkpoint
  StoredScheme scheme;
  int num_layers = 0;
  int num_mtp_layers = 0;  // behind these in the file: they predict later tokens, and are not read
  int hidden_size = 0;
  int vocab_size = 0;
  int max_position_embeddings = 0;
  bool tie_word_embeddings = false;

  std::vector<LayerSpec> layers;  // [num_layers]
  std::vector<RopeConfig> ropes;  // the layers index this list
  int first_position = 0;  // position of row 0: 1 for draft heads, which read the previous token
  // Of a draft head without keys and values of its own: kv_source of its layers counts the layers
  // of its target.
  bool reads_target_kv = false;

  // Equal in all layers.
  NormKind norm_kind = NormKind::kRms;
  float norm_eps = 1e-5f;
  float norm_offset = 0.0f;  // added to the norms' weights, which Gemma stores less one
  bool norm_bias = true;     // of layer norms
  bool final_norm = true;
  QkNorm qk_norm = QkNorm::kNone;
  bool qk_norm_after_rope = false;
  bool v_norm = false;  // an RMS norm of each head of v, without weights
  // Elements 2i and 2i + 1 of a head turn together; the loader puts them half a rotated part apart.
  bool rope_in_pairs = false;
  bool has_sinks = false;  // of attention
  bool qkv_bias = false;
  bool out_bias = false;        // attention output projection
  bool mixer_bias = false;      // projections before and after a recurrence
  bool conv_bias = false;       // of recurrent layers
  int mixer_norm_groups = 1;    // of Mamba2: runs of its outputs that are normalised by themselves
  bool attention_gate = false;  // sigmoids of a projection are factors of attention's output
  bool mlp_bias = false;
  Activation activation = Activation::kSilu;
  ActivationConstants activation_constants;  // but for xIELU's, which are tensors of each layer

  float embedding_scale = 1.0f;         // factor of the embedding rows
  bool rounds_embedding_scale = false;  // to the activations' dtype (Gemma)
  bool learned_positions = false;       // OPT
  int learned_position_offset = 0;
  int embed_dim = 0;  // OPT word_embed_proj_dim; 0: hidden_size

  // Per-layer embeddings (PLE): every layer reads that many values of each token beside the
  // residual stream, from a table of per_layer_vocab tokens and the token's embedding; 0: none.
  int per_layer_dim = 0;
  int per_layer_vocab = 0;

  // AltUp and LAuReL (Gemma 3n): residual streams side by side, of which the layers compute one,
  // and the rank of a projection beside attention. 1 and 0: none.
  int num_streams = 1;
  int active_stream = 0;
  // The per-layer block reads the corrected active stream times a vector (correct_output_scale).
  bool scales_corrected = true;
  int laurel_rank = 0;

  // Factor of a block's output before it is added to the residual stream
  float residual_scale = 1.0f;
  float logits_scale = 1.0f;
  float logits_soft_cap = 0.0f;  // logits become cap * tanh(logit / cap); 0: none

  int num_experts = 0;  // of layers with experts
  int num_experts_per_token = 0;
  RouterScores router_scores = RouterScores::kSoftmax;
  bool renormalize_experts = true;  // weights of the chosen experts are scaled to sum to 1
  float expert_scale = 1.0f;        // factor of these weights
  int num_expert_groups = 1;        // see Router
  int top_expert_groups = 1;
  bool expert_biases = false;  // of the router and of the experts

  std::vector<int32_t> eos_token_ids;  // of generation_config.json, else config.json
  std::string unknown_keys;  // keys of config.json that no code reads, and the file; empty: none

  // The most KV heads of a layer.
  int most_kv_heads() const {
    int most = 0;
    for (const LayerSpec& layer : layers) most = std::max(most, layer.heads.num_kv_heads);
    return most;
  }
  bool has_states() const { return any_layer(&LayerSpec::is_recurrent); }
  bool any_layer(auto&& holds) const { return std::ranges::any_of(layers, holds); }
};

// Reads `directory`/config.json. The keys of `overrides`, a JSON object or empty, replace the
// file's. Throws CheckpointError for a missing or malformed file and for an unknown architecture,
// listing the known ones.
ModelConfig load_model_config(const std::string& directory, const std::string& overrides = "");
// The same for fields that were read from a file of `directory`.
ModelConfig parse_model_config(const JsonFields& fields, const std::string& directory);

// Number of positions that the checkpoint supports. Interpolating rope scalings stretch the number
// in config.json; with llama3, config.json has the stretched number already.
int max_positions(const ModelConfig& config);

}  // namespace specdec
