// The families of networks: what each reads from config.json, and its tensor names. A family is one
// file here and one line in families.cc.
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
  // Sets the fields that the shared parser leaves open. Keys that it does not ask for are refused
  // where they may change the computation.
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
