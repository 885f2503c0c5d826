#include "model/weight_store.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>

#include "core/log.h"
#include "core/str_cat.h"
#include "model/json_file.h"
#include "model/value_check.h"
#include "specdec/error.h"

namespace specdec {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSingleName = "model.safetensors";
constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr const char* kScales = ".scales";  // beside a matrix of integers
constexpr const char* kMins = ".mins";
constexpr const char* kTable = ".table";
constexpr const char* kScaleInverse = "_scale_inv";  // beside a matrix of 8-bit floats: what its
constexpr const char* kScale = "_scale";             // values are multiplied with, both
constexpr uint8_t kNanExponent = 255;
constexpr ScaleBlock kMxBlock = {.rows = 1, .cols = 32};  // of scales that are exponents

// The single file *.safetensors of the directory; empty if there are none or several.
std::string only_safetensors(const fs::path& directory) {
  std::string found;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(directory, ignored)) {
    if (entry.path().extension() != ".safetensors") continue;
    if (!found.empty()) return "";
    found = entry.path().string();
  }
  return found;
}

bool has_torch_weights(const fs::path& directory) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(directory, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("pytorch_model") && name.ends_with(".bin")) return true;
  }
  return false;
}

[[noreturn]] void no_weights(const std::string& directory) {
  if (has_torch_weights(directory)) {
    throw CheckpointError(
        directory, "",
        "the weights are pytorch_model*.bin files only; load the checkpoint through the Python "
        "package with torch installed, which converts them to safetensors first");
  }
  throw CheckpointError(directory, "",
                        str_cat("no weights: expected ", kSingleName, " or ", kIndexName));
}

std::string shape_text(std::span<const int64_t> shape) {
  std::string text = "[";
  for (int64_t extent : shape) text += str_cat(text.size() > 1 ? ", " : "", extent);
  return text + "]";
}

// Whether an index may name the file: only by a path below the index's folder.
bool lies_below(const std::string& file) {
  const fs::path path(file);
  return path.has_filename() && path.is_relative() && file.find('\0') == std::string::npos &&
         std::ranges::find(path, fs::path("..")) == path.end();
}

int64_t blocks_of(int64_t extent, int size) { return (extent + size - 1) / size; }

// The block that shares a scale, for scales of this shape; rows = 0: no known shape.
ScaleBlock scale_block_of(std::span<const int64_t> shape, int64_t rows, int64_t in_features,
                          ScaleBlock block) {
  const auto is = [&](std::initializer_list<int64_t> expected) {
    return std::ranges::equal(shape, expected);
  };
  const int all_rows = static_cast<int>(rows), all_inputs = static_cast<int>(in_features);
  if (is({}) || is({1})) return {.rows = all_rows, .cols = all_inputs};
  if (block.rows != 0 && is({blocks_of(rows, block.rows), blocks_of(in_features, block.cols)})) {
    return block;
  }
  if (is({1, 1})) return {.rows = all_rows, .cols = all_inputs};
  if (is({rows}) || is({rows, 1})) return {.rows = 1, .cols = all_inputs};
  return {};
}

std::string expected_blocks(int64_t rows, int64_t in_features, ScaleBlock block) {
  if (block.rows == 0) return " (and config.json names no blocks)";
  return str_cat(" or, for blocks of ", block.rows, " x ", block.cols, ", [",
                 blocks_of(rows, block.rows), ", ", blocks_of(in_features, block.cols), "]");
}

// A matrix of zeros silences its layer; a single row of zeros may be a token that is never used.
bool should_not_be_zero(const SafetensorsEntry& entry, RowRange rows) {
  return entry.shape.size() > 1 && entry.shape.back() > 1 && rows.count > 1;
}

