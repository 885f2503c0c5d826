// config.json of a checkpoint, resolved to what the decoder needs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backend/op_args.h"
#include "specdec/checkpoint.h"

namespace specdec {

enum class RopeKind : uint8_t { kNone, kDefault, kLinear, kDynamic, kLlama3, kYarn };

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
  double attention_factor = 0.0;  // yarn; 0: derived from factor
  double mscale = 0.0;            // yarn
  double mscale_all_dim = 0.0;    // yarn
  bool truncate = true;           // yarn
};

// Rows x inputs of a matrix that share a scale; 0: no such blocks.
struct ScaleBlock {
  int rows = 0;
  int cols = 0;
};

struct ModelConfig {
  std::string architecture;  // "LlamaForCausalLM"
  std::string model_type;
  DType checkpoint_dtype = DType::kF32;  // dtype / torch_dtype of config.json
  std::string stored_format;             // of matrices held in fewer bits: "gguf q4_k"; empty: none
  bool random_weights = false;           // made up, not the checkpoint's
  ScaleBlock scale_block;                // of matrices of 8-bit floats with block scales
  int num_layers = 0;
  int hidden_size = 0;
  int intermediate_size = 0;
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  int vocab_size = 0;
  int max_position_embeddings = 0;
  bool tie_word_embeddings = false;

  NormKind norm_kind = NormKind::kRms;
  float norm_eps = 1e-5f;
  bool norm_after = false;  // post-norm blocks (OPT-350m)
  bool final_norm = true;
  bool qk_norm = false;  // per-head RMS norm of q and k (Qwen3)
  bool qkv_bias = false;
  bool out_bias = false;  // attention output projection
  bool mlp_bias = false;
  Activation activation = Activation::kSilu;
  bool gated_mlp = true;
  float attention_scale = 0.0f;  // 0: head_dim ** -0.5

  RopeConfig rope;
  bool learned_positions = false;  // OPT
  int learned_position_offset = 0;
  int embed_dim = 0;  // OPT word_embed_proj_dim; 0: hidden_size

  std::vector<int> sliding_window;  // per layer; 0: full attention

  int num_experts = 0;  // 0: dense
  int num_experts_per_token = 0;
  bool renormalize_experts = true;

  std::vector<int32_t> eos_token_ids;  // of generation_config.json, else config.json
};

// Reads `directory`/config.json; the keys of `overrides`, a JSON object or empty, replace its own.
// Throws CheckpointError (missing, malformed, unknown architecture — the message lists the known
// ones).
ModelConfig load_model_config(const std::string& directory, const std::string& overrides = "");

// Tokens the checkpoint's positions reach. Interpolating rope scalings stretch what config.json
// states; llama3 states the stretched length already.
int max_positions(const ModelConfig& model);

}  // namespace specdec
