// Reads tensors of a checkpoint into a backend's layout, and counts what it has read.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "model/config.h"
#include "model/model_shard.h"
#include "model/parts.h"
#include "model/weight_format.h"
#include "model/weight_store.h"
#include "specdec/quantization.h"

namespace specdec {

// One tensor of a fused matrix or vector.
struct TensorPart {
  std::string name;
  int64_t rows = 0;
  // The order in which to lay out its rows; no other rows are read. Empty: all rows as stored.
  std::vector<RowRange> order = {};
};

// The order of the sums over a matrix's inputs, which may be split over ranks.
struct SharedSums {
  KSlices slices;
  std::vector<SliceRun> rank_runs;  // empty: this rank has all inputs
};

// How a matrix is packed.
struct MatrixForm {
  bool gated = false;                // see PackArgs
  const SharedSums* sums = nullptr;  // for its inputs; null: one sum in order, not split over ranks
  std::span<const int64_t> rank_outputs = {};  // see PackArgs
};

// The config and the arguments give sizes of the whole model; only this rank's share is packed.
class TensorLoader {
 public:
  // Throws InvalidArgument where the model cannot be split over the ranks.
  TensorLoader(const ModelConfig& config, const std::string& directory, Quantization quantization,
               Backend& backend, const RankCoordinates& coordinates = {});

  const ModelConfig& config() const { return config_; }
  const ModelShard& shard() const { return shard_; }
  SharedSums attention_sums(const AttentionHeads& heads) const {
    const ModelShard::Attention& attention = shard_.attention(heads);
    return {attention.slices, attention.runs};
  }
  SharedSums inner_sums(int inner_size) const {
    return {shard_.inner_slices(inner_size), shard_.inner_runs(inner_size)};
  }
  // The file that lists the tensors.
  const std::string& source() const { return store_.source(); }
  bool contains(const std::string& name) const { return store_.contains(resolve(name)); }
  // Whether a tensor has this very name, in which case it is not in a layout of stored_matrix.h.
  bool contains_plain(const std::string& name) const {
    return store_.find(resolve(name)) != nullptr;
  }

  // The following functions count the parameters of each tensor once. Names are complete, with
  // ".weight".
  TensorView read(const std::string& name, std::span<const int64_t> shape);
  WeightView read_matrix(const std::string& name, int64_t rows, int64_t in_features);
  // The pieces of a matrix that `order` lists. Throws CheckpointError where rows on both sides of a
  // cut share a scale of 8-bit floats.
  std::vector<WeightView> read_rows(const TensorPart& part, int64_t in_features);
  // Rows of matrices stacked in one tensor, [count, rows, in_features]: floating point, or the
  // layout kMxfp4Stack of stored_matrix.h. Rows are numbered over all matrices.
  WeightView read_stack(const std::string& name, std::array<int64_t, 3> shape, RowRange own);
  // Rows of a matrix that was read from the tensor `name`. Throws CheckpointError as read_rows.
  WeightView rows_of(const std::string& name, const WeightView& matrix, RowRange rows) const;
  // All values of a tensor of floating-point numbers, in float32.
  std::vector<float> read_floats(const std::string& name, std::initializer_list<int64_t> shape);
  float scalar(const std::string& name);  // of a tensor with one element
  // Packs columns of a floating-point matrix as a matrix of their own: [rows, count]. Columns of
  // 8-bit floats are packed as float32, unless all columns are taken.
  std::unique_ptr<const PackedLinear> columns(MatrixRole role, const WeightView& matrix,
                                              int64_t begin, int64_t count);
  // Packs the matrix `name`, whose column j is multiplied by factors[j], from float32.
  std::unique_ptr<const PackedLinear> with_factors(MatrixRole role, const std::string& name,
                                                   int64_t rows, std::span<const float> factors);
  void release(const std::string& name) { store_.release(resolve(name)); }
  // Whether two matrices of one shape have equal values. Reads `name` and releases it uncounted.
  bool is_equal(const std::string& name, const WeightView& other);

  // Counts the bytes of a matrix that another loader packed for the same model.
  void count_packed(const PackedLinear& matrix) { size_bytes_ += matrix.size_bytes(); }

  // The following functions also count the packed bytes.
  std::unique_ptr<const PackedLinear> pack(MatrixRole role, std::span<const WeightView> parts,
                                           MatrixForm form = {});
  std::unique_ptr<const EmbeddingTable> table(WeightFormat format, const WeightView& weights);
  std::unique_ptr<const EmbeddingTable> table_of(const PackedLinear& weights);
  WeightFormat format_of(MatrixRole role, std::span<const WeightView> parts);
  // With MatrixRole::kVocabulary the outputs are split over the ranks.
  std::unique_ptr<const PackedLinear> matrix(MatrixRole role, const std::vector<TensorPart>& parts,
                                             int64_t in_features, MatrixForm form = {});
  Buffer vector(const std::vector<TensorPart>& parts);
  Buffer vector_of(std::span<const float> values);
  // A tensor of `size` elements, whatever its shape.
  Buffer flat_vector(const std::string& name, int64_t size);
  // The weights of a norm, with the config's norm_offset, times `scale`.
  Buffer norm_weights(const TensorPart& part, float scale = 1.0f);
  // `value` rounded to the activations' dtype.
  float rounded(float value) const;

  // Names without ".weight" and ".bias".
  Linear linear(const std::vector<TensorPart>& parts, int64_t in_features, bool bias,
                MatrixForm form = {});
  Norm norm(const std::string& name) { return norm(name, config_.hidden_size); }
  Norm norm(const std::string& name, int64_t size, float scale = 1.0f);
  // The norm of a block's output, with the factor that such outputs have (residual_scale).
  Norm output_norm(const std::string& name) {
    return norm(name, config_.hidden_size, config_.residual_scale);
  }

  // Stores the counts in `loaded`. Warns of tensors that nothing read, unless the config describes
  // only a part of the checkpoint.
  void finish(LoadedParts& loaded, bool is_part = false);

 private:
  std::string resolve(const std::string& name) const;
  bool is_empty_bias(const std::string& name);
  void warn_about_unused();
  void count(const std::string& name, int64_t num_parameters);

  const ModelConfig& config_;
  Quantization quantization_;
  WeightStore store_;
  Backend& backend_;
  ModelShard shard_;
  std::set<std::string> counted_;  // tensors that are in num_parameters_
  int64_t num_parameters_ = 0;
  int64_t size_bytes_ = 0;
  std::set<WeightFormat> formats_;
  bool widens_fp8_ = false;  // stored 8-bit floats are packed in more bits
  bool widens_integers_ = false;
};

}  // namespace specdec
