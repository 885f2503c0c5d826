#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/check.h"

namespace specdec {
namespace {

std::vector<double> base_frequencies(double theta, int rotary_dim) {
  std::vector<double> frequencies(rotary_dim / 2);
  for (int i = 0; i < rotary_dim / 2; ++i) {
    frequencies[i] = std::pow(theta, -2.0 * i / rotary_dim);
  }
  return frequencies;
}

// NTK-aware scaling of the base, growing with the length past the original maximum.
double dynamic_theta(const RopeConfig& rope, int rotary_dim, int length) {
  const double original = rope.original_max_position_embeddings;
  const double stretch = rope.factor * std::max<double>(length, original) / original;
  return rope.theta * std::pow(stretch - (rope.factor - 1.0),
                               static_cast<double>(rotary_dim) / (rotary_dim - 2));
}

// Llama 3: long wavelengths are divided by the factor, short ones kept, those between blended.
void scale_llama3(const RopeConfig& rope, std::vector<double>& frequencies) {
  const double original = rope.original_max_position_embeddings;
  for (double& frequency : frequencies) {
    const double turns = original * frequency / (2.0 * std::numbers::pi);  // over the context
    const double kept = std::clamp(
        (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor), 0.0, 1.0);
    frequency = kept * frequency + (1.0 - kept) * frequency / rope.factor;
  }
}

// YaRN (Peng et al., 2023), NTK-by-parts: planes that turn more than beta_fast times over the
// original context are kept, planes that turn less than beta_slow times are divided by the factor,
// with a linear ramp over the plane index in between.
void scale_yarn(const RopeConfig& rope, int rotary_dim, std::vector<double>& frequencies) {
  const auto plane_that_turns = [&](double turns) {
    return rotary_dim *
           std::log(rope.original_max_position_embeddings / (turns * 2.0 * std::numbers::pi)) /
           (2.0 * std::log(rope.theta));
  };
  double low = plane_that_turns(rope.beta_fast);
  double high = plane_that_turns(rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min<double>(high, rotary_dim - 1);
  if (low == high) high += 0.001;  // a step, as in the reference implementation
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    frequencies[i] = ramp * frequencies[i] / rope.factor + (1.0 - ramp) * frequencies[i];
  }
}

double yarn_mscale(double factor, double weight) {
  return factor <= 1.0 ? 1.0 : 0.1 * weight * std::log(factor) + 1.0;
}

}  // namespace

int rope_head_dim(const ModelConfig& config, int index) {
  for (const LayerSpec& layer : config.layers) {
    if (layer.rope == index) return layer.heads.head_dim;
  }
  return 0;
}

int rotary_dim(const RopeConfig& rope, int head_dim) {
  if (rope.kind == RopeKind::kProportional) return head_dim;
  return static_cast<int>(head_dim * rope.partial_rotary_factor);
}

std::vector<double> rope_frequencies(const RopeConfig& rope, int rotary_dim, int length) {
  SPECDEC_CHECK_EQ(rotary_dim % 2, 0);
  if (rope.kind == RopeKind::kDynamic) {
    return base_frequencies(dynamic_theta(rope, rotary_dim, length), rotary_dim);
  }
  std::vector<double> frequencies = base_frequencies(rope.theta, rotary_dim);
  if (rope.kind == RopeKind::kLinear) {
    for (double& frequency : frequencies) frequency /= rope.factor;
  } else if (rope.kind == RopeKind::kProportional) {
    const auto turning = static_cast<size_t>(rope.partial_rotary_factor * rotary_dim / 2);
    for (size_t i = 0; i < frequencies.size(); ++i) {
      frequencies[i] = i < turning ? frequencies[i] / rope.factor : 0.0;
    }
  } else if (rope.kind == RopeKind::kLlama3) {
    scale_llama3(rope, frequencies);
  } else if (rope.kind == RopeKind::kYarn) {
    scale_yarn(rope, rotary_dim, frequencies);
  } else if (rope.kind == RopeKind::kLongRope) {
    const bool is_long = length > rope.original_max_position_embeddings;
    const std::vector<double>& factors = is_long ? rope.long_factors : rope.short_factors;
    SPECDEC_CHECK_EQ(factors.size(), frequencies.size());
    for (size_t i = 0; i < frequencies.size(); ++i) frequencies[i] /= factors[i];
  }
  return frequencies;
}

double rope_attention_factor(const RopeConfig& rope) {
  if (rope.kind != RopeKind::kYarn && rope.kind != RopeKind::kLongRope) return 1.0;
  if (rope.attention_factor > 0.0) return rope.attention_factor;
  if (rope.kind == RopeKind::kLongRope) {
    const double original = rope.original_max_position_embeddings;
    return rope.factor <= 1.0 ? 1.0 : std::sqrt(1.0 + std::log(rope.factor) / std::log(original));
  }
  if (rope.mscale != 0.0 && rope.mscale_all_dim != 0.0) {
    return yarn_mscale(rope.factor, rope.mscale) / yarn_mscale(rope.factor, rope.mscale_all_dim);
  }
  return yarn_mscale(rope.factor, 1.0);
}

RopeTables make_rope_tables(const RopeConfig& rope, int head_dim, int num_positions) {
  const int dim = rotary_dim(rope, head_dim);
  const size_t planes = static_cast<size_t>(dim) / 2;
  const double factor = rope_attention_factor(rope);
  RopeTables tables;
  tables.cos.resize(num_positions * planes);
  tables.sin.resize(num_positions * planes);
  std::vector<double> frequencies =
      rope_frequencies(rope, dim, rope.kind == RopeKind::kLongRope ? num_positions : 1);
  for (int position = 0; position < num_positions; ++position) {
    if (rope.kind == RopeKind::kDynamic && position >= rope.original_max_position_embeddings) {
      frequencies = rope_frequencies(rope, dim, position + 1);
    }
    for (size_t plane = 0; plane < planes; ++plane) {
      const double angle = position * frequencies[plane];
      tables.cos[position * planes + plane] = static_cast<float>(std::cos(angle) * factor);
      tables.sin[position * planes + plane] = static_cast<float>(std::sin(angle) * factor);
    }
  }
  return tables;
}

std::vector<float> make_query_scales(const RopeConfig& rope, int num_positions) {
  if (rope.query_beta == 0.0 || num_positions <= rope.original_max_position_embeddings) return {};
  std::vector<float> scales(num_positions);
  for (int position = 0; position < num_positions; ++position) {
    const int periods = position / rope.original_max_position_embeddings;
    scales[position] = static_cast<float>(1.0 + rope.query_beta * std::log1p(periods));
  }
  return scales;
}

}  // namespace specdec
