// A tiny target whose next token can be foreseen, and draft heads that foresee it.
//
// Token t is embedded as the cosines and sines of its multiples on a circle of kVocab tokens, and
// the head of the target is turned by kStride tokens: what follows t is most likely t + kStride.
// Its layers add noise that depends on the whole text, so nothing is certain. The heads know the
// turn, not the noise.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <numbers>
#include <random>
#include <string>
#include <vector>

#include "core/str_cat.h"
#include "testing/checkpoint_files.h"
#include "testing/tiny_llama.h"

namespace specdec::testing::tiny_draft_heads {

using tiny_llama::Tensor;
using tiny_llama::Tensors;

inline constexpr int kStride = 3;
inline constexpr int kHidden = tiny_llama::kHidden;
inline constexpr int kVocab = tiny_llama::kVocab;
inline constexpr int kMaxDepth = 4;  // of the MLP speculator's drafts

// Element i of the place of a token on the circles.
inline float coordinate(int token, int i) {
  const double angle = 2.0 * std::numbers::pi * (i / 2 + 1) * token / kVocab;
  return static_cast<float>(i % 2 == 0 ? std::cos(angle) : std::sin(angle));
}

inline Tensor random_tensor(std::vector<int64_t> shape, float deviation, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, deviation);
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  Tensor tensor{.shape = std::move(shape), .values = {}};
  for (int64_t i = 0; i < count; ++i) tensor.values.push_back(normal(random));
  return tensor;
}

inline Tensor ones(int64_t size) {
  return {.shape = {size}, .values = std::vector<float>(static_cast<size_t>(size), 1.0f)};
}

inline Tensor scaled(Tensor tensor, float factor) {
  for (float& value : tensor.values) value *= factor;
  return tensor;
}

// Rows of an output head that looks for the token kStride before each of `tokens`.
inline Tensor turned_head(const std::vector<int>& tokens, float sharpness) {
  Tensor head{.shape = {std::ssize(tokens), kHidden}, .values = {}};
  for (const int token : tokens) {
    for (int i = 0; i < kHidden; ++i) {
      head.values.push_back(sharpness * coordinate(token - kStride + kVocab, i));
    }
  }
  return head;
}

inline std::vector<int> all_tokens() {
  std::vector<int> tokens;
  for (int token = 0; token < kVocab; ++token) tokens.push_back(token);
  return tokens;
}

inline Tensors target_tensors() {
  Tensors tensors = tiny_llama::llama_tensors();
  Tensor& embedding = tensors.at("model.embed_tokens.weight");
  for (int token = 0; token < kVocab; ++token) {
    for (int i = 0; i < kHidden; ++i) embedding.values[token * kHidden + i] = coordinate(token, i);
  }
  tensors.at("lm_head.weight") = turned_head(all_tokens(), 0.35f);
  tensors.at("model.norm.weight") = ones(kHidden);
  for (int layer = 0; layer < tiny_llama::kLayers; ++layer) {
    for (const char* name : {".self_attn.o_proj.weight", ".mlp.down_proj.weight"}) {
      Tensor& tensor = tensors.at(str_cat("model.layers.", layer, name));
      tensor = scaled(std::move(tensor), 0.3f);
    }
  }
  return tensors;
}

// ---- EAGLE

// A layer of a head, named `prefix`..., whose attention reads `num_inputs` rows of kHidden beside
// each other.
inline void add_layer(Tensors& tensors, const std::string& prefix, int num_inputs) {
  const int q_rows = tiny_llama::kHeads * tiny_llama::kHeadDim;
  const int kv_rows = tiny_llama::kKvHeads * tiny_llama::kHeadDim;
  const int in = num_inputs * kHidden;
  tensors[prefix + "self_attn.q_proj.weight"] = random_tensor({q_rows, in}, 0.05f, 1);
  tensors[prefix + "self_attn.k_proj.weight"] = random_tensor({kv_rows, in}, 0.05f, 2);
  tensors[prefix + "self_attn.v_proj.weight"] = random_tensor({kv_rows, in}, 0.05f, 3);
  tensors[prefix + "self_attn.o_proj.weight"] = random_tensor({kHidden, q_rows}, 0.1f, 4);
  tensors[prefix + "post_attention_layernorm.weight"] = ones(kHidden);
  tensors[prefix + "mlp.gate_proj.weight"] = random_tensor({tiny_llama::kInner, kHidden}, 0.2f, 5);
  tensors[prefix + "mlp.up_proj.weight"] = random_tensor({tiny_llama::kInner, kHidden}, 0.2f, 6);
  tensors[prefix + "mlp.down_proj.weight"] = random_tensor({kHidden, tiny_llama::kInner}, 0.1f, 7);
}

