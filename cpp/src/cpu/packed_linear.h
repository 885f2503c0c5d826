// Weights in the layouts of kernels/linear.h, and embedding tables that own such weights or borrow
// them.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/op_args.h"
#include "backend/rank_share.h"
#include "core/buffer.h"
#include "core/dtype.h"
#include "core/host_arena.h"
#include "core/thread_pool.h"
#include "cpu/kernel_table.h"
#include "cpu/packed_int.h"

namespace specdec::cpu {

class CpuPackedLinear final : public PackedLinear {
 public:
  // Outputs of one block of the layout.
  static constexpr int64_t kBlockOutputs = 16;

  // `act_dtype` (float32 or bfloat16) is what WeightFormat::kAct means.
  CpuPackedLinear(const PackArgs& args, DType act_dtype, const KernelTable& kernels,
                  HostArena& arena, ThreadPool& pool);

  int64_t out_features() const override {
    return share_.by_outputs() ? share_.num_outputs() : num_outputs_;
  }
  int64_t in_features() const override { return in_features_; }
  int64_t size_bytes() const override {
    return static_cast<int64_t>(data_.size_bytes() + input_order_.size() * sizeof(int32_t));
  }
  WeightFormat format() const override { return format_; }

  PackedFormat packed_format() const { return packed_format_; }
  bool is_integer() const { return packed_format_ >= kPackedInt8; }
  bool is_gated() const { return is_gated_; }
  // The input, of all ranks' inputs, that each column has: [in_features], where they are not in
  // order.
  bool has_input_order() const { return has_input_order_; }
  std::span<const int32_t> input_order() const { return input_order_; }
  int64_t all_inputs() const { return all_inputs_; }  // of all ranks
  int64_t padded_k() const { return padded_k_; }
  int64_t num_blocks() const { return num_blocks_; }
  int64_t block_bytes() const { return block_bytes_; }
  const void* block(int64_t index) const { return data_.as<char>() + index * block_bytes_; }
  int64_t num_outputs() const { return num_outputs_; }  // packed on this rank
  int64_t padded_outputs() const { return num_blocks_ * kBlockOutputs; }
  // What the codes stand for in formats with a table: [16].
  const int8_t* table() const { return table_.data(); }

  // The slices of its sums, and the number of sums that they leave per output.
  std::span<const SumSlice> sum_slices() const { return sum_slices_; }
  int num_planes() const { return num_planes_; }
  const RankShare& share() const { return share_; }
  // One block's output scales, which the kernels leave to the caller; null where the format has
  // none.
  const float* output_scales(int64_t block) const;

  // Writes row `output` as stored, in float32, to out [in_features]. Neither gated weights nor
  // those with an input_order are supported.
  void unpack_row(int64_t output, float* out) const;

 private:
  void check(const PackArgs& args) const;
  void set_steps(const PackArgs& args);
  IntLayout layout_of(int64_t in_features) const;
  void pack_floats(const PackArgs& args, HostArena& arena, ThreadPool& pool);
  void pack_integers(const PackArgs& args, const QuantizeKernels& kernels, HostArena& arena,
                     ThreadPool& pool);

  WeightFormat format_;
  PackedFormat packed_format_ = kPackedF32;
  bool signed_int8_;  // see LinearKernels
  bool is_gated_;
  RankShare share_;
  int64_t num_outputs_ = 0;
  int64_t first_input_ = 0;  // of the parts' inputs
  int64_t in_features_ = 0;
  int64_t all_inputs_ = 0;
  bool has_input_order_ = false;
  std::vector<int32_t> input_order_;
  int64_t padded_k_ = 0;
  int64_t num_blocks_ = 0;
  int64_t block_bytes_ = 0;
  std::vector<SumSlice> sum_slices_;
  int num_planes_ = 1;
  std::array<int8_t, 16> table_ = {};
  Buffer data_;
};

class CpuEmbeddingTable final : public EmbeddingTable {
 public:
  explicit CpuEmbeddingTable(const CpuPackedLinear& weight) : rows_(&weight) {}
  explicit CpuEmbeddingTable(std::unique_ptr<CpuPackedLinear> weight)
      : owned_(std::move(weight)), rows_(owned_.get()) {}

  int64_t num_embeddings() const override { return rows_->out_features(); }
  int64_t dim() const override { return rows_->in_features(); }
  int64_t size_bytes() const override { return owned_ != nullptr ? owned_->size_bytes() : 0; }

  const CpuPackedLinear& rows() const { return *rows_; }

 private:
  std::unique_ptr<CpuPackedLinear> owned_;  // null when the rows are borrowed
  const CpuPackedLinear* rows_;
};

// Element `index` of a float32, bfloat16 or float16 array, exactly.
float float_at(const void* data, DType dtype, int64_t index);

}  // namespace specdec::cpu
