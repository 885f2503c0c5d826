// HunYuan (dense): norms of each head of q and k, once they are rotated.
#include <cmath>

#include "core/str_cat.h"
#include "model/families/family.h"
#include "model/families/fields.h"

namespace specdec {
namespace {

// A fixed stretch of the base, which files call dynamic.
void parse_alpha(const JsonFields& fields, ModelConfig& config) {
  const char* key = fields.has("rope_scaling") ? "rope_scaling" : "rope_parameters";
  RopeConfig& rope = config.ropes.front();
  if (rope.kind != RopeKind::kDynamic || !fields.has(key)) return;
  const double alpha = fields.get_object(key).get_number("alpha", 0.0);
  if (alpha <= 0.0) return;
  rope.kind = RopeKind::kDefault;
  const int head_dim = config.layers.front().heads.head_dim;
  rope.theta *= std::pow(alpha, head_dim / (head_dim - 2.0));
}

void parse_hunyuan(const JsonFields& fields, ModelConfig& config) {
  parse_rotary_family(fields, {.max_position_embeddings = 2048, .norm_eps = 1e-5}, config);
  parse_alpha(fields, config);
  config.qk_norm = QkNorm::kPerHead;
  config.qk_norm_after_rope = true;
  config.qkv_bias = config.out_bias = fields.get_bool("attention_bias", false);
  if (!fields.get_bool("use_qk_norm", true)) {
    fields.fail("use_qk_norm", "is false, and only true is implemented");
  }
  const int head_dim = config.layers.front().heads.head_dim;
  if (fields.get_int("attention_head_dim", head_dim) != head_dim) {
    fields.fail("attention_head_dim", str_cat("differs from head_dim, ", head_dim));
  }
}

}  // namespace

extern const Family kHunYuanDense = {
    "HunYuanDenseV1ForCausalLM",
    "hunyuan_v1_dense",
    {.q_norm = "self_attn.query_layernorm", .k_norm = "self_attn.key_layernorm"},
    parse_hunyuan};

}  // namespace specdec
