// The families of networks: what each reads from config.json and how it calls its tensors. A family
// is a file here and a line in families.cc.
#pragma once

#include <span>
#include <string_view>

#include "model/config.h"
#include "model/json_file.h"
#include "model/tensor_names.h"

namespace specdec {

struct Family {
  std::string_view architecture;  // "LlamaForCausalLM"
  std::string_view model_type;    // "llama"
  TensorNames names;
  // Fills in what the fields that all families share leave open.
  void (*parse)(const JsonFields& fields, ModelConfig& config);
  // Keys that other families refuse, because they change what is computed.
  std::span<const std::string_view> own_keys = {};
};

std::span<const Family* const> families();

extern const Family kLlama;
extern const Family kMistral;
extern const Family kMixtral;
extern const Family kQwen2;
extern const Family kQwen3;
extern const Family kQwen3Moe;
extern const Family kOpt;
extern const Family kGemma2;
extern const Family kGemma3;
extern const Family kPhi3;
extern const Family kGranite;
extern const Family kOlmo2;
extern const Family kGptNeox;

}  // namespace specdec
