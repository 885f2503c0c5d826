// The backend for host processors. Operations are defined in the file of their subject (linear.cc,
// attention.cc, moe.cc, recurrent.cc, sampler.cc); each splits its rows over the pool and calls the
// kernels of one instruction set. One thread may use a backend at a time.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>

#include "backend/backend.h"
#include "core/host_arena.h"
#include "core/thread_pool.h"
#include "cpu/isa.h"
#include "cpu/kernel_table.h"
#include "cpu/projection.h"
#include "cpu/recurrent_work.h"
#include "cpu/sampler.h"

namespace specdec::cpu {

class CpuBackend final : public Backend {
 public:
  // `act_dtype` is float32 or bfloat16; `num_threads` 0 means one per physical core.
  CpuBackend(Isa isa, int num_threads, DType act_dtype, PrefetchInto into = prefetch_into());

  DeviceInfo device_info() const override;
  std::string isa() const override { return std::string(name_of(isa_)); }
  int num_threads() const override { return pool_.num_threads(); }
  ThreadPool& thread_pool() override { return pool_; }
  DType act_dtype() const override { return act_dtype_; }
  MemoryInfo memory() const override;
  bool supports(WeightFormat format) const override { return format < WeightFormat::kFp8; }

  Buffer allocate(size_t size_bytes, const char* purpose) override;
  std::unique_ptr<PackedLinear> pack_linear(const PackArgs& args) override;
  std::unique_ptr<EmbeddingTable> embedding_from(const PackedLinear& weight) override;
  std::unique_ptr<EmbeddingTable> make_embedding(const WeightView& table,
                                                 WeightFormat format) override;
  Buffer make_vector(std::span<const TensorView> parts) override;
  Buffer make_ids(std::span<const int32_t> ids) override;
  size_t kv_layer_bytes(const PagedKvView& shape) const override;

  BatchView stage(const BatchView& batch) override { return batch; }
  const int32_t* stage_ids(std::span<const int32_t> ids) override { return ids.data(); }
  void read(const void* values, std::span<std::byte> out) override {
    std::copy_n(static_cast<const std::byte*>(values), out.size(), out.data());
  }
  void write(std::span<const std::byte> values, void* to) override {
    std::copy_n(values.data(), values.size(), static_cast<std::byte*>(to));
  }

  void embed(const EmbedArgs& args) override;
  void norm(const NormArgs& args) override;
  void linear(const LinearArgs& args) override;
  void cluster_logits(const ClusterLogitsArgs& args) override;
  void activated_linear(const ActivatedLinearArgs& args) override;
  void project_qkv(const QkvArgs& args) override;
  void tree_attention(const TreeAttentionArgs& args) override;
  void moe(const MoeArgs& args) override;
  void scale_rows(const ScaleRowsArgs& args) override;
  void sparse_gates(const SparseGatesArgs& args) override;
  void predict_streams(const PredictStreamsArgs& args) override;
  void correct_streams(const CorrectStreamsArgs& args) override;
  void match_magnitude(const MatchMagnitudeArgs& args) override;
  void short_conv(const ShortConvArgs& args) override;
  void recurrence(const RecurrenceArgs& args) override;
  void gated_norm(const GatedNormArgs& args) override;
  void store_rows(const StoreRowsArgs& args) override;
  void load_rows(const LoadRowsArgs& args) override;
  void gather_rows(const GatherRowsArgs& args) override;
  void copy_kv(const CopyKvArgs& args) override;
  void sample(const SampleArgs& args) override;

  void begin_step() override;
  void end_step() override;

 private:
  void norm_and_split_qkv(const QkvArgs& args);
  // Scales of norms over all heads, one per row, from the sums [rows, outputs].
  std::span<const RowScales> row_scales(const QkvArgs& args, const float* sums);
  void activated_norm(const NormArgs& args);

  // Stores a cell's sums as linear() does.
  void store(const LinearArgs& args, const SumsCell& cell) const {
    kernels_.epilogue.store({.cell = cell,
                             .bias = args.bias,
                             .out = args.out,
                             .out_features = args.weight->out_features(),
                             .scale = args.scale,
                             .soft_cap = args.soft_cap,
                             .accumulate = args.accumulate});
  }
  // linear() for weights whose inputs are split over ranks (shared_linear.cc).
  void linear_by_inputs(const LinearArgs& args);
  // The rows with all ranks' inputs, valid until the next call.
  ProjectionInput gather_inputs(const CpuPackedLinear& weight, const ProjectionInput& in);
  void linear_by_outputs(const LinearArgs& args);
  void gather_embeddings(const EmbedArgs& args, float* out);
  void gated_norm_of_ranks(const GatedNormArgs& args);
  // This rank's buffer for the planes of `num_rows` rows: [num_planes, num_rows, padded_outputs].
  float* part_for_planes(const CpuPackedLinear& weight, int64_t num_rows);
  void compute_planes(const CpuPackedLinear& weight, const ProjectionInput& in, float* planes,
                      int64_t plane_rows);
  // Returns the planes of all ranks.
  std::array<const float*, kNumSlices> exchange_planes(const CpuPackedLinear& weight,
                                                       int64_t num_rows);
  // Folds the planes' rows from first_row on, then stores the sums as linear() does.
  void finish_planes(const LinearArgs& args, const std::array<const float*, kNumSlices>& planes,
                     int64_t first_row);

  Isa isa_;
  DType act_dtype_;
  KernelTable kernels_;
  ThreadPool pool_;
  HostArena weights_;
  Sampler sampler_;
  Projector projector_;
  std::optional<ThreadPool::StepScope> step_;

  // The kernels that serve a cache. Checks its shape.
  KvKind kv_kind(const PagedKvView& kv) const;

  // Scratch of at least num_floats floats with arbitrary contents. The buffer never shrinks.
  static float* grow_scratch(Buffer& buffer, int64_t num_floats);
  Buffer attention_scratch_;
  Buffer embed_scratch_;
  Buffer gather_scratch_;
  Buffer moe_scratch_;
  Buffer norm_scratch_;
  Buffer qkv_scratch_;
  Buffer recurrent_scratch_;
  std::vector<RowScales> row_scales_;
  RecurrentWork recurrent_work_;
};

// The host as a device: its model name, memory, default threads and widest kernel set.
DeviceInfo cpu_device_info();

// Throws InvalidArgument or Unavailable, naming the field, for settings that this machine cannot
// run.
std::unique_ptr<Backend> make_cpu_backend(const BackendConfig& config);

}  // namespace specdec::cpu
