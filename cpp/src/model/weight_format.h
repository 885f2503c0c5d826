// Which format a weight matrix is packed in.
#pragma once

#include <set>
#include <span>
#include <string>

#include "backend/op_args.h"
#include "specdec/quantization.h"

namespace specdec {

enum class MatrixRole : uint8_t {
  kLayer,
  kVocabulary,  // embedding or head
  kFloat,       // what stays floating point whatever is asked for
};

// The format of a matrix of `parts`: the narrowest that holds stored integers exactly, where they
// are in no more bits than `quantization` asks for; one that holds stored 8-bit floats, where there
// are products with them (`has_fp8`) and no integers are asked for; else what is asked for.
WeightFormat choose_format(Quantization quantization, MatrixRole role,
                           std::span<const WeightView> parts, bool has_fp8);

// "bfloat16", "int8", "int4+int8", "fp8": the kinds of numbers among `formats`, `act` standing for
// kAct.
std::string describe_formats(const std::set<WeightFormat>& formats, DType act);

}  // namespace specdec
