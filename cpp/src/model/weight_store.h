// The tensors of a checkpoint directory by name, whichever shard they lie in.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "core/buffer.h"
#include "core/tensor_view.h"
#include "model/safetensors.h"

namespace specdec {

class WeightStore {
 public:
  // Opens model.safetensors, or the shards model.safetensors.index.json names, and checks them.
  // Throws CheckpointError.
  explicit WeightStore(const std::string& directory);

  // The file that says which tensors there are: model.safetensors or the index.
  const std::string& source() const { return source_; }

  bool contains(const std::string& name) const { return shard_of_.contains(name); }
  // Throws CheckpointError when there is no such tensor.
  const std::vector<int64_t>& shape(const std::string& name) const;

  // A weight, aligned to its element size, valid until it is released. Throws CheckpointError when
  // it is missing, its shape is not `expected_shape`, or it is not float32, bfloat16 or float16.
  TensorView weight(const std::string& name, std::span<const int64_t> expected_shape);
  // Gives back the memory behind weight(name).
  void release(const std::string& name);

  // Names weight() was never called for, in order.
  std::vector<std::string> unused() const;

 private:
  void open_index(const std::string& directory);
  const SafetensorsFile& shard(const std::string& name) const;

  std::string source_;
  std::vector<std::unique_ptr<SafetensorsFile>> shards_;
  std::map<std::string, const SafetensorsFile*> shard_of_;  // by tensor
  std::map<std::string, Buffer> aligned_copies_;            // of tensors at odd offsets
  std::set<std::string> used_;
};

}  // namespace specdec
