// A backend that adds up where the time of a step goes, operation by operation.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>

#include "backend/backend.h"
#include "common/timing.h"

namespace specdec::bench {

// Passes everything on to `inner`, which is borrowed.
class TimedBackend final : public Backend {
 public:
  explicit TimedBackend(Backend& inner) : inner_(inner) {}

  // Seconds in each operation since the last call.
  std::map<std::string, double> take_seconds() { return std::exchange(seconds_, {}); }

  DeviceInfo device_info() const override { return inner_.device_info(); }
  std::string isa() const override { return inner_.isa(); }
  int num_threads() const override { return inner_.num_threads(); }
  ThreadPool& thread_pool() override { return inner_.thread_pool(); }
  DType act_dtype() const override { return inner_.act_dtype(); }
  MemoryInfo memory() const override { return inner_.memory(); }
  bool supports(WeightFormat format) const override { return inner_.supports(format); }
  bool makes_random_weights() const override { return inner_.makes_random_weights(); }
  Buffer allocate(size_t size_bytes, const char* purpose) override {
    return inner_.allocate(size_bytes, purpose);
  }
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
  void begin_step() override { inner_.begin_step(); }
  void end_step() override { inner_.end_step(); }

  void embed(const EmbedArgs& args) override {
    timed("embed", [&] { inner_.embed(args); });
  }
  void norm(const NormArgs& args) override {
    timed("norm", [&] { inner_.norm(args); });
  }
  void linear(const LinearArgs& args) override {
    // The head is the one projection that starts from the residual stream and does not return to
    // it.
    const bool is_head = args.in.norm != nullptr;
    timed(is_head ? "head" : "linear", [&] { inner_.linear(args); });
  }
  void activated_linear(const ActivatedLinearArgs& args) override {
    timed("activated_linear", [&] { inner_.activated_linear(args); });
  }
  void project_qkv(const QkvArgs& args) override {
    timed("project_qkv", [&] { inner_.project_qkv(args); });
  }
  void tree_attention(const TreeAttentionArgs& args) override {
    timed("tree_attention", [&] { inner_.tree_attention(args); });
  }
  void moe(const MoeArgs& args) override {
    timed("moe", [&] { inner_.moe(args); });
  }
  void load_rows(const LoadRowsArgs& args) override {
    timed("load_rows", [&] { inner_.load_rows(args); });
  }
  void store_rows(const StoreRowsArgs& args) override {
    timed("store_rows", [&] { inner_.store_rows(args); });
  }
  void copy_kv(const CopyKvArgs& args) override {
    timed("copy_kv", [&] { inner_.copy_kv(args); });
  }
  void sample(const SampleArgs& args) override {
    timed("sample", [&] { inner_.sample(args); });
  }

 private:
  template <class Operation>
  void timed(const char* name, Operation&& operation) {
    const Stopwatch watch;
    operation();
    seconds_[name] += watch.seconds();
  }

  Backend& inner_;
  std::map<std::string, double> seconds_;
};

}  // namespace specdec::bench
