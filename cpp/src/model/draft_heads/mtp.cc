// Layers for multi-token prediction (MTP), which today's checkpoints have beside the model's own: a
// row joins the normalised embedding of a token with the normalised final state of the token
// before, runs one layer and predicts the next token. Deeper drafts run the layer again on its own
// output. The final state is the LM head's input; MiMo's is the last layer's output, which vLLM's
// model, written by MiMo's authors, leaves without its norm for the MTP layer's sake.
#include <algorithm>
#include <array>
#include <string>

#include "core/str_cat.h"
#include "model/draft_heads/draft_head_checks.h"
#include "model/json_file.h"
#include "specdec/error.h"

namespace specdec {
namespace {

// How checkpoints of a family name the layer, and what they do with it.
struct MtpFamily {
  EagleNames names;
  std::string prefix;  // of all its tensors
  std::string layer;   // of those of the decoder layer
  bool features_first = false;
  bool reads_normed = true;  // the target's state, after the target's final norm
  bool feeds_back_normed = true;
  bool repeats_ends = false;  // its embedding and output matrix are copies of the target's
};

MtpFamily family_of(const ModelConfig& target) {
  const std::string& name = target.architecture;
  if (name == "Qwen3NextForCausalLM" || name == "Qwen3_5ForCausalLM" ||
      name == "Qwen3_5MoeForCausalLM") {
    return {.names = {.fusion = "mtp.fc",
                      .embedding_norm = "mtp.pre_fc_norm_embedding",
                      .feature_norm = "mtp.pre_fc_norm_hidden",
                      .embedding = "mtp.embed_tokens",
                      .final_norm = "mtp.norm",
                      .lm_head = "mtp.lm_head"},
            .prefix = "mtp.",
            .layer = "mtp.layers.0."};
  }
  const auto in_layer = [](const std::string& layer, const EagleNames& names) {
    return EagleNames{.fusion = layer + names.fusion,
                      .embedding_norm = layer + names.embedding_norm,
                      .feature_norm = layer + names.feature_norm,
                      .embedding = layer + names.embedding,
                      .final_norm = layer + names.final_norm,
                      .lm_head = layer + names.lm_head};
  };
  if (name == "MiMoForCausalLM") {
    const std::string layer = "model.mtp_layers.0.";
    return {.names = in_layer(layer, {.fusion = "input_proj",
                                      .embedding_norm = "token_layernorm",
                                      .feature_norm = "hidden_layernorm",
                                      .final_norm = "final_layernorm"}),
            .prefix = "model.mtp_layers.",
            .layer = layer,
            .features_first = true,
            .reads_normed = false};
  }
  if (name == "Glm4MoeForCausalLM") {
    const std::string layer = str_cat("model.layers.", target.num_layers, ".");
    return {.names = in_layer(layer, {.fusion = "eh_proj",
                                      .embedding_norm = "enorm",
                                      .feature_norm = "hnorm",
                                      .final_norm = "shared_head.norm",
                                      .lm_head = "shared_head.head"}),
            .prefix = layer,
            .layer = layer,
            .feeds_back_normed = false,
            .repeats_ends = true};
  }
  if (name == "Ernie4_5ForCausalLM" || name == "Ernie4_5_MoeForCausalLM") {
    return {.names = {.fusion = "model.mtp_linear_proj.0",
                      .embedding_norm = "model.mtp_emb_norm.0",
                      .feature_norm = "model.mtp_hidden_norm.0",
                      .final_norm = ""},
            .prefix = "model.mtp_",
            .layer = "model.mtp_block.0.",
            .feeds_back_normed = false,
            .repeats_ends = true};
  }
  if (name.starts_with("Gemma4")) {
    throw InvalidArgument("model", str_cat("method 'mtp' drafts for a ", name,
                                           " with the checkpoint of its assistant "
                                           "(Gemma4AssistantForCausalLM): give its directory"));
  }
  throw InvalidArgument("method",
                        str_cat("'mtp' is not implemented for ", name,
                                ", but for Qwen3-Next, Qwen3.5, MiMo, GLM-4.5, ERNIE 4.5 and, with "
                                "their assistants, Gemma 4"));
}

// Throws CheckpointError where the layer is not there, or has tensors that are not implemented.
void check_names(const DraftHeadTensors& tensors, const MtpFamily& family) {
  if (tensors.is_random()) return;
  const EagleNames& names = family.names;
  const std::string last = names.final_norm.empty() ? "" : str_cat(", ", names.final_norm);
  if (!tensors.contains(names.fusion + ".weight")) {
    throw CheckpointError(
        tensors.source(), names.fusion + ".weight",
        str_cat("the checkpoint has no such tensor, and the method 'mtp' drafts with ",
                names.fusion, ", ", names.embedding_norm, ", ", names.feature_norm, ", ",
                family.layer, "*", last,
                ", which some conversions leave out; give \"model\", a checkpoint of the same "
                "model that has them, or another method"));
  }
  const std::array known = {names.fusion,
                            names.embedding_norm,
                            names.feature_norm,
                            names.embedding,
                            names.final_norm,
                            names.lm_head,
                            family.layer + "mlp",
                            family.layer + "self_attn",
                            family.layer + "input_layernorm",
                            family.layer + "post_attention_layernorm"};
  for (const std::string& name : tensors.names()) {
    const size_t begin = name.find(family.prefix);
    if (begin != 0 && (begin == std::string::npos || name[begin - 1] != '.')) continue;
    const std::string_view rest = std::string_view(name).substr(begin);
    if (std::ranges::any_of(
            known, [&](const std::string& block) { return rest.starts_with(block + "."); })) {
      continue;
    }
    throw CheckpointError(tensors.source(), name,
                          str_cat("the method 'mtp' knows no such tensor: one layer of full "
                                  "attention, ",
                                  family.layer, "*, is implemented"));
  }
}

// The target's layer of full attention, with an MLP of the kind that the tensors have.
LayerSpec spec_of(const ModelConfig& target, const DraftHeadTensors& tensors,
                  const MtpFamily& family) {
  const auto last = [&](auto&& holds, const char* what) -> const LayerSpec& {
    for (size_t i = target.layers.size(); i-- > 0;) {
      if (holds(target.layers[i])) return target.layers[i];
    }
    throw CheckpointError(tensors.source(), family.layer,
                          str_cat("it is a layer with ", what, ", and the target has none"));
  };
  LayerSpec spec =
      last([](const LayerSpec& layer) { return !layer.is_recurrent(); }, "full attention");
  if (tensors.is_random()) return spec;
  const std::string router = str_cat(family.layer, target.names.router, ".weight");
  const bool has_experts = tensors.contains(router);
  const LayerSpec& like =
      last([&](const LayerSpec& layer) { return (layer.mlp == MlpKind::kExperts) == has_experts; },
           has_experts ? "experts" : "a dense MLP");
  spec.mlp = like.mlp;
  spec.inner_size = like.inner_size;
  spec.shared_inner_size = like.shared_inner_size;
  return spec;
}

}  // namespace

DraftHeadConfig parse_mtp(const DrafterConfig& drafter, const DraftHeadTarget& target) {
  const MtpFamily family = family_of(target.config);
  const std::string& directory = drafter.model.empty() ? target.directory : drafter.model;
  require_directory(directory);
  DraftHeadConfig config{.method = drafter.method, .directory = directory, .model = target.config};
  ModelConfig& model = config.model;
  DraftHeadTensors tensors(directory, model.random_weights);
  check_names(tensors, family);
  model.architecture = "an MTP layer";
  model.unknown_keys.clear();
  model.first_position = 1;
  model.final_norm = !family.names.final_norm.empty();
  model.num_layers = 1;
  model.layers = {spec_of(target.config, tensors, family)};
  if (family.reads_normed) {
    config.taps.final_hidden = true;
  } else {
    config.taps.layer_inputs = {target.config.num_layers};
  }
  config.taps.least_width = model.hidden_size;
  config.eagle = {.names = family.names,
                  .feature_norm = EagleConfig::FeatureNorm::kWhole,
                  .fuses_embedding = true,
                  .features_first = family.features_first,
                  .feeds_back_normed = family.feeds_back_normed,
                  .layers = {family.layer}};
  EagleConfig& eagle = config.eagle;
  if (!family.repeats_ends) {
    eagle.has_embedding = tensors.contains(eagle.names.embedding + ".weight");
    eagle.has_lm_head = tensors.contains(eagle.names.lm_head + ".weight");
  }
  if (!drafter.token_map.empty()) {
    if (eagle.has_lm_head) refuse_token_map(drafter);
    config.token_ids = checked_token_map(drafter, target);
    model.vocab_size = static_cast<int>(config.token_ids.size());
  }
  check_eagle_tensors(tensors, config, target);
  return config;
}

}  // namespace specdec
