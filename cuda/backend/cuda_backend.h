// The backend for GPUs. Its operations are launches on one stream, each defined in the file of its
// subject. Work is asynchronous; sample(), read() and outcomes of device steps wait for it. One
// thread at a time may use a backend.
#pragma once

#include <memory>
#include <string>

#include "backend/backend.h"
#include "cuda/backend/attention_work_lists.h"
#include "cuda/backend/moe.h"
#include "cuda/backend/packed_linear.h"
#include "cuda/backend/projector.h"
#include "cuda/backend/rank_exchange.h"
#include "cuda/backend/recorder.h"
#include "cuda/backend/sampler.h"
#include "cuda/backend/staged_batch.h"
#include "cuda/backend/staging.h"
#include "cuda/backend/workspace.h"
#include "cuda/gpu/device.h"
#include "cuda/gpu/rehearsal_stream.h"
#include "cuda/kernels/kernel_table.h"

namespace specdec::cuda {

struct CudaOptions {
  bool enforce_eager = false;  // nothing is captured in graphs
  bool deterministic = true;   // false allows kernels that are not row-invariant

  static CudaOptions of(const BackendConfig& config) {
    return {.enforce_eager = config.enforce_eager, .deterministic = config.deterministic};
  }
};

class CudaBackend final : public Backend {
 public:
  // `act_dtype` is bfloat16 or float16. The kernel table's target must be the device's, and `gemms`
  // must run on the device.
  CudaBackend(std::unique_ptr<Device> device, const KernelTable& kernels, DType act_dtype,
              const CudaOptions& options = {}, GemmList gemms = {});
  ~CudaBackend() override;

  DeviceInfo device_info() const override { return device_->info(); }
  std::string isa() const override;
  int num_threads() const override { return device_->properties().num_multiprocessors; }
  ThreadPool& thread_pool() override { return thread_pool_; }
  DType act_dtype() const override { return act_dtype_; }
  MemoryInfo memory() const override {
    return {.total_bytes = device_->info().memory_bytes, .free_bytes = device_->free_bytes()};
  }

  bool supports(WeightFormat) const override { return true; }
  bool makes_random_weights() const override { return true; }

  Buffer allocate(size_t size_bytes, const char* purpose) override;
  std::unique_ptr<PackedLinear> pack_linear(const PackArgs& args) override;
  std::unique_ptr<EmbeddingTable> embedding_from(const PackedLinear& weight) override;
  std::unique_ptr<EmbeddingTable> make_embedding(const WeightView& table,
                                                 WeightFormat format) override;
  Buffer make_vector(std::span<const TensorView> parts) override;
  Buffer make_ids(std::span<const int32_t> ids) override;
  size_t kv_layer_bytes(const PagedKvView& shape) const override;
  BatchView stage(const BatchView& batch) override;
  const int32_t* stage_ids(std::span<const int32_t> ids) override;
  void read(const void* values, std::span<std::byte> out) override;
  void write(std::span<const std::byte> values, void* to) override {
    staging_.upload_to(to, values.data(), values.size());
  }

  void embed(const EmbedArgs& args) override;
  void norm(const NormArgs& args) override;
  void linear(const LinearArgs& args) override;
  bool best_tokens(const BestTokensArgs& args) override;
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

  std::unique_ptr<DeviceStep> make_device_step(const DeviceStepConfig& config) override;
  void run_recorded(const RecordKey& key, const std::function<void()>& work) override;
  bool can_record_ranks() const override { return rank_exchange_.can_be_recorded(); }
  void flush() override { stream_->flush(); }
  void rehearse(const std::function<void()>& work) override;
  void forget_recorded(const void* owner) override { recorder_.forget(owner); }
  void begin_step() override;
  void end_step() override {}

  Device& device() { return *device_; }
  RehearsalStream& stream() { return *stream_; }
  Staging& staging() { return staging_; }
  Recorder& recorder() { return recorder_; }
  RankExchange& rank_exchange() { return rank_exchange_; }
  ProjectionChooser& projection_chooser() { return projector_.chooser(); }

 private:
  void linear_by_inputs(const LinearArgs& args);
  // The rows with all ranks' inputs, valid until the next call.
  ProjectionInput gather_inputs(const CudaPackedLinear& weight, const ProjectionInput& in);
  void linear_by_outputs(const LinearArgs& args);
  void embed_rows(const CudaPackedLinear& rows, const EmbedArgs& args);
  void gather_embeddings(const EmbedArgs& args);

  std::unique_ptr<Device> device_;
  KernelTable kernels_;
  DType act_dtype_;
  std::unique_ptr<RehearsalStream> stream_;
  Staging staging_;
  WeightPacker packer_;
  RankExchange rank_exchange_;
  Projector projector_;
  ExpertMixer mixer_;
  Workspace recurrence_workspace_;
  DeviceSampler sampler_;
  StagedBatch staged_batch_;
  Recorder recorder_;
  Buffer attention_workspace_;  // AttentionParams::workspace
  AttentionWorkLists attention_work_lists_;
  ThreadPool thread_pool_;
  bool has_noted_launches_ = false;  // in the log
};

}  // namespace specdec::cuda
