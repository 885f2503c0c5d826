#include "testing/oracle/operations.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/check.h"

namespace specdec::reference {
namespace {

constexpr double kPi = 3.14159265358979323846;

double mean_square(const double* x, int64_t dim) {
  double sum = 0.0;
  for (int64_t i = 0; i < dim; ++i) sum += x[i] * x[i];
  return sum / static_cast<double>(dim);
}

double dot(const float* a, const float* b, int dim) {
  double sum = 0.0;
  for (int i = 0; i < dim; ++i) sum += double{a[i]} * b[i];
  return sum;
}

// RMS norm of one head, in place.
void normalise(const float* weight, double mean_of_squares, float eps, std::vector<double>& head) {
  const double scale = 1.0 / std::sqrt(mean_of_squares + eps);
  for (size_t i = 0; i < head.size(); ++i) head[i] *= scale * weight[i];
}

// Half-split rotation of one head, in place.
void rotate(const QkvArgs& args, int32_t position, std::vector<double>& head) {
  if (args.rope_cos == nullptr) return;
  const int half = args.rotary_dim / 2;
  for (int i = 0; i < half; ++i) {
    const double cos = args.rope_cos[static_cast<int64_t>(position) * half + i];
    const double sin = args.rope_sin[static_cast<int64_t>(position) * half + i];
    const double a = head[i], b = head[half + i];
    head[i] = a * cos - b * sin;
    head[half + i] = b * cos + a * sin;
  }
}

// A head as the cache holds it: rounded, or as codes of a scale that makes its largest element 127.
void store_head(const std::vector<double>& head, DType dtype, double* out) {
  double largest = 0.0;
  for (double value : head) largest = std::max(largest, std::abs(value));
  const double scale = largest / 127.0;
  for (double value : head) {
    if (dtype != DType::kI8) {
      *out++ = rounded(value, dtype);
    } else {
      *out++ = scale == 0.0 ? 0.0 : std::nearbyint(value / scale) * scale;
    }
  }
}

// Slots of the request that its row `index` sees, in order of position, window applied.
std::vector<int> visible_slots(const TreeAttentionArgs& args, int request, int index) {
  const BatchView& batch = *args.batch;
  const int base = batch.base_lens[request];
  const int64_t row = batch.cu_rows[request] + index;
  std::vector<int> slots(base);
  std::iota(slots.begin(), slots.end(), 0);
  const bool is_tree = batch.is_tree != nullptr && batch.is_tree[request] != 0;
  const int num_rows = batch.cu_rows[request + 1] - batch.cu_rows[request];
  const int num_tree_slots =
      batch.num_tree_slots != nullptr ? batch.num_tree_slots[request] : num_rows;
  for (int j = 0; j < (is_tree ? num_tree_slots : index + 1); ++j) {
    const bool sees =
        !is_tree || ((batch.ancestor_mask[row * batch.mask_words + j / 64] >> (j % 64)) & 1) != 0;
    if (sees) slots.push_back(base + j);
  }
  std::erase_if(slots, [&](int slot) { return slot < args.first_position; });
  if (args.sliding_window > 0 && static_cast<int>(slots.size()) > args.sliding_window) {
    slots.erase(slots.begin(), slots.end() - args.sliding_window);
  }
  return slots;
}

}  // namespace

double element(const void* data, DType dtype, int64_t index) {
  if (dtype == DType::kF32) return static_cast<const float*>(data)[index];
  if (dtype == DType::kF16) return half_to_float(static_cast<const uint16_t*>(data)[index]);
  SPECDEC_CHECK(dtype == DType::kBF16);
  return to_float(static_cast<const BFloat16*>(data)[index]);
}

double rounded(double value, DType dtype) {
  const float single = static_cast<float>(value);
  if (dtype == DType::kF16) return half_to_float(float_to_half(single));
  return dtype == DType::kBF16 ? to_float(to_bfloat16(single)) : single;
}

std::vector<double> norm(const NormArgs& args) {
  std::vector<double> out;
  for (int row = 0; row < args.num_rows; ++row) {
    const float* x = args.x + static_cast<int64_t>(row) * args.dim;
    std::vector<double> centred(x, x + args.dim);
    if (args.norm.kind == NormKind::kLayer) {
      const double mean = std::accumulate(centred.begin(), centred.end(), 0.0) / args.dim;
      for (double& value : centred) value -= mean;
    }
    const double scale = 1.0 / std::sqrt(mean_square(centred.data(), args.dim) + args.norm.eps);
    for (int i = 0; i < args.dim; ++i) {
      const double bias = args.norm.bias != nullptr ? args.norm.bias[i] : 0.0;
      const double value =
          activate(args.activation, centred[i] * scale * args.norm.weight[i] + bias);
      const int64_t at = int64_t{row} * (args.out_stride != 0 ? args.out_stride : args.dim) + i;
      out.push_back(args.accumulate ? args.scale * (static_cast<const float*>(args.out)[at] + value)
                                    : value);
    }
  }
  return out;
}

std::vector<double> loaded_rows(const LoadRowsArgs& args, DType act_dtype) {
  std::vector<double> out;
  for (int row = 0; row < args.num_rows; ++row) {
    for (int i = 0; i < args.dim; ++i) {
      const int64_t slot = args.slots != nullptr ? args.slots[row] : row;
      const int64_t index = slot * args.from.width + args.column + i;
      const double value = slot < 0 ? 0.0 : element(args.from.rows, act_dtype, index);
      const int64_t at = static_cast<int64_t>(row) * args.dim + i;
      out.push_back(args.accumulate ? args.out[at] + value : value);
    }
  }
  return out;
}

std::vector<double> linear(std::span<const double> x, std::span<const float> weight,
                           int64_t in_features) {
  const int64_t out_features = static_cast<int64_t>(weight.size()) / in_features;
  const int64_t num_rows = static_cast<int64_t>(x.size()) / in_features;
  std::vector<double> out(num_rows * out_features, 0.0);
  for (int64_t row = 0; row < num_rows; ++row) {
    for (int64_t n = 0; n < out_features; ++n) {
      for (int64_t k = 0; k < in_features; ++k) {
        out[row * out_features + n] += x[row * in_features + k] * weight[n * in_features + k];
      }
    }
  }
  return out;
}

std::vector<double> quantized_rows(std::span<const float> x, int64_t dim, int group_size) {
  std::vector<double> out;
  for (int64_t row = 0; row < static_cast<int64_t>(x.size()); row += dim) {
    for (int64_t begin = 0; begin < dim; begin += group_size) {
      const auto group = x.subspan(row + begin, std::min<int64_t>(group_size, dim - begin));
      float largest = 0.0f;
      for (float value : group) largest = std::max(largest, std::abs(value));
      const bool is_zero = largest < 0x1p-100f;
      const float scale = is_zero ? 0.0f : largest / 127.0f;
      const float inverse = is_zero ? 0.0f : 127.0f / largest;
      for (float value : group) out.push_back(std::nearbyint(value * inverse) * double{scale});
    }
  }
  return out;
}

std::vector<double> values_of(const WeightView& weight) {
  const int64_t num_k = weight.in_features();
  std::vector<double> out(weight.rows() * num_k);
  for (int64_t i = 0; i < static_cast<int64_t>(out.size()); ++i) {
    if (!weight.is_quantized()) {
      out[i] = element(weight.values.data, weight.values.dtype, i);
      continue;
    }
    const uint8_t* bytes = static_cast<const uint8_t*>(weight.values.data);
    if (weight.is_fp8()) {
      const int64_t num_blocks = (num_k + weight.block_cols - 1) / weight.block_cols;
      const int64_t block =
          i / num_k / weight.block_rows * num_blocks + i % num_k / weight.block_cols;
      out[i] = double{e4m3_to_float(bytes[i])} * weight.block_scales[block];
      continue;
    }
    if (weight.has_row_scales()) {
      out[i] = double{weight.block_scales[i / num_k]} * static_cast<int8_t>(bytes[i]);
      continue;
    }
    const int64_t group = i / num_k * (num_k / weight.group_size) + i % num_k / weight.group_size;
    int code = 0;
    if (weight.bits() == 8) {
      code = static_cast<int8_t>(bytes[i]);
    } else {
      code = (i % 2 == 0 ? bytes[i / 2] : bytes[i / 2] >> 4) & 15;
      if (weight.table != nullptr) {
        code = weight.table[code];
      } else if (weight.mins == nullptr) {
        code -= weight.zeros != nullptr ? weight.zeros[group] : 8;
      }
    }
    out[i] = double{half_to_float(weight.scales[group])} * code;
    if (weight.mins != nullptr) out[i] += half_to_float(weight.mins[group]);
  }
  return out;
}

std::vector<double> split_qkv(const QkvArgs& args, std::span<const float> qkv, PlainKv& kv) {
  const int dim = args.kv.head_dim;
  const int num_kv_heads = args.kv.num_kv_heads;
  const int64_t q_dim = int64_t{args.num_heads} * dim, k_dim = int64_t{num_kv_heads} * dim;
  std::vector<double> q;
  const float* x = qkv.data();
  for (int row = 0; row < args.batch->num_rows; ++row) {
    const int32_t position = args.batch->positions[row];
    const int64_t slot = args.batch->slot_mapping[row];
    const std::vector<double> all(x, x + q_dim + k_dim);
    const double row_squares[2] = {mean_square(all.data(), q_dim),
                                   mean_square(all.data() + q_dim, k_dim)};
    // Norms and rotates a head of q (part 0) or k with its norm's weight.
    const auto prepare = [&](int part, const float* weight, int index, std::vector<double>& head) {
      if (weight != nullptr && args.norm_all_heads) weight += int64_t{index} * dim;
      if (args.norm_after_rope) rotate(args, position, head);
      const double squares =
          args.norm_all_heads ? row_squares[part] : mean_square(head.data(), dim);
      if (weight != nullptr) normalise(weight, squares, args.norm_eps, head);
      if (!args.norm_after_rope) rotate(args, position, head);
    };
    for (int h = 0; h < args.num_heads + 2 * num_kv_heads; ++h, x += dim) {
      std::vector<double> head(x, x + dim);
      const int kv_head = h - args.num_heads;
      if (kv_head < 0) {
        prepare(0, args.q_norm, h, head);
        if (args.query_scales != nullptr) {
          for (double& value : head) value *= args.query_scales[position];
        }
        q.insert(q.end(), head.begin(), head.end());
        continue;
      }
      const bool is_key = kv_head < num_kv_heads;
      if (is_key) {
        prepare(1, args.k_norm, kv_head, head);
      } else if (args.v_norm != nullptr) {
        normalise(args.v_norm, mean_square(head.data(), dim), args.norm_eps, head);
      }
      std::vector<double>& target = is_key ? kv.keys : kv.values;
      const int64_t index = (slot * num_kv_heads + kv_head % num_kv_heads) * dim;
      store_head(head, args.kv.dtype, &target[index]);
    }
  }
  return q;
}

std::vector<double> tree_attention(const TreeAttentionArgs& args, const PlainKv& kv,
                                   DType act_dtype) {
  const BatchView& batch = *args.batch;
  const int dim = args.kv.head_dim;
  const int group_size = args.num_heads / args.kv.num_kv_heads;
  std::vector<double> out(static_cast<int64_t>(batch.num_rows) * args.num_heads * dim, 0.0);
  for (int request = 0; request < batch.num_requests; ++request) {
    const int32_t* table =
        batch.block_tables + static_cast<int64_t>(request) * batch.max_blocks_per_request;
    for (int row = batch.cu_rows[request]; row < batch.cu_rows[request + 1]; ++row) {
      const std::vector<int> slots = visible_slots(args, request, row - batch.cu_rows[request]);
      for (int head = 0; head < args.num_heads; ++head) {
        const int64_t start = (static_cast<int64_t>(row) * args.num_heads + head) * dim;
        const auto index = [&](int slot) {
          const int64_t physical =
              static_cast<int64_t>(table[slot / args.kv.block_size]) * args.kv.block_size +
              slot % args.kv.block_size;
          return (physical * args.kv.num_kv_heads + head / group_size) * dim;
        };
        std::vector<double> weights;
        for (int slot : slots) {
          double dot = 0.0;
          for (int i = 0; i < dim; ++i) {
            dot += element(args.q, act_dtype, start + i) * kv.keys[index(slot) + i];
          }
          const double score = dot * args.scale;
          weights.push_back(
              args.soft_cap == 0.0f ? score : args.soft_cap * std::tanh(score / args.soft_cap));
        }
        double highest = *std::max_element(weights.begin(), weights.end());
        if (args.sinks != nullptr) highest = std::max(highest, double{args.sinks[head]});
        double total = args.sinks != nullptr ? std::exp(args.sinks[head] - highest) : 0.0;
        for (double& weight : weights) total += weight = std::exp(weight - highest);
        for (size_t j = 0; j < slots.size(); ++j) {
          for (int i = 0; i < dim; ++i) {
            out[start + i] += weights[j] / total * kv.values[index(slots[j]) + i];
          }
        }
      }
    }
  }
  return out;
}

double activate(Activation activation, double x, const ActivationConstants& constants) {
  switch (activation) {
    case Activation::kSilu:
      return x / (1.0 + std::exp(-x));
    case Activation::kRelu:
      return std::max(x, 0.0);
    case Activation::kGelu:
      return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
    case Activation::kGeluTanh:
      return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / kPi) * (x + 0.044715 * x * x * x)));
    case Activation::kIdentity:
      return x;
    case Activation::kReluSquared:
      return x > 0.0 ? x * x : 0.0;
    case Activation::kXielu: {
      const double curve =
          x > 0.0 ? constants.positive * x * x
                  : constants.negative * (std::expm1(std::min<double>(x, constants.eps)) - x);
      return constants.beta * x + curve;
    }
    case Activation::kClampedSwiglu:
      break;
  }
  detail::check_failed(__FILE__, __LINE__, "activation is known");
}

