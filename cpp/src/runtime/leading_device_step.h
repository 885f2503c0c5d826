// The leader's device step: the other ranks take the same steps with their shares.
#pragma once

#include <memory>
#include <utility>

#include "backend/device_step.h"
#include "runtime/rank_calls.h"

namespace specdec {

class LeadingDeviceStep final : public DeviceStep {
 public:
  // `calls` is borrowed.
  LeadingDeviceStep(std::unique_ptr<DeviceStep> own, RankCalls& calls)
      : own_(std::move(own)), calls_(calls) {}

  int64_t bytes_on_demand() const override { return own_->bytes_on_demand(); }
  void set_seats(std::span<const DeviceSeat> seats) override {
    calls_.set_seats(seats);
    own_->set_seats(seats);
  }
  void add_blocks(std::span<const NewBlock> blocks) override {
    calls_.add_blocks(blocks);
    own_->add_blocks(blocks);
  }
  void deactivate(std::span<const int> seats) override {
    calls_.deactivate(seats);
    own_->deactivate(seats);
  }
  void launch(const DeviceStepPlan& plan) override {
    calls_.launch_step(plan);
    own_->launch(plan);
  }
  // Everybody samples alike, so nobody else is asked.
  StepOutcome wait() override { return own_->wait(); }
  int num_under_way() const override { return own_->num_under_way(); }

 private:
  std::unique_ptr<DeviceStep> own_;
  RankCalls& calls_;
};

}  // namespace specdec
