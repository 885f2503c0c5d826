// The reports of device steps, which kernels write to pinned memory, one copy per step under way.
#pragma once

#include <array>
#include <memory>

#include "cuda/backend/cuda_backend.h"
#include "cuda/backend/device_array.h"
#include "cuda/kernels/step.h"

namespace specdec::cuda {

// Everything that the launches of a step depend on.
struct StepShape {
  int num_seats = 0;
  int num_passes = 0;  // of the draft model
  bool has_host_drafts = false;
  int num_rows = 0;  // of the target's pass
  int max_unseen = 0;
  int num_logprobs = -1;   // reported beside the sampled token; -1: no logprobs
  bool any_edits = false;  // some row's logits are edited before sampling
  bool has_masks = false;
  bool all_greedy = false;

  bool has_drafts() const { return num_passes > 0 || has_host_drafts; }
  decltype(RecordKey::shape) key() const {
    return {num_seats,    num_passes, has_host_drafts, num_rows,  max_unseen,
            num_logprobs, any_edits,  has_masks,       all_greedy};
  }
};

class StepReports {
 public:
  StepReports(CudaBackend& backend, const DeviceStepConfig& config);

  // Where the sampler writes the target's samples, from row `first_row` on.
  SampleOutputs outputs(const StepShape& shape, int32_t* sampled, int first_row) const;
  // Allocates the arrays for logprobs that launches of this shape name.
  void reserve(const StepShape& shape);
  size_t missing_bytes() const { return num_logprobs_.missing_bytes() + logprobs_.missing_bytes(); }

  // Sets the addresses that the kernels report to.
  void set_addresses(StepMemory& memory) const;
  // A step was launched; its kernels report to the next copy. Its logprobs are copied there by the
  // stream: a graph writes to the same addresses each time, and the host may still be reading the
  // step before.
  void launched(const StepShape& shape, const StepMemory& memory);
  // Waits for the oldest step under way.
  StepOutcome wait();
  // Waits for all steps under way; failures are logged only.
  void wait_for_all() noexcept;
  int num_under_way() const { return num_launched_ - num_collected_; }
  bool is_full() const { return num_under_way() == static_cast<int>(copies_.size()); }

 private:
  // The report of one step, in pinned memory.
  struct Copy {
    StepShape shape;
    DeviceArray<StepReport> seats;
    DeviceArray<StepTimes> times;
    DeviceArray<DeviceLogprob> logprobs;  // these three are null until logprobs are wanted
    DeviceArray<int32_t> num_logprobs;
    DeviceArray<int32_t> cu_rows;
    std::unique_ptr<Event> done;
  };

  static PositionLogprobs read_logprobs(const Copy& copy, int row);

  CudaBackend& backend_;
  DeviceLayout layout_;
  DeviceArray<int32_t> num_logprobs_;    // [max_rows]; null until logprobs are wanted
  DeviceArray<DeviceLogprob> logprobs_;  // [max_rows, max_logprobs + 1], likewise
  std::array<Copy, kStepsUnderWay> copies_;
  int num_launched_ = 0;
  int num_collected_ = 0;
};

}  // namespace specdec::cuda
