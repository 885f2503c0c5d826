// A backend that fails where a test wants it to.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <utility>

#include "engine/engine_impl.h"
#include "specdec/engine.h"
#include "testing/wrapped_backend.h"

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

class FaultyBackend final : public WrappedBackend {
 public:
  // The faults are borrowed and may change at any time between steps.
  FaultyBackend(std::unique_ptr<Backend> backend, const Faults& faults)
      : WrappedBackend(*backend), backend_(std::move(backend)), faults_(faults) {}

  Buffer allocate(size_t size_bytes, const char* purpose) override {
    Faults::call(faults_.allocate);
    return WrappedBackend::allocate(size_bytes, purpose);
  }
  std::unique_ptr<PackedLinear> pack_linear(const PackArgs& args) override {
    PackArgs changed = args;
    if (faults_.pack) faults_.pack(changed);
    return WrappedBackend::pack_linear(changed);
  }
  BatchView stage(const BatchView& batch) override {
    Faults::call(faults_.forward, batch.num_rows);
    return WrappedBackend::stage(batch);
  }
  void linear(const LinearArgs& args) override {
    Faults::call(faults_.linear);
    WrappedBackend::linear(args);
  }
  bool best_tokens(const BestTokensArgs& args) override {
    Faults::call(faults_.linear);
    return WrappedBackend::best_tokens(args);
  }
  void store_rows(const StoreRowsArgs& args) override {
    Faults::call(faults_.store_rows);
    WrappedBackend::store_rows(args);
  }
  void copy_kv(const CopyKvArgs& args) override {
    Faults::call(faults_.copy_kv);
    WrappedBackend::copy_kv(args);
  }
  void sample(const SampleArgs& args) override {
    for (const SampleRow& row : args.rows) Faults::call(faults_.sample, row);
    WrappedBackend::sample(args);
  }
  std::unique_ptr<DeviceStep> make_device_step(const DeviceStepConfig& config) override {
    std::unique_ptr<DeviceStep> step = WrappedBackend::make_device_step(config);
    if (step == nullptr) return nullptr;
    return std::make_unique<FaultyDeviceStep>(std::move(step), faults_);
  }
  void end_step() override {
    Faults::call(faults_.end_step);
    WrappedBackend::end_step();
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
