#include "model/decoder_weights.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

#include "core/check.h"
#include "core/log.h"
#include "core/str_cat.h"
#include "model/weight_format.h"
#include "model/weight_store.h"
#include "specdec/error.h"

namespace specdec {
namespace {

constexpr const char* kHead = "lm_head.weight";

// How a family calls its tensors; layer names follow "<root>layers.<i>.".
struct TensorNames {
  std::string root;
  std::string attention_norm;
  std::string attention_out;
  std::string mlp_norm;
  std::vector<std::string> mlp_in;
  std::string mlp_out;
  std::string final_norm;
};

TensorNames names_of(const ModelConfig& config) {
  if (config.model_type == "opt") {
    return {.root = "model.decoder.",
            .attention_norm = "self_attn_layer_norm",
            .attention_out = "self_attn.out_proj",
            .mlp_norm = "final_layer_norm",
            .mlp_in = {"fc1"},
            .mlp_out = "fc2",
            .final_norm = "final_layer_norm"};
  }
  return {.root = "model.",
          .attention_norm = "input_layernorm",
          .attention_out = "self_attn.o_proj",
          .mlp_norm = "post_attention_layernorm",
          .mlp_in = {"mlp.gate_proj", "mlp.up_proj"},
          .mlp_out = "mlp.down_proj",
          .final_norm = "norm"};
}

// One tensor of a fused matrix or vector.
struct Part {
  std::string name;
  int64_t rows = 0;
};

std::vector<Part> with_suffix(std::vector<Part> parts, std::string_view suffix) {
  for (Part& part : parts) part.name += suffix;
  return parts;
}

class Loader {
 public:
  Loader(const ModelConfig& config, const std::string& directory, Quantization quantization,
         Backend& backend)
      : config_(config),
        quantization_(quantization),
        names_(names_of(config)),
        store_(config.random_weights ? WeightStore::random(config)
                                     : WeightStore(directory, config.scale_block)),
        backend_(backend) {}

  DecoderWeights load();

 private:
  std::string resolve(const std::string& name) const;
  TensorView read(const std::string& name, std::span<const int64_t> shape);
  WeightView read_matrix(const std::string& name, int64_t rows, int64_t in_features);
  void release(const std::string& name) { store_.release(resolve(name)); }

  WeightFormat format_of(MatrixRole role, std::span<const WeightView> parts);
  std::unique_ptr<PackedLinear> pack(MatrixRole role, std::span<const WeightView> parts,
                                     bool gated = false);
  std::unique_ptr<PackedLinear> matrix(MatrixRole role, const std::vector<Part>& parts,
                                       int64_t in_features, bool gated = false);
  Buffer vector(const std::vector<Part>& parts);
  LinearWeights linear(const std::vector<Part>& parts, int64_t in_features, bool bias,
                       bool gated = false);
  NormWeights norm(const std::string& name);

  void check_num_layers() const;
  void load_embedding();
  bool head_equals_embedding(const WeightView& embedding);
  LayerWeights load_layer(int index);
  ExpertWeights load_experts(const std::string& layer);
  void add_expert(ExpertWeights& experts, const WeightView& gate, const WeightView& up,
                  const WeightView& down);
  void load_experts_apart(const std::string& block, ExpertWeights& experts);
  void load_experts_stacked(const std::string& block, ExpertWeights& experts);
  void check_alike(const std::string& name, const ExpertWeights& experts) const;
  void warn_about_unused() const;

