#include "specdec/quantization.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "core/str_cat.h"
#include "specdec/error.h"

namespace specdec {
namespace {

// What vLLM calls the formats of checkpoints, and how ModelConfig::stored_format begins.
struct StoredName {
  std::string_view name;
  std::string_view kind;
};
constexpr auto kStoredNames =
    std::to_array<StoredName>({{"awq", "awq"},
                               {"awq_marlin", "awq"},
                               {"gptq", "gptq"},
                               {"gptq_marlin", "gptq"},
                               {"auto-round", "gptq"},
                               {"compressed-tensors", "compressed-tensors"},
                               {"bitsandbytes", "bitsandbytes"},
                               {"fbgemm_fp8", "fbgemm_fp8"},
                               {"modelopt", "modelopt"},
                               {"modelopt_fp4", "modelopt"},
                               {"gguf", "gguf"}});

// Names that mean bits this library does not have.
struct OtherName {
  std::string_view prefix;
  std::string_view advice;
};

constexpr std::string_view kEightBits = "8 bits are integers here: use 'int8'";

constexpr std::array kOtherNames = {
    OtherName{"torchao", "such checkpoints are not read; give a GGUF file"},
    OtherName{"mxfp", "use 'int8' or 'int4'"},
    OtherName{"nvfp", "use 'int8' or 'int4'"},
    OtherName{"experts_int8", kEightBits},
    OtherName{"w8a8", kEightBits},
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

std::string_view stored_kind(std::string_view name) {
  const auto found = std::ranges::find(kStoredNames, name, &StoredName::name);
  return found != kStoredNames.end() ? found->kind : "";
}

void check_stored_as(const std::string& name, const std::string& stored_format) {
  const std::string_view kind = stored_kind(name);
  if (kind.empty() || stored_format.starts_with(kind)) return;
  throw InvalidArgument(
      "quantization",
      str_cat("'", name, "' says how a checkpoint is stored, and this one is stored ",
              stored_format.empty() ? "in floating point" : str_cat("as ", stored_format),
              "; leave it out, or give 'int8' or 'int4' to quantise it"));
}

Quantization parse_quantization(const std::string& name) {
  if (const std::optional<Quantization> value = value_of<Quantization>(name)) return *value;
  if (!stored_kind(name).empty()) return Quantization::kAuto;
  std::string message =
      str_cat("'", name, "' is not supported; use 'auto', 'none', 'int8', 'int4' or 'fp8'");
  for (const OtherName& other : kOtherNames) {
    if (name.starts_with(other.prefix)) message = str_cat(message, " (", other.advice, ")");
  }
  throw InvalidArgument("quantization", message);
}

}  // namespace specdec
