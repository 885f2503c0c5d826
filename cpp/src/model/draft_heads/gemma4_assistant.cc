// Assistants of Gemma 4: checkpoints of their own, whose layers have queries but no keys and values
// and read those of the target's last layer of the same attention. A row joins the target's
// embedding of a token with the target's final state of the token before; a drafted row passes on a
// state of that width. All drafts of a step stand at the position of the last token, and see what
// the target has read before it. The formulas are those of transformers' gemma4_assistant.
#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "core/str_cat.h"
#include "model/config_keys.h"
#include "model/config_wrapper.h"
#include "model/decoder.h"
#include "model/draft_heads/draft_head_checks.h"
#include "model/json_file.h"
#include "model/tensor_loader.h"
#include "specdec/error.h"

namespace specdec {
namespace {

struct Assistant {
  std::string_view architecture;
  std::string_view text_type;  // model_type of text_config
};
constexpr auto kAssistants = std::to_array<Assistant>({
    {"Gemma4AssistantForCausalLM", "gemma4_text"},
    {"Gemma4UnifiedAssistantForCausalLM", "gemma4_unified_text"},
});

constexpr const char* kPreProjection = "pre_projection.weight";
constexpr const char* kPostProjection = "post_projection.weight";
constexpr const char* kLmHead = "lm_head.weight";
constexpr const char* kEmbedding = "model.embed_tokens.weight";  // tied to the LM head
constexpr const char* kCentroids = "masked_embedding.centroids.weight";
constexpr const char* kTokenOrdering = "masked_embedding.token_ordering";

const Assistant* find_assistant(const JsonFields& root) {
  const std::vector<std::string> names = root.get_strings("architectures");
  const auto found = std::ranges::find_if(kAssistants, [&](const Assistant& known) {
    return std::ranges::find(names, known.architecture) != names.end();
  });
  return found != kAssistants.end() ? found : nullptr;
}

[[noreturn]] void refuse(const JsonFields& fields, const std::string& key,
                         const std::string& found) {
  fields.fail(key.c_str(), str_cat(found, ": the assistant was trained for another model"));
}

// Attention as config.json calls it.
std::string_view type_of(const LayerSpec& layer) {
  return layer.sliding_window > 0 ? "sliding_attention" : "full_attention";
}

// The target's last layer with keys and values of its own and the attention of `layer`.
int source_of(const JsonFields& fields, const LayerSpec& layer, const ModelConfig& target) {
  for (int i = target.num_layers - 1; i >= 0; --i) {
    const LayerSpec& own = target.layers[static_cast<size_t>(i)];
    if (!own.is_recurrent() && own.kv_source < 0 && type_of(own) == type_of(layer)) return i;
  }
  refuse(fields, "layer_types",
         str_cat("has a layer of ", type_of(layer),
                 ", and the target has none with keys and "
                 "values"));
}

// Lets `layer` read the keys and values of a layer of the target, which must be as those that it
// was trained on.
void read_target_kv(const JsonFields& fields, const ModelConfig& target, ModelConfig& model,
                    LayerSpec& layer) {
  layer.kv_source = source_of(fields, layer, target);
  const LayerSpec& own = target.layers[static_cast<size_t>(layer.kv_source)];
  const auto check = [&](const char* key, const auto& value, const auto& of_target) {
    if (value == of_target) return;
    refuse(fields, key,
           str_cat(value, " for a layer of ", type_of(layer), ", and ", of_target, " in layer ",
                   layer.kv_source, " of the target, whose keys and ", "values it reads"));
  };
  check("head_dim", layer.heads.head_dim, own.heads.head_dim);
  check("num_key_value_heads", layer.heads.num_kv_heads, own.heads.num_kv_heads);
  check("sliding_window", layer.sliding_window, own.sliding_window);
  if (model.ropes[static_cast<size_t>(layer.rope)] != target.ropes[static_cast<size_t>(own.rope)]) {
    refuse(fields, "rope_parameters",
           str_cat("turns queries of ", type_of(layer), " otherwise than the target turns keys"));
  }
  // The window's tokens, and one more: transformers counts distances from the last token that the
  // target has read, up to the window.
  if (layer.sliding_window > 0) ++layer.sliding_window;
}

// The network of text_config, with layers that have their own keys and values so far.
ModelConfig parse_network(const JsonFields& root, const Assistant& assistant,
                          const std::string& directory, const DraftHeadTarget& target) {
  constexpr const char* kShared = "num_kv_shared_layers";
  nlohmann::json text = text_part_of(root.path(), root.object(), assistant.text_type);
  const JsonFields given(root.path(), text, "text_config.");
  const int num_layers = given.get_int("num_hidden_layers");
  const int num_shared = given.get_int(kShared, num_layers, 0);
  // 0 stands for all of them, too.
  if (num_shared != 0 && num_shared != num_layers) {
    given.fail(kShared, str_cat(num_shared, ", and in an assistant all ", num_layers,
                                " layers read keys and values of the target"));
  }
  text[kShared] = 0;
  const JsonFields fields(root.path(), text, "text_config.");
  ModelConfig model = parse_model_config(fields, directory);
  check_target(fields, target);
  if (model.per_layer_dim > 0) {
    fields.fail("hidden_size_per_layer_input", "assistants have no per-layer embeddings: write 0");
  }
  if (model.num_experts > 0) fields.fail("enable_moe_block", "assistants have no experts");
  if (fields.get_bool("use_double_wide_mlp", false)) {
    fields.fail("use_double_wide_mlp", "is not there in assistants");
  }
  for (LayerSpec& layer : model.layers) read_target_kv(fields, target.config, model, layer);
  model.random_weights = target.config.random_weights;
  model.reads_target_kv = true;
  return model;
}

// Sizes of the LM head's clusters, and the tokens in their order.
void parse_clusters(const JsonFields& root, DraftHeadTensors& tensors,
                    const DraftHeadTarget& target, DraftHeadConfig& config) {
  if (!root.get_bool("use_ordered_embeddings", false)) {
    return root.pass_over({"num_centroids", "centroid_intermediate_top_k"});
  }
  constexpr const char* kCount = "num_centroids";
  constexpr const char* kKept = "centroid_intermediate_top_k";
  const int vocab_size = config.model.vocab_size;
  config.num_clusters = root.get_int(kCount, 2048);
  config.num_kept_clusters = root.get_int(kKept, 32);
  if (config.num_clusters > kMaxClusters) {
    root.fail(kCount, str_cat("up to ", kMaxClusters, " are implemented"));
  }
  if (vocab_size % config.num_clusters != 0) {
    root.fail(kCount, str_cat(config.num_clusters, " centroids do not share ", vocab_size,
                              " tokens equally"));
  }
  if (config.num_kept_clusters > config.num_clusters) {
    root.fail(kKept, str_cat(config.num_kept_clusters, " is more than the ", config.num_clusters,
                             " centroids"));
  }
  tensors.require(kCentroids, {config.num_clusters, config.model.hidden_size});
  if (tensors.is_random()) return;
  for (const int64_t id : tensors.integers(kTokenOrdering, vocab_size)) {
    config.token_ids.push_back(static_cast<int32_t>(std::clamp<int64_t>(id, -1, vocab_size)));
  }
  check_token_ids(config.token_ids, target, tensors.source(), kTokenOrdering);
}

std::shared_ptr<const FeatureFusion> load_fusion(TensorLoader& loader, int64_t backbone) {
  const int64_t hidden = loader.config().hidden_size;
  auto fusion = std::make_shared<FeatureFusion>();
  const WeightView whole = loader.read_matrix(kPreProjection, hidden, 2 * backbone);
  if (whole.is_integer()) {
    throw CheckpointError(loader.source(), kPreProjection,
                          "integers are not read here; give the matrix in floating point");
  }
  fusion->embedding = loader.columns(MatrixRole::kLayer, whole, 0, backbone);
  fusion->parts.push_back(
      {.norm = {}, .weight = loader.columns(MatrixRole::kLayer, whole, backbone, backbone)});
  loader.release(kPreProjection);
  fusion->fuses_states = true;
  fusion->feeds_back_normed = true;
  fusion->feedback = loader.matrix(MatrixRole::kLayer, {{kPostProjection, backbone}}, hidden);
  return fusion;
}

std::shared_ptr<const LmHead> load_lm_head(TensorLoader& loader, const DraftHeadConfig& config,
                                           const DraftHeadLoadArgs& args) {
  const ModelConfig& model = config.model;
  TensorPart rows{.name = loader.contains(kLmHead) ? kLmHead : kEmbedding,
                  .rows = model.vocab_size};
  for (const int32_t id : config.token_ids) rows.order.push_back({.begin = id, .count = 1});
  auto lm_head = std::make_shared<LmHead>();
  lm_head->weight = loader.matrix(MatrixRole::kVocabulary, {rows}, model.hidden_size);
  set_token_ids(*lm_head, config.token_ids, args);
  if (config.num_clusters == 0) return lm_head;
  lm_head->clusters.centroids =
      loader.matrix(MatrixRole::kFloat, {{kCentroids, config.num_clusters}}, model.hidden_size);
  lm_head->clusters.num_kept = config.num_kept_clusters;
  return lm_head;
}

}  // namespace

bool is_gemma4_assistant(const JsonFields& fields) { return find_assistant(fields) != nullptr; }

DraftHeadConfig parse_gemma4_assistant(const JsonFields& root, const DrafterConfig& drafter,
                                       const DraftHeadTarget& target) {
  const std::string& name = target.config.architecture;
  if (name != "Gemma4ForCausalLM" && name != "Gemma4UnifiedForCausalLM") {
    refuse(root, "architectures",
           str_cat("is an assistant's of Gemma 4, and the target is a ", name));
  }
  check_hidden_size(root, "backbone_hidden_size", target);
  refuse_token_map(drafter);
  DraftHeadConfig config{
      .method = drafter.method,
      .directory = drafter.model,
      .model = parse_network(root, *find_assistant(root), drafter.model, target)};
  ModelConfig& model = config.model;
  model.architecture = "a Gemma 4 assistant";
  config.taps.final_hidden = true;
  config.taps.least_width = target.config.hidden_size;
  DraftHeadTensors tensors(drafter.model, model.random_weights);
  const int64_t hidden = model.hidden_size, backbone = target.config.hidden_size;
  tensors.require(kPreProjection, {hidden, 2 * backbone});
  tensors.require(kPostProjection, {backbone, hidden});
  tensors.require(tensors.contains(kLmHead) ? kLmHead : kEmbedding, {model.vocab_size, hidden});
  parse_clusters(root, tensors, target, config);
  // text_config has been read, and the tensors say whether the LM head is tied.
  root.pass_over({"text_config", "tie_word_embeddings"});
  const std::string unknown = check_unread(root, model.architecture);
  if (!unknown.empty()) model.unknown_keys = unknown;
  return config;
}

std::unique_ptr<Model> load_gemma4_assistant(const DraftHeadConfig& config,
                                             const DraftHeadLoadArgs& args) {
  const ModelConfig& model = config.model;
  TensorLoader loader(model, config.directory, args.quantization, args.backend, args.coordinates);
  LoadedParts loaded;
  ModelParts& parts = loaded.parts;
  parts.embedding = args.target_parts.embedding;
  parts.fusion = load_fusion(loader, args.target.config.hidden_size);
  for (int i = 0; i < model.num_layers; ++i) {
    parts.layers.push_back(load_layer(loader, str_cat(model.names.layers, i, "."),
                                      model.layers[static_cast<size_t>(i)]));
  }
  parts.final_norm = std::make_shared<Norm>(loader.norm(std::string(model.names.final_norm)));
  parts.lm_head = load_lm_head(loader, config, args);
  loader.finish(loaded);
  return std::make_unique<Decoder>(model, std::move(loaded), args.backend, args.max_model_len,
                                   args.max_rows, args.coordinates);
}

}  // namespace specdec
