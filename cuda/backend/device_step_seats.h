// The seats of a device step: the host sets them and the kernels read them.
#pragma once

#include "cuda/backend/cuda_backend.h"
#include "cuda/backend/device_array.h"
#include "cuda/backend/sample_lists.h"
#include "cuda/kernels/step.h"

namespace specdec::cuda {

class SeatTable {
 public:
  // `backend` and `kernels` are borrowed.
  SeatTable(CudaBackend& backend, const StepKernels& kernels, const DeviceStepConfig& config);

  // Sets all seats. Returns true if an array moved that recorded launches name.
  bool set(std::span<const DeviceSeat> seats);
  void add_blocks(std::span<const NewBlock> blocks);
  void deactivate(std::span<const int> seats);
  // Copies the host's drafts, or none, and its masks to the seats, for one step.
  void set_drafts(const DeviceStepPlan& plan);
  // For the step that is launched next.
  void set_kept_slots(std::span<const KeptSlot> slots);

  const StepState& state() const { return state_; }
  const int32_t* token_lists() const { return token_lists_; }
  const DeviceLogitBias* biases() const { return biases_; }
  // [max_rows, num_mask_words()], for the step that is launched next; null until a step has masks.
  const uint32_t* masks() const { return masks_; }
  // StepSpans::block_tables; null where no head drafts over masks.
  int32_t* span_tables() const { return span_tables_; }
  int num_mask_words() const { return (vocab_size_ + 31) / 32; }
  // Whether some seat's logits have masks, a bias or penalties.
  bool any_edits() const { return any_edits_; }
  // Whether every seat takes the likeliest token.
  bool all_greedy() const { return all_greedy_; }
  size_t missing_bytes() const { return count_tables_.missing_bytes() + masks_.missing_bytes(); }

 private:
  StepSeat record_of(int index, const DeviceSeat& from, SampleLists& lists);
  int32_t* clear_count_table(int index);
  bool upload(const SampleLists& lists);
  void set_masks(std::span<const HostMasks> masks, std::span<SeatDrafts> records);
  void change(ChangeSeatsParams changes);

  CudaBackend& backend_;
  const StepKernels& kernels_;
  TreeShape tree_;
  int vocab_size_;
  DeviceLayout layout_;
  StepState state_;
  DeviceArray<int32_t> span_tables_;
  DeviceArray<int32_t> token_lists_;     // indexed by the seats' DeviceRanges
  DeviceArray<DeviceLogitBias> biases_;  // indexed by the seats' ranges of biases
  DeviceArray<int32_t> count_tables_;    // [num_seats, vocab_size]; null until a seat has penalties
  DeviceArray<uint32_t> masks_;          // null until a seat has a grammar
  bool any_edits_ = false;
  bool all_greedy_ = false;
};

}  // namespace specdec::cuda
