// The operations of recurrent layers in double precision: see operations.h.
#pragma once

#include <vector>

#include "backend/op_args.h"

namespace specdec::reference {

// The rows' results, and what all slots and records hold afterwards.
struct ConvResult {
  std::vector<double> out;           // [num_rows, conv_channels]
  std::vector<double> tails;         // [num_slots, conv_width - 1, conv_channels]
  std::vector<double> conv_records;  // [num_records, conv_channels]
};
ConvResult short_conv(const ShortConvArgs& args, int num_slots, int num_records);

// Likewise.
struct RecurrenceResult {
  std::vector<double> out;       // [num_rows, num_heads * value_dim]
  std::vector<double> matrices;  // [num_slots, num_heads, key_dim, value_dim]
  std::vector<double> records;   // [num_records, record_size]
};
RecurrenceResult recurrence(const RecurrenceArgs& args, int num_slots, int num_records);

// [num_rows, num_groups * dim]
std::vector<double> gated_norm(const GatedNormArgs& args);

}  // namespace specdec::reference
