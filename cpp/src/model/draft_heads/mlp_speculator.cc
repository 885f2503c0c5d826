// IBM's MLP speculator: a recurrent network over the target's last hidden state, with one step per
// drafted token.
#include <algorithm>
#include <cmath>
#include <memory>
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

constexpr const char* kPrefix = "speculator.";  // prefix of tensor names; some files lack it
constexpr float kNormEps = 1e-6f;

// The settings from config.json.
struct Spec {
  int hidden_size = 0;  // the target's hidden size
  int inner_size = 0;
  int num_levels = 0;
  bool is_tied = false;       // the steps share all weights except the first projection
  bool scales_input = false;  // whether the target's state is normalised first

  int input_size(int level) const { return level == 0 ? hidden_size : inner_size; }
};

// Names of a step's tensors.
struct LevelNames {
  LevelNames(const Spec& spec, int level) {
    const int owner = spec.is_tied ? 0 : level;
    embedding = str_cat("emb.", owner, ".weight");
    projection = str_cat("proj.", spec.is_tied ? std::min(level, 1) : level, ".weight");
    norm_weight = str_cat("ln.", owner, ".weight");
    norm_bias = str_cat("ln.", owner, ".bias");
    lm_head = str_cat("head.", owner, ".weight");
  }
  std::string embedding, projection, norm_weight, norm_bias, lm_head;
};

// Also sets in `model` how matrices are stored and which keys are unknown.
Spec read_spec(const JsonFields& fields, const std::string& directory,
               const DraftHeadTarget& target, ModelConfig& model) {
  check_target(fields, target);
  parse_quantization_config(fields, directory, model);
  Spec spec;
  spec.hidden_size = fields.get_int("emb_dim");
  check_hidden_size(fields, "emb_dim", target);
  spec.inner_size = fields.get_int("inner_dim", 0, 0);
  if (spec.inner_size == 0) spec.inner_size = spec.hidden_size;
  spec.num_levels = fields.get_int("n_predict");
  if (spec.num_levels > kMaxSpeculativeTokens) {
    fields.fail("n_predict", str_cat(spec.num_levels, " steps; at most ", kMaxSpeculativeTokens,
                                     " tokens can be drafted"));
  }
  spec.is_tied = fields.get_bool("tie_weights", false);
  spec.scales_input = fields.get_bool("scale_input", false);
  model.unknown_keys = check_unread(fields, model.architecture);
  return spec;
}

void check_tensors(const Spec& spec, const DraftHeadTensors& tensors, int vocab_size) {
  if (tensors.is_random()) return;
  const std::string prefix =
      tensors.contains(kPrefix + LevelNames(spec, 0).projection) ? kPrefix : "";
  const auto check_count = [&](const std::string& name, bool is_there) {
    if (tensors.contains(name) == is_there) return;
    throw CheckpointError(tensors.source(), name,
                          str_cat("the checkpoint has ", is_there ? "no such tensor" : "it",
                                  ", and n_predict of config.json is ", spec.num_levels));
  };
  for (int level = 0; level < spec.num_levels; ++level) {
    const LevelNames names(spec, level);
    check_count(prefix + names.projection, true);
    tensors.require(prefix + names.embedding, {vocab_size, spec.inner_size});
    tensors.require(prefix + names.projection, {spec.inner_size, spec.input_size(level)});
    tensors.require(prefix + names.norm_weight, {spec.inner_size});
    tensors.require(prefix + names.norm_bias, {spec.inner_size});
    tensors.require(prefix + names.lm_head, {vocab_size, spec.inner_size});
  }
  // n_predict also scales the embeddings, so a smaller value does not merely draft less.
  check_count(str_cat(prefix, "emb.", spec.num_levels, ".weight"), false);
}

class MlpSpeculator final : public LayerlessDraftHead {
 public:
  MlpSpeculator(const JsonFields& fields, const DraftHeadConfig& config,
                const DraftHeadLoadArgs& args);

  int64_t pass_bytes() const override;
  void forward(const ModelPass& pass) override;
  void compute_logits(const int32_t* row_ids, int num_rows, float* logits, int level) override;

 private:
  // Shared between steps where they are tied.
  struct Level {
    std::shared_ptr<const EmbeddingTable> embedding;  // [vocab, inner]
    std::shared_ptr<const PackedLinear> projection;   // [inner, hidden or inner]
    std::shared_ptr<const Norm> norm;
    std::shared_ptr<const PackedLinear> lm_head;  // [vocab, inner]
  };
  Level load_level(TensorLoader& loader, int index) const;
  const Level& level_of(int level) const;

  Spec spec_;
  std::vector<Level> levels_;
  Norm input_norm_;  // empty where the target's state is not normalised
  float embedding_scale_ = 1.0f;

  // Buffers of a pass.
  Buffer input_;  // [max_rows, max(hidden, inner)] float32
  Buffer sum_;    // [max_rows, inner] float32
  Buffer state_;  // likewise
};