// The token's embedding passes the fusion and gets noise by the features, the attention and the
// MLP; the embedding and the output head are the target's.
inline Tensors eagle_tensors() {
  Tensors tensors;
  Tensor fusion = random_tensor({kHidden, 2 * kHidden}, 0.05f, 11);
  for (int i = 0; i < kHidden; ++i) fusion.values[i * 2 * kHidden + i] += 1.0f;
  tensors["fc.weight"] = fusion;
  add_layer(tensors, "layers.0.", 1);
  return tensors;
}

// The tokens that the EAGLE-3 head scores, in an order of its own.
inline std::vector<int> scored_tokens() {
  std::vector<int> tokens;
  for (int i = 0; i < 31; ++i) tokens.push_back((i * 7 + 2) % kVocab);
  return tokens;
}

// The fused features are noise. Attention finds the row's own position, and copies as many of the
// embedding's elements as the KV heads hold into the residual stream.
inline Tensors eagle3_tensors() {
  constexpr int kCopied = tiny_llama::kKvHeads * tiny_llama::kHeadDim;
  constexpr int kGroup = tiny_llama::kHeads / tiny_llama::kKvHeads;
  Tensors tensors;
  tensors["fc.weight"] = random_tensor({kHidden, 3 * kHidden}, 0.1f, 21);
  add_layer(tensors, "midlayer.", 2);
  tensors["midlayer.hidden_norm.weight"] = ones(kHidden);
  tensors["midlayer.input_layernorm.weight"] = ones(kHidden);
  // Row `row` of the projections reads element `row` of the embedding, which comes first.
  const auto copy = [&](const std::string& name, int row, int element, float factor) {
    tensors.at(str_cat("midlayer.self_attn.", name, "_proj.weight"))
        .values[row * 2 * kHidden + element] += factor;
  };
  for (int i = 0; i < kCopied; ++i) {
    copy("k", i, i, 2.0f);
    copy("v", i, i, 1.0f);
    const int kv_head = i / tiny_llama::kHeadDim;
    const int first_row = kv_head * kGroup * tiny_llama::kHeadDim + i % tiny_llama::kHeadDim;
    for (int head = 0; head < kGroup; ++head) {
      copy("q", first_row + head * tiny_llama::kHeadDim, i, 2.0f);
    }
    const int q_rows = tiny_llama::kHeads * tiny_llama::kHeadDim;
    tensors.at("midlayer.self_attn.o_proj.weight").values[i * q_rows + first_row] += 4.0f;
  }
  tensors["norm.weight"] = ones(kHidden);
  tensors["lm_head.weight"] = turned_head(scored_tokens(), 0.35f);
  return tensors;
}

inline std::string eagle_config(const std::string& architecture, const std::string& more) {
  return str_cat(R"({"architectures":[")", architecture, R"("],"model_type":"llama","vocab_size":)",
                 kVocab, R"(,"hidden_size":)", kHidden, R"(,"intermediate_size":)",
                 tiny_llama::kInner, R"(,"num_hidden_layers":1,"num_attention_heads":)",
                 tiny_llama::kHeads, R"(,"num_key_value_heads":)", tiny_llama::kKvHeads,
                 R"(,"head_dim":)", tiny_llama::kHeadDim, R"(,"rope_theta":)", tiny_llama::kTheta,
                 R"(,"rms_norm_eps":)", tiny_llama::kEps, R"(,"max_position_embeddings":128)", more,
                 "}");
}

inline SafetensorsWriter writer_of(const Tensors& tensors) {
  SafetensorsWriter writer;
  for (const auto& [name, tensor] : tensors) writer.add(name, tensor.shape, tensor.values);
  return writer;
}

inline void write_eagle(const TempDirectory& directory) {
  directory.write("model.safetensors", writer_of(eagle_tensors()).bytes());
  directory.write("config.json", eagle_config("EagleLlamaForCausalLM", ""));
}

// `more`: further keys of config.json.
inline void write_eagle3(const TempDirectory& directory, const std::string& more = "") {
  SafetensorsWriter writer = writer_of(eagle3_tensors());
  const std::vector<int> tokens = scored_tokens();
  std::string offsets(tokens.size() * sizeof(int64_t), '\0');
  for (size_t i = 0; i < tokens.size(); ++i) {
    const int64_t offset = tokens[i] - static_cast<int64_t>(i);
    std::memcpy(offsets.data() + i * sizeof(int64_t), &offset, sizeof(offset));
  }
  writer.add("d2t", "I64", {std::ssize(tokens)}, offsets);
  directory.write("model.safetensors", writer.bytes());
  directory.write("config.json",
                  eagle_config("LlamaForCausalLMEagle3",
                               str_cat(R"(,"draft_vocab_size":)", tokens.size(),
                                       R"(,"eagle_aux_hidden_state_layer_ids":[0,1,2])", more)));
}

