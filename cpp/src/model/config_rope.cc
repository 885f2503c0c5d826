#include "model/config_rope.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string_view>

#include "core/str_cat.h"

namespace specdec {
namespace {

struct NamedRopeKind {
  std::string_view name;
  RopeKind kind;
};

constexpr std::array kRopeKinds = {
    NamedRopeKind{"default", RopeKind::kDefault},
    NamedRopeKind{"linear", RopeKind::kLinear},
    NamedRopeKind{"dynamic", RopeKind::kDynamic},
    NamedRopeKind{"llama3", RopeKind::kLlama3},
    NamedRopeKind{"yarn", RopeKind::kYarn},
    NamedRopeKind{"longrope", RopeKind::kLongRope},
    NamedRopeKind{"su", RopeKind::kLongRope},
    NamedRopeKind{"proportional", RopeKind::kProportional},
};

RopeKind parse_kind(const JsonFields& scaling) {
  const char* key = scaling.has("rope_type") ? "rope_type" : "type";
  const std::string name = scaling.get_string(key, "default");
  std::string known;
  for (const NamedRopeKind& candidate : kRopeKinds) {
    if (candidate.name == name) return candidate.kind;
    known += str_cat(known.empty() ? "" : ", ", candidate.name);
  }
  scaling.fail(key, str_cat("'", name, "' is not implemented; known: ", known));
}

void parse_yarn(const JsonFields& scaling, RopeConfig& rope) {
  rope.beta_fast = scaling.get_positive("beta_fast", rope.beta_fast);
  rope.beta_slow = scaling.get_positive("beta_slow", rope.beta_slow);
  rope.attention_factor = scaling.get_positive("attention_factor", 0.0);
  rope.mscale = scaling.get_number("mscale", 0.0);
  rope.mscale_all_dim = scaling.get_number("mscale_all_dim", 0.0);
  rope.truncate = scaling.get_bool("truncate", true);
}

std::vector<double> parse_factors(const JsonFields& scaling, const char* key) {
  std::vector<double> factors = scaling.get_numbers(key);
  if (factors.empty() || std::ranges::any_of(factors, [](double x) { return x <= 0; })) {
    scaling.fail(key, "expected a list of numbers above 0");
  }
  return factors;
}

void parse_longrope(const JsonFields& scaling, RopeConfig& rope) {
  rope.attention_factor = scaling.get_positive("attention_factor", 0.0);
  rope.short_factors = parse_factors(scaling, "short_factor");
  rope.long_factors = parse_factors(scaling, "long_factor");
  if (rope.original_max_position_embeddings == 1) {
    scaling.fail("original_max_position_embeddings", "expected more than 1");
  }
}

void parse_llama3(const JsonFields& scaling, RopeConfig& rope) {
  rope.low_freq_factor = scaling.get_positive("low_freq_factor");
  rope.high_freq_factor = scaling.get_positive("high_freq_factor");
  if (rope.high_freq_factor <= rope.low_freq_factor) {
    scaling.fail("high_freq_factor", "expected more than low_freq_factor");
  }
}

void parse_scaling(const JsonFields& fields, const JsonFields& scaling, int max_positions,
                   RopeConfig& rope) {
  // Keys of the other rope kinds.
  scaling.pass_over({"type", "factor", "low_freq_factor", "high_freq_factor", "beta_fast",
                     "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate"});
  rope.kind = parse_kind(scaling);
  rope.theta = scaling.get_positive("rope_theta", rope.theta);
  rope.partial_rotary_factor =
      scaling.get_positive("partial_rotary_factor", rope.partial_rotary_factor);
  if (rope.kind != RopeKind::kLongRope) {
    for (const char* key : {"short_factor", "long_factor"}) {
      if (scaling.has(key)) scaling.fail(key, "is implemented for longrope only");
    }
  }
  if (rope.kind == RopeKind::kDefault) return;
  const bool has_ratio = rope.kind == RopeKind::kYarn || rope.kind == RopeKind::kLongRope;
  if (rope.kind == RopeKind::kLlama3 || has_ratio) {
    // A value beside the scaling dictionary takes precedence over one inside, as in transformers.
    rope.original_max_position_embeddings =
        fields.get_int("original_max_position_embeddings",
                       scaling.get_int("original_max_position_embeddings", max_positions));
  }
  if (has_ratio) {
    rope.factor = scaling.get_positive(
        "factor", static_cast<double>(max_positions) / rope.original_max_position_embeddings);
    (rope.kind == RopeKind::kYarn ? parse_yarn : parse_longrope)(scaling, rope);
  } else if (rope.kind == RopeKind::kProportional) {
    rope.factor = scaling.get_positive("factor", 1.0);
  } else {
    rope.factor = scaling.get_positive("factor");
  }
  if (rope.kind == RopeKind::kLlama3) parse_llama3(scaling, rope);
}

}  // namespace

RopeConfig parse_rope(const JsonFields& fields, int max_position_embeddings, double default_theta,
                      double default_partial_rotary_factor) {
  RopeConfig rope;
  rope.theta = fields.get_positive("rope_theta", default_theta);
  rope.partial_rotary_factor =
      fields.get_positive("partial_rotary_factor", default_partial_rotary_factor);
  rope.original_max_position_embeddings = max_position_embeddings;
  // Where a file has both, transformers takes the first.
  fields.pass_over({"rope_parameters"});
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!fields.has(key)) continue;
    const JsonFields scaling = fields.get_object(key);
    parse_scaling(fields, scaling, max_position_embeddings, rope);
    if (rope.kind == RopeKind::kProportional) {
      scaling.fail("rope_type", "'proportional' is implemented for a rope per type of layer only");
    }
    break;
  }
  if (rope.partial_rotary_factor > 1.0) {
    fields.fail("partial_rotary_factor", "expected at most 1");
  }
  return rope;
}

bool has_layer_ropes(const JsonFields& fields) {
  if (!fields.has("rope_parameters")) return false;
  const JsonFields parameters = fields.get_object("rope_parameters");
  return parameters.has("full_attention") || parameters.has("sliding_attention");
}

RopeConfig parse_layer_rope(const JsonFields& fields, const char* kind, int max_position_embeddings,
                            double default_theta) {
  RopeConfig rope = {.theta = default_theta,
                     .original_max_position_embeddings = max_position_embeddings};
  const JsonFields parameters = fields.get_object("rope_parameters");
  if (parameters.has(kind)) {
    parse_scaling(fields, parameters.get_object(kind), max_position_embeddings, rope);
  }
  // transformers reads it beside the ropes, where none of them says it.
  if (!rope.truncate || !parameters.get_bool("truncate", true)) {
    parameters.fail("truncate", "is implemented for one rope of all layers only");
  }
  return rope;
}

int max_positions(const ModelConfig& config) {
  int longest = config.max_position_embeddings;
  for (const RopeConfig& rope : config.ropes) {
    const int original = rope.kind == RopeKind::kYarn && rope.original_max_position_embeddings > 0
                             ? rope.original_max_position_embeddings
                             : config.max_position_embeddings;
    const bool stretches = rope.kind == RopeKind::kLinear || rope.kind == RopeKind::kDynamic ||
                           rope.kind == RopeKind::kYarn;
    if (!stretches || !rope.adds_positions) continue;
    longest =
        std::max(longest, static_cast<int>(std::min<double>(original * std::max(1.0, rope.factor),
                                                            std::numeric_limits<int>::max())));
  }
  return longest;
}

}  // namespace specdec