// Reads rows. Throws CheckpointError for a value that is not finite, and warns of a matrix of
// zeros.
Buffer read_checked(const SafetensorsFile& file, const std::string& name, RowRange rows) {
  const SafetensorsEntry& entry = file.entries().at(name);
  ValueCheck check(entry.dtype.value());
  Buffer bytes = file.read(name, rows, [&](std::span<const std::byte> part) { check.add(part); });
  if (!check.is_finite()) throw CheckpointError(file.path(), name, "a value is NaN or infinite");
  if (check.is_zero() && should_not_be_zero(entry, rows)) {
    log_warning(file.path(), ": ", name, " holds zeros only; the file may be broken");
  }
  return bytes;
}

}  // namespace

WeightStore WeightStore::random(const ModelConfig& config, bool fills_matrices) {
  WeightStore store;
  store.source_ = "load_format='dummy'";
  store.is_random_ = true;
  store.fills_random_matrices_ = fills_matrices;
  if (!config.tie_word_embeddings) store.random_lm_head_ = str_cat(config.names.lm_head, ".weight");
  store.random_dtype_ = config.checkpoint_dtype;
  return store;
}

WeightStore::WeightStore(const std::string& directory, const StoredScheme& scheme, ThreadPool* pool)
    : scheme_(scheme), pool_(pool) {
  require_directory(directory);
  const fs::path root(directory);
  const std::string index = (root / kIndexName).string();
  source_ = (root / kSingleName).string();
  if (!file_exists(source_) && !file_exists(index)) source_ = only_safetensors(root);
  if (file_exists(source_)) {
    shards_.push_back(std::make_unique<SafetensorsFile>(source_));
    for (const auto& [name, entry] : shards_.front()->entries()) {
      shard_of_.emplace(name, shards_.front().get());
    }
    return;
  }
  source_ = index;
  if (!file_exists(source_)) no_weights(directory);
  open_index(directory);
}

void WeightStore::open_index(const std::string& directory) {
  const nlohmann::json index = read_json_object(source_);
  const auto weight_map = index.find("weight_map");
  if (weight_map == index.end() || !weight_map->is_object() || weight_map->empty()) {
    throw CheckpointError(source_, "", "weight_map: expected an object from tensor to shard");
  }
  std::map<std::string, const SafetensorsFile*> shard_by_file;
  for (const auto& [name, file] : weight_map->items()) {
    if (!file.is_string()) throw CheckpointError(source_, name, "expected the name of its shard");
    const auto& shard_name = file.get_ref<const std::string&>();
    if (!lies_below(shard_name)) {
      throw CheckpointError(
          source_, name, str_cat("shard '", shard_name, "' is no file below the index's folder"));
    }
    const SafetensorsFile*& shard = shard_by_file[shard_name];
    if (shard == nullptr) {
      const std::string path = (fs::path(directory) / shard_name).string();
      if (!file_exists(path)) {
        throw CheckpointError(
            path, name,
            str_cat("the shard is missing, ", kIndexName, " says it holds this tensor"));
      }
      shards_.push_back(std::make_unique<SafetensorsFile>(path));
      shard = shards_.back().get();
    }
    if (!shard->entries().contains(name)) {
      throw CheckpointError(
          shard->path(), name,
          str_cat("the shard lacks this tensor, ", kIndexName, " says it holds it"));
    }
    shard_of_.emplace(name, shard);
  }
}

bool WeightStore::contains(const std::string& name) const {
  if (is_random_) return name == random_lm_head_;
  return shard_of_.contains(name) || find_layout(*this, name, scheme_) != StoredLayout::kPlain;
}

const SafetensorsEntry* WeightStore::find(const std::string& name) const {
  const auto found = shard_of_.find(name);
  return found == shard_of_.end() ? nullptr : &found->second->entries().at(name);
}

Buffer WeightStore::read_raw(const std::string& name, RowRange rows) {
  used_.insert(name);
  return shard(name).read(name, rows);
}

const std::string& WeightStore::path_of(const std::string& name) const {
  const auto found = shard_of_.find(name);
  return found == shard_of_.end() ? source_ : found->second->path();
}

const SafetensorsFile& WeightStore::shard(const std::string& name) const {
  const auto found = shard_of_.find(name);
  if (found == shard_of_.end()) {
    throw CheckpointError(source_, name, "the checkpoint has no such tensor");
  }
  return *found->second;
}

