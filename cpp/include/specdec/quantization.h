// In how many bits the weights of a model are held.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "specdec/options.h"

namespace specdec {

// Integers a checkpoint already holds in as few bits or fewer stay as they are, and 8-bit floats
// unless integers are asked for. Norms, biases,
// learned positions and the routers of experts are never quantised.
enum class Quantization : uint8_t {
  kAuto,  // as the checkpoint stores them
  kNone,  // floating point, at the engine's dtype
  kInt8,  // one scale an output
  // a scale for every 32 inputs of an output; embedding and head in 8 bits, likewise
  // grouped, for they lose most.
  kInt4,
  // 8-bit floats, one scale an output, where products with them are (on a GPU); embedding
  // and head as they are.
  kFp8,
};

template <>
inline constexpr auto kEnumNames<Quantization> =
    std::to_array<EnumName<Quantization>>({{Quantization::kAuto, "auto"},
                                           {Quantization::kNone, "none"},
                                           {Quantization::kInt8, "int8"},
                                           {Quantization::kInt4, "int4"},
                                           {Quantization::kFp8, "fp8"}});

const std::vector<std::string>& known_quantizations();

// Also takes vLLM's names of checkpoint formats ("gptq_marlin"), as kAuto. Throws InvalidArgument,
// field "quantization", that says what to write instead.
Quantization parse_quantization(const std::string& name);
// How ModelConfig::stored_format begins for such a name ("gptq"); empty for other names.
std::string_view stored_kind(std::string_view name);
// Throws InvalidArgument where `name` is such a name and a checkpoint is stored otherwise.
void check_stored_as(const std::string& name, const std::string& stored_format);

}  // namespace specdec
