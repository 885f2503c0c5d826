// The families of networks: what each reads from config.json, and its tensor names. A family is a
// constant in a file here, which families.cc lists.
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
  std::string_view other_architecture = {};  // another name of the same network
};

std::span<const Family* const> families();

}  // namespace specdec
