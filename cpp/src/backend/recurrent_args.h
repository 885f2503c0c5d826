// Arguments of the operations of recurrent layers: short convolutions and linear recurrences, which
// keep a state of fixed size per sequence in place of keys and values per token.
//
// The state after a row is a function of the state after the row's parent and of the row, computed
// by one order of float operations. So neither chunks nor trees nor neighbours show in any bit.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "core/state_access.h"

namespace specdec {

struct BatchView;
struct SharedHeads;  // backend/shared_heads.h

// The most taps of a convolution.
inline constexpr int kMaxConvWidth = 4;

// What a recurrent layer keeps of a sequence: the last inputs of a convolution, and for each head a
// matrix S.
struct StateShape {
  int conv_channels = 0;
  int conv_width = 0;     // taps, 2 or more: a row's own and those of the rows before it
  int num_key_heads = 0;  // a divisor of num_heads
  int num_heads = 0;      // 0: no matrices
  int key_dim = 0;
  int value_dim = 0;

  // Elements of one state, and of one record.
  int64_t tail_size() const { return int64_t{conv_width - 1} * conv_channels; }
  int64_t matrix_size() const { return int64_t{num_heads} * key_dim * value_dim; }
  int64_t key_size() const { return int64_t{num_key_heads} * key_dim; }
  int64_t value_size() const { return int64_t{num_heads} * value_dim; }
  int64_t record_size() const { return key_size() + value_size() + num_heads; }
  bool empty() const { return conv_channels == 0; }
  bool operator==(const StateShape&) const = default;
};

// The states of one layer. A slot holds the state of a sequence, or of a cached prefix, after some
// tokens. A record holds what a draft row would do to its sequence's state: should the draft be
// accepted, a later pass folds the record into the state.
struct LayerStateView {
  StateShape shape;
  float* tails = nullptr;         // [num_slots, conv_width - 1, conv_channels], oldest input first
  float* matrices = nullptr;      // [num_slots, num_heads, key_dim, value_dim]
  float* conv_records = nullptr;  // [num_records, conv_channels]: the row's input
  // [num_records, record_size]: the row's keys [num_key_heads, key_dim], updates [num_heads,
  // value_dim] and decays [num_heads].
  float* records = nullptr;
};

// How a batch's rows continue the states of their sequences: first come the state in a slot, then
// the pending records in their order, then the rows. A record that is written is not pending, and a
// slot that a request stores to is not read or stored to by another.
struct RecurrentRows {
  const int32_t* slots_in = nullptr;    // [num_requests]; -1: no token has been read, zeros
  const int32_t* cu_pending = nullptr;  // [num_requests + 1]
  const int32_t* pending = nullptr;     // [cu_pending[num_requests]] records
  // Of each request in rising order of num_tokens, which is at least 1 and may be that of several.
  // Those rows are a chain from the first. A slot that is stored to may be the one that is read.
  const int32_t* cu_stores = nullptr;  // [num_requests + 1]
  const StateStore* stores = nullptr;  // [cu_stores[num_requests]]
  const int32_t* parents = nullptr;    // [num_rows] index among the request's rows; -1: the state
  const int32_t* records = nullptr;    // [num_rows] record that the row writes; -1: none
};

// A causal convolution of every channel with its own taps, over a row and its ancestors:
//   in = x (* input_gates);  y = activation(bias + sum over i of weight[:, i] * in of the ancestor
//   conv_width - 1 - i rows back);  out = y (* output_gates)
// The sum adds products in order of i; what comes before a sequence's first token is zero. Writes
// the inputs to the rows' records, and the last conv_width - 1 inputs to the tails of the stores.
struct ShortConvArgs {
  const float* x = nullptr;             // [num_rows, conv_channels]
  const float* input_gates = nullptr;   // likewise, or null
  const float* output_gates = nullptr;  // likewise, or null
  int64_t stride = 0;                   // elements from one row to the next, of all three
  const float* weight = nullptr;        // [conv_channels, conv_width], the oldest input's tap first
  const float* bias = nullptr;          // [conv_channels], or null
  bool silu = false;                    // the activation is SiLU, else there is none
  const BatchView* batch = nullptr;     // with BatchView::recurrent
  LayerStateView state;
  void* out = nullptr;            // [num_rows, conv_channels]
  DType out_dtype = DType::kF32;  // float32 or act
};

enum class RecurrenceKind : uint8_t {
  kGatedDelta,  // Gated DeltaNet (Yang et al., 2024)
  kStateSpace,  // Mamba2 (Dao and Gu, 2024)
};

// A linear recurrence with a matrix S per head; head h uses key head h / (num_heads /
// num_key_heads). With d and b of the row and head:
//   kGatedDelta: q = queries / |queries| / sqrt(key_dim), k = keys / |keys|, where |x| = sqrt(sum
//                of x^2 + 1e-6); b = sigmoid(gates); d = exp(decay_rates * softplus(steps +
//                step_bias));  u = b * (values - d * S^T k)
//   kStateSpace: q = queries, k = keys; t = softplus(steps + step_bias); d = exp(decay_rates * t);
//                u = t * values
//   out = S^T q * d + (k . q) * u (+ skip * values);  S = d * S + k u^T
// where S is that before the row, and softplus(x) is x above 20. Each product with S, and k . q, is
// computed as eight sums over equal runs of key_dim, each a chain of fused multiply-adds from zero,
// which are folded pairwise (core/k_slices.h); u = b * fma(-d, S^T k, values), out = fma(k . q, u,
// d * (S^T q)), S = fma(k, u, d * S). Writes k, u and d to the rows' records, and S to the matrices
// of the stores.
struct RecurrenceArgs {
  RecurrenceKind kind = RecurrenceKind::kGatedDelta;
  // The arguments that are not const serve as memory for intermediate results.
  float* queries = nullptr;            // [num_rows, num_key_heads * key_dim]
  float* keys = nullptr;               // likewise
  const float* values = nullptr;       // [num_rows, num_heads * value_dim]
  int64_t stride = 0;                  // elements from one row to the next, of these three
  float* gates = nullptr;              // [num_rows, num_heads], of kGatedDelta
  float* steps = nullptr;              // [num_rows, num_heads]
  int64_t step_stride = 0;             // of gates and steps
  const float* decay_rates = nullptr;  // [num_heads], negative
  const float* step_bias = nullptr;    // [num_heads]
  const float* skip = nullptr;         // [num_heads], or null
  const BatchView* batch = nullptr;    // with BatchView::recurrent
  LayerStateView state;
  float* out = nullptr;  // [num_rows, num_heads * value_dim]
};

// Per row and group: out = norm(x) * activation(gates), or norm(x * activation(gates)) with
// gates_first, where norm(x) = x / sqrt(mean of x^2 + eps) * weight and the
// activation is SiLU.
//
// With shared_heads, ranks share the heads whose values these are, and a group may have heads of
// several ranks: num_groups and dim are those of all heads, and x, gates, weight and out have the
// values of this rank's heads. Ranks exchange their x * activation(gates), and each adds up the
// squares of a group in the order that one device has.
struct GatedNormArgs {
  const float* x = nullptr;       // [num_rows, num_groups * dim]
  const float* gates = nullptr;   // likewise
  int64_t gate_stride = 0;        // elements from one row of gates to the next
  const float* weight = nullptr;  // [num_groups * dim]
  float eps = 1e-6f;
  bool gates_first = false;
  int num_rows = 0;
  int num_groups = 0;
  int dim = 0;
  const SharedHeads* shared_heads = nullptr;  // with gates_first
  void* out = nullptr;                        // [num_rows, num_groups * dim] act
};

}  // namespace specdec
