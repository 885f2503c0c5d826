// MiniCPM 1, 2 and 4: Llama with multipliers that follow from its sizes.
#include <cmath>

#include "model/families/family.h"
#include "model/families/fields.h"

namespace specdec {
namespace {

void parse_minicpm(const JsonFields& fields, ModelConfig& config) {
  parse_rotary_family(fields, {.max_position_embeddings = 2048, .tie_word_embeddings = true},
                      config);
  config.qkv_bias = config.out_bias = fields.get_bool("attention_bias", false);
  config.embedding_scale = static_cast<float>(fields.get_positive("scale_emb", 1.0));
  config.residual_scale = static_cast<float>(fields.get_positive("scale_depth", 1.0) /
                                             std::sqrt(double(config.num_layers)));
  config.logits_scale =
      static_cast<float>(fields.get_positive("dim_model_base", 1.0) / config.hidden_size);
}

}  // namespace

extern const Family kMiniCpm = {"MiniCPMForCausalLM", "minicpm", {}, parse_minicpm};

}  // namespace specdec
