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
constexpr const char* kTokenMapOption = "speculative_token_map";

std::string text_of(std::span<const int64_t> shape) {
  std::string text;
  for (const int64_t extent : shape) text += str_cat(text.empty() ? "[" : ", ", extent);
  return text + "]";
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

std::shared_ptr<const LmHead> borrow_lm_head(const DraftHeadLoadArgs& args,
                                             const std::vector<int32_t>& token_ids) {
  if (token_ids.empty()) return args.target_parts.lm_head;
  const ModelConfig& config = args.target.config;
  TensorLoader loader(config, args.target.directory, args.quantization, args.backend,
                      args.coordinates);
  const auto weight_of = [](std::string_view name) { return str_cat(name, ".weight"); };
  std::string name = weight_of(config.names.lm_head);
  if (!loader.contains(name)) name = weight_of(config.names.embedding);
  TensorPart part{.name = name, .rows = config.vocab_size};
  for (const int32_t id : token_ids) part.order.push_back({.begin = id, .count = 1});
  const LmHead& whole = *args.target_parts.lm_head;
  auto lm_head = std::make_shared<LmHead>();
  lm_head->project_out = whole.project_out;
  lm_head->weight = loader.matrix(MatrixRole::kVocabulary, {part},
                                  config.embed_dim != 0 ? config.embed_dim : config.hidden_size);
  lm_head->scale = whole.scale;
  lm_head->soft_cap = whole.soft_cap;
  set_token_ids(*lm_head, token_ids, args);
  return lm_head;
}

}  // namespace specdec
