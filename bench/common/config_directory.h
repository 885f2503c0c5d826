// Models that have no checkpoint: a config.json is all that made-up weights need.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>

#include "common/models.h"

namespace specdec::bench {

// A temporary directory with a config.json.
class ConfigDirectory {
 public:
  ConfigDirectory(const std::string& name, const nlohmann::json& config)
      : path_(std::filesystem::temp_directory_path() / (name + "-" + std::to_string(getpid()))) {
    std::filesystem::create_directories(path_);
    std::ofstream(path_ / "config.json") << config.dump();
  }
  ~ConfigDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ConfigDirectory(const ConfigDirectory&) = delete;
  ConfigDirectory& operator=(const ConfigDirectory&) = delete;

  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

// config.json of a Llama whose LM head is its embedding.
inline nlohmann::json config_of(const ModelShape& shape) {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"hidden_size", shape.hidden},
          {"num_hidden_layers", shape.num_layers},
          {"num_attention_heads", shape.num_heads},
          {"num_key_value_heads", shape.num_kv_heads},
          {"head_dim", shape.head_dim},
          {"intermediate_size", shape.intermediate},
          {"vocab_size", shape.vocab_size},
          {"max_position_embeddings", 2048},
          {"rms_norm_eps", 1e-5},
          {"hidden_act", "silu"},
          {"tie_word_embeddings", true},
          {"torch_dtype", "bfloat16"}};
}

}  // namespace specdec::bench
