// Medusa: one head per drafted depth, all over the target's last hidden state at the token before
// the drafts. Checkpoints use the names of Medusa's own code or of vLLM.
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/str_cat.h"
#include "model/config_keys.h"
#include "model/config_quantization.h"
#include "model/draft_heads/draft_head_checks.h"
#include "model/draft_heads/draft_head_config.h"
#include "specdec/error.h"

namespace specdec {
namespace {

constexpr const char* kPrefix = "medusa_heads.";  // prefix of tensor names; most files lack it
constexpr const char* kTokenMap = "token_map";

enum class Output : uint8_t {
  kTargets,  // the target's LM head (version 2 of Medusa's files)
  kShared,   // one matrix for all heads
  kOwn,      // a matrix for each
};

// The settings from config.json and from the checkpoint's tensors.
struct Spec {
  int num_heads = 0;
  int num_layers = 0;  // per head
  bool has_bias = false;
  // True: names like "blocks.0.layers.0.weight" and "lm_heads.0.weight". False: those of Medusa's
  // own code, "0.0.linear.weight" and, after the layers, "0.1.weight".
  bool has_vllm_names = true;
  Output output = Output::kOwn;
  int output_rows = 0;  // rows of a matrix as stored

  std::string layer(int head, int layer) const {
    return has_vllm_names ? str_cat("blocks.", head, ".layers.", layer)
                          : str_cat(head, ".", layer, ".linear");
  }
  std::string output_of(int head) const {
    return has_vllm_names ? str_cat("lm_heads.", head, ".weight")
                          : str_cat(head, ".", num_layers, ".weight");
  }
};

// The tensors of the checkpoint, whose names may lack the prefix.
class MedusaTensors {
 public:
  MedusaTensors(const std::string& directory, bool is_random) : tensors_(directory, is_random) {}

  bool is_random() const { return tensors_.is_random(); }
  bool contains(const std::string& name) const {
    return tensors_.contains(name) || tensors_.contains(kPrefix + name);
  }
  std::string found(const std::string& name) const {
    return tensors_.contains(kPrefix + name) ? kPrefix + name : name;
  }
  DraftHeadTensors& stored() { return tensors_; }

