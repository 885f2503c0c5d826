// Small config.json files, and what is read from them or refused.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "model/config.h"
#include "specdec/error.h"
#include "testing/checkpoint_files.h"
#include "testing/text.h"

namespace specdec::testing::model_config {

// config.json of a small network; `extra` are further members, each after a comma.
inline std::string config_json(const std::string& architecture, const std::string& extra = "") {
  return R"({"architectures":[")" + architecture +
         R"("],"vocab_size":100,"hidden_size":64,"intermediate_size":96,"num_hidden_layers":3,)"
         R"("num_attention_heads":4,"num_key_value_heads":2,"max_position_embeddings":256)" +
         extra + "}";
}

inline ModelConfig load(const std::string& json) {
  TempDirectory directory;
  directory.write("config.json", json);
  return load_model_config(directory.path());
}

// The window of each layer.
inline std::vector<int> windows_of(const ModelConfig& config) {
  std::vector<int> windows;
  for (const LayerSpec& layer : config.layers) windows.push_back(layer.sliding_window);
  return windows;
}

inline std::string error_of(const std::string& json) {
  const CheckpointError error = checkpoint_error_of([&] { load(json); });
  EXPECT_TRUE(has_text(error.file(), "config.json"));
  return error.what();
}

// A member of config.json that an architecture refuses, and what the error says of it.
struct Refusal {
  const char* name;
  const char* architecture;
  const char* extra;
  const char* message;
};

inline void expect_refused(const Refusal& refusal) {
  EXPECT_TRUE(
      has_text(error_of(config_json(refusal.architecture, refusal.extra)), refusal.message));
}

}  // namespace specdec::testing::model_config
