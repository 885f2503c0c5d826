#include "specdec/tapped_states.h"

#include "core/str_cat.h"
#include "engine/model_probe.h"
#include "specdec/error.h"

namespace specdec {

std::vector<float> tapped_states(const EngineConfig& given, const std::vector<int32_t>& tokens,
                                 const std::vector<int>& layer_inputs, bool final_hidden) {
  const ModelConfig model = load_model_config(given.model, given.hf_overrides);
  for (const int layer : layer_inputs) {
    if (layer < 0 || layer > model.num_layers) {
      throw InvalidArgument("layer_inputs",
                            str_cat("must be 0 to ", model.num_layers, ", not ", layer));
    }
  }
  if (layer_inputs.empty() && !final_hidden) return {};
  EngineConfig config = given;
  config.speculative = {};
  ModelProbe probe(config, tokens, /*num_drafts=*/0,
                   {.layer_inputs = layer_inputs, .final_hidden = final_hidden});
  probe.run_target(tokens);
  return probe.read_features(static_cast<int>(tokens.size()));
}

}  // namespace specdec
