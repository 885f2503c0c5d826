#include "specdec/quantization.h"

#include <array>
#include <string_view>

#include "core/str_cat.h"
#include "specdec/error.h"

namespace specdec {
namespace {

// Names of vLLM and others that mean a format of checkpoints, or bits this library does not have.
struct OtherName {
  std::string_view prefix;
  std::string_view advice;
};

constexpr std::string_view kFourBitCheckpoints =
    "checkpoints in this format are not read; give the unquantized checkpoint with 'int4', or a "
    "GGUF file";
constexpr std::string_view kEightBits = "8 bits are integers here: use 'int8'";
constexpr std::string_view kStoredFloats =
    "leave it out: such a checkpoint says itself how its weights are stored";

constexpr std::array kOtherNames = {
    OtherName{"awq", kFourBitCheckpoints},
    OtherName{"gptq", kFourBitCheckpoints},
    OtherName{"auto-round", kFourBitCheckpoints},
    OtherName{"bitsandbytes", "use 'int8' or 'int4', which quantise at load as well"},
    OtherName{"compressed-tensors", kStoredFloats},
    OtherName{"torchao", kFourBitCheckpoints},
    OtherName{"fbgemm_fp8", kStoredFloats},
    OtherName{"mxfp", "use 'int8' or 'int4'"},
    OtherName{"nvfp", "use 'int8' or 'int4'"},
    OtherName{"experts_int8", kEightBits},
    OtherName{"w8a8", kEightBits},
    OtherName{"gguf", "leave it out: the integers of a GGUF file are used as they are"},
};

}  // namespace

const std::vector<std::string>& known_quantizations() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list;
    for (const auto& [_, name] : kEnumNames<Quantization>) list.emplace_back(name);
    return list;
  }();
  return names;
}

Quantization parse_quantization(const std::string& name) {
  if (const std::optional<Quantization> value = value_of<Quantization>(name)) return *value;
  std::string message =
      str_cat("'", name, "' is not supported; use 'auto', 'none', 'int8', 'int4' or 'fp8'");
  for (const OtherName& other : kOtherNames) {
    if (name.starts_with(other.prefix)) message = str_cat(message, " (", other.advice, ")");
  }
  throw InvalidArgument("quantization", message);
}

}  // namespace specdec