const std::vector<int64_t>& WeightStore::shape(const std::string& name) const {
  return shard(name).entries().at(name).shape;
}

const SafetensorsEntry& WeightStore::checked_entry(const std::string& name,
                                                   std::span<const int64_t> expected_shape) const {
  const SafetensorsFile& file = shard(name);
  const SafetensorsEntry& entry = file.entries().at(name);
  if (!std::equal(entry.shape.begin(), entry.shape.end(), expected_shape.begin(),
                  expected_shape.end())) {
    throw CheckpointError(file.path(), name,
                          str_cat("expected shape ", shape_text(expected_shape), ", found ",
                                  shape_text(entry.shape)));
  }
  return entry;
}

const void* WeightStore::bytes_of(const std::string& name, RowRange own,
                                  const std::function<Buffer()>& read) {
  std::vector<HeldRows>& held = held_[name];
  auto found = std::ranges::find_if(held, [&](const HeldRows& part) {
    return part.rows.begin <= own.begin && own.end() <= part.rows.end();
  });
  if (found == held.end()) found = held.insert(found, {own, read()});
  if (found->rows.count == 0) return found->bytes.data();
  const auto row_bytes = static_cast<int64_t>(found->bytes.size_bytes()) / found->rows.count;
  return found->bytes.as<std::byte>() + (own.begin - found->rows.begin) * row_bytes;
}

TensorView WeightStore::read(const std::string& name, RowRange own) {
  used_.insert(name);
  const SafetensorsFile& file = shard(name);
  const SafetensorsEntry& entry = file.entries().at(name);
  return {.data = bytes_of(name, own, [&] { return read_checked(file, name, own); }),
          .dtype = entry.dtype.value(),
          .shape = {own.count, entry.shape.empty() ? 1 : entry.shape.back()}};
}

TensorView WeightStore::read(const std::string& name) {
  const SafetensorsEntry& entry = shard(name).entries().at(name);
  TensorView view = read(name, {0, entry.num_rows()});
  view.shape = entry.shape;
  return view;
}

TensorView WeightStore::random_rows(const std::string& name, int64_t in_features, RowRange own) {
  TensorView view{.dtype = random_dtype_, .shape = {own.count, in_features}};
  view.data = bytes_of(name, own, [&] {
    Buffer bytes = Buffer::host(view.size_bytes(), name.c_str());
    RandomSource source = random_source(name, in_features);
    source.first = own.begin * in_features;
    fill_random(source, view.dtype, view.num_elements(), bytes.data());
    return bytes;
  });
  return view;
}

void WeightStore::check_float(const std::string& name,
                              std::span<const int64_t> expected_shape) const {
  const SafetensorsEntry& entry = checked_entry(name, expected_shape);
  if (entry.dtype == DType::kF32 || entry.dtype == DType::kBF16 || entry.dtype == DType::kF16) {
    return;
  }
  throw CheckpointError(shard(name).path(), name,
                        str_cat("dtype ", entry.dtype_name,
                                " is not supported for weights, expected F32, BF16 or F16"));
}

TensorView WeightStore::tensor(const std::string& name, std::span<const int64_t> expected_shape) {
  if (!is_random_) {
    check_float(name, expected_shape);
    return read(name);
  }
  int64_t rows = 1;
  for (const int64_t extent : expected_shape.first(expected_shape.size() - 1)) rows *= extent;
  TensorView view = random_rows(name, expected_shape.back(), {0, rows});
  view.shape = {expected_shape.begin(), expected_shape.end()};
  return view;
}

WeightView WeightStore::stack_rows(const std::string& name, std::span<const int64_t> expected_shape,
                                   RowRange own) {
  if (!is_random_ && find_layout(*this, name, scheme_) == StoredLayout::kMxfp4Stack) {
    const int64_t rows = expected_shape[0] * expected_shape[1];
    return stored_matrix(StoredLayout::kMxfp4Stack, {name, rows, expected_shape[2], own});
  }
  return {.values = float_rows(name, expected_shape, own)};
}