double gated(Activation activation, const ActivationConstants& constants, double gate, double up) {
  if (activation != Activation::kClampedSwiglu) return activate(activation, gate, constants) * up;
  const double limit = constants.limit;
  const double g = std::min(gate, limit);
  return g / (1.0 + std::exp(-constants.alpha * g)) * (1.0 + std::clamp(up, -limit, limit));
}

std::vector<double> scaled_rows(const ScaleRowsArgs& args, DType act_dtype) {
  std::vector<double> out;
  const int64_t stride = args.factor_stride != 0 ? args.factor_stride : args.dim;
  for (int64_t i = 0; i < int64_t{args.num_rows} * args.dim; ++i) {
    const int64_t row = i / args.dim;
    const bool gated = args.gates != nullptr;
    double factor = gated ? args.gates[row] : args.factors[row * stride + i % args.dim];
    if (gated || args.factors_are_gates) factor = 1.0 / (1.0 + std::exp(-factor));
    out.push_back(element(args.rows, act_dtype, i) * factor);
  }
  return out;
}

std::vector<double> sparse_gates(const SparseGatesArgs& args) {
  std::vector<double> out;
  for (int row = 0; row < args.num_rows; ++row) {
    const float* gates = args.gates + static_cast<int64_t>(row) * args.dim;
    std::vector<double> centred(gates, gates + args.dim);
    const double mean = std::accumulate(centred.begin(), centred.end(), 0.0) / args.dim;
    for (double& value : centred) value -= mean;
    const double deviation = std::sqrt(mean_square(centred.data(), args.dim));
    for (const double value : centred) {
      const double above = std::max(0.0, value - args.deviations * deviation);
      out.push_back(activate(args.activation, above));
    }
  }
  return out;
}

