// Plain loops in double precision over row-major data: what every kernel, on any device, is
// compared with. They take the arguments of the operation; its outputs are returned instead of
// written.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "backend/op_args.h"

namespace specdec::reference {

// Keys and values of one layer by physical slot, as their dtype represents them.
struct PlainKv {
  std::vector<double> keys;    // [num_blocks * block_size, num_kv_heads, head_dim]
  std::vector<double> values;  // the same
};

// Element `index` of an array of float32, bfloat16 or float16.
double element(const void* data, DType dtype, int64_t index);
// `value` rounded to `dtype`.
double rounded(double value, DType dtype);

// [num_rows, dim]; with `accumulate` args.out holds the initial values.
std::vector<double> norm(const NormArgs& args);

// The result of load_rows, [num_rows, dim]; with `accumulate` args.out holds the initial values.
std::vector<double> loaded_rows(const LoadRowsArgs& args, DType act_dtype);

// x [num_rows, in_features] (double), weight [out_features, in_features].
std::vector<double> linear(std::span<const double> x, std::span<const float> weight,
                           int64_t in_features);

// The rows [*, dim] that products with integer weights compute with: int8 codes times the scale of
// their group.
std::vector<double> quantized_rows(std::span<const float> x, int64_t dim,
                                   int group_size = kQuantGroup);

// The values [rows, in_features] that a matrix of a checkpoint stands for.
std::vector<double> values_of(const WeightView& weight);

// The steps after the projection to qkv [num_rows, (num_heads + 2 * num_kv_heads) * head_dim].
// Returns q [num_rows, num_heads * head_dim] before rounding and writes the rows' keys and values,
// rounded to the cache's dtype, to kv.
std::vector<double> split_qkv(const QkvArgs& args, std::span<const float> qkv, PlainKv& kv);

// Attention of the batch's rows over kv: [num_rows, num_heads * head_dim]. args.kv gives the shape,
// `act_dtype` is that of args.q.
std::vector<double> tree_attention(const TreeAttentionArgs& args, const PlainKv& kv,
                                   DType act_dtype);

// Constants that make a difference to values of about 1.
inline constexpr ActivationConstants kSomeConstants = {.positive = 0.8f,
                                                       .negative = 1.3f,
                                                       .beta = 0.5f,
                                                       .eps = -0.01f,
                                                       .alpha = 1.702f,
                                                       .limit = 0.7f};
// All but kClampedSwiglu.
double activate(Activation activation, double x, const ActivationConstants& constants = {});
// The result of a gate and what it multiplies.
double gated(Activation activation, const ActivationConstants& constants, double gate, double up);

// The result of scale_rows, [num_rows, dim].
std::vector<double> scaled_rows(const ScaleRowsArgs& args, DType act_dtype);

// The result of sparse_gates, [num_rows, dim].
std::vector<double> sparse_gates(const SparseGatesArgs& args);

// The results of predict_streams and correct_streams, [num_streams, num_rows, dim].
std::vector<double> predicted_streams(const PredictStreamsArgs& args);
std::vector<double> corrected_streams(const CorrectStreamsArgs& args);

// The result of match_magnitude, [num_rows, dim]; with `accumulate` args.out holds the initial
// values.
std::vector<double> matched_magnitude(const MatchMagnitudeArgs& args);

// A row's experts and their weights, best first. logits: [num_experts].
std::vector<std::pair<int, double>> routed(const Router& router, std::span<const float> logits);

// Plain weights of the experts: gate_up [2 * inner, hidden] and down [hidden, inner] each. Returns
// what is added to args.out, or becomes it, [num_rows, hidden]; args.gate_up and args.down are not
// read.
// `act_dtype` is that of args.x.
std::vector<double> moe(const MoeArgs& args, std::span<const std::vector<float>> gate_up,
                        std::span<const std::vector<float>> down, int64_t hidden, DType act_dtype);

}  // namespace specdec::reference
