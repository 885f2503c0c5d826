// Weights in the layout of kernels/linear.h, and lookup tables over them or of their own.
#pragma once

#include <cstdint>
#include <span>

#include "backend/op_args.h"
#include "core/buffer.h"
#include "core/dtype.h"
#include "core/tensor_view.h"
#include "core/thread_pool.h"

namespace specdec::cpu {

class CpuPackedLinear final : public PackedLinear {
 public:
  // Outputs of one block of the layout.
  static constexpr int64_t kBlockOutputs = 16;

  // Packs the rows of `parts`, one after another, at `dtype` (float32 or bfloat16).
  CpuPackedLinear(std::span<const TensorView> parts, DType dtype, ThreadPool& pool);

  int64_t out_features() const override { return out_features_; }
  int64_t in_features() const override { return in_features_; }
  int64_t size_bytes() const override { return static_cast<int64_t>(data_.size_bytes()); }

  DType dtype() const { return dtype_; }
  int64_t padded_k() const { return padded_k_; }
  int64_t num_blocks() const { return (out_features_ + kBlockOutputs - 1) / kBlockOutputs; }
  int64_t block_bytes() const {
    return padded_k_ * kBlockOutputs * static_cast<int64_t>(size_of(dtype_));
  }
  const void* data() const { return data_.data(); }

 private:
  DType dtype_;
  int64_t out_features_ = 0;
  int64_t in_features_ = 0;
  int64_t padded_k_ = 0;
  Buffer data_;
};

class CpuEmbeddingTable final : public EmbeddingTable {
 public:
  explicit CpuEmbeddingTable(const CpuPackedLinear& weight) : packed_(&weight) {}
  CpuEmbeddingTable(const TensorView& table, DType dtype);

  int64_t num_embeddings() const override;
  int64_t dim() const override;
  int64_t size_bytes() const override { return static_cast<int64_t>(rows_.size_bytes()); }

  // out [dim] = row `id`, or += it.
  void lookup(int64_t id, float* out, bool accumulate) const;

 private:
  const CpuPackedLinear* packed_ = nullptr;  // borrowed; null when rows_ holds the table
  Buffer rows_;                              // [num_embeddings, dim] at dtype_
  DType dtype_ = DType::kF32;
  int64_t num_embeddings_ = 0;
  int64_t dim_ = 0;
};

// Element `index` of a float32, bfloat16 or float16 array, exactly.
float float_at(const void* data, DType dtype, int64_t index);

}  // namespace specdec::cpu