std::vector<double> predicted_streams(const PredictStreamsArgs& args) {
  const StreamsView& streams = args.streams;
  const int num_streams = streams.num_streams;
  std::vector<double> out;
  for (int k = 0; k < num_streams; ++k) {
    for (int row = 0; row < streams.num_rows; ++row) {
      const int64_t begin = static_cast<int64_t>(row) * streams.dim;
      for (int64_t i = begin; i < begin + streams.dim; ++i) {
        double value = streams.data[k * streams.stride + i];
        for (int j = 0; j < num_streams; ++j) {
          const double factor = dot(args.coefficients + (k * num_streams + j) * num_streams,
                                    args.modalities + row * num_streams, num_streams);
          value += factor * streams.data[j * streams.stride + i];
        }
        out.push_back(value);
      }
    }
  }
  return out;
}

std::vector<double> corrected_streams(const CorrectStreamsArgs& args) {
  const StreamsView& streams = args.streams;
  const int num_streams = streams.num_streams;
  std::vector<double> out;
  for (int k = 0; k < num_streams; ++k) {
    for (int row = 0; row < streams.num_rows; ++row) {
      const double factor = 1.0 + dot(args.coefficients + k * num_streams,
                                      args.modalities + row * num_streams, num_streams);
      const int64_t begin = static_cast<int64_t>(row) * streams.dim;
      for (int64_t i = begin; i < begin + streams.dim; ++i) {
        const double active = streams.data[args.active * streams.stride + i];
        out.push_back(streams.data[k * streams.stride + i] + (args.activated[i] - active) * factor);
      }
    }
  }
  return out;
}