 private:
  DraftHeadTensors tensors_;
};

// Number of tensors name_of(0), name_of(1), ... that exist without a gap.
template <class NameOf>
int count_tensors(const MedusaTensors& tensors, const NameOf& name_of) {
  int count = 0;
  while (tensors.contains(name_of(count) + ".weight")) ++count;
  return count;
}

// Counts stored heads and layers and checks the counts against config.json. Files of Medusa's own
// code may state fewer heads than they hold.
void count_heads(const JsonFields& fields, MedusaTensors& tensors, Spec& spec) {
  const char* heads_key = fields.has("num_heads") ? "num_heads" : "medusa_num_heads";
  const char* layers_key =
      fields.has("medusa_num_layers") ? "medusa_num_layers" : "num_hidden_layers";
  if (tensors.is_random()) {
    spec.num_heads = fields.get_int(heads_key);
    spec.num_layers = fields.get_int(layers_key, 1);
    return;
  }
  const auto layer_name = [&](int layer) { return spec.layer(0, layer); };
  spec.has_vllm_names = tensors.contains(layer_name(0) + ".weight");
  spec.num_layers = count_tensors(tensors, layer_name);
  if (spec.num_layers == 0) {
    throw CheckpointError(tensors.stored().source(), "",
                          "no heads: expected blocks.0.layers.0.weight or 0.0.linear.weight");
  }
  if (fields.get_int(layers_key, spec.num_layers) != spec.num_layers) {
    fields.fail(layers_key, str_cat(fields.get_int(layers_key), ", but the checkpoint has ",
                                    spec.num_layers, " layers a head"));
  }
  spec.num_heads = count_tensors(tensors, [&](int head) { return spec.layer(head, 0); });
  const int stated = fields.get_int(heads_key, spec.num_heads);
  if (stated > spec.num_heads) {
    throw CheckpointError(tensors.stored().source(), spec.layer(spec.num_heads, 0) + ".weight",
                          str_cat("the checkpoint has no such tensor, and ", heads_key,
                                  " of config.json is ", stated));
  }
  if (spec.has_vllm_names) spec.num_heads = stated;
}

int mapped_tokens(const JsonFields& fields, const DraftHeadTarget& target) {
  const int all = target.config.vocab_size;
  return std::min(fields.get_int("truncated_vocab_size", all), all);
}

void find_outputs(const JsonFields& fields, MedusaTensors& tensors, const DraftHeadTarget& target,
                  Spec& spec) {
  spec.output_rows = mapped_tokens(fields, target);
  if (fields.get_bool("original_lm_head", false)) spec.output = Output::kShared;
  if (tensors.is_random()) return;
  if (!tensors.contains(spec.output_of(0))) {
    spec.output = Output::kTargets;
    return;
  }
  // The whole vocabulary's rows may be stored beside the map that selects some.
  const int64_t stored = tensors.stored().shape(tensors.found(spec.output_of(0))).front();
  if (stored == target.config.vocab_size) spec.output_rows = target.config.vocab_size;
}

Spec read_spec(const JsonFields& fields, MedusaTensors& tensors, const DraftHeadTarget& target) {
  check_target(fields, target);
  if (fields.has("hidden_size")) check_hidden_size(fields, "hidden_size", target);
  Spec spec;
  count_heads(fields, tensors, spec);
  spec.has_bias = tensors.is_random() ? fields.get_bool("medusa_fc_bias", false)
                                      : tensors.contains(spec.layer(0, 0) + ".bias");
  find_outputs(fields, tensors, target, spec);
  return spec;
}

void check_tensors(const Spec& spec, MedusaTensors& tensors, int hidden_size) {
  const auto require = [&](const std::string& name, std::initializer_list<int64_t> shape) {
    tensors.stored().require(tensors.found(name), shape);
  };
  for (int head = 0; head < spec.num_heads; ++head) {
    for (int layer = 0; layer < spec.num_layers; ++layer) {
      require(spec.layer(head, layer) + ".weight", {hidden_size, hidden_size});
      if (spec.has_bias) require(spec.layer(head, layer) + ".bias", {hidden_size});
    }
    const bool has_output =
        spec.output == Output::kOwn || (spec.output == Output::kShared && head == 0);
    if (has_output) require(spec.output_of(head), {spec.output_rows, hidden_size});
  }
}

// The tokens that the heads score; empty: the target's whole vocabulary.
std::vector<int32_t> scored_tokens(const DrafterConfig& drafter, const DraftHeadTarget& target,
                                   const JsonFields& fields, const Spec& spec,
                                   MedusaTensors& tensors) {
  const int size = mapped_tokens(fields, target);
  if (size == target.config.vocab_size) {
    if (spec.output != Output::kTargets) refuse_token_map(drafter);
    return checked_token_map(drafter, target);
  }
  refuse_token_map(drafter);
  std::vector<int32_t> ids(static_cast<size_t>(size));
  if (tensors.is_random()) {
    std::iota(ids.begin(), ids.end(), 0);
    return ids;
  }
  const std::string name = tensors.found(kTokenMap);
  const std::vector<int64_t> stored = tensors.stored().integers(name, size);
  for (size_t i = 0; i < ids.size(); ++i) {
    const bool is_token = stored[i] >= 0 && stored[i] < target.config.vocab_size;
    ids[i] = is_token ? static_cast<int32_t>(stored[i]) : -1;
  }
  check_token_ids(ids, target, tensors.stored().source(), name);
  return ids;
}

class Medusa final : public LayerlessDraftHead {
 public:
  Medusa(const DraftHeadConfig& config, const Spec& spec, const DraftHeadLoadArgs& args);

  int64_t pass_bytes() const override;
  void forward(const ModelPass& pass) override;
  void compute_logits(const int32_t* row_ids, int num_rows, float* logits, int level) override;
  DraftVocabulary draft_vocabulary() const override;
  bool has_output_per_level() const override { return has_own_outputs_; }

