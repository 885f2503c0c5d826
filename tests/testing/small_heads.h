// Checkpoints of MLP speculators and Medusa heads for the tiny Llama, with random weights, and the
// formula of Medusa heads.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/str_cat.h"
#include "testing/checkpoint_files.h"
#include "testing/tiny_llama.h"

namespace specdec::testing {

using tiny_llama::kHidden;
using tiny_llama::kVocab;
using tiny_llama::Tensor;
using tiny_llama::Tensors;

inline Tensor random_tensor(std::mt19937& random, std::vector<int64_t> shape, float scale) {
  std::normal_distribution<float> normal;
  Tensor tensor{.shape = shape, .values = {}};
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  for (int64_t i = 0; i < count; ++i) tensor.values.push_back(scale * normal(random));
  return tensor;
}

inline Tensor random_matrix(std::mt19937& random, int rows, int in_features) {
  return random_tensor(random, {rows, in_features},
                       1.0f / std::sqrt(static_cast<float>(in_features)));
}

inline void write_head(const TempDirectory& directory, const Tensors& tensors,
                       const std::string& config) {
  testing::SafetensorsWriter writer;
  for (const auto& [name, tensor] : tensors) {
    if (name != "token_map") {
      writer.add(name, tensor.shape, tensor.values);
      continue;
    }
    const std::vector<int64_t> ids(tensor.values.begin(), tensor.values.end());
    writer.add(name, "I64", tensor.shape,
               std::string(reinterpret_cast<const char*>(ids.data()), ids.size() * 8));
  }
  directory.write("model.safetensors", writer.bytes());
  directory.write("config.json", config);
}

struct MlpShape {
  int inner = 0;
  int num_steps = 3;
  bool is_tied = false;
  bool scales_input = false;
  std::string prefix = "speculator.";
};

inline Tensors mlp_tensors(const MlpShape& shape) {
  std::mt19937 random(11);
  Tensors tensors;
  for (int step = 0; step < shape.num_steps; ++step) {
    const auto add = [&](const std::string& kind, const std::string& suffix, Tensor tensor) {
      tensors.emplace(str_cat(shape.prefix, kind, step, suffix), std::move(tensor));
    };
    const int in_features = step == 0 ? kHidden : shape.inner;
    if (!shape.is_tied || step < 2) {
      add("proj.", ".weight", random_matrix(random, shape.inner, in_features));
    }
    if (shape.is_tied && step > 0) continue;
    add("emb.", ".weight", random_tensor(random, {kVocab, shape.inner}, 1.0f));
    add("head.", ".weight", random_matrix(random, kVocab, shape.inner));
    add("ln.", ".weight", random_tensor(random, {shape.inner}, 1.0f));
    add("ln.", ".bias", random_tensor(random, {shape.inner}, 0.5f));
  }
  return tensors;
}

inline std::string mlp_config(const MlpShape& shape) {
  return str_cat(R"({"model_type":"mlp_speculator","vocab_size":)", kVocab, R"(,"emb_dim":)",
                 kHidden, R"(,"inner_dim":)", shape.inner, R"(,"n_predict":)", shape.num_steps,
                 R"(,"tie_weights":)", shape.is_tied ? "true" : "false", R"(,"scale_input":)",
                 shape.scales_input ? "true" : "false", "}");
}

struct MedusaShape {
  int num_heads = 3;
  int num_layers = 1;
  bool has_bias = false;
  bool has_vllm_names = true;
  std::string prefix = "";
  int output_rows = kVocab;    // 0: the target's output head
  bool shares_output = false;  // original_lm_head
  std::vector<int> token_map = {};

  std::string layer(int head, int layer) const {
    return has_vllm_names ? str_cat(prefix, "blocks.", head, ".layers.", layer)
                          : str_cat(prefix, head, ".", layer, ".linear");
  }
  std::string output(int head) const {
    if (shares_output) head = 0;
    return has_vllm_names ? str_cat(prefix, "lm_heads.", head, ".weight")
                          : str_cat(prefix, head, ".", num_layers, ".weight");
  }
};

inline Tensors medusa_tensors(const MedusaShape& shape) {
  std::mt19937 random(12);
  Tensors tensors;
  for (int head = 0; head < shape.num_heads; ++head) {
    for (int layer = 0; layer < shape.num_layers; ++layer) {
      tensors.emplace(shape.layer(head, layer) + ".weight",
                      random_matrix(random, kHidden, kHidden));
      if (!shape.has_bias) continue;
      tensors.emplace(shape.layer(head, layer) + ".bias", random_tensor(random, {kHidden}, 0.3f));
    }
    if (shape.output_rows > 0) {
      tensors.emplace(shape.output(head), random_matrix(random, shape.output_rows, kHidden));
    }
  }
  if (!shape.token_map.empty()) {
    Tensor map{.shape = {static_cast<int64_t>(shape.token_map.size())}, .values = {}};
    map.values.assign(shape.token_map.begin(), shape.token_map.end());
    tensors.emplace("token_map", std::move(map));
  }
  return tensors;
}

inline std::string medusa_config(const MedusaShape& shape) {
  if (!shape.has_vllm_names) {
    // Files in the wild state two heads and hold five.
    return str_cat(R"({"medusa_num_heads":2,"medusa_num_layers":)", shape.num_layers, "}");
  }
  std::string config =
      str_cat(R"({"model_type":"medusa","hidden_size":)", kHidden, R"(,"vocab_size":)", kVocab,
              R"(,"num_heads":)", shape.num_heads, R"(,"num_hidden_layers":)", shape.num_layers);
  if (shape.shares_output) config += R"(,"original_lm_head":true)";
  if (!shape.token_map.empty()) {
    config += str_cat(R"(,"truncated_vocab_size":)", shape.token_map.size());
  }
  return config + "}";
}

inline std::vector<double> multiply(const Tensor& matrix, const std::vector<double>& x) {
  std::vector<double> result(matrix.shape[0], 0.0);
  for (size_t row = 0; row < result.size(); ++row) {
    for (size_t i = 0; i < x.size(); ++i) result[row] += matrix.values[row * x.size() + i] * x[i];
  }
  return result;
}

// x of a Medusa head, after its layers.
inline std::vector<double> medusa_hidden(const Tensors& tensors, const MedusaShape& shape, int head,
                                         std::vector<double> x) {
  for (int layer = 0; layer < shape.num_layers; ++layer) {
    std::vector<double> inner = multiply(tensors.at(shape.layer(head, layer) + ".weight"), x);
    for (int i = 0; i < kHidden; ++i) {
      if (shape.has_bias) inner[i] += tensors.at(shape.layer(head, layer) + ".bias").values[i];
      x[i] += inner[i] / (1.0 + std::exp(-inner[i]));
    }
  }
  return x;
}

}  // namespace specdec::testing