std::vector<double> matched_magnitude(const MatchMagnitudeArgs& args) {
  std::vector<double> out;
  for (int row = 0; row < args.num_rows; ++row) {
    const int64_t begin = static_cast<int64_t>(row) * args.dim;
    const std::vector<double> x(args.x + begin, args.x + begin + args.dim);
    double factor = 1.0;
    if (args.reference != nullptr) {
      const float* from = args.reference + begin;
      const std::vector<double> reference(from, from + args.dim);
      factor = std::sqrt(mean_square(reference.data(), args.dim)) /
               std::sqrt(std::max(1e-5, mean_square(x.data(), args.dim)));
    }
    for (int i = 0; i < args.dim; ++i) {
      const double value = x[i] * factor;
      out.push_back(args.accumulate ? args.scale * (args.out[begin + i] + value) : value);
    }
  }
  return out;
}

std::vector<std::pair<int, double>> routed(const Router& router, std::span<const float> logits) {
  const int num_experts = static_cast<int>(logits.size());
  std::vector<double> scores, biased;
  double total = 0.0;
  for (const double logit : logits) {
    const bool is_softmax = router.scores == RouterScores::kSoftmax;
    scores.push_back(is_softmax ? std::exp(logit) : 1.0 / (1.0 + std::exp(-logit)));
    total += is_softmax ? scores.back() : 0.0;
  }
  for (int expert = 0; expert < num_experts; ++expert) {
    if (total != 0.0) scores[expert] /= total;
    const float* bias = router.selection_bias;
    biased.push_back(scores[expert] + (bias != nullptr ? bias[expert] : 0.0));
  }
  const auto best_first = [](const std::vector<double>& values) {
    std::vector<int> order(values.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return values[a] > values[b]; });
    return order;
  };
  const int group_size = num_experts / router.num_groups;
  std::vector<double> group_scores;
  for (int group = 0; group < router.num_groups; ++group) {
    const auto begin = biased.begin() + group * group_size;
    std::vector<double> members(begin, begin + group_size);
    std::sort(members.rbegin(), members.rend());
    group_scores.push_back(members[0] + (group_size > 1 ? members[1] : 0.0));
  }
  std::vector<int> groups = best_first(group_scores);
  groups.resize(router.top_groups);
  std::vector<std::pair<int, double>> chosen;
  double chosen_total = router.scores == RouterScores::kSigmoid ? 1e-20 : 0.0;
  for (const int expert : best_first(biased)) {
    if (std::ssize(chosen) == router.top_k) break;
    if (std::ranges::find(groups, expert / group_size) == groups.end()) continue;
    chosen.emplace_back(expert, scores[expert]);
    chosen_total += scores[expert];
  }
  for (auto& [expert, weight] : chosen) {
    if (router.renormalize) weight /= chosen_total;
    weight *= router.scale;
    if (router.expert_scales != nullptr) weight *= router.expert_scales[expert];
  }
  return chosen;
}

