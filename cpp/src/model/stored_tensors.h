// The tensors of one matrix that a checkpoint stores in few bits, read with checks.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "core/buffer.h"
#include "core/dtype.h"
#include "model/safetensors.h"

namespace specdec {

// The tensors of a checkpoint.
class StoredTensors {
 public:
  virtual ~StoredTensors() = default;
  // Null: there is no such tensor.
  virtual const SafetensorsEntry* find(const std::string& name) const = 0;
  // The values are not checked.
  virtual Buffer read_raw(const std::string& name, RowRange rows) = 0;
  // The file that has the tensor, or should have it.
  virtual const std::string& path_of(const std::string& name) const = 0;
  // Throws CheckpointError.
  [[noreturn]] void fail(const std::string& name, const std::string& message) const;
};

// "X" of "X.weight".
std::string stem_of(const std::string& name);

// Words of 32 bits that hold a stream of codes.
inline int64_t words_of(int64_t num_codes, int bits) { return (num_codes * bits + 31) / 32; }

inline constexpr auto kFloatingDTypes = {DType::kF16, DType::kBF16, DType::kF32};

// A matrix [rows, in_features], of which the rows `own` are wanted.
struct MatrixShape {
  const std::string& name;
  int64_t rows;
  int64_t in_features;
  RowRange own;
};

// Every function throws CheckpointError for a tensor that is missing, or that has another dtype or
// shape than the matrix asks for.
class MatrixTensors {
 public:
  // `group_size` of the checkpoint's config; 0: unknown.
  MatrixTensors(StoredTensors& tensors, const MatrixShape& shape, int group_size)
      : tensors_(tensors),
        name_(shape.name),
        stem_(stem_of(shape.name)),
        num_rows_(shape.rows),
        num_k_(shape.in_features),
        usual_group_(group_size),
        own_(shape.own) {}

 protected:
  void check(const std::string& name, std::initializer_list<int64_t> shape,
             std::initializer_list<DType> dtypes) const;
  bool has(const std::string& name) const { return tensors_.find(name) != nullptr; }
  Buffer read_whole(const std::string& name);
  // An extent of a tensor of two; 0 for other tensors, whose shape check() then refuses.
  int64_t extent_of(const std::string& name, size_t axis) const;
  void check_finite(const std::string& name, const std::vector<float>& values) const;
  void check_even_inputs(const std::string& name) const;

  // Finite values of a tensor that check() has seen.
  std::vector<float> read_floats(const std::string& name, RowRange rows, int64_t width);
  std::vector<float> read_vector(const std::string& name, int64_t size);  // float32
  float read_scalar(const std::string& name);
  // Scales of the own rows: [outputs, groups], or where there is one group also [outputs].
  std::vector<float> read_scales(const std::string& name);
  // The group of each input; empty where groups are in order.
  std::vector<int32_t> read_group_index(const std::string& name);

  // Sets the number of groups of a row, which must have equal sizes.
  void set_groups(const std::string& name, int64_t num_groups);
  int64_t group_size() const { return num_k_ / num_groups_; }
  // Bits of a code, by the words that hold a row's.
  int bits_by_words(const std::string& name, int64_t num_words) const;

  StoredTensors& tensors_;
  const std::string& name_;
  const std::string stem_;
  const int64_t num_rows_;  // of the whole matrix
  const int64_t num_k_;
  const int64_t usual_group_;
  RowRange own_;
  int64_t num_groups_ = 1;
};

}  // namespace specdec
