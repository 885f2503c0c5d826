// EAGLE-1, EAGLE-3 and P-EAGLE heads, in the formats of EAGLE's own code, SpecForge, speculators
// and Model-Optimizer. Each is a decoder of few layers whose rows begin with features of the
// target. DFlash heads and MTP layers are loaded as such heads, too.
#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <utility>

#include "core/str_cat.h"
#include "model/config_keys.h"
#include "model/config_quantization.h"
#include "model/decoder.h"
#include "model/draft_heads/draft_head_checks.h"
#include "model/families/fields.h"
#include "model/json_file.h"
#include "model/tensor_loader.h"
#include "specdec/error.h"

namespace specdec {
namespace {

using FeatureNorm = EagleConfig::FeatureNorm;

constexpr const char* kMaskFeatures = "mask_hidden";
constexpr double kMostLayers = 1 << 16;
constexpr const char* kTapsKey = "eagle_aux_hidden_state_layer_ids";

// ---- config.json

// The layers whose inputs are tapped. A list at the top level names inputs, a list inside
// eagle_config (SpecForge, Model-Optimizer) outputs. EAGLE's own files have no list; an empty one
// means the same.
std::vector<int> tapped_layers(const JsonFields& root, const ModelConfig& target) {
  const int num_layers = target.num_layers;
  std::vector<int> layers;
  const auto read = [&](const JsonFields& fields, int offset) {
    const std::vector<double> ids = fields.get_numbers(kTapsKey);
    if (!layers.empty()) return;
    for (const double id : ids) {
      if (!(std::abs(id) <= kMostLayers) || id != std::round(id)) {
        fields.fail(kTapsKey, "expected ids of layers");
      }
      layers.push_back(static_cast<int>(id) + offset);
    }
  };
  read(root, 0);
  if (root.has("eagle_config")) read(root.get_object("eagle_config"), 1);
  if (layers.empty()) layers = {2, num_layers / 2, num_layers - 3};
  for (const int layer : layers) {
    if (layer >= 0 && layer <= num_layers) continue;
    root.fail(kTapsKey, str_cat("the head reads the input of layer ", layer, " of a target of ",
                                num_layers, " layers: it was trained for another model"));
  }
  std::ranges::sort(layers);
  layers.erase(std::ranges::unique(layers).begin(), layers.end());
  return layers;
}

// Only layers that layer_types names have a window.
void parse_listed_windows(const JsonFields& fields, ModelConfig& model) {
  const std::vector<std::string> types = fields.get_strings("layer_types");
  const bool has_windows = std::ranges::find(types, "sliding_attention") != types.end();
  parse_windows(
      fields, has_windows ? fields.get_int("sliding_window") : 0, [](int) { return false; }, model);
}

bool says(const JsonFields& root, const char* key) {
  if (root.get_bool(key, false)) return true;
  return root.has("eagle_config") && root.get_object("eagle_config").get_bool(key, false);
}

void parse_norms(const DraftHeadFields& fields, EagleConfig& eagle) {
  const JsonFields& root = fields.root;
  if (says(root, "norm_before_fc")) {
    eagle.feature_norm = FeatureNorm::kWhole;
  }
  if (says(root, "fc_norm")) {
    if (eagle.feature_norm != FeatureNorm::kNone) {
      root.fail("fc_norm", "norm_before_fc is set, too, and a head has one of them");
    }
    eagle.feature_norm = FeatureNorm::kEachTap;
  }
  // vLLM assumes true where a speculators file lacks the key, except for P-EAGLE.
  const bool is_peagle = root.get_string("speculators_model_type", "") == "peagle";
  eagle.normed_residual =
      root.get_bool("norm_before_residual", fields.is_speculators && !is_peagle);
  // SpecForge also writes the key for heads trained on the state before the norm, so only
  // speculators counts.
  eagle.feeds_back_normed = root.get_bool("norm_output", false) && fields.is_speculators;
  // All EAGLE-3 heads have these norms.
  root.pass_over({"use_input_layernorm_in_first_layer", "use_last_layernorm"});
}

// ---- the checkpoint's tensors

void check_layers(const DraftHeadTensors& tensors, const DraftHeadConfig& config) {
  const ModelConfig& model = config.model;
  const int64_t hidden = model.hidden_size;
  const int64_t gated = model.attention_gate ? 2 : 1;
  for (size_t i = 0; i < config.eagle.layers.size(); ++i) {
    const LayerSpec& spec = model.layers[i];
    const auto require = [&](std::string_view name, std::initializer_list<int64_t> shape) {
      tensors.require(str_cat(config.eagle.layers[i], name, ".weight"), shape);
    };
    const int64_t q_rows = spec.heads.q_size(), kv_rows = spec.heads.kv_size();
    const bool joins = spec.attention_input == AttentionInput::kWithEmbedding;
    const int64_t in_features = joins ? 2 * hidden : hidden;
    if (joins) require("hidden_norm", {hidden});
    if (spec.attention_input != AttentionInput::kRaw) require("input_layernorm", {hidden});
    require("self_attn.q_proj", {gated * q_rows, in_features});
    require("self_attn.k_proj", {kv_rows, in_features});
    require("self_attn.v_proj", {kv_rows, in_features});
    require("self_attn.o_proj", {hidden, q_rows});
    if (model.qk_norm == QkNorm::kPerHead) {
      for (const char* norm : {"self_attn.q_norm", "self_attn.k_norm"}) {
        require(norm, {spec.heads.head_dim});
      }
    }
    require("post_attention_layernorm", {hidden});
    if (spec.mlp == MlpKind::kExperts) continue;
    require("mlp.gate_proj", {spec.inner_size, hidden});
    require("mlp.up_proj", {spec.inner_size, hidden});
    require("mlp.down_proj", {hidden, spec.inner_size});
  }
}

int64_t num_features(const DraftHeadConfig& config, const DraftHeadTarget& target) {
  return int64_t{config.taps.num_taps()} * target.config.hidden_size;
}

// A missing tensor is replaced by the target's embedding or LM head.
void check_borrowed(const DraftHeadTensors& tensors, const std::string& name, int64_t hidden,
                    const DraftHeadTarget& target) {
  if (hidden == target.config.hidden_size) return;
  throw CheckpointError(
      tensors.source(), name,
      str_cat("the checkpoint has no such tensor, and the target's has rows of ",
              target.config.hidden_size, " elements, the head's rows have ", hidden));
}

void check_ends(const DraftHeadTensors& tensors, const DraftHeadConfig& config,
                const DraftHeadTarget& target) {
  const ModelConfig& model = config.model;
  const EagleConfig& eagle = config.eagle;
  const EagleNames& names = eagle.names;
  const int64_t hidden = model.hidden_size;
  const int64_t features = num_features(config, target);
  tensors.require(names.fusion + ".weight",
                  {hidden, features + (eagle.fuses_embedding ? hidden : 0)});
  if (!names.embedding_norm.empty()) tensors.require(names.embedding_norm + ".weight", {hidden});
  if (eagle.feature_norm == FeatureNorm::kWhole) {
    tensors.require(names.feature_norm + ".weight", {features});
  }
  for (int i = 0; eagle.feature_norm == FeatureNorm::kEachTap && i < config.taps.num_taps(); ++i) {
    tensors.require(str_cat("fc_norm.", i, ".weight"), {target.config.hidden_size});
  }
  if (model.final_norm) tensors.require(names.final_norm + ".weight", {hidden});
  if (!names.context_norm.empty()) tensors.require(names.context_norm + ".weight", {hidden});
  if (eagle.markov_rank > 0) {
    tensors.require(str_cat(kMarkovTokens, ".weight"),
                    {target.config.vocab_size, eagle.markov_rank});
    tensors.require(str_cat(kMarkovWeight, ".weight"), {model.vocab_size, eagle.markov_rank});
  }
  const auto check_end = [&](const std::string& name, bool is_own, int64_t rows) {
    if (is_own) {
      tensors.require(name, {rows, hidden});
    } else {
      check_borrowed(tensors, name, hidden, target);
    }
  };
  check_end(names.lm_head + ".weight", eagle.has_lm_head, model.vocab_size);
  check_end(names.embedding + ".weight", eagle.has_embedding, target.config.vocab_size);
}

void check_sizes(const DraftHeadFields& fields, const EagleConfig& eagle,
                 const DraftHeadTarget& target) {
  if (fields.root.has("target_hidden_size")) {
    check_hidden_size(fields.root, "target_hidden_size", target);
  }
  if (eagle.fuses_embedding) check_hidden_size(fields.layers, "hidden_size", target);
}

// P-EAGLE's input at positions whose text is not known: a mask token, and features of its own.
void find_masks(const DraftHeadTensors& tensors, DraftHeadConfig& config,
                const DraftHeadTarget& target) {
  config.is_parallel = true;
  config.eagle.mask_token = load_mask_token(config.directory, target.config.vocab_size);
  if (tensors.is_random()) return;
  int64_t size = 1;
  for (const int64_t extent : tensors.shape(kMaskFeatures)) size *= extent;
  if (size == num_features(config, target)) return;
  throw CheckpointError(tensors.source(), kMaskFeatures,
                        str_cat("it has ", size, " elements, and the head reads ",
                                num_features(config, target), " of its target"));
}

// ---- loading

std::shared_ptr<const Embedding> load_embedding(TensorLoader& loader, const DraftHeadConfig& config,
                                                const DraftHeadLoadArgs& args) {
  const Embedding& of_target = *args.target_parts.embedding;
  const auto borrowed = std::make_shared<Embedding>();
  borrowed->lm_head = of_target.lm_head;
  borrowed->tokens = of_target.tokens;
  borrowed->project_in = of_target.project_in;
  if (config.eagle.scales_embedding) borrowed->scale = of_target.scale;
  if (!config.eagle.has_embedding) return borrowed;

  const ModelConfig& target = args.target.config;
  const std::string name = config.eagle.names.embedding + ".weight";
  const std::string target_name = str_cat(target.names.embedding, ".weight");
  TensorLoader target_loader(target, args.target.directory, args.quantization, args.backend);
  if (target.embed_dim == 0 && target.hidden_size == config.model.hidden_size &&
      target_loader.contains(target_name)) {
    const WeightView table =
        target_loader.read_matrix(target_name, target.vocab_size, target.hidden_size);
    if (!table.is_quantized() && loader.is_equal(name, table)) return borrowed;
  }
  const WeightView table = loader.read_matrix(name, target.vocab_size, config.model.hidden_size);
  auto own = std::make_shared<Embedding>();
  own->tokens = loader.table(loader.format_of(MatrixRole::kVocabulary, std::array{table}), table);
  loader.release(name);
  return own;
}

std::shared_ptr<const LmHead> load_lm_head(TensorLoader& loader, const DraftHeadConfig& config,
                                           const DraftHeadLoadArgs& args) {
  if (!config.eagle.has_lm_head) return borrow_lm_head(loader, args, config.token_ids);
  auto lm_head = std::make_shared<LmHead>();
  lm_head->weight = loader.matrix(
      MatrixRole::kVocabulary, {{config.eagle.names.lm_head + ".weight", config.model.vocab_size}},
      config.model.hidden_size);
  lm_head->scale = config.model.logits_scale;
  set_token_ids(*lm_head, config.token_ids, args);
  return lm_head;
}

std::shared_ptr<const FeatureFusion> load_fusion(TensorLoader& loader,
                                                 const DraftHeadConfig& config,
                                                 const DraftHeadTarget& target) {
  const EagleConfig& eagle = config.eagle;
  const int64_t hidden = config.model.hidden_size;
  const int64_t features = num_features(config, target);
  auto fusion = std::make_shared<FeatureFusion>();
  fusion->fuses_states = eagle.fuses_embedding;
  fusion->normed_residual = eagle.normed_residual;
  fusion->feeds_back_normed = eagle.feeds_back_normed;
  const EagleNames& names = eagle.names;
  const std::string& name = names.fusion;
  const int64_t embedded = eagle.fuses_embedding ? hidden : 0;
  const int64_t first = eagle.features_first ? 0 : embedded;  // column of the features
  const WeightView whole = loader.read_matrix(name + ".weight", hidden, embedded + features);
  if (whole.is_integer()) {
    throw CheckpointError(loader.source(), name + ".weight",
                          "integers are not read here; give the matrix in floating point");
  }
  const auto add = [&](int64_t column, int64_t width, Norm norm) {
    fusion->parts.push_back(
        {.column = static_cast<int>(column),
         .norm = std::move(norm),
         .weight = loader.columns(MatrixRole::kLayer, whole, first + column, width)});
  };
  if (eagle.fuses_embedding) {
    const int64_t begin = eagle.features_first ? features : 0;
    fusion->embedding = loader.columns(MatrixRole::kLayer, whole, begin, embedded);
    if (!names.embedding_norm.empty()) fusion->embedding_norm = loader.norm(names.embedding_norm);
  }
  if (eagle.feature_norm == FeatureNorm::kEachTap) {
    const int64_t width = target.config.hidden_size;
    for (int i = 0; i < config.taps.num_taps(); ++i) {
      add(i * width, width, loader.norm(str_cat("fc_norm.", i), width));
    }
  } else {
    const bool is_normed = eagle.feature_norm == FeatureNorm::kWhole;
    add(0, features, is_normed ? loader.norm(names.feature_norm, features) : Norm{});
  }
  loader.release(name + ".weight");
  if (!names.context_norm.empty()) fusion->context_norm = loader.norm(names.context_norm);
  if (eagle.has_fusion_bias) fusion->bias = loader.vector({{name + ".bias", hidden}});
  if (eagle.mask_token >= 0) fusion->mask_features = loader.flat_vector(kMaskFeatures, features);
  return fusion;
}

std::shared_ptr<const MarkovHead> load_markov(TensorLoader& loader, const DraftHeadConfig& config,
                                              const DraftHeadTarget& target) {
  if (config.eagle.markov_rank == 0) return nullptr;
  auto markov = std::make_shared<MarkovHead>();
  markov->rank = config.eagle.markov_rank;
  const std::string tokens = str_cat(kMarkovTokens, ".weight");
  const WeightView table = loader.read_matrix(tokens, target.config.vocab_size, markov->rank);
  markov->tokens =
      loader.table(loader.format_of(MatrixRole::kVocabulary, std::array{table}), table);
  loader.release(tokens);
  markov->weight =
      loader.matrix(MatrixRole::kVocabulary,
                    {{str_cat(kMarkovWeight, ".weight"), config.model.vocab_size}}, markov->rank);
  return markov;
}

}  // namespace

void check_eagle_tensors(const DraftHeadTensors& tensors, const DraftHeadConfig& config,
                         const DraftHeadTarget& target) {
  check_ends(tensors, config, target);
  check_layers(tensors, config);
}

DraftHeadConfig parse_eagle(const JsonFields& root, const DrafterConfig& drafter,
                            const DraftHeadTarget& target) {
  const DraftHeadFields fields = draft_head_fields(root);
  const bool is_eagle3 = drafter.method == DraftMethod::kEagle3;
  DraftHeadConfig config{.method = drafter.method, .directory = drafter.model};
  EagleConfig& eagle = config.eagle;
  ModelConfig& model = config.model;
  model.architecture = is_eagle3 ? "an EAGLE-3 head" : "an EAGLE head";
  model.names = {.layers = "layers."};
  model.random_weights = target.config.random_weights;
  model.checkpoint_dtype = target.config.checkpoint_dtype;
  model.first_position = 1;
  check_target(fields.root, target);
  parse_quantization_config(fields.root, drafter.model, model);
  parse_rotary_family(fields.layers, {.max_position_embeddings = 2048, .has_partial_rotary = true},
                      model);
  parse_listed_windows(fields.layers, model);
  DraftHeadTensors tensors(drafter.model, model.random_weights);
  find_layers(tensors, config);

  const int hidden = model.hidden_size;
  LayerSpec& first = model.layers.front();
  if (is_eagle3) {
    first.attention_input = AttentionInput::kWithEmbedding;
    config.taps.layer_inputs = tapped_layers(fields.root, target.config);
    model.logits_scale = static_cast<float>(fields.root.get_number("logit_scale", 1.0));
    parse_norms(fields, eagle);
  } else {
    const bool is_normed = fields.root.get_bool("use_input_layernorm_in_first_layer", false);
    first.attention_input = is_normed ? AttentionInput::kNormed : AttentionInput::kRaw;
    if (!fields.root.get_numbers(kTapsKey).empty()) {
      // The input of the layer after the last is the state before the final norm.
      config.taps.layer_inputs = tapped_layers(fields.root, target.config);
    } else {
      config.taps.final_hidden = true;
    }
    model.final_norm = fields.root.get_bool("use_last_layernorm", false);
    eagle.fuses_embedding = true;
  }
  config.taps.least_width = hidden;
  if (tensors.contains("fusion_fc.weight")) eagle.names.fusion = "fusion_fc";
  eagle.has_fusion_bias = tensors.contains(eagle.names.fusion + ".bias");
  eagle.has_embedding = tensors.contains(eagle.names.embedding + ".weight");
  eagle.has_lm_head = tensors.contains(eagle.names.lm_head + ".weight") ||
                      (tensors.is_random() && fields.root.has("draft_vocab_size"));
  check_sizes(fields, eagle, target);
  config.token_ids = scored_tokens(drafter, target, fields.root, tensors, eagle);
  model.vocab_size = config.token_ids.empty() ? target.config.vocab_size
                                              : static_cast<int>(config.token_ids.size());
  check_eagle_tensors(tensors, config, target);
  if (drafter.parallel_drafting) find_masks(tensors, config, target);
  // layer_types says which layers have a window. The tensors say which biases exist, and whether
  // embedding and output matrix are the head's own.
  fields.root.pass_over({"tie_word_embeddings"});
  fields.layers.pass_over({"sliding_window", "use_sliding_window", "attention_bias", "mlp_bias",
                           "qkv_bias", "bias", "fusion_bias", "vocab_size"});
  model.unknown_keys = check_unread(fields.root, model.architecture);
  return config;
}

std::unique_ptr<Model> load_eagle(const DraftHeadConfig& config, const DraftHeadLoadArgs& args) {
  TensorLoader loader(config.model, config.directory, args.quantization, args.backend,
                      args.coordinates);
  LoadedParts loaded;
  ModelParts& parts = loaded.parts;
  parts.fusion = load_fusion(loader, config, args.target);
  parts.embedding = load_embedding(loader, config, args);
  for (size_t i = 0; i < config.eagle.layers.size(); ++i) {
    parts.layers.push_back(load_layer(loader, config.eagle.layers[i], config.model.layers[i]));
  }
  if (config.model.final_norm) {
    parts.final_norm = std::make_shared<Norm>(loader.norm(config.eagle.names.final_norm));
  }
  parts.lm_head = load_lm_head(loader, config, args);
  parts.markov = load_markov(loader, config, args.target);
  // Which estimates how far a draft is right: the engine measures that by itself.
  for (const char* name : {"confidence_head.proj.weight", "confidence_head.proj.bias"}) {
    if (loader.contains(name)) loader.release(name);
  }
  loader.finish(loaded, /*is_part=*/config.method == DraftMethod::kMtp);
  return std::make_unique<Decoder>(config.model, std::move(loaded), args.backend,
                                   args.max_model_len, args.max_rows, args.coordinates);
}

}  // namespace specdec
