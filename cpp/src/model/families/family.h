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
  // Fills in what the fields that all families share leave open. A key that it does not ask for is
  // refused where it may change what is computed.
  void (*parse)(const JsonFields& fields, ModelConfig& config);
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