TensorView WeightStore::float_rows(const std::string& name, std::span<const int64_t> expected_shape,
                                   RowRange own) {
  if (is_random_) return random_rows(name, expected_shape.back(), own);
  check_float(name, expected_shape);
  return read(name, own);
}

std::vector<int64_t> WeightStore::integers(const std::string& name, int64_t size) {
  const SafetensorsEntry& entry = checked_entry(name, std::array{size});
  const bool is_bytes = entry.dtype == DType::kBool || entry.dtype == DType::kU8;
  if (!is_bytes && entry.dtype != DType::kI64 && entry.dtype != DType::kI32) {
    throw CheckpointError(shard(name).path(), name,
                          str_cat("dtype ", entry.dtype_name, ", expected I64, I32, U8 or BOOL"));
  }
  const TensorView view = read(name);
  std::vector<int64_t> values(static_cast<size_t>(size));
  const auto copy = [&]<class Stored>(const Stored* stored) {
    std::copy_n(stored, size, values.begin());
  };
  if (is_bytes) {
    copy(static_cast<const uint8_t*>(view.data));
  } else if (view.dtype == DType::kI64) {
    copy(static_cast<const int64_t*>(view.data));
  } else {
    copy(static_cast<const int32_t*>(view.data));
  }
  release(name);
  return values;
}

WeightView WeightStore::matrix(const std::string& name, int64_t rows, int64_t in_features,
                               RowRange own) {
  if (is_random_ && !fills_random_matrices_) {
    RandomSource source = random_source(name, in_features);
    source.first = own.begin * in_features;
    return {.values = {.data = nullptr, .dtype = random_dtype_, .shape = {own.count, in_features}},
            .random = source};
  }
  if (!is_random_) {
    const StoredLayout layout = find_layout(*this, name, scheme_);
    if (layout != StoredLayout::kPlain) {
      return stored_matrix(layout, {name, rows, in_features, own});
    }
    const std::optional<DType> dtype = shard(name).entries().at(name).dtype;
    if (dtype == DType::kI8 || dtype == DType::kU8) return int_matrix(name, rows, in_features, own);
    if (dtype == DType::kF8E4M3) return fp8_matrix(name, rows, in_features, own);
  }
  return {.values = float_rows(name, std::array{rows, in_features}, own)};
}

WeightView WeightStore::int_matrix(const std::string& name, int64_t rows, int64_t in_features,
                                   RowRange own) {
  const SafetensorsFile& file = shard(name);
  const bool is_int4 = file.entries().at(name).dtype == DType::kU8;
  if (in_features % kQuantGroup != 0) {
    throw CheckpointError(
        file.path(), name,
        str_cat("integers come in groups of ", kQuantGroup, ", which do not divide a row of ",
                in_features, "; give the weights in floating point"));
  }
  checked_entry(name, std::array{rows, is_int4 ? in_features / 2 : in_features});
  if (!contains(name + kScales)) {
    throw CheckpointError(file.path(), name,
                          str_cat("integers without scales: there is no tensor ", name, kScales));
  }
  // Only 8-bit codes may have the short groups.
  const bool is_short = !is_int4 && shape(name + kScales).back() == in_features / kShortGroup;
  const int group_size = is_short ? kShortGroup : kQuantGroup;
  const int64_t num_groups = in_features / group_size;
  const auto beside = [&](const char* suffix) {
    return group_values(name + suffix, rows, num_groups, own);
  };
  return {.values = read(name, own),
          .scales = beside(kScales),
          .mins = contains(name + kMins) ? beside(kMins) : nullptr,
          .table = is_int4 && contains(name + kTable) ? table(name + kTable) : nullptr,
          .group_size = group_size};
}

WeightView WeightStore::stored_matrix(StoredLayout layout, const MatrixShape& shape) {
  std::list<KeptMatrix>& kept = kept_[shape.name];
  auto found = std::ranges::find_if(kept, [&](const KeptMatrix& matrix) {
    return matrix.rows().begin <= shape.own.begin && shape.own.end() <= matrix.rows().end();
  });
  if (found == kept.end()) {
    found = kept.insert(found, read_stored_matrix(*this, scheme_, layout, shape, pool_));
    if (!found->why_float().empty()) widened_[found->why_float()].push_back(shape.name);
  }
  return found->view(shape.own);
}