// ---- DFlash and DSpark

// DFlash's is random: nothing is foreseen. DSpark's Markov head knows the turn.
inline void write_dflash(const TempDirectory& directory, bool is_dspark, int span_rows = 5,
                         int mask_token = 35) {
  constexpr int64_t kQ = tiny_llama::kHeads * tiny_llama::kHeadDim;
  constexpr int64_t kKv = tiny_llama::kKvHeads * tiny_llama::kHeadDim;
  Tensors tensors;
  uint32_t seed = 71;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
    tensors[name + ".weight"] =
        shape.size() == 1 ? ones(shape[0]) : random_tensor(std::move(shape), 0.15f, seed++);
  };
  add("fc", {kHidden, 2 * kHidden});
  add("hidden_norm", {kHidden});
  add("norm", {kHidden});
  for (const char* norm : {"input_layernorm", "post_attention_layernorm"}) {
    add(str_cat("layers.0.", norm), {kHidden});
  }
  for (const char* norm : {"q_norm", "k_norm"}) {
    add(str_cat("layers.0.self_attn.", norm), {tiny_llama::kHeadDim});
  }
  add("layers.0.self_attn.q_proj", {kQ, kHidden});
  add("layers.0.self_attn.k_proj", {kKv, kHidden});
  add("layers.0.self_attn.v_proj", {kKv, kHidden});
  add("layers.0.self_attn.o_proj", {kHidden, kQ});
  add("layers.0.mlp.gate_proj", {tiny_llama::kInner, kHidden});
  add("layers.0.mlp.up_proj", {tiny_llama::kInner, kHidden});
  add("layers.0.mlp.down_proj", {kHidden, tiny_llama::kInner});
  if (is_dspark) {
    std::vector<int> tokens;
    Tensor places = {.shape = {kVocab, kHidden}, .values = {}};
    for (int token = 0; token < kVocab; ++token) {
      tokens.push_back(token);
      for (int i = 0; i < kHidden; ++i) places.values.push_back(coordinate(token, i));
    }
    tensors["markov_head.markov_w1.weight"] = places;
    tensors["markov_head.markov_w2.weight"] = turned_head(tokens, 0.35f);
    tensors["lm_head.weight"] = random_tensor({kVocab, kHidden}, 0.12f, seed);
  }
  directory.write("model.safetensors", writer_of(tensors).bytes());
  directory.write("config.json",
                  eagle_config(is_dspark ? "Qwen3DSparkModel" : "DFlashDraftModel",
                               str_cat(R"(,"block_size":)", span_rows, R"(,"mask_token_id":)",
                                       mask_token, R"(,"target_layer_ids":[-1,1])",
                                       R"(,"markov_rank":)", is_dspark ? kHidden : 0)));
}

// ---- MLP speculator

// The token's embedding is a state of one element that stands out, which the head of its position
// looks for; the state before is noise.
inline void write_mlp_speculator(const TempDirectory& directory) {
  constexpr int kInner = 40;
  Tensors tensors;
  for (int i = 0; i < kMaxDepth; ++i) {
    const uint32_t seed = 31 + 10 * static_cast<uint32_t>(i);
    const int64_t in = i == 0 ? kHidden : kInner;
    tensors[str_cat("speculator.proj.", i, ".weight")] = random_tensor({kInner, in}, 0.05f, seed);
    Tensor embedding = random_tensor({kVocab, kInner}, 0.05f, seed + 1);
    Tensor head = random_tensor({kVocab, kInner}, 0.1f, seed + 2);
    for (int token = 0; token < kVocab; ++token) {
      embedding.values[token * kInner + token] += 1.0f;
      head.values[(token + kStride) % kVocab * kInner + token] += 1.0f;
    }
    tensors[str_cat("speculator.emb.", i, ".weight")] = embedding;
    tensors[str_cat("speculator.head.", i, ".weight")] = head;
    tensors[str_cat("speculator.ln.", i, ".weight")] = ones(kInner);
    tensors[str_cat("speculator.ln.", i, ".bias")] = random_tensor({kInner}, 0.05f, seed + 3);
  }
  directory.write("model.safetensors", writer_of(tensors).bytes());
  directory.write("config.json",
                  str_cat(R"({"architectures":["MLPSpeculatorPreTrainedModel"],)",
                          R"("model_type":"mlp_speculator","vocab_size":)", kVocab,
                          R"(,"emb_dim":)", kHidden, R"(,"inner_dim":)", kInner, R"(,"n_predict":)",
                          kMaxDepth, R"(,"top_k_tokens_per_head":[4,3,2,1],"n_candidates":4,)",
                          R"("tie_weights":false,"scale_input":false})"));
}

}  // namespace specdec::testing::tiny_draft_heads
