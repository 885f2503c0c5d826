// A backend that passes everything on to another, for those that change some of its operations.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "backend/backend.h"

namespace specdec::testing {

class WrappedBackend : public Backend {
 public:
  // `inner` is borrowed.
  explicit WrappedBackend(Backend& inner) : inner_(inner) {}

  DeviceInfo device_info() const override { return inner_.device_info(); }
  std::string isa() const override { return inner_.isa(); }
  int num_threads() const override { return inner_.num_threads(); }
  ThreadPool& thread_pool() override { return inner_.thread_pool(); }
  DType act_dtype() const override { return inner_.act_dtype(); }
  MemoryInfo memory() const override { return inner_.memory(); }
  Buffer allocate(size_t size_bytes, const char* purpose) override {
    return inner_.allocate(size_bytes, purpose);
  }
  bool supports(WeightFormat format) const override { return inner_.supports(format); }
  bool makes_random_weights() const override { return inner_.makes_random_weights(); }
  std::unique_ptr<PackedLinear> pack_linear(const PackArgs& args) override {
    return inner_.pack_linear(args);
  }
  std::unique_ptr<EmbeddingTable> embedding_from(const PackedLinear& weight) override {
    return inner_.embedding_from(weight);
  }
  std::unique_ptr<EmbeddingTable> make_embedding(const WeightView& table,
                                                 WeightFormat format) override {
    return inner_.make_embedding(table, format);
  }
  Buffer make_ids(std::span<const int32_t> ids) override { return inner_.make_ids(ids); }
  Buffer make_vector(std::span<const TensorView> parts) override {
    return inner_.make_vector(parts);
  }
  size_t kv_layer_bytes(const PagedKvView& shape) const override {
    return inner_.kv_layer_bytes(shape);
  }
  BatchView stage(const BatchView& batch) override { return inner_.stage(batch); }
  const int32_t* stage_ids(std::span<const int32_t> ids) override { return inner_.stage_ids(ids); }
  void read(const void* values, std::span<std::byte> out) override { inner_.read(values, out); }
  void write(std::span<const std::byte> values, void* to) override { inner_.write(values, to); }
  void embed(const EmbedArgs& args) override { inner_.embed(args); }
  void norm(const NormArgs& args) override { inner_.norm(args); }
  void linear(const LinearArgs& args) override { inner_.linear(args); }
  bool best_tokens(const BestTokensArgs& args) override { return inner_.best_tokens(args); }
  void cluster_logits(const ClusterLogitsArgs& args) override { inner_.cluster_logits(args); }
  void activated_linear(const ActivatedLinearArgs& args) override { inner_.activated_linear(args); }
  void project_qkv(const QkvArgs& args) override { inner_.project_qkv(args); }
  void tree_attention(const TreeAttentionArgs& args) override { inner_.tree_attention(args); }
  void moe(const MoeArgs& args) override { inner_.moe(args); }
  void scale_rows(const ScaleRowsArgs& args) override { inner_.scale_rows(args); }
  void sparse_gates(const SparseGatesArgs& args) override { inner_.sparse_gates(args); }
  void predict_streams(const PredictStreamsArgs& args) override { inner_.predict_streams(args); }
  void correct_streams(const CorrectStreamsArgs& args) override { inner_.correct_streams(args); }
  void match_magnitude(const MatchMagnitudeArgs& args) override { inner_.match_magnitude(args); }
  void load_rows(const LoadRowsArgs& args) override { inner_.load_rows(args); }
  void gather_rows(const GatherRowsArgs& args) override { inner_.gather_rows(args); }
  void short_conv(const ShortConvArgs& args) override { inner_.short_conv(args); }
  void recurrence(const RecurrenceArgs& args) override { inner_.recurrence(args); }
  void gated_norm(const GatedNormArgs& args) override { inner_.gated_norm(args); }
  void store_rows(const StoreRowsArgs& args) override { inner_.store_rows(args); }
  void copy_kv(const CopyKvArgs& args) override { inner_.copy_kv(args); }
  void sample(const SampleArgs& args) override { inner_.sample(args); }
  void run_recorded(const RecordKey& key, const std::function<void()>& work) override {
    inner_.run_recorded(key, work);
  }
  void rehearse(const std::function<void()>& work) override { inner_.rehearse(work); }
  bool can_record_ranks() const override { return inner_.can_record_ranks(); }
  void flush() override { inner_.flush(); }
  void forget_recorded(const void* owner) override { inner_.forget_recorded(owner); }
  std::unique_ptr<DeviceStep> make_device_step(const DeviceStepConfig& config) override {
    return inner_.make_device_step(config);
  }
  void begin_step() override { inner_.begin_step(); }
  void end_step() override { inner_.end_step(); }

 private:
  Backend& inner_;
};

}  // namespace specdec::testing
