#include "model/tensor_loader.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <list>
#include <numeric>
#include <optional>

#include "core/check.h"
#include "core/log.h"
#include "core/str_cat.h"
#include "model/gathered_rows.h"
#include "specdec/error.h"

namespace specdec {
namespace {

std::vector<TensorPart> with_suffix(std::vector<TensorPart> parts, std::string_view suffix) {
  for (TensorPart& part : parts) part.name += suffix;
  return parts;
}

// Slices along the first extent.
TensorView slice(const TensorView& tensor, RowRange rows) {
  TensorView view = tensor;
  view.shape[0] = rows.count;
  const int64_t row_bytes = tensor.size_bytes() / tensor.shape[0];
  if (tensor.data != nullptr) {
    view.data = static_cast<const char*>(tensor.data) + rows.begin * row_bytes;
  }
  return view;
}

// The tensor to name in errors.
struct TensorSource {
  const std::string& source;
  const std::string& name;
};

// Rows `rows` of a tensor; `held` has its rows from `first` on.
WeightView rows_of(const WeightView& held, int64_t first, RowRange rows,
                   const TensorSource& tensor) {
  const int64_t begin = rows.begin - first;  // in `held`
  WeightView view = held;
  view.values = slice(held.values, {begin, rows.count});
  if (held.random.is_set()) view.random.first += begin * held.in_features();
  if (held.scales != nullptr) {
    const int64_t num_groups = held.in_features() / held.group_size;
    view.scales += begin * num_groups;
    if (view.mins != nullptr) view.mins += begin * num_groups;
    if (view.zeros != nullptr) view.zeros += begin * num_groups;
  }
  if (held.block_scales != nullptr) {
    const int64_t block = rows.begin / held.block_rows;
    if (block != (rows.end() - 1) / held.block_rows && rows.begin % held.block_rows != 0) {
      throw CheckpointError(tensor.source, tensor.name,
                            str_cat("its rows from ", rows.begin,
                                    " on are used by themselves, but "
                                    "share scales with those before, in blocks of ",
                                    held.block_rows));
    }
    view.block_scales += (block - first / held.block_rows) *
                         ((held.in_features() + held.block_cols - 1) / held.block_cols);
  }
  return view;
}

// The pieces that `order` lists. Adjacent pieces are read as one run.
std::vector<WeightView> pieces_of(const TensorSource& tensor, std::span<const RowRange> order,
                                  const std::function<WeightView(RowRange)>& read) {
  std::vector<WeightView> pieces(order.size());
  std::vector<size_t> by_row(order.size());
  std::iota(by_row.begin(), by_row.end(), size_t{0});
  std::ranges::stable_sort(by_row, {}, [&](size_t i) { return order[i].begin; });
  for (size_t next = 0; next < by_row.size();) {
    RowRange run = order[by_row[next]];
    size_t end = next + 1;
    for (; end < by_row.size() && order[by_row[end]].begin == run.end(); ++end) {
      run.count += order[by_row[end]].count;
    }
    const WeightView held = read(run);
    for (; next < end; ++next) {
      const size_t piece = by_row[next];
      pieces[piece] = rows_of(held, run.begin, order[piece], tensor);
    }
  }
  return pieces;
}

int64_t num_rows(std::span<const TensorPart> parts) {
  int64_t count = 0;
  for (const TensorPart& part : parts) {
    for (const RowRange& rows : part.order) count += rows.count;
  }
  return count;
}

// Rows [begin, end) of the parts laid one after another.
std::vector<TensorPart> rows_between(std::span<const TensorPart> parts, int64_t begin,
                                     int64_t end) {
  std::vector<TensorPart> cut;
  int64_t first = 0;  // of the piece
  for (const TensorPart& part : parts) {
    TensorPart own = {.name = part.name, .rows = part.rows};
    for (const RowRange& rows : part.order) {
      const int64_t from = std::max(begin - first, int64_t{0});
      const int64_t to = std::min(end - first, rows.count);
      if (from < to) own.order.push_back({rows.begin + from, to - from});
      first += rows.count;
    }
    if (!own.order.empty()) cut.push_back(std::move(own));
  }
  return cut;
}

// Whether both are null, or both have the same bytes.
bool same(const void* a, const void* b, int64_t num_bytes) {
  if (a == nullptr || b == nullptr) return a == b;
  return std::memcmp(a, b, static_cast<size_t>(num_bytes)) == 0;
}

// Whether two matrices of one shape have equal bytes.
bool same_bytes(const WeightView& a, const WeightView& b) {
  if (a.values.dtype != b.values.dtype || a.group_size != b.group_size ||
      a.block_rows != b.block_rows || a.block_cols != b.block_cols) {
    return false;
  }
  const int64_t num_groups = a.group_size > 0 ? a.rows() * (a.in_features() / a.group_size) : 0;
  const auto blocks = [](int64_t extent, int64_t size) {
    return size > 0 ? (extent + size - 1) / size : 0;
  };
  const int64_t num_blocks = blocks(a.rows(), a.block_rows) * blocks(a.in_features(), a.block_cols);
  return same(a.values.data, b.values.data, a.values.size_bytes()) &&
         same(a.scales, b.scales, num_groups * 2) && same(a.mins, b.mins, num_groups * 2) &&
         same(a.input_order, b.input_order, a.in_features() * 4) &&
         same(a.zeros, b.zeros, num_groups) && same(a.table, b.table, 16) &&
         same(a.block_scales, b.block_scales, num_blocks * 4);
}

// Parts whose columns a packed matrix can have in their order: those that it cannot are converted
// to float32, with their inputs in order.
class InInputOrder {
 public:
  InInputOrder(std::span<const WeightView> parts, bool keeps_order)
      : parts_(parts.begin(), parts.end()) {
    for (WeightView& part : parts_) {
      if (keeps_order || part.input_order == nullptr) continue;
      std::vector<float>& values = values_.emplace_back();
      values.resize(static_cast<size_t>(part.rows() * part.in_features()));
      for (int64_t row = 0; row < part.rows(); ++row) {
        dequantize_row(part, row, values.data() + row * part.in_features());
      }
      part = {.values = {.data = values.data(),
                         .dtype = DType::kF32,
                         .shape = {part.rows(), part.in_features()}}};
    }
  }
  std::span<const WeightView> parts() const { return parts_; }