WeightView WeightStore::fp8_matrix(const std::string& name, int64_t rows, int64_t in_features,
                                   RowRange own) {
  checked_entry(name, std::array{rows, in_features});
  const std::string& path = shard(name).path();
  const std::string scale_name = name + (contains(name + kScaleInverse) ? kScaleInverse : kScale);
  if (!contains(scale_name)) {
    throw CheckpointError(path, name,
                          str_cat("8-bit floats without a scale: there is no tensor ", name, kScale,
                                  " or ", name, kScaleInverse));
  }
  const bool is_exponent = find(scale_name)->dtype == DType::kU8;
  const ScaleBlock block =
      scale_block_of(shape(scale_name), rows, in_features, is_exponent ? kMxBlock : scheme_.block);
  if (block.rows == 0) {
    throw CheckpointError(shard(scale_name).path(), scale_name,
                          str_cat("the scale of a matrix ", shape_text(shape(name)), " has shape ",
                                  shape_text(shape(scale_name)), ", expected [1], [", rows, ", 1]",
                                  expected_blocks(rows, in_features, scheme_.block)));
  }
  // All, since they are few; they stay while views of other rows are in use.
  std::vector<float>& scales = fp8_scales_[name];
  if (scales.empty()) scales = fp8_scales(scale_name);
  const TensorView values = read(name, own);
  return {
      .values = values,
      .block_scales = scales.data() + own.begin / block.rows * blocks_of(in_features, block.cols),
      .block_rows = block.rows,
      .block_cols = block.cols};
}

const int8_t* WeightStore::table(const std::string& name) {
  const SafetensorsEntry& entry = checked_entry(name, std::array<int64_t, 1>{kTableSize});
  if (entry.dtype != DType::kI8) fail(name, str_cat("dtype ", entry.dtype_name, ", expected I8"));
  return static_cast<const int8_t*>(read(name).data);
}

std::vector<float> WeightStore::fp8_scales(const std::string& name) {
  std::vector<float> scales;
  if (find(name)->dtype == DType::kU8) {  // exponents
    const TensorView exponents = read(name);
    const std::span bytes(static_cast<const uint8_t*>(exponents.data), exponents.size_bytes());
    for (const uint8_t exponent : bytes) {
      if (exponent == kNanExponent) fail(name, "a value is NaN");
      scales.push_back(std::ldexp(1.0f, exponent - 127));
    }
    return scales;
  }
  const TensorView scale = tensor(name, shape(name));
  scales.resize(static_cast<size_t>(scale.num_elements()));
  to_floats(scale.data, scale.dtype, scales.size(), scales.data());
  return scales;
}

const uint16_t* WeightStore::group_values(const std::string& name, int64_t rows, int64_t num_groups,
                                          RowRange own) {
  const SafetensorsEntry& entry = checked_entry(name, std::array{rows, num_groups});
  if (entry.dtype != DType::kF16) {
    throw CheckpointError(shard(name).path(), name,
                          str_cat("dtype ", entry.dtype_name, ", expected F16"));
  }
  return static_cast<const uint16_t*>(read(name, own).data);
}

void WeightStore::release(const std::string& name) {
  fp8_scales_.erase(name);
  kept_.erase(name);
  for (const std::string& part :
       {name, name + kScales, name + kMins, name + kTable, name + kScaleInverse, name + kScale}) {
    held_.erase(part);
  }
}

size_t WeightStore::bytes_read() const {
  size_t bytes = 0;
  for (const auto& file : shards_) bytes += file->bytes_read();
  return bytes;
}

std::vector<std::string> WeightStore::unused() const {
  std::vector<std::string> names;
  for (const auto& [name, file] : shard_of_) {
    if (!used_.contains(name)) names.push_back(name);
  }
  return names;
}

}  // namespace specdec
