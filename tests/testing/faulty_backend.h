// A backend that fails where a test wants it to.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "backend/backend.h"
#include "engine/engine_impl.h"
#include "specdec/engine.h"

namespace specdec::testing {

// Called before the operation. An exception they throw is the operation's error; empty ones do
// nothing.
struct Faults {
  std::function<void(const SampleRow& row)> sample;  // for every row of a call
  std::function<void(int num_rows)> forward;         // once a pass, by its rows
  std::function<void()> store_rows;
  std::function<void()> copy_kv;
  std::function<void()> allocate;
  std::function<void()> linear;
  std::function<void()> end_step;
  std::function<void(PackArgs& args)> pack;  // which it may change
  std::function<void()> launch;              // of a device step
  std::function<void()> wait;

  template <class... Args>
  static void call(const std::function<void(Args...)>& fault,
                   const std::type_identity_t<Args>&... args) {
    if (fault) fault(args...);
  }
};

class FaultyDeviceStep final : public DeviceStep {
 public:
  FaultyDeviceStep(std::unique_ptr<DeviceStep> step, const Faults& faults)
      : step_(std::move(step)), faults_(faults) {}

  int64_t bytes_on_demand() const override { return step_->bytes_on_demand(); }
  void set_seats(std::span<const DeviceSeat> seats) override { step_->set_seats(seats); }
  void add_blocks(std::span<const NewBlock> blocks) override { step_->add_blocks(blocks); }
  void deactivate(std::span<const int> seats) override { step_->deactivate(seats); }
  void launch(const DeviceStepPlan& plan) override {
    Faults::call(faults_.launch);
    step_->launch(plan);
  }
  StepOutcome wait() override {
    Faults::call(faults_.wait);
    return step_->wait();
  }
  int num_under_way() const override { return step_->num_under_way(); }

 private:
  std::unique_ptr<DeviceStep> step_;
  const Faults& faults_;
};

class FaultyBackend final : public Backend {
 public:
  // The faults are borrowed and may change at any time between steps.
  FaultyBackend(std::unique_ptr<Backend> backend, const Faults& faults)
      : backend_(std::move(backend)), faults_(faults) {}

  DeviceInfo device_info() const override { return backend_->device_info(); }
  std::string isa() const override { return backend_->isa(); }
  int num_threads() const override { return backend_->num_threads(); }
  ThreadPool& thread_pool() override { return backend_->thread_pool(); }
  DType act_dtype() const override { return backend_->act_dtype(); }
  MemoryInfo memory() const override { return backend_->memory(); }
  Buffer allocate(size_t size_bytes, const char* purpose) override {
    Faults::call(faults_.allocate);
    return backend_->allocate(size_bytes, purpose);
  }
  bool supports(WeightFormat format) const override { return backend_->supports(format); }
  bool makes_random_weights() const override { return backend_->makes_random_weights(); }
  std::unique_ptr<PackedLinear> pack_linear(const PackArgs& args) override {
    PackArgs changed = args;
    if (faults_.pack) faults_.pack(changed);
    return backend_->pack_linear(changed);
  }
  std::unique_ptr<EmbeddingTable> embedding_from(const PackedLinear& weight) override {
    return backend_->embedding_from(weight);
  }
  std::unique_ptr<EmbeddingTable> make_embedding(const WeightView& table,
                                                 WeightFormat format) override {
    return backend_->make_embedding(table, format);
  }
  Buffer make_ids(std::span<const int32_t> ids) override { return backend_->make_ids(ids); }
  Buffer make_vector(std::span<const TensorView> parts) override {
    return backend_->make_vector(parts);
  }
  size_t kv_layer_bytes(const PagedKvView& shape) const override {
    return backend_->kv_layer_bytes(shape);
  }
  BatchView stage(const BatchView& batch) override {
    Faults::call(faults_.forward, batch.num_rows);
    return backend_->stage(batch);
  }
  const int32_t* stage_ids(std::span<const int32_t> ids) override {
    return backend_->stage_ids(ids);
  }
  void read(const void* values, std::span<std::byte> out) override { backend_->read(values, out); }
  void write(std::span<const std::byte> values, void* to) override { backend_->write(values, to); }
  void embed(const EmbedArgs& args) override { backend_->embed(args); }
  void norm(const NormArgs& args) override { backend_->norm(args); }
  void linear(const LinearArgs& args) override {
    Faults::call(faults_.linear);
    backend_->linear(args);
  }
  bool best_tokens(const BestTokensArgs& args) override {
    Faults::call(faults_.linear);
    return backend_->best_tokens(args);
  }
  void activated_linear(const ActivatedLinearArgs& args) override {
    backend_->activated_linear(args);
  }
  void project_qkv(const QkvArgs& args) override { backend_->project_qkv(args); }
  void tree_attention(const TreeAttentionArgs& args) override { backend_->tree_attention(args); }
  void moe(const MoeArgs& args) override { backend_->moe(args); }
  void load_rows(const LoadRowsArgs& args) override { backend_->load_rows(args); }
  void store_rows(const StoreRowsArgs& args) override {
    Faults::call(faults_.store_rows);
    backend_->store_rows(args);
  }
  void copy_kv(const CopyKvArgs& args) override {
    Faults::call(faults_.copy_kv);
    backend_->copy_kv(args);
  }
  void sample(const SampleArgs& args) override {
    for (const SampleRow& row : args.rows) Faults::call(faults_.sample, row);
    backend_->sample(args);
  }
  void run_recorded(const RecordKey& key, const std::function<void()>& work) override {
    backend_->run_recorded(key, work);
  }
  void rehearse(const std::function<void()>& work) override { backend_->rehearse(work); }
  bool can_record_ranks() const override { return backend_->can_record_ranks(); }
  void flush() override { backend_->flush(); }
  void forget_recorded(const void* owner) override { backend_->forget_recorded(owner); }
  std::unique_ptr<DeviceStep> make_device_step(const DeviceStepConfig& config) override {
    std::unique_ptr<DeviceStep> step = backend_->make_device_step(config);
    if (step == nullptr) return nullptr;
    return std::make_unique<FaultyDeviceStep>(std::move(step), faults_);
  }
  void begin_step() override { backend_->begin_step(); }
  void end_step() override {
    Faults::call(faults_.end_step);
    backend_->end_step();
  }

 private:
  std::unique_ptr<Backend> backend_;
  const Faults& faults_;
};

// An engine that fails where `faults`, borrowed, say so.
inline Engine make_faulty_engine(const EngineConfig& config, const Faults& faults) {
  return Engine::Impl::engine_of(
      std::make_unique<Engine::Impl>(config, [&faults](const BackendConfig& backend) {
        return std::make_unique<FaultyBackend>(make_backend(backend), faults);
      }));
}

}  // namespace specdec::testing