 private:
  std::vector<WeightView> parts_;
  std::list<std::vector<float>> values_;
};

// Of checkpoints whose network is the text part of another. The others are of its other parts.
constexpr auto kTextPrefixes =
    std::to_array<std::string_view>({"language_model.", "model.language_model."});
constexpr auto kOtherParts = std::to_array<std::string_view>(
    {"vision_tower.", "vision_model.", "multi_modal_projector.", "visual.", "audio_tower.",
     "embed_vision.", "embed_audio.", "vision_embedder.", "image_newline"});

bool is_of_another_part(std::string_view name) {
  if (name.starts_with("model.")) name.remove_prefix(6);
  return std::ranges::any_of(kOtherParts,
                             [&](std::string_view part) { return name.starts_with(part); });
}

// The index in the name of a layer's tensor, and what follows the dot behind it.
struct LayerTensor {
  int layer = 0;
  std::string_view rest;
};
std::optional<LayerTensor> layer_tensor(std::string_view name, const ModelConfig& config) {
  std::string_view layers = config.names.layers;  // which stands behind any prefix
  if (layers.starts_with(config.names.prefix)) layers.remove_prefix(config.names.prefix.size());
  const size_t begin = name.find(layers);
  if (begin == std::string_view::npos) return {};
  name.remove_prefix(begin + layers.size());
  LayerTensor found;
  const char* const end = name.data() + name.size();
  const auto parsed = std::from_chars(name.data(), end, found.layer);
  if (parsed.ec != std::errc() || parsed.ptr == end || found.layer < 0) return {};
  found.rest = {parsed.ptr + 1, end};
  return found;
}

// Of layers that predict tokens after the next: beside the others, or behind them.
bool is_of_mtp(std::string_view name, const ModelConfig& config) {
  if (name.starts_with("mtp.") || name.starts_with("model.mtp_")) return true;
  const auto tensor = layer_tensor(name, config);
  return tensor && tensor->layer >= config.num_layers &&
         tensor->layer - config.num_layers < config.num_mtp_layers;
}

// Of the projections to k and v, and their norms, in layers that read another layer's keys and
// values.
bool is_of_unused_kv(std::string_view name, const ModelConfig& config) {
  const auto tensor = layer_tensor(name, config);
  if (!tensor || tensor->layer >= config.num_layers) return false;
  const TensorNames& names = config.names;
  return config.layers[tensor->layer].kv_source >= 0 &&
         std::ranges::any_of(std::array{names.qkv[1], names.qkv[2], names.k_norm},
                             [&](std::string_view own) { return tensor->rest.starts_with(own); });
}

StoredScheme scheme_of(const ModelConfig& config, Quantization quantization) {
  StoredScheme scheme = config.scheme;
  scheme.keeps_codes = quantization != Quantization::kNone;
  return scheme;
}

}  // namespace

TensorLoader::TensorLoader(const ModelConfig& config, const std::string& directory,
                           Quantization quantization, Backend& backend,
                           const RankCoordinates& coordinates)
    : config_(config),
      quantization_(quantization),
      store_(config.random_weights
                 ? WeightStore::random(config, !backend.makes_random_weights())
                 : WeightStore(directory, scheme_of(config, quantization), &backend.thread_pool())),
      backend_(backend),
      shard_(config, coordinates) {}

// Checkpoints of a network without its LM head may lack the leading "model.", and those of draft
// heads may have one more. A text part has a prefix of its own, with or without "model.".
std::string TensorLoader::resolve(const std::string& name) const {
  const std::string_view prefix = config_.names.prefix;
  if (store_.contains(name)) return name;
  const bool has_prefix = name.starts_with(prefix);
  const std::string bare = has_prefix ? name.substr(prefix.size()) : name;
  const std::string other = has_prefix ? bare : str_cat(prefix, name);
  if (store_.contains(other)) return other;
  for (const std::string_view text : kTextPrefixes) {
    for (const std::string& candidate : {str_cat(text, name), str_cat(text, bare)}) {
      if (store_.contains(candidate)) return candidate;
    }
  }
  return name;
}

void TensorLoader::count(const std::string& name, int64_t num_parameters) {
  if (counted_.insert(name).second) num_parameters_ += num_parameters;
}

TensorView TensorLoader::read(const std::string& name, std::span<const int64_t> shape) {
  const std::string found = resolve(name);
  TensorView view = store_.tensor(found, shape);
  count(found, view.num_elements());
  return view;
}

WeightView TensorLoader::read_matrix(const std::string& name, int64_t rows, int64_t in_features) {
  const std::string found = resolve(name);
  const WeightView view = store_.matrix(found, rows, in_features);
  // The file has so many elements, so the product does not overflow
  count(found, rows * in_features);
  return view;
}

bool TensorLoader::is_equal(const std::string& name, const WeightView& other) {
  const WeightView view = store_.matrix(resolve(name), other.rows(), other.in_features());
  if (view.random.is_set() || other.random.is_set()) return view.random == other.random;
  const bool equal = same_bytes(view, other);
  release(name);
  return equal;
}

std::vector<WeightView> TensorLoader::read_rows(const TensorPart& part, int64_t in_features) {
  const std::string name = resolve(part.name);
  auto pieces = pieces_of({.source = source(), .name = part.name}, part.order, [&](RowRange run) {
    return store_.matrix(name, part.rows, in_features, run);
  });
  count(name, part.rows * in_features);
  return pieces;
}

WeightView TensorLoader::read_stack(const std::string& name, std::array<int64_t, 3> shape,
                                    RowRange own) {
  const std::string found = resolve(name);
  const WeightView rows = store_.stack_rows(found, shape, own);
  count(found, shape[0] * shape[1] * shape[2]);
  return rows;
}

WeightView TensorLoader::rows_of(const std::string& name, const WeightView& matrix,
                                 RowRange rows) const {
  return specdec::rows_of(matrix, 0, rows, {.source = source(), .name = name});
}

std::vector<float> TensorLoader::read_floats(const std::string& name,
                                             std::initializer_list<int64_t> shape) {
  const TensorView view = read(name, {shape.begin(), shape.size()});
  std::vector<float> values(static_cast<size_t>(view.num_elements()));
  to_floats(view.data, view.dtype, values.size(), values.data());
  release(name);
  return values;
}

float TensorLoader::scalar(const std::string& name) {
  if (config_.random_weights) return 0.5f;
  const TensorView view = read(name, store_.shape(resolve(name)));
  if (view.num_elements() != 1) store_.fail(name, "expected one element");
  float value = 0.0f;
  to_floats(view.data, view.dtype, 1, &value);
  release(name);
  return value;
}

WeightFormat TensorLoader::format_of(MatrixRole role, std::span<const WeightView> parts) {
  const WeightFormat format =
      choose_format(quantization_, role, parts,
                    [&](WeightFormat candidate) { return backend_.supports(candidate); });
  if (format == WeightFormat::kAct && quantization_ == Quantization::kAuto) {
    widens_fp8_ |= std::ranges::any_of(parts, &WeightView::is_fp8);
    widens_integers_ |= std::ranges::any_of(parts, &WeightView::is_integer);
  }
  if (role != MatrixRole::kFloat) formats_.insert(format);
  return format;
}

std::unique_ptr<const PackedLinear> TensorLoader::pack(MatrixRole role,
                                                       std::span<const WeightView> parts,
                                                       MatrixForm form) {
  const WeightFormat format = format_of(role, parts);
  const InInputOrder ordered(parts, keeps_input_order(role, parts, format));
  PackArgs args = {.parts = ordered.parts(), .format = format, .gated = form.gated};
  if (form.sums != nullptr) {
    args.k_slices = &form.sums->slices;
    args.rank_runs = form.sums->rank_runs;
    if (!form.sums->rank_runs.empty()) args.ranks = shard_.ranks();
  }
  if (!form.rank_outputs.empty()) {
    args.ranks = shard_.ranks();
    args.rank_outputs = form.rank_outputs;
  }
  auto packed = backend_.pack_linear(args);
  size_bytes_ += packed->size_bytes();
  return packed;
}

std::unique_ptr<const EmbeddingTable> TensorLoader::table(WeightFormat format,
                                                          const WeightView& weights) {
  const InInputOrder ordered({&weights, 1}, false);
  auto table = backend_.make_embedding(ordered.parts().front(), format);
  size_bytes_ += table->size_bytes();
  return table;
}

std::unique_ptr<const EmbeddingTable> TensorLoader::table_of(const PackedLinear& weights) {
  auto table = backend_.embedding_from(weights);
  size_bytes_ += table->size_bytes();
  return table;
}

std::unique_ptr<const PackedLinear> TensorLoader::matrix(MatrixRole role,
                                                         const std::vector<TensorPart>& parts,
                                                         int64_t in_features, MatrixForm form) {
  const bool shares_outputs = role == MatrixRole::kVocabulary && !shard_.is_whole();
  std::vector<int64_t> rank_outputs;
  std::vector<TensorPart> own = parts;
  for (TensorPart& part : own) {
    if (part.order.empty()) part.order = {{0, part.rows}};
  }
  if (shares_outputs) {
    rank_outputs = shard_.vocabulary(num_rows(own));
    const auto rank = static_cast<size_t>(shard_.ranks()->rank());
    own = rows_between(own, rank_outputs[rank], rank_outputs[rank + 1]);
  }
  std::vector<WeightView> views;
  std::list<GatheredRows> gathered;
  constexpr size_t kMaxPieces = 8;  // a packer looks for the piece of each row
  for (const TensorPart& part : own) {
    const std::vector<WeightView> pieces = read_rows(part, in_features);
    if (pieces.size() > kMaxPieces && !pieces.front().random.is_set()) {
      views.push_back(gathered.emplace_back(pieces).view());
    } else {
      views.insert(views.end(), pieces.begin(), pieces.end());
    }
  }
  form.rank_outputs = rank_outputs;
  auto packed = pack(role, views, form);
  for (const TensorPart& part : parts) release(part.name);
  return packed;
}

std::unique_ptr<const PackedLinear> TensorLoader::columns(MatrixRole role, const WeightView& matrix,
                                                          int64_t begin, int64_t count) {
  SPECDEC_CHECK(!matrix.is_integer() && begin + count <= matrix.in_features());
  if (count == matrix.in_features()) return pack(role, std::array{matrix});
  if (matrix.is_fp8()) {
    // Block scales may straddle the cut.
    std::vector<float> row(static_cast<size_t>(matrix.in_features()));
    std::vector<float> values;
    for (int64_t i = 0; i < matrix.rows(); ++i) {
      dequantize_row(matrix, i, row.data());
      values.insert(values.end(), row.begin() + begin, row.begin() + begin + count);
    }
    const WeightView part = {
        .values = {.data = values.data(), .dtype = DType::kF32, .shape = {matrix.rows(), count}}};
    return pack(role, std::array{part});
  }
  const auto element = static_cast<int64_t>(size_of(matrix.values.dtype));
  std::vector<std::byte> cut(static_cast<size_t>(matrix.rows() * count * element));
  const auto* from = static_cast<const std::byte*>(matrix.values.data) + begin * element;
  for (int64_t row = 0; row < matrix.rows(); ++row) {
    if (matrix.random.is_set()) {
      RandomSource part = matrix.random;
      part.first += row * matrix.in_features() + begin;
      fill_random(part, matrix.values.dtype, count,
                  &cut[static_cast<size_t>(row * count * element)]);
      continue;
    }
    std::copy_n(from + row * matrix.in_features() * element, count * element,
                &cut[static_cast<size_t>(row * count * element)]);
  }
  const WeightView part = {.values = {.data = cut.data(),
                                      .dtype = matrix.values.dtype,
                                      .shape = {matrix.rows(), count}}};
  return pack(role, std::array{part});
}

std::unique_ptr<const PackedLinear> TensorLoader::with_factors(MatrixRole role,
                                                               const std::string& name,
                                                               int64_t rows,
                                                               std::span<const float> factors) {
  const size_t width = factors.size();
  const WeightView matrix = read_matrix(name, rows, static_cast<int64_t>(width));
  std::vector<float> values(static_cast<size_t>(rows) * width);
  for (int64_t i = 0; i < rows; ++i) {
    float* const row = &values[static_cast<size_t>(i) * width];
    if (matrix.random.is_set()) {
      RandomSource part = matrix.random;
      part.first += i * static_cast<int64_t>(width);
      std::vector<std::byte> stored(width * size_of(matrix.values.dtype));
      fill_random(part, matrix.values.dtype, width, stored.data());
      to_floats(stored.data(), matrix.values.dtype, width, row);
    } else if (matrix.is_quantized()) {
      dequantize_row(matrix, i, row);
    } else {
      const auto row_bytes = static_cast<int64_t>(width * size_of(matrix.values.dtype));
      to_floats(static_cast<const std::byte*>(matrix.values.data) + i * row_bytes,
                matrix.values.dtype, width, row);
    }
    for (size_t j = 0; j < width; ++j) row[j] *= factors[j];
  }
  release(name);
  const WeightView scaled = {.values = {.data = values.data(),
                                        .dtype = DType::kF32,
                                        .shape = {rows, static_cast<int64_t>(width)}}};
  return pack(role, std::array{scaled});
}

Buffer TensorLoader::vector(const std::vector<TensorPart>& parts) {
  std::vector<TensorView> views;
  for (const TensorPart& part : parts) {
    const TensorView whole = read(part.name, std::array{part.rows});
    if (part.order.empty()) views.push_back(whole);
    for (const RowRange& rows : part.order) views.push_back(slice(whole, rows));
  }
  Buffer buffer = backend_.make_vector(views);
  size_bytes_ += static_cast<int64_t>(buffer.size_bytes());
  for (const TensorPart& part : parts) release(part.name);
  return buffer;
}

Buffer TensorLoader::vector_of(std::span<const float> values) {
  const TensorView view = {
      .data = values.data(), .dtype = DType::kF32, .shape = {static_cast<int64_t>(values.size())}};
  Buffer buffer = backend_.make_vector(std::array{view});
  size_bytes_ += static_cast<int64_t>(buffer.size_bytes());
  return buffer;
}

Buffer TensorLoader::flat_vector(const std::string& name, int64_t size) {
  const std::vector<int64_t> shape =
      config_.random_weights ? std::vector{size} : store_.shape(resolve(name));
  const TensorView view = read(name, shape);
  SPECDEC_CHECK_EQ(view.num_elements(), size);
  Buffer buffer = backend_.make_vector(std::array{view});
  size_bytes_ += static_cast<int64_t>(buffer.size_bytes());
  release(name);
  return buffer;
}

Buffer TensorLoader::norm_weights(const TensorPart& part, float scale) {
  if (config_.norm_offset == 0.0f && scale == 1.0f) return vector({part});
  SPECDEC_CHECK(part.order.empty());  // no family needs both
  const TensorView stored = read(part.name, std::array{part.rows});
  std::vector<float> weights(static_cast<size_t>(part.rows));
  to_floats(stored.data, stored.dtype, weights.size(), weights.data());
  for (float& weight : weights) weight = (weight + config_.norm_offset) * scale;
  release(part.name);
  return vector_of(weights);
}

float TensorLoader::rounded(float value) const {
  switch (backend_.act_dtype()) {
    case DType::kBF16:
      return to_float(to_bfloat16(value));
    case DType::kF16:
      return half_to_float(float_to_half(value));
    default:
      return value;
  }
}

Linear TensorLoader::linear(const std::vector<TensorPart>& parts, int64_t in_features, bool bias,
                            MatrixForm form) {
  Linear linear;
  linear.weight = matrix(MatrixRole::kLayer, with_suffix(parts, ".weight"), in_features, form);
  if (bias) linear.bias = vector(with_suffix(parts, ".bias"));
  return linear;
}

Norm TensorLoader::norm(const std::string& name, int64_t size, float scale) {
  Norm norm;
  norm.kind = config_.norm_kind;
  norm.eps = config_.norm_eps;
  norm.weight = norm_weights({name + ".weight", size}, scale);
  if (norm.kind == NormKind::kLayer && config_.norm_bias) {
    SPECDEC_CHECK_EQ(scale, 1.0f);  // no family needs both
    norm.bias = vector({{name + ".bias", size}});
  }
  return norm;
}

// Some tools write zeros beside codes for a bias that the network lacks. Throws CheckpointError for
// other values.
bool TensorLoader::is_empty_bias(const std::string& name) {
  constexpr std::string_view kBias = ".bias";
  if (!name.ends_with(kBias)) return false;
  const std::string matrix = str_cat(name.substr(0, name.size() - kBias.size()), ".weight");
  if (find_layout(store_, matrix, config_.scheme) == StoredLayout::kPlain) return false;
  const TensorView bias = store_.tensor(name, store_.shape(name));
  std::vector<float> values(static_cast<size_t>(bias.num_elements()));
  to_floats(bias.data, bias.dtype, values.size(), values.data());
  if (std::ranges::any_of(values, [](float value) { return value != 0.0f; })) {
    store_.fail(name, str_cat("is not zero, and ", config_.architecture, " has no such bias"));
  }
  return true;
}

void TensorLoader::warn_about_unused() {
  // Expected extra tensors: scales of activations and of the cache, which are not rounded here,
  // what tools note beside codes, and the draft vocabulary of a draft head, which was read before
  // its matrices.
  const std::string lm_head = str_cat(config_.names.lm_head, ".weight");
  const auto harmless = std::to_array<std::string_view>(
      {"rotary_emb.inv_freq", "masked_bias", lm_head, ".input_scale", ".activation_scale",
       ".input_global_scale", ".q_scale", ".k_scale", ".v_scale", ".weight_shape", ".quant_state",
       ".bitsandbytes__nf4", ".bitsandbytes__fp4", ".weight_format", ".correct_output_scale", "d2t",
       "t2d", "token_map", "token_ordering"});
  constexpr size_t kMaxNames = 5;
  std::vector<std::string> names = store_.unused();
  std::erase_if(names, [&](const std::string& name) {
    if (is_of_another_part(name) || is_of_mtp(name, config_) || is_of_unused_kv(name, config_) ||
        is_empty_bias(name)) {
      return true;
    }
    return std::any_of(harmless.begin(), harmless.end(),
                       [&](std::string_view suffix) { return name.ends_with(suffix); });
  });
  if (names.empty()) return;
  std::string list;
  for (size_t i = 0; i < std::min(names.size(), kMaxNames); ++i) {
    list += str_cat(i == 0 ? "" : ", ", names[i]);
  }
  log_warning(source(), ": ", names.size(), " tensors are not used by ", config_.architecture, ": ",
              list, names.size() > kMaxNames ? ", ..." : "");
}

void TensorLoader::finish(LoadedParts& loaded, bool is_part) {
  if (widens_fp8_) {
    log_info(source(), ": some 8-bit floats are held as ", name_of(backend_.act_dtype()), ": ",
             backend_.device_info().name,
             " has no products with them, or they are fused with weights of another kind");
  }
  if (widens_integers_) {
    log_info(
        source(), ": some matrices of integers are held as ", name_of(backend_.act_dtype()),
        ": they are fused with weights of another kind, or have an order of inputs (act-order) "
        "that experts, heads and fused parts of several orders cannot keep");
  }
  for (const auto& [reason, names] : store_.widened()) {
    log_info(source(), ": ", names.size(), " matrices (", names.front(),
             names.size() > 1 ? ", ..." : "", ") are held as ", name_of(backend_.act_dtype()), ": ",
             reason);
  }
  if (!config_.unknown_keys.empty()) {
    log_warning(config_.unknown_keys,
                " is not known, and taken to change nothing that is computed");
  }
  // A stage leaves other stages' tensors.
  if (shard_.coordinates().num_stages == 1 && !is_part) warn_about_unused();
  loaded.num_parameters = num_parameters_;
  loaded.size_bytes = size_bytes_;
  loaded.bytes_read = store_.bytes_read();
  loaded.formats = formats_;
}

}  // namespace specdec
