// DFlash (arXiv 2602.06036) and DSpark (arXiv 2607.05147): heads that draft all levels in one pass.
// Features of committed tokens make keys and values in every layer; the rows are the last token and
// masks after it, which see each other in both directions. DSpark adds a low-rank Markov head: what
// the token before adds to a row's logits. Both are read in the formats of their authors, SpecForge
// and speculators.
#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "core/str_cat.h"
#include "model/config_keys.h"
#include "model/config_quantization.h"
#include "model/draft_heads/draft_head_checks.h"
#include "model/families/fields.h"
#include "specdec/error.h"

namespace specdec {
namespace {

constexpr double kMostLayers = 1 << 16;
constexpr const char* kOutputIds = "target_layer_ids";           // -1: the embedding's output
constexpr const char* kInputIds = "aux_hidden_state_layer_ids";  // speculators'

// config.json. The settings beside the layers' are at the top level or in dflash_config.
struct DflashFields {
  DraftHeadFields fields;
  JsonFields settings;

  const JsonFields& root() const { return fields.root; }
};

DflashFields read_fields(const JsonFields& root) {
  constexpr const char* kSettings = "dflash_config";
  return {
      .fields = draft_head_fields(root),
      .settings = root.has(kSettings) ? root.get_object(kSettings).with_absent_from(root) : root};
}

// Without a list: spread evenly from the second layer's output to the third last's, rounded half to
// even as Python does.
std::vector<int> default_taps(int num_taps, int num_layers) {
  if (num_taps == 1) return {num_layers / 2 + 1};
  std::vector<int> taps;
  for (int i = 0; i < num_taps; ++i) {
    const double output = 1.0 + static_cast<double>(i) * (num_layers - 4) / (num_taps - 1);
    taps.push_back(static_cast<int>(std::nearbyint(output)) + 1);
  }
  return taps;
}

// The layers whose inputs are tapped, rising.
std::vector<int> tapped_layers(const DflashFields& config, int num_own_layers,
                               const ModelConfig& target) {
  const bool are_inputs = config.settings.has(kInputIds);
  const char* key = are_inputs ? kInputIds : kOutputIds;
  std::vector<int> taps;
  for (const double id : config.settings.get_numbers(key)) {
    if (!(std::abs(id) <= kMostLayers) || id != std::round(id)) {
      config.settings.fail(key, "expected ids of layers");
    }
    taps.push_back(static_cast<int>(id) + (are_inputs ? 0 : 1));
  }
  if (taps.empty()) taps = default_taps(num_own_layers, target.num_layers);
  for (size_t i = 0; i < taps.size(); ++i) {
    if (taps[i] < 0 || taps[i] > target.num_layers) {
      config.settings.fail(
          key, str_cat("the head reads the input of layer ", taps[i], " of a target of ",
                       target.num_layers, " layers: it was trained for another model"));
    }
    if (i > 0 && taps[i] <= taps[i - 1]) {
      config.settings.fail(key, "only layers in rising order are implemented");
    }
  }
  return taps;
}

// DSpark heads of all writers give the token after each row's position, unless their config.json
// says otherwise; so do those that DeepSpec calls DFlash, whose class is DSpark's.
bool samples_anchor(const DflashFields& config) {
  const JsonFields& settings = config.settings;
  if (settings.has("sample_from_anchor")) return settings.get_bool("sample_from_anchor", false);
  if (settings.get_bool("dspark_bonus_anchor", false)) return false;
  if (config.root().get_string("speculators_model_type", "") == "dspark") return true;
  const std::vector<std::string> names = config.root().get_strings("architectures");
  return std::ranges::any_of(
      names, [](const std::string& name) { return name.find("DSpark") != std::string::npos; });
}

SpanConfig read_span(const DflashFields& config, const DraftHeadTarget& target) {
  const JsonFields& settings = config.settings;
  SpanConfig span{.num_rows = settings.get_int("block_size", 16, /*minimum=*/2),
                  .mask_token = settings.get_int("mask_token_id", {}, /*minimum=*/0),
                  .samples_anchor = samples_anchor(config)};
  if (span.num_rows > kMaxSpeculativeTokens) {
    settings.fail("block_size", str_cat(span.num_rows, " is more than ", kMaxSpeculativeTokens));
  }
  if (span.mask_token >= target.config.vocab_size) {
    settings.fail("mask_token_id", str_cat(span.mask_token, " is not in the vocabulary of ",
                                           target.config.vocab_size, " tokens"));
  }
  return span;
}

int read_markov_rank(const DflashFields& config, const DrafterConfig& drafter) {
  const JsonFields& settings = config.settings;
  // speculators leaves settings out that have their defaults.
  const bool is_speculators_dspark =
      config.fields.is_speculators && drafter.method == DraftMethod::kDspark;
  const int rank = settings.get_int("markov_rank", is_speculators_dspark ? 256 : 0, /*minimum=*/0);
  const std::string type = settings.get_string("markov_head_type", "vanilla");
  if (rank > 0 && type != "vanilla") {
    settings.fail("markov_head_type",
                  str_cat("'", type, "' is not implemented, only 'vanilla' is"));
  }
  return rank;
}

// Refuses what changes a computation and is not implemented.
void check_settings(const DflashFields& config) {
  const JsonFields& settings = config.settings;
  for (const char* key : {"causal", "is_causal", "attention_sink_bias"}) {
    if (settings.get_bool(key, false)) settings.fail(key, "true is not implemented");
  }
  if (!settings.get_bool("is_neox_style", true)) {
    settings.fail("is_neox_style", "false is not implemented");
  }
  const std::string type = settings.get_string("projector_type", "dflash");
  if (type != "dflash" && type != "dspark") {
    settings.fail("projector_type", str_cat("'", type, "' is not implemented"));
  }
  if (std::filesystem::exists(std::filesystem::path(config.root().path()).parent_path() /
                              "mask_embedding.pt")) {
    throw CheckpointError(config.root().path(), "mask_embedding.pt",
                          "a mask embedding beside the target's table is not implemented");
  }
}

// Layers with a window see only earlier rows, unless speculators says otherwise. dflash_config's
// switch does not say which layers it means.
void read_windows(const DflashFields& config, ModelConfig& model) {
  const JsonFields& layers = config.fields.layers;
  const std::vector<std::string> types = layers.get_strings("layer_types");
  const bool has_windows = std::ranges::find(types, "sliding_attention") != types.end();
  if (!has_windows && config.settings.get_bool("use_swa", false)) {
    config.settings.fail("use_swa", "true is not implemented without layer_types");
  }
  if (has_windows && config.settings.get_bool("sliding_window_non_causal", false)) {
    config.settings.fail("sliding_window_non_causal", "true is not implemented");
  }
  config.settings.pass_over({"swa_window_size", "use_swa", "sliding_window_non_causal"});
  parse_windows(
      layers, has_windows ? layers.get_int("sliding_window") : 0, [](int) { return false; }, model);
  for (LayerSpec& layer : model.layers) layer.in_order = layer.sliding_window > 0;
}

// The confidence head estimates how far a draft is right; the engine measures that by itself.
bool is_known(std::string_view name) {
  constexpr auto kParts = std::to_array<std::string_view>(
      {"fc.", "hidden_norm.", "norm.", "embed_tokens.", "lm_head.", "d2t", "t2d", "layers.",
       "midlayer.", "markov_head.markov_w1.", "markov_head.markov_w2.", "confidence_head."});
  constexpr auto kLayerParts = std::to_array<std::string_view>(
      {"self_attn.", "mlp.", "input_layernorm.", "post_attention_layernorm."});
  if (name.starts_with("model.")) name.remove_prefix(6);
  const auto begins = [](std::string_view text) {
    return [text](std::string_view part) { return text.starts_with(part); };
  };
  if (!std::ranges::any_of(kParts, begins(name))) return false;
  if (!name.starts_with("layers.") && !name.starts_with("midlayer.")) return true;
  name.remove_prefix(name.find('.') + 1);
  if (!name.empty() && std::isdigit(static_cast<unsigned char>(name.front())) != 0) {
    name.remove_prefix(std::min(name.size(), name.find('.') + 1));
  }
  return std::ranges::any_of(kLayerParts, begins(name));
}

void check_names(const DraftHeadTensors& tensors) {
  for (const std::string& name : tensors.names()) {
    if (is_known(name)) continue;
    throw CheckpointError(tensors.source(), name,
                          "a DFlash or DSpark head with such a tensor is not implemented");
  }
}

}  // namespace

DraftHeadConfig parse_dflash(const JsonFields& root, const DrafterConfig& drafter,
                             const DraftHeadTarget& target) {
  const DflashFields fields = read_fields(root);
  const JsonFields& layers = fields.fields.layers;
  DraftHeadConfig config{.method = drafter.method, .directory = drafter.model};
  EagleConfig& eagle = config.eagle;
  ModelConfig& model = config.model;
  model.architecture = drafter.method == DraftMethod::kDspark ? "a DSpark head" : "a DFlash head";
  model.names = {.layers = "layers."};
  model.random_weights = target.config.random_weights;
  model.checkpoint_dtype = target.config.checkpoint_dtype;
  // First: a checkpoint without a mask token is another kind of model.
  config.is_parallel = true;
  config.span = read_span(fields, target);
  config.max_depth = config.span.max_depth();
  check_target(root, target);
  check_settings(fields);
  parse_quantization_config(root, drafter.model, model);
  parse_rotary_family(layers, {.max_position_embeddings = 32768, .rope_theta = 1e6}, model);
  read_windows(fields, model);
  check_hidden_size(layers, "hidden_size", target);
  if (root.has("target_hidden_size")) check_hidden_size(root, "target_hidden_size", target);
  if (root.has("num_target_layers")) {
    const int num_layers = root.get_int("num_target_layers");
    if (num_layers != target.config.num_layers) {
      root.fail("num_target_layers",
                str_cat(num_layers, ", but the target has ", target.config.num_layers,
                        " layers: the head was trained for another model"));
    }
  }

  DraftHeadTensors tensors(drafter.model, model.random_weights);
  check_names(tensors);
  find_layers(tensors, config);
  model.qk_norm = QkNorm::kPerHead;
  model.logits_scale = static_cast<float>(fields.settings.get_number("logit_scale", 1.0));
  config.taps.layer_inputs = tapped_layers(fields, model.num_layers, target.config);
  eagle.names.context_norm = "hidden_norm";
  eagle.scales_embedding = true;
  eagle.markov_rank = read_markov_rank(fields, drafter);
  eagle.has_embedding = tensors.contains(eagle.names.embedding + ".weight");
  eagle.has_lm_head = tensors.contains(eagle.names.lm_head + ".weight");
  config.token_ids = scored_tokens(drafter, target, root, tensors, eagle);
  model.vocab_size = config.token_ids.empty() ? target.config.vocab_size
                                              : static_cast<int>(config.token_ids.size());
  check_eagle_tensors(tensors, config, target);
  // The tensors say which biases exist, and whether embedding and LM head are the head's own.
  fields.settings.pass_over(
      {"num_anchors", "enable_confidence_head", "confidence_head_with_markov", "attention_mode"});
  root.pass_over({"tie_word_embeddings"});
  layers.pass_over({"sliding_window", "use_sliding_window", "attention_bias", "mlp_bias",
                    "vocab_size", "max_window_layers"});
  model.unknown_keys = check_unread(root, model.architecture);
  return config;
}

}  // namespace specdec