  const ModelConfig& config_;
  Quantization quantization_;
  TensorNames names_;
  WeightStore store_;
  Backend& backend_;
  DecoderWeights weights_;
  bool widens_fp8_ = false;  // stored 8-bit floats are held in more bits
};

// Checkpoints of the network without its head may lack the leading "model.".
std::string Loader::resolve(const std::string& name) const {
  constexpr std::string_view kPrefix = "model.";
  if (!store_.contains(name) && name.starts_with(kPrefix)) {
    const std::string bare = name.substr(kPrefix.size());
    if (store_.contains(bare)) return bare;
  }
  return name;
}

TensorView Loader::read(const std::string& name, std::span<const int64_t> shape) {
  TensorView view = store_.tensor(resolve(name), shape);
  weights_.num_parameters += view.num_elements();
  return view;
}

WeightView Loader::read_matrix(const std::string& name, int64_t rows, int64_t in_features) {
  const WeightView view = store_.matrix(resolve(name), rows, in_features);
  weights_.num_parameters += rows * in_features;
  return view;
}

WeightFormat Loader::format_of(MatrixRole role, std::span<const WeightView> parts) {
  const bool has_fp8 = backend_.supports(WeightFormat::kFp8);
  const WeightFormat format = choose_format(quantization_, role, parts, has_fp8);
  if (format == WeightFormat::kAct && quantization_ == Quantization::kAuto) {
    widens_fp8_ |= std::ranges::any_of(parts, &WeightView::is_fp8);
  }
  if (role != MatrixRole::kFloat) weights_.formats.insert(format);
  return format;
}

std::unique_ptr<PackedLinear> Loader::pack(MatrixRole role, std::span<const WeightView> parts,
                                           bool gated) {
  auto packed =
      backend_.pack_linear({.parts = parts, .format = format_of(role, parts), .gated = gated});
  weights_.size_bytes += packed->size_bytes();
  return packed;
}

std::unique_ptr<PackedLinear> Loader::matrix(MatrixRole role, const std::vector<Part>& parts,
                                             int64_t in_features, bool gated) {
  std::vector<WeightView> views;
  for (const Part& part : parts) views.push_back(read_matrix(part.name, part.rows, in_features));
  auto packed = pack(role, views, gated);
  for (const Part& part : parts) release(part.name);
  return packed;
}

Buffer Loader::vector(const std::vector<Part>& parts) {
  std::vector<TensorView> views;
  for (const Part& part : parts) views.push_back(read(part.name, std::array{part.rows}));
  Buffer buffer = backend_.make_vector(views);
  weights_.size_bytes += static_cast<int64_t>(buffer.size_bytes());
  for (const Part& part : parts) release(part.name);
  return buffer;
}

LinearWeights Loader::linear(const std::vector<Part>& parts, int64_t in_features, bool bias,
                             bool gated) {
  LinearWeights linear;
  linear.weight = matrix(MatrixRole::kLayer, with_suffix(parts, ".weight"), in_features, gated);
  if (bias) linear.bias = vector(with_suffix(parts, ".bias"));
  return linear;
}

NormWeights Loader::norm(const std::string& name) {
  NormWeights norm;
  norm.weight = vector({{name + ".weight", config_.hidden_size}});
  if (config_.norm_kind == NormKind::kLayer) {
    norm.bias = vector({{name + ".bias", config_.hidden_size}});
  }
  return norm;
}

// A checkpoint may say "tied" and hold a head all the same; what it holds decides, as in
// transformers 5.
bool Loader::head_equals_embedding(const WeightView& embedding) {
  const WeightView head = store_.matrix(kHead, embedding.rows(), embedding.in_features());
  const auto same = [](const void* a, const void* b, int64_t num_bytes) {
    return std::memcmp(a, b, static_cast<size_t>(num_bytes)) == 0;
  };
  bool equal = head.values.dtype == embedding.values.dtype &&
               (head.mins == nullptr) == (embedding.mins == nullptr) &&
               same(head.values.data, embedding.values.data, embedding.values.size_bytes());
  if (equal && head.is_fp8()) {
    const auto num_scales = [](const WeightView& view) {
      return ((view.rows() + view.block_rows - 1) / view.block_rows) *
             ((view.in_features() + view.block_cols - 1) / view.block_cols);
    };
    equal = embedding.is_fp8() && head.block_rows == embedding.block_rows &&
            head.block_cols == embedding.block_cols &&
            same(head.block_scales, embedding.block_scales, num_scales(head) * 4);
  }
  if (equal && head.is_integer()) {
    const int64_t num_bytes = head.rows() * (head.in_features() / head.group_size) * 2;
    equal = same(head.scales, embedding.scales, num_bytes) &&
            (head.mins == nullptr || same(head.mins, embedding.mins, num_bytes));
  }
  store_.release(kHead);
  return equal;
}

// Before the layers that there are take time and memory.
void Loader::check_num_layers() const {
  const std::string last = str_cat(names_.root, "layers.", config_.num_layers - 1, ".",
                                   names_.attention_norm, ".weight");
  if (config_.random_weights || store_.contains(resolve(last))) return;
  throw CheckpointError(store_.source(), last,
                        str_cat("the checkpoint has no such tensor, and num_hidden_layers of "
                                "config.json is ",
                                config_.num_layers));
}

void Loader::load_embedding() {
  std::string name = names_.root + "embed_tokens.weight";
  if (config_.tie_word_embeddings && !store_.contains(resolve(name))) name = kHead;
  const int64_t embed_dim = config_.embed_dim != 0 ? config_.embed_dim : config_.hidden_size;
  const WeightView embedding = read_matrix(name, config_.vocab_size, embed_dim);
  const bool has_head = name != kHead && store_.contains(kHead);
  if (!has_head && !config_.tie_word_embeddings) {
    log_warning(store_.source(), ": no ", kHead, "; the embedding table serves as the head");
  }
  if (!has_head || (config_.tie_word_embeddings && head_equals_embedding(embedding))) {
    weights_.head = pack(MatrixRole::kVocabulary, std::array{embedding});
    weights_.embedding = backend_.embedding_from(*weights_.head);
  } else {
    if (config_.tie_word_embeddings) {
      log_warning(store_.source(), ": tie_word_embeddings is set, but ", kHead,
                  " differs from the embedding table; both are used");
    }
    weights_.embedding = backend_.make_embedding(
        embedding, format_of(MatrixRole::kVocabulary, std::array{embedding}));
    weights_.head = matrix(MatrixRole::kVocabulary, {{kHead, config_.vocab_size}}, embed_dim);
  }
  weights_.size_bytes += weights_.embedding->size_bytes();
  release(name);

  if (config_.learned_positions) {
    const std::string positions = names_.root + "embed_positions.weight";
    const int64_t rows = int64_t{config_.max_position_embeddings} + config_.learned_position_offset;
    weights_.positions = backend_.make_embedding(read_matrix(positions, rows, config_.hidden_size),
                                                 WeightFormat::kAct);
    weights_.size_bytes += weights_.positions->size_bytes();
    release(positions);
  }
  if (config_.embed_dim != 0) {
    weights_.project_in =
        matrix(MatrixRole::kLayer, {{names_.root + "project_in.weight", config_.hidden_size}},
               config_.embed_dim);
    weights_.project_out =
        matrix(MatrixRole::kLayer, {{names_.root + "project_out.weight", config_.embed_dim}},
               config_.hidden_size);
  }
}

LayerWeights Loader::load_layer(int index) {
  const std::string layer = str_cat(names_.root, "layers.", index, ".");
  const std::string attention = layer + "self_attn.";
  const int64_t hidden = config_.hidden_size;
  const int64_t q_rows = int64_t{config_.num_heads} * config_.head_dim;
  const int64_t kv_rows = int64_t{config_.num_kv_heads} * config_.head_dim;
  LayerWeights weights;
  weights.attention_norm = norm(layer + names_.attention_norm);
  weights.qkv = linear({{attention + "q_proj", q_rows},
                        {attention + "k_proj", kv_rows},
                        {attention + "v_proj", kv_rows}},
                       hidden, config_.qkv_bias);
  if (config_.qk_norm) {
    weights.q_norm = vector({{attention + "q_norm.weight", config_.head_dim}});
    weights.k_norm = vector({{attention + "k_norm.weight", config_.head_dim}});
  }
  weights.attention_out =
      linear({{layer + names_.attention_out, hidden}}, q_rows, config_.out_bias);
  weights.mlp_norm = norm(layer + names_.mlp_norm);
  if (config_.num_experts > 0) {
    weights.experts = load_experts(layer);
    return weights;
  }
  std::vector<Part> mlp_in;
  for (const std::string& name : names_.mlp_in) {
    mlp_in.push_back({layer + name, config_.intermediate_size});
  }
  weights.mlp_in = linear(mlp_in, hidden, config_.mlp_bias, config_.gated_mlp);
  weights.mlp_out =
      linear({{layer + names_.mlp_out, hidden}}, config_.intermediate_size, config_.mlp_bias);
  return weights;
}

// Two layouts are in use: a matrix an expert under block_sparse_moe (what transformers writes), or
// all experts stacked in one tensor under mlp (what transformers 5 holds in memory).
ExpertWeights Loader::load_experts(const std::string& layer) {
  ExpertWeights experts;
  const bool is_stacked = store_.contains(resolve(layer + "mlp.experts.gate_up_proj"));
  const std::string block = layer + (is_stacked ? "mlp." : "block_sparse_moe.");
  experts.router = matrix(MatrixRole::kFloat, {{block + "gate.weight", config_.num_experts}},
                          config_.hidden_size);
  if (is_stacked) {
    load_experts_stacked(block + "experts.", experts);
  } else {
    load_experts_apart(block + "experts.", experts);
  }
  check_alike(block + "experts", experts);
  return experts;
}

// Products of all experts of a layer are one operation.
void Loader::check_alike(const std::string& name, const ExpertWeights& experts) const {
  const auto differs = [](const std::vector<const PackedLinear*>& weights) {
    return std::ranges::any_of(weights, [&](const PackedLinear* weight) {
      return weight->format() != weights.front()->format();
    });
  };
  if (!differs(experts.gate_up) && !differs(experts.down)) return;
  throw CheckpointError(store_.source(), name,
                        "experts of a layer are stored in different formats; give "
                        "quantization='none', or one that makes them alike");
}

void Loader::add_expert(ExpertWeights& experts, const WeightView& gate, const WeightView& up,
                        const WeightView& down) {
  experts.storage.push_back(pack(MatrixRole::kLayer, std::array{gate, up}, /*gated=*/true));
  experts.gate_up.push_back(experts.storage.back().get());
  experts.storage.push_back(pack(MatrixRole::kLayer, std::array{down}));
  experts.down.push_back(experts.storage.back().get());
}

void Loader::load_experts_apart(const std::string& block, ExpertWeights& experts) {
  const int64_t hidden = config_.hidden_size;
  const int64_t inner = config_.intermediate_size;
  for (int expert = 0; expert < config_.num_experts; ++expert) {
    const std::string prefix = str_cat(block, expert, ".");
    const std::string gate = prefix + "w1.weight";
    const std::string up = prefix + "w3.weight";
    const std::string down = prefix + "w2.weight";
    add_expert(experts, read_matrix(gate, inner, hidden), read_matrix(up, inner, hidden),
               read_matrix(down, hidden, inner));
    for (const std::string& name : {gate, up, down}) release(name);
  }
}

void Loader::load_experts_stacked(const std::string& block, ExpertWeights& experts) {
  const int64_t hidden = config_.hidden_size;
  const int64_t inner = config_.intermediate_size;
  const int64_t count = config_.num_experts;
  const std::string gate_up_name = block + "gate_up_proj";
  const std::string down_name = block + "down_proj";
  const TensorView gate_up = read(gate_up_name, std::array{count, 2 * inner, hidden});
  const TensorView down = read(down_name, std::array{count, hidden, inner});
  // Rows [index * num_rows, + num_rows) of the stack taken as one tall matrix.
  const auto slice = [](const TensorView& stack, int64_t index, int64_t num_rows) {
    const int64_t row_bytes = stack.shape[2] * static_cast<int64_t>(size_of(stack.dtype));
    return WeightView{
        .values = {.data = static_cast<const char*>(stack.data) + index * num_rows * row_bytes,
                   .dtype = stack.dtype,
                   .shape = {num_rows, stack.shape[2]}}};
  };
  for (int64_t expert = 0; expert < count; ++expert) {
    add_expert(experts, slice(gate_up, 2 * expert, inner), slice(gate_up, 2 * expert + 1, inner),
               slice(down, expert, hidden));
  }
  release(gate_up_name);
  release(down_name);
}

void Loader::warn_about_unused() const {
  // The last three: scales of activations and of the cache, which are not rounded to 8-bit floats.
  constexpr std::array<std::string_view, 6> kHarmless = {
      "rotary_emb.inv_freq", "masked_bias", kHead, ".input_scale", ".k_scale", ".v_scale"};
  constexpr size_t kMaxNames = 5;
  std::vector<std::string> names = store_.unused();
  std::erase_if(names, [&](const std::string& name) {
    return std::any_of(kHarmless.begin(), kHarmless.end(),
                       [&](std::string_view suffix) { return name.ends_with(suffix); });
  });
  if (names.empty()) return;
  std::string list;
  for (size_t i = 0; i < std::min(names.size(), kMaxNames); ++i) {
    list += str_cat(i == 0 ? "" : ", ", names[i]);
  }
  log_warning(store_.source(), ": ", names.size(), " tensors are not used by ",
              config_.architecture, ": ", list, names.size() > kMaxNames ? ", ..." : "");
}

DecoderWeights Loader::load() {
  check_num_layers();
  load_embedding();
  for (int layer = 0; layer < config_.num_layers; ++layer) {
    weights_.layers.push_back(load_layer(layer));
  }
  if (config_.final_norm) weights_.final_norm = norm(names_.root + names_.final_norm);
  if (widens_fp8_) {
    log_info(store_.source(), ": some 8-bit floats are held as ", name_of(backend_.act_dtype()),
             ": ", backend_.device_info().name,
             " has no products with them, or they are fused with weights of another kind");
  }
  warn_about_unused();
  return std::move(weights_);
}

}  // namespace

DecoderWeights load_decoder_weights(const ModelConfig& config, const std::string& directory,
                                    Quantization quantization, Backend& backend) {
  if (quantization == Quantization::kFp8 && !backend.supports(WeightFormat::kFp8)) {
    throw InvalidArgument(
        "quantization", str_cat("'fp8' needs a GPU: ", backend.device_info().name,
                                " has no products with 8-bit floats; use 'int8' or leave it out"));
  }
  return Loader(config, directory, quantization, backend).load();
}

}  // namespace specdec
