// The tensors of a checkpoint directory by name, whichever shard has them.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "backend/op_args.h"
#include "core/buffer.h"
#include "core/tensor_view.h"
#include "model/config.h"
#include "model/safetensors.h"
#include "model/stored_matrix.h"

namespace specdec {

class WeightStore final : public StoredTensors {
 public:
  // Opens and checks model.safetensors, or the shards that model.safetensors.index.json names, or
  // the only file *.safetensors (files of draft heads have any name). Codes of other layouts are
  // rearranged on the threads of `pool`, or where it is null on the calling one. Throws
  // CheckpointError.
  explicit WeightStore(const std::string& directory, const StoredScheme& scheme = {},
                       ThreadPool* pool = nullptr);

  // A store without files: every tensor asked for exists, in the config's dtype, with random values
  // that depend on its name and shape. There is a separate LM head unless the embeddings are tied.
  // Without `fills_matrices`, matrices are only described by their RandomSource.
  static WeightStore random(const ModelConfig& config, bool fills_matrices = true);

  // The file that lists the tensors: model.safetensors or the index.
  const std::string& source() const { return source_; }

  // Also true of a matrix that is stored under other names ("X.qweight").
  bool contains(const std::string& name) const;
  // Throws CheckpointError when there is no such tensor.
  const std::vector<int64_t>& shape(const std::string& name) const;

  // A weight, aligned to its element size, valid until it is released. Throws CheckpointError when
  // it is missing, its shape is not `expected_shape`, or its dtype is not float32, bfloat16 or
  // float16.
  TensorView tensor(const std::string& name, std::span<const int64_t> expected_shape);
  // A vector of integers: I64, I32, U8 or BOOL. Throws CheckpointError likewise.
  std::vector<int64_t> integers(const std::string& name, int64_t size);
  // A matrix [rows, in_features] of floating point, or of integers: I8 [rows, in_features] or U8
  // [rows, in_features / 2], with "<name>.scales" and perhaps "<name>.mins", F16
  // [rows, in_features / kQuantGroup], of I8 also [rows, in_features / kShortGroup], and U8 perhaps
  // with "<name>.table", I8 [16]. Or of 8-bit floats: F8_E4M3 [rows, in_features], with
  // "<name>_scale_inv" or "<name>_scale", one for the matrix, for every row or for every block. Or
  // in a layout of stored_matrix.h. Otherwise like tensor().
  WeightView matrix(const std::string& name, int64_t rows, int64_t in_features) {
    return matrix(name, rows, in_features, {0, rows});
  }
  // Only the rows `own` of such a matrix. No other rows of its values or integer scales are read,
  // so a NaN among those is not found. Block scales begin with the block of the first row.
  WeightView matrix(const std::string& name, int64_t rows, int64_t in_features, RowRange own);
  // Rows of a stack of matrices, [count, rows, in_features], numbered over all matrices: floating
  // point, or in the layout kMxfp4Stack.
  WeightView stack_rows(const std::string& name, std::span<const int64_t> expected_shape,
                        RowRange own);
  // Frees the memory behind the views of a tensor or matrix.
  void release(const std::string& name);

  size_t bytes_read() const;  // of all files

  // Names that were never asked for, in order.
  std::vector<std::string> unused() const;
  // Matrices whose codes became float32, by the reason.
  const std::map<std::string, std::vector<std::string>>& widened() const { return widened_; }

  const SafetensorsEntry* find(const std::string& name) const override;
  Buffer read_raw(const std::string& name, RowRange rows) override;
  const std::string& path_of(const std::string& name) const override;

 private:
  WeightStore() = default;

  void open_index(const std::string& directory);
  const SafetensorsFile& shard(const std::string& name) const;
  const SafetensorsEntry& checked_entry(const std::string& name,
                                        std::span<const int64_t> expected_shape) const;
  void check_float(const std::string& name, std::span<const int64_t> expected_shape) const;
  TensorView read(const std::string& name);
  TensorView read(const std::string& name, RowRange own);  // [rows, last extent]
  // The bytes of rows, read unless they are held already.
  const void* bytes_of(const std::string& name, RowRange own, const std::function<Buffer()>& read);
  TensorView float_rows(const std::string& name, std::span<const int64_t> expected_shape,
                        RowRange own);
  TensorView random_rows(const std::string& name, int64_t in_features, RowRange own);
  WeightView int_matrix(const std::string& name, int64_t rows, int64_t in_features, RowRange own);
  WeightView fp8_matrix(const std::string& name, int64_t rows, int64_t in_features, RowRange own);
  std::vector<float> fp8_scales(const std::string& name);
  WeightView stored_matrix(StoredLayout layout, const MatrixShape& shape);
  const int8_t* table(const std::string& name);
  // "<name>.scales" or "<name>.mins" of a matrix of integers.
  const uint16_t* group_values(const std::string& name, int64_t rows, int64_t num_groups,
                               RowRange own);

  struct HeldRows {
    RowRange rows;
    Buffer bytes;
  };

  std::string source_;
  bool is_random_ = false;
  bool fills_random_matrices_ = true;
  std::string random_lm_head_;  // empty: none
  DType random_dtype_ = DType::kF32;
  StoredScheme scheme_;
  ThreadPool* pool_ = nullptr;
  std::vector<std::unique_ptr<SafetensorsFile>> shards_;
  std::map<std::string, const SafetensorsFile*> shard_of_;  // by tensor
  std::map<std::string, std::vector<HeldRows>> held_;       // by tensor, until it is released
  std::map<std::string, std::vector<float>> fp8_scales_;    // by matrix
  std::map<std::string, std::list<KeptMatrix>> kept_;       // by matrix, until it is released
  std::map<std::string, std::vector<std::string>> widened_;
  std::set<std::string> used_;
};

}  // namespace specdec
