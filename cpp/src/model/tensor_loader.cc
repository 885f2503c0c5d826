#include "model/tensor_loader.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>

#include "core/check.h"
#include "core/log.h"
#include "core/str_cat.h"
#include "specdec/error.h"

namespace specdec {
namespace {

std::vector<TensorPart> with_suffix(std::vector<TensorPart> parts, std::string_view suffix) {
  for (TensorPart& part : parts) part.name += suffix;
  return parts;
}

// Along the first extent.
TensorView slice(const TensorView& tensor, RowRange rows) {
  TensorView view = tensor;
  view.shape[0] = rows.count;
  const int64_t row_bytes = tensor.size_bytes() / tensor.shape[0];
  if (tensor.data != nullptr) {
    view.data = static_cast<const char*>(tensor.data) + rows.begin * row_bytes;
  }
  return view;
}

bool same(const void* a, const void* b, int64_t num_bytes) {
  return std::memcmp(a, b, static_cast<size_t>(num_bytes)) == 0;
}

}  // namespace

TensorLoader::TensorLoader(const ModelConfig& config, const std::string& directory,
                           Quantization quantization, Backend& backend, const RankPlace& place)
    : config_(config),
      quantization_(quantization),
      store_(config.random_weights ? WeightStore::random(config, !backend.makes_random_weights())
                                   : WeightStore(directory, config.scale_block)),
      backend_(backend),
      shard_(config, place) {}

// Checkpoints of the network without its head may lack the leading "model.", and those of draft
// heads may have one.
std::string TensorLoader::resolve(const std::string& name) const {
  const std::string_view prefix = config_.names.prefix;
  if (store_.contains(name)) return name;
  const std::string other =
      name.starts_with(prefix) ? name.substr(prefix.size()) : str_cat(prefix, name);
  return store_.contains(other) ? other : name;
}

TensorView TensorLoader::read(const std::string& name, std::span<const int64_t> shape) {
  TensorView view = store_.tensor(resolve(name), shape);
  num_parameters_ += view.num_elements();
  return view;
}

WeightView TensorLoader::read_matrix(const std::string& name, int64_t rows, int64_t in_features) {
  const WeightView view = store_.matrix(resolve(name), rows, in_features);
  num_parameters_ += rows * in_features;
  return view;
}

bool TensorLoader::is_equal(const std::string& name, const WeightView& other) {
  const WeightView view = store_.matrix(resolve(name), other.rows(), other.in_features());
  if (view.random.is_set() || other.random.is_set()) return view.random == other.random;
  bool equal = view.values.dtype == other.values.dtype &&
               (view.mins == nullptr) == (other.mins == nullptr) &&
               same(view.values.data, other.values.data, other.values.size_bytes());
  if (equal && view.is_fp8()) {
    const auto num_scales = [](const WeightView& matrix) {
      return ((matrix.rows() + matrix.block_rows - 1) / matrix.block_rows) *
             ((matrix.in_features() + matrix.block_cols - 1) / matrix.block_cols);
    };
    equal = other.is_fp8() && view.block_rows == other.block_rows &&
            view.block_cols == other.block_cols &&
            same(view.block_scales, other.block_scales, num_scales(view) * 4);
  }
  if (equal && view.is_integer()) {
    const int64_t num_bytes = view.rows() * (view.in_features() / view.group_size) * 2;
    equal = same(view.scales, other.scales, num_bytes) &&
            (view.mins == nullptr || same(view.mins, other.mins, num_bytes));
  }
  release(name);
  return equal;
}

WeightView TensorLoader::rows_of(const WeightView& matrix, RowRange rows,
                                 const std::string& name) const {
  WeightView view = matrix;
  view.values = slice(matrix.values, rows);
  if (matrix.random.is_set()) view.random.first += rows.begin * matrix.in_features();
  if (matrix.is_integer()) {
    const int64_t num_groups = matrix.in_features() / matrix.group_size;
    view.scales += rows.begin * num_groups;
    if (view.mins != nullptr) view.mins += rows.begin * num_groups;
  }
  if (matrix.is_fp8()) {
    const int64_t first = rows.begin / matrix.block_rows;
    const int64_t last = (rows.begin + rows.count - 1) / matrix.block_rows;
    if (first != last && rows.begin % matrix.block_rows != 0) {
      throw CheckpointError(source(), name,
                            str_cat("its rows from ", rows.begin,
                                    " on are used by themselves, but "
                                    "share scales with those before, in blocks of ",
                                    matrix.block_rows));
    }
    view.block_scales +=
        first * ((matrix.in_features() + matrix.block_cols - 1) / matrix.block_cols);
  }
  return view;
}

WeightFormat TensorLoader::format_of(MatrixRole role, std::span<const WeightView> parts) {
  const bool has_fp8 = backend_.supports(WeightFormat::kFp8);
  const WeightFormat format = choose_format(quantization_, role, parts, has_fp8);
  if (format == WeightFormat::kAct && quantization_ == Quantization::kAuto) {
    widens_fp8_ |= std::ranges::any_of(parts, &WeightView::is_fp8);
  }
  if (role != MatrixRole::kFloat) formats_.insert(format);
  return format;
}

std::vector<WeightView> TensorLoader::rows_between(std::span<const WeightView> parts, int64_t begin,
                                                   int64_t end) const {
  std::vector<WeightView> rows;
  int64_t first = 0;  // of the part
  for (const WeightView& part : parts) {
    const int64_t from = std::max(begin - first, int64_t{0});
    const int64_t to = std::min(end - first, part.rows());
    if (from < to) rows.push_back(rows_of(part, {from, to - from}, "the vocabulary"));
    first += part.rows();
  }
  return rows;
}

std::unique_ptr<const PackedLinear> TensorLoader::pack(MatrixRole role,
                                                       std::span<const WeightView> parts,
                                                       MatrixForm form) {
  PackArgs args = {.parts = parts, .format = format_of(role, parts), .gated = form.gated};
  std::vector<WeightView> own_rows;
  std::vector<int64_t> rank_outputs;
  if (form.sums != nullptr) {
    args.k_slices = &form.sums->slices;
    args.rank_runs = form.sums->rank_runs;
    if (!form.sums->rank_runs.empty()) args.ranks = shard_.ranks();
  } else if (role == MatrixRole::kVocabulary && !shard_.is_whole()) {
    int64_t num_rows = 0;
    for (const WeightView& part : parts) num_rows += part.rows();
    rank_outputs = shard_.vocabulary(num_rows);
    const auto rank = static_cast<size_t>(shard_.ranks()->rank());
    own_rows = rows_between(parts, rank_outputs[rank], rank_outputs[rank + 1]);
    args.parts = own_rows;
    args.rank_outputs = rank_outputs;
    args.ranks = shard_.ranks();
  }
  auto packed = backend_.pack_linear(args);
  size_bytes_ += packed->size_bytes();
  return packed;
}

std::unique_ptr<const EmbeddingTable> TensorLoader::table(WeightFormat format,
                                                          const WeightView& weights) {
  auto table = backend_.make_embedding(weights, format);
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
  std::vector<WeightView> views;
  for (const TensorPart& part : parts) {
    const WeightView whole = read_matrix(part.name, part.rows, in_features);
    if (part.order.empty()) views.push_back(whole);
    for (const RowRange& rows : part.order) views.push_back(rows_of(whole, rows, part.name));
  }
  auto packed = pack(role, views, form);
  for (const TensorPart& part : parts) release(part.name);
  return packed;
}

std::unique_ptr<const PackedLinear> TensorLoader::columns(MatrixRole role, const WeightView& matrix,
                                                          int64_t begin, int64_t count) {
  SPECDEC_CHECK(!matrix.is_quantized() && begin + count <= matrix.in_features());
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

Buffer TensorLoader::norm_weights(const std::string& name, int64_t size) {
  if (config_.norm_offset == 0.0f) return vector({{name, size}});
  const TensorView stored = read(name, std::array{size});
  std::vector<float> weights(static_cast<size_t>(size));
  to_floats(stored.data, stored.dtype, weights.size(), weights.data());
  for (float& weight : weights) weight += config_.norm_offset;
  release(name);
  const TensorView view = {.data = weights.data(), .dtype = DType::kF32, .shape = {size}};
  Buffer buffer = backend_.make_vector(std::array{view});
  size_bytes_ += static_cast<int64_t>(buffer.size_bytes());
  return buffer;
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

Norm TensorLoader::norm(const std::string& name, int64_t size) {
  Norm norm;
  norm.kind = config_.norm_kind;
  norm.eps = config_.norm_eps;
  norm.weight = norm_weights(name + ".weight", size);
  if (norm.kind == NormKind::kLayer) norm.bias = vector({{name + ".bias", size}});
  return norm;
}

void TensorLoader::warn_about_unused() const {
  // Scales of activations and of the cache are there, which are not rounded to 8-bit floats, and
  // the draft vocabulary of a head, which was read before its matrices.
  const std::string head = str_cat(config_.names.head, ".weight");
  const std::array<std::string_view, 9> harmless = {"rotary_emb.inv_freq",
                                                    "masked_bias",
                                                    head,
                                                    ".input_scale",
                                                    ".k_scale",
                                                    ".v_scale",
                                                    "d2t",
                                                    "t2d",
                                                    "token_map"};
  constexpr size_t kMaxNames = 5;
  std::vector<std::string> names = store_.unused();
  std::erase_if(names, [&](const std::string& name) {
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

void TensorLoader::finish(LoadedParts& loaded) const {
  if (widens_fp8_) {
    log_info(source(), ": some 8-bit floats are held as ", name_of(backend_.act_dtype()), ": ",
             backend_.device_info().name,
             " has no products with them, or they are fused with weights of another kind");
  }
  if (shard_.place().num_stages == 1) warn_about_unused();  // a stage leaves other stages' tensors
  loaded.num_parameters = num_parameters_;
  loaded.size_bytes = size_bytes_;
  loaded.formats = formats_;
}

}  // namespace specdec
