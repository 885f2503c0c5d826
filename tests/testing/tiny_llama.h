// A tiny random Llama checkpoint on disk.
#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "core/str_cat.h"
#include "testing/checkpoint_files.h"

namespace specdec::testing::tiny_llama {

inline constexpr int kVocab = 37;
inline constexpr int kHidden = 24;
inline constexpr int kInner = 40;
inline constexpr int kLayers = 2;
inline constexpr int kHeads = 4;
inline constexpr int kKvHeads = 2;
inline constexpr int kHeadDim = 8;
inline constexpr double kTheta = 1000.0;
inline constexpr double kEps = 1e-5;

struct Tensor {
  std::vector<int64_t> shape;
  std::vector<float> values;
};
using Tensors = std::map<std::string, Tensor>;

// A Llama with grouped query heads and its own head; heads * head_dim is not the hidden size.
inline Tensors llama_tensors() {
  Tensors tensors;
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
    Tensor tensor{.shape = shape, .values = {}};
    int64_t count = 1;
    for (int64_t extent : shape) count *= extent;
    const float scale = 1.0f / std::sqrt(static_cast<float>(shape.back()));
    for (int64_t i = 0; i < count; ++i) {
      tensor.values.push_back(shape.size() == 1 ? 1.0f + 0.2f * normal(random)
                                                : scale * normal(random));
    }
    tensors.emplace(name, std::move(tensor));
  };
  add("model.embed_tokens.weight", {kVocab, kHidden});
  add("lm_head.weight", {kVocab, kHidden});
  add("model.norm.weight", {kHidden});
  for (int layer = 0; layer < kLayers; ++layer) {
    const std::string prefix = str_cat("model.layers.", layer, ".");
    add(prefix + "input_layernorm.weight", {kHidden});
    add(prefix + "post_attention_layernorm.weight", {kHidden});
    add(prefix + "self_attn.q_proj.weight", {kHeads * kHeadDim, kHidden});
    add(prefix + "self_attn.k_proj.weight", {kKvHeads * kHeadDim, kHidden});
    add(prefix + "self_attn.v_proj.weight", {kKvHeads * kHeadDim, kHidden});
    add(prefix + "self_attn.o_proj.weight", {kHidden, kHeads * kHeadDim});
    add(prefix + "mlp.gate_proj.weight", {kInner, kHidden});
    add(prefix + "mlp.up_proj.weight", {kInner, kHidden});
    add(prefix + "mlp.down_proj.weight", {kHidden, kInner});
  }
  return tensors;
}

// A model of the same shape close to it, as a draft model is: some of its drafts are right.
inline Tensors perturbed(Tensors tensors, float deviation) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (auto& [name, tensor] : tensors) {
    if (tensor.shape.size() == 1) continue;
    for (float& value : tensor.values) value += deviation * normal(random);
  }
  return tensors;
}

inline void write_checkpoint(const TempDirectory& directory, const Tensors& tensors,
                             const std::string& extra_config = "") {
  SafetensorsWriter writer;
  for (const auto& [name, tensor] : tensors) writer.add(name, tensor.shape, tensor.values);
  directory.write("model.safetensors", writer.bytes());
  directory.write("config.json",
                  str_cat(R"({"architectures":["LlamaForCausalLM"],"vocab_size":)", kVocab,
                          R"(,"hidden_size":)", kHidden, R"(,"intermediate_size":)", kInner,
                          R"(,"num_hidden_layers":)", kLayers, R"(,"num_attention_heads":)", kHeads,
                          R"(,"num_key_value_heads":)", kKvHeads, R"(,"head_dim":)", kHeadDim,
                          R"(,"rope_theta":)", kTheta, R"(,"rms_norm_eps":)", kEps,
                          R"(,"max_position_embeddings":128)", extra_config, "}"));
}

}  // namespace specdec::testing::tiny_llama
