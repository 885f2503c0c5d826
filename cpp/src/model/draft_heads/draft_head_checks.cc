#include "model/draft_heads/draft_head_checks.h"

#include <algorithm>
#include <array>
#include <unordered_set>
#include <utility>

#include "core/str_cat.h"
#include "model/tensor_loader.h"
#include "specdec/error.h"

namespace specdec {
namespace {

constexpr std::string_view kPrefix = "model.";
constexpr int64_t kFarOffset = 1 << 30;
constexpr const char* kTokenMapOption = "speculative_token_map";

std::string text_of(std::span<const int64_t> shape) {
  std::string text;
  for (const int64_t extent : shape) text += str_cat(text.empty() ? "[" : ", ", extent);
  return text + "]";
}

// Throws CheckpointError if t2d exists and does not mark exactly the tokens that d2t lists.
void check_marks(DraftHeadTensors& tensors, const DraftHeadTarget& target,
                 std::span<const int32_t> ids) {
  if (!tensors.contains("t2d")) return;
  std::vector<int64_t> marks = tensors.integers("t2d", target.config.vocab_size);
  const auto fail = [&](size_t token, const char* in, const char* out) {
    throw CheckpointError(
        tensors.source(), "t2d",
        str_cat("token ", token, " is in the draft vocabulary by ", in, ", and is not by ", out,
                ": one of the two is another head's; take t2d out of the file if "
                "d2t is right"));
  };
  for (const int32_t id : ids) {
    const auto token = static_cast<size_t>(id);
    if (marks[token] == 0) fail(token, "d2t", "t2d");
    marks[token] = 0;
  }
  const auto other = std::ranges::find_if(marks, [](int64_t mark) { return mark != 0; });
  if (other != marks.end()) {
    fail(static_cast<size_t>(other - marks.begin()), "t2d", "d2t");
  }
}

}  // namespace

DraftHeadTensors::DraftHeadTensors(const std::string& directory, bool is_random)
    : store_(is_random ? WeightStore::random({}) : WeightStore(directory)), is_random_(is_random) {}

std::string DraftHeadTensors::resolve(const std::string& name) const {
  if (store_.contains(name)) return name;
  const std::string other =
      name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : str_cat(kPrefix, name);
  return store_.contains(other) ? other : name;
}

bool DraftHeadTensors::contains(const std::string& name) const {
  return !is_random_ && store_.contains(resolve(name));
}

void DraftHeadTensors::require(const std::string& name, std::span<const int64_t> shape) const {
  if (is_random_) return;
  const std::string found = resolve(name);
  const std::vector<int64_t>& stored = store_.shape(found);
  if (std::ranges::equal(stored, shape)) return;
  throw CheckpointError(source(), found,
                        str_cat("expected shape ", text_of(shape), ", found ", text_of(stored)));
}

std::vector<int64_t> DraftHeadTensors::integers(const std::string& name, int64_t size) {
  return store_.integers(resolve(name), size);
}

ModelConfig model_without_layers(const std::string& architecture, std::string_view prefix,
                                 const DraftHeadTarget& target) {
  ModelConfig model;
  model.architecture = architecture;
  model.names.prefix = prefix;
  model.checkpoint_dtype = target.config.checkpoint_dtype;
  model.random_weights = target.config.random_weights;
  model.hidden_size = target.config.hidden_size;
  model.vocab_size = target.config.vocab_size;
  model.max_position_embeddings = target.config.max_position_embeddings;
  model.final_norm = false;
  return model;
}

void check_target(const JsonFields& fields, const DraftHeadTarget& target) {
  if (fields.has("vocab_size")) {
    const int vocab_size = fields.get_int("vocab_size");
    if (vocab_size != target.config.vocab_size) {
      fields.fail("vocab_size", str_cat(vocab_size, ", but the target has a vocabulary of ",
                                        target.config.vocab_size,
                                        " tokens: the head was trained for another model"));
    }
  }
  fields.pass_over({"speculators_model_type"});
  if (!fields.has("speculators_config")) return;
  const JsonFields speculators = fields.get_object("speculators_config");
  speculators.pass_over({"algorithm", "default_proposal_method", "proposal_methods"});
  if (!speculators.has("verifier")) return;
  const JsonFields verifier = speculators.get_object("verifier");
  const std::vector<std::string> architectures = verifier.get_strings("architectures");
  if (architectures.empty() ||
      std::ranges::find(architectures, target.config.architecture) != architectures.end()) {
    return;
  }
  verifier.fail("architectures", str_cat("the head was trained for a ", architectures.front(),
                                         ", and the target is a ", target.config.architecture));
}

void check_hidden_size(const JsonFields& fields, const char* key, const DraftHeadTarget& target) {
  const int size = fields.get_int(key);
  const int of_target = target.config.hidden_size;
  if (size == of_target) return;
  fields.fail(key, str_cat(size, ", but the target's rows have ", of_target,
                           " elements: the head was trained for another model"));
}

void check_token_ids(std::span<const int32_t> token_ids, const DraftHeadTarget& target,
                     const std::string& source, const std::string& name) {
  std::vector<bool> seen(static_cast<size_t>(target.config.vocab_size));
  for (size_t i = 0; i < token_ids.size(); ++i) {
    const int32_t id = token_ids[i];
    if (id < 0 || id >= target.config.vocab_size) {
      throw CheckpointError(
          source, name,
          str_cat("entry ", i, " stands for token ", id,
                  ", which is not in the target's vocabulary of ", target.config.vocab_size));
    }
    if (seen[static_cast<size_t>(id)]) {
      throw CheckpointError(
          source, name, str_cat("entry ", i, " stands for token ", id, ", as an earlier one does"));
    }
    seen[static_cast<size_t>(id)] = true;
  }
}

std::vector<int32_t> checked_token_map(const DrafterConfig& drafter,
                                       const DraftHeadTarget& target) {
  std::unordered_set<int32_t> seen;
  for (const int32_t id : drafter.token_map) {
    if (id < 0 || id >= target.config.vocab_size) {
      throw InvalidArgument(kTokenMapOption,
                            str_cat("token ", id, " is not in the target's vocabulary of ",
                                    target.config.vocab_size));
    }
    if (!seen.insert(id).second) {
      throw InvalidArgument(kTokenMapOption, str_cat("token ", id, " stands in it twice"));
    }
  }
  return drafter.token_map;
}

void refuse_token_map(const DrafterConfig& drafter) {
  if (drafter.token_map.empty()) return;
  throw InvalidArgument(kTokenMapOption,
                        str_cat("the head in ", drafter.model,
                                " has output weights of its own: leave the option out"));
}

void set_token_ids(LmHead& lm_head, const std::vector<int32_t>& token_ids,
                   const DraftHeadLoadArgs& args) {
  if (token_ids.empty()) return;
  lm_head.token_ids = args.backend.make_ids(token_ids);
  lm_head.target_vocab_size = args.target.config.vocab_size;
}

std::shared_ptr<const LmHead> borrow_lm_head(TensorLoader& loader, const DraftHeadLoadArgs& args,
                                             const std::vector<int32_t>& token_ids) {
  if (token_ids.empty()) return args.target_parts.lm_head;
  const ModelConfig& config = args.target.config;
  TensorLoader of_target(config, args.target.directory, args.quantization, args.backend,
                         args.coordinates);
  const auto weight_of = [](std::string_view name) { return str_cat(name, ".weight"); };
  std::string name = weight_of(config.names.lm_head);
  if (!of_target.contains(name)) name = weight_of(config.names.embedding);
  TensorPart part{.name = name, .rows = config.vocab_size};
  for (const int32_t id : token_ids) part.order.push_back({.begin = id, .count = 1});
  const LmHead& whole = *args.target_parts.lm_head;
  auto lm_head = std::make_shared<LmHead>();
  lm_head->project_out = whole.project_out;
  lm_head->weight = of_target.matrix(MatrixRole::kVocabulary, {part},
                                     config.embed_dim != 0 ? config.embed_dim : config.hidden_size);
  loader.count_packed(*lm_head->weight);
  lm_head->scale = whole.scale;
  lm_head->soft_cap = whole.soft_cap;
  set_token_ids(*lm_head, token_ids, args);
  return lm_head;
}

DraftHeadFields draft_head_fields(const JsonFields& root) {
  constexpr const char* kLayers = "transformer_layer_config";
  const bool is_speculators = root.has("speculators_model_type");
  if (!root.has(kLayers)) return {.root = root, .layers = root, .is_speculators = is_speculators};
  const JsonFields layers = root.get_object(kLayers);
  for (const auto& [key, value] : layers.object().items()) {
    if (root.object().contains(key) && root.object()[key] == value) root.pass_over({key});
  }
  return {.root = root, .layers = layers.with_absent_from(root), .is_speculators = is_speculators};
}

void find_layers(const DraftHeadTensors& tensors, DraftHeadConfig& config) {
  ModelConfig& model = config.model;
  for (int i = 0; i < model.num_layers; ++i) {
    std::string prefix = str_cat("layers.", i, ".");
    for (const char* other : {"midlayer.", "transformer."}) {
      if (i == 0 && tensors.contains(str_cat(other, "self_attn.q_proj.weight"))) prefix = other;
    }
    config.eagle.layers.push_back(prefix);
  }
  const std::string attention = config.eagle.layers.front() + "self_attn.";
  if (tensors.is_random()) return;
  model.qkv_bias = tensors.contains(attention + "q_proj.bias");
  model.out_bias = tensors.contains(attention + "o_proj.bias");
  model.mlp_bias = tensors.contains(config.eagle.layers.front() + "mlp.gate_proj.bias");
  if (tensors.contains(attention + "q_norm.weight")) model.qk_norm = QkNorm::kPerHead;
}

std::vector<int32_t> scored_tokens(const DrafterConfig& drafter, const DraftHeadTarget& target,
                                   const JsonFields& root, DraftHeadTensors& tensors,
                                   const EagleConfig& eagle) {
  const int all = target.config.vocab_size;
  const int size = root.get_int("draft_vocab_size", all);
  if (size > all) {
    root.fail("draft_vocab_size", str_cat(size, " is more than the target's ", all,
                                          " tokens: the head was trained for another model"));
  }
  std::vector<int32_t> ids;
  if (tensors.contains("d2t")) {
    const std::vector<int64_t> offsets = tensors.integers("d2t", size);
    for (int i = 0; i < size; ++i) {
      // Clamped, since an id far outside the vocabulary is as wrong as one just outside.
      const int64_t offset =
          std::clamp<int64_t>(offsets[static_cast<size_t>(i)], -kFarOffset, kFarOffset);
      ids.push_back(static_cast<int32_t>(i + offset));
    }
    check_token_ids(ids, target, tensors.source(), "d2t");
    check_marks(tensors, target, ids);
  } else if (size != all && tensors.is_random()) {
    for (int i = 0; i < size; ++i) ids.push_back(i);
  } else if (size != all) {
    throw CheckpointError(tensors.source(), "d2t",
                          str_cat("the checkpoint has no such tensor, and draft_vocab_size of "
                                  "config.json is ",
                                  size, " of the target's ", all, " tokens"));
  }
  if (static_cast<int>(ids.size()) == all && std::ranges::is_sorted(ids)) ids.clear();
  if (drafter.token_map.empty()) return ids;
  if (!ids.empty() || eagle.has_lm_head) refuse_token_map(drafter);
  return checked_token_map(drafter, target);
}

}  // namespace specdec