 private:
  struct MedusaHead {
    std::vector<Linear> layers;  // [hidden, hidden]
    std::shared_ptr<const LmHead> output;
  };
  std::shared_ptr<const LmHead> load_output(TensorLoader& loader, const DraftHeadConfig& config,
                                            const Spec& spec, const DraftHeadLoadArgs& args,
                                            int head);
  const MedusaHead& head_of(int level) const;
  void run_layers(const MedusaHead& head, float* hidden, int num_rows);

  bool has_own_outputs_;
  std::vector<MedusaHead> heads_;

  // Buffers of a pass.
  Buffer hidden_;     // [max_rows, hidden] float32, level by level
  Buffer block_;      // [max_rows, hidden] act
  Buffer projected_;  // [max_rows, in_features of the output] float32, where the target projects
};

Medusa::Medusa(const DraftHeadConfig& config, const Spec& spec, const DraftHeadLoadArgs& args)
    : LayerlessDraftHead(config, args), has_own_outputs_(spec.output == Output::kOwn) {
  const int hidden_size = config_.hidden_size;
  TensorLoader loader(config_, config.directory, args.quantization, backend_);
  for (int head = 0; head < spec.num_heads; ++head) {
    MedusaHead& loaded = heads_.emplace_back();
    for (int layer = 0; layer < spec.num_layers; ++layer) {
      loaded.layers.push_back(
          loader.linear({{spec.layer(head, layer), hidden_size}}, hidden_size, spec.has_bias));
    }
    const bool is_first = head == 0;
    loaded.output = is_first || spec.output == Output::kOwn
                        ? load_output(loader, config, spec, args, head)
                        : heads_.front().output;
  }
  loader.finish(loaded_);

  hidden_ = allocate_rows(hidden_size);
  block_ = allocate_rows(hidden_size, backend_.act_dtype());
  const LmHead& output = *heads_.front().output;
  if (output.project_out) projected_ = allocate_rows(output.weight->in_features());
}

std::shared_ptr<const LmHead> Medusa::load_output(TensorLoader& loader,
                                                  const DraftHeadConfig& config, const Spec& spec,
                                                  const DraftHeadLoadArgs& args, int head) {
  if (spec.output == Output::kTargets) return borrow_lm_head(loader, args, config.token_ids);
  TensorPart part{.name = spec.output_of(head), .rows = spec.output_rows};
  if (spec.output_rows != config_.vocab_size) {
    for (const int32_t id : config.token_ids) part.order.push_back({.begin = id, .count = 1});
  }
  auto output = std::make_shared<LmHead>();
  output->weight = loader.matrix(MatrixRole::kVocabulary, {part}, config_.hidden_size);
  set_token_ids(*output, config.token_ids, args);
  return output;
}

const Medusa::MedusaHead& Medusa::head_of(int level) const {
  SPECDEC_CHECK(level >= 0 && level < static_cast<int>(heads_.size()));
  return heads_[level];
}

// For a pass that drafts all levels.
int64_t Medusa::pass_bytes() const {
  int64_t bytes = 0;
  for (const MedusaHead& head : heads_) {
    const bool has_own = has_own_outputs_ || &head == &heads_.front();
    if (has_own) bytes += head.output->weight->size_bytes();
    for (const Linear& layer : head.layers) bytes += layer.weight->size_bytes();
  }
  return bytes;
}

DraftVocabulary Medusa::draft_vocabulary() const {
  const LmHead& output = *heads_.front().output;
  return {.token_ids = output.token_ids.as<int32_t>(),
          .target_vocab_size = output.target_vocab_size};
}

// Drafts of all depths use the same state, so a row passes its own input on to its children.
void Medusa::forward(const ModelPass& pass) {
  const BatchView& batch = pass.batch;
  SPECDEC_CHECK_LE(int64_t{batch.num_rows} * pass.num_levels, max_rows_);
  if (batch.num_rows == 0) return;
  const int64_t level_size = int64_t{batch.num_rows} * config_.hidden_size;
  for (int level = 0; level < pass.num_levels; ++level) {
    float* hidden = hidden_.as<float>() + level * level_size;
    backend_.load_rows({.from = pass.features,
                        .slots = batch.feature_slots,
                        .column = 0,
                        .dim = config_.hidden_size,
                        .out = hidden,
                        .num_rows = batch.num_rows});
    if (level == 0) {
      backend_.store_rows({.x = hidden,
                           .slot_mapping = batch.state_slots,
                           .to = pass.features,
                           .column = 0,
                           .dim = config_.hidden_size,
                           .num_rows = batch.num_rows});
    }
    run_layers(head_of(pass.level + level), hidden, batch.num_rows);
  }
}

// hidden += SiLU(W hidden + b) for each layer.
void Medusa::run_layers(const MedusaHead& head, float* hidden, int num_rows) {
  const int hidden_size = config_.hidden_size;
  for (const Linear& layer : head.layers) {
    backend_.activated_linear({.weight = layer.weight.get(),
                               .in = {.x = hidden, .dtype = DType::kF32, .num_rows = num_rows},
                               .bias = layer.bias.as<float>(),
                               .activation = Activation::kSilu,
                               .gated = false,
                               .out = block_.data()});
    backend_.load_rows(
        {.from = {.rows = block_.data(), .num_slots = num_rows, .width = hidden_size},
         .dim = hidden_size,
         .out = hidden,
         .accumulate = true,
         .num_rows = num_rows});
  }
}

void Medusa::compute_logits(const int32_t* row_ids, int num_rows, float* logits, int level) {
  SPECDEC_CHECK_LE(num_rows, max_rows_);
  if (num_rows == 0) return;
  const LmHead& output = *head_of(level).output;
  ProjectionInput in = {
      .x = hidden_.data(), .dtype = DType::kF32, .row_ids = row_ids, .num_rows = num_rows};
  if (output.project_out) {
    backend_.linear({.weight = output.project_out.get(), .in = in, .out = projected_.as<float>()});
    in = {.x = projected_.data(), .dtype = DType::kF32, .num_rows = num_rows};
  }
  backend_.linear({.weight = output.weight.get(),
                   .in = in,
                   .out = logits,
                   .scale = output.scale,
                   .soft_cap = output.soft_cap});
}

}  // namespace

DraftHeadConfig parse_medusa(const JsonFields& fields, const DrafterConfig& drafter,
                             const DraftHeadTarget& target) {
  DraftHeadConfig config{.method = drafter.method, .directory = drafter.model};
  config.model = model_without_layers("Medusa heads", kPrefix, target);
  parse_quantization_config(fields, drafter.model, config.model);
  MedusaTensors tensors(drafter.model, target.config.random_weights);
  const Spec spec = read_spec(fields, tensors, target);
  check_tensors(spec, tensors, target.config.hidden_size);
  config.token_ids = scored_tokens(drafter, target, fields, spec, tensors);
  if (!config.token_ids.empty()) {
    config.model.vocab_size = static_cast<int>(config.token_ids.size());
  }
  config.taps = {.final_hidden = true};
  const double hidden = target.config.hidden_size;
  config.block_weights = spec.num_heads * spec.num_layers * hidden * hidden;
  config.output_weights = spec.num_heads * hidden * config.model.vocab_size;
  config.max_depth = spec.num_heads;
  config.is_parallel = true;
  fields.pass_over({"medusa_fc_bias", "medusa_num_heads", "num_hidden_layers"});
  config.model.unknown_keys = check_unread(fields, config.model.architecture);
  return config;
}

std::unique_ptr<Model> load_medusa(const JsonFields& fields, const DraftHeadConfig& config,
                                   const DraftHeadLoadArgs& args) {
  MedusaTensors tensors(config.directory, args.target.config.random_weights);
  return std::make_unique<Medusa>(config, read_spec(fields, tensors, args.target), args);
}

}  // namespace specdec