MlpSpeculator::MlpSpeculator(const JsonFields& fields, const DraftHeadConfig& config,
                             const DraftHeadLoadArgs& args)
    : LayerlessDraftHead(config, args),
      spec_(read_spec(fields, config.directory, args.target, config_)) {
  TensorLoader loader(config_, config.directory, args.quantization, backend_);
  for (int index = 0; index < spec_.num_levels; ++index) {
    levels_.push_back(load_level(loader, index));
  }
  loader.finish(loaded_);
  if (spec_.scales_input) {
    const std::vector<float> weights(spec_.hidden_size, std::sqrt(0.5f));
    const TensorView view = {
        .data = weights.data(), .dtype = DType::kF32, .shape = {spec_.hidden_size}};
    input_norm_ = {.eps = kNormEps, .weight = backend_.make_vector({&view, 1}), .bias = {}};
  }
  const double state_weight = std::pow(0.5, 0.5 / spec_.num_levels);
  const double embedding_weight =
      std::sqrt((1.0 - state_weight * state_weight) * spec_.inner_size / 2.0);
  embedding_scale_ = static_cast<float>(embedding_weight / state_weight);

  input_ = allocate_rows(std::max(spec_.hidden_size, spec_.inner_size));
  sum_ = allocate_rows(spec_.inner_size);
  state_ = allocate_rows(spec_.inner_size);
}

MlpSpeculator::Level MlpSpeculator::load_level(TensorLoader& loader, int index) const {
  const LevelNames names(spec_, index);
  const bool is_tied = spec_.is_tied && index > 0;
  Level level;
  if (is_tied) level = levels_.back();
  if (!is_tied || index == 1) {
    level.projection = loader.matrix(MatrixRole::kLayer, {{names.projection, spec_.inner_size}},
                                     spec_.input_size(index));
  }
  if (is_tied) return level;
  const int vocab_size = config_.vocab_size;
  const WeightView table = loader.read_matrix(names.embedding, vocab_size, spec_.inner_size);
  level.embedding = loader.table(loader.format_of(MatrixRole::kVocabulary, {&table, 1}), table);
  loader.release(names.embedding);
  Norm norm = {.eps = kNormEps,
               .weight = loader.vector({{names.norm_weight, spec_.inner_size}}),
               .bias = loader.vector({{names.norm_bias, spec_.inner_size}})};
  level.norm = std::make_shared<const Norm>(std::move(norm));
  level.lm_head =
      loader.matrix(MatrixRole::kVocabulary, {{names.lm_head, vocab_size}}, spec_.inner_size);
  return level;
}

const MlpSpeculator::Level& MlpSpeculator::level_of(int level) const {
  SPECDEC_CHECK(level >= 0 && level < spec_.num_levels);
  return levels_[level];
}

// The bytes of the largest step; few rows of the embedding are read.
int64_t MlpSpeculator::pass_bytes() const {
  int64_t most = 0;
  for (const Level& level : levels_) {
    most = std::max(most, level.projection->size_bytes() + level.lm_head->size_bytes());
  }
  return most;
}

void MlpSpeculator::forward(const ModelPass& pass) {
  const BatchView& batch = pass.batch;
  const int rows = batch.num_rows;
  SPECDEC_CHECK_LE(rows, max_rows_);
  if (rows == 0) return;
  const Level& level = level_of(pass.level);
  backend_.embed({.table = level.embedding.get(),
                  .token_ids = batch.token_ids,
                  .out = sum_.as<float>(),
                  .num_rows = rows,
                  .scale = embedding_scale_});
  backend_.load_rows({.from = pass.features,
                      .slots = batch.feature_slots,
                      .column = 0,
                      .dim = spec_.input_size(pass.level),
                      .out = input_.as<float>(),
                      .num_rows = rows});
  const NormParams input_norm = input_norm_.params();
  const bool is_scaled = pass.level == 0 && spec_.scales_input;
  backend_.linear({.weight = level.projection.get(),
                   .in = {.x = input_.data(),
                          .dtype = DType::kF32,
                          .norm = is_scaled ? &input_norm : nullptr,
                          .num_rows = rows},
                   .out = sum_.as<float>(),
                   .accumulate = true});
  backend_.norm({.norm = level.norm->params(),
                 .x = sum_.as<float>(),
                 .out = state_.data(),
                 .out_dtype = DType::kF32,
                 .num_rows = rows,
                 .dim = spec_.inner_size,
                 .activation = Activation::kGelu});
  backend_.store_rows({.x = state_.as<float>(),
                       .slot_mapping = batch.state_slots,
                       .to = pass.features,
                       .column = 0,
                       .dim = spec_.inner_size,
                       .num_rows = rows});
}

void MlpSpeculator::compute_logits(const int32_t* row_ids, int num_rows, float* logits, int level) {
  SPECDEC_CHECK_LE(num_rows, max_rows_);
  if (num_rows == 0) return;
  backend_.linear(
      {.weight = level_of(level).lm_head.get(),
       .in = {.x = state_.data(), .dtype = DType::kF32, .row_ids = row_ids, .num_rows = num_rows},
       .out = logits});
}

}  // namespace

DraftHeadConfig parse_mlp_speculator(const JsonFields& fields, const DrafterConfig& drafter,
                                     const DraftHeadTarget& target) {
  DraftHeadConfig config{.method = drafter.method, .directory = drafter.model};
  config.model = model_without_layers("an MLP speculator", kPrefix, target);
  const Spec spec = read_spec(fields, drafter.model, target, config.model);
  const ModelConfig& of_target = target.config;
  check_tensors(spec, DraftHeadTensors(drafter.model, of_target.random_weights),
                of_target.vocab_size);
  refuse_token_map(drafter);
  config.taps = {.final_hidden = true, .least_width = spec.inner_size};
  const double inner = spec.inner_size;
  config.block_weights = inner * spec.input_size(0);
  config.output_weights = inner * of_target.vocab_size;
  config.max_depth = spec.num_levels;
  return config;
}

std::unique_ptr<Model> load_mlp_speculator(const JsonFields& fields, const DraftHeadConfig& config,
                                           const DraftHeadLoadArgs& args) {
  return std::make_unique<MlpSpeculator>(fields, config, args);
}

}  // namespace specdec