std::vector<double> moe(const MoeArgs& args, std::span<const std::vector<float>> gate_up,
                        std::span<const std::vector<float>> down, int64_t hidden, DType act_dtype) {
  const size_t num_experts = gate_up.size();
  std::vector<double> out(args.num_rows * hidden, 0.0);
  for (int row = 0; row < args.num_rows; ++row) {
    std::vector<double> x(hidden);
    for (int64_t i = 0; i < hidden; ++i) x[i] = element(args.x, act_dtype, row * hidden + i);
    const float* logits = args.router_logits + row * num_experts;
    for (const auto& [expert, weight] : routed(args.router, {logits, num_experts})) {
      std::vector<double> fused = linear(x, gate_up[expert], hidden);
      const size_t inner = fused.size() / 2;
      for (size_t i = 0; args.gate_up_bias != nullptr && i < fused.size(); ++i) {
        fused[i] += args.gate_up_bias[expert * fused.size() + i];
      }
      std::vector<double> act(inner);
      for (size_t i = 0; i < inner; ++i) {
        act[i] = gated(args.activation, args.constants, fused[i], fused[inner + i]);
      }
      const std::vector<double> result = linear(act, down[expert], static_cast<int64_t>(inner));
      for (int64_t i = 0; i < hidden; ++i) {
        const double bias = args.down_bias != nullptr ? args.down_bias[expert * hidden + i] : 0.0;
        out[row * hidden + i] += weight * (result[i] + bias);
      }
    }
  }
  return out;
}

}  // namespace specdec::reference
