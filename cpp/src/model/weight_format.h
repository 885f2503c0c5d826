// Which format a weight matrix is packed in.
#pragma once

#include <functional>
#include <set>
#include <span>
#include <string>

#include "backend/op_args.h"
#include "specdec/quantization.h"

namespace specdec {

enum class MatrixRole : uint8_t {
  kLayer,
  kExpert,      // of a mixture; its inputs stay in order
  kVocabulary,  // embedding or LM head
  kFloat,       // stays floating point whatever quantisation is asked for
};

using SupportsFormat = std::function<bool(WeightFormat)>;

// The format for a matrix of `parts`, among those that the backend `supports`. Stored integers get
// the narrowest format that holds them exactly, unless `quantization` asks for fewer bits. Stored
// 8-bit floats keep their format where the backend has it and no integers are asked for. Everything
// else gets the format asked for.
WeightFormat choose_format(Quantization quantization, MatrixRole role,
                           std::span<const WeightView> parts, const SupportsFormat& supports);

// Whether a matrix of `parts` has columns in their input_order: all parts have the same order and
// keep their codes.
bool keeps_input_order(MatrixRole role, std::span<const WeightView> parts, WeightFormat format);

// "bfloat16", "int8", "int4+int8", "fp8": the kinds of numbers among `formats`, with kAct given as
// `act`.
std::string describe_formats(const std::set<WeightFormat>& formats, DType act);

}  // namespace specdec
