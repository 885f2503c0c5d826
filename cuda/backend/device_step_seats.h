// The requests of a device step: their seats, as the host sets them and the kernels read them.
#pragma once

#include "cuda/backend/cuda_backend.h"
#include "cuda/backend/device_array.h"
#include "cuda/backend/sample_lists.h"
#include "cuda/kernels/step.h"

namespace specdec::cuda {

class SeatTable {
 public:
  // The first two are borrowed.
  SeatTable(CudaBackend& backend, const StepKernels& kernels, const DeviceStepConfig& config);

  // Sets all seats. True where an array moved, which recorded launches name.
  bool set(std::span<const DeviceSeat> seats);
  void add_blocks(std::span<const NewBlock> blocks);
  void deactivate(std::span<const int> seats);
  // Gives the seats of a step what the host has drafted for them, or nothing, and its masks.
  void set_drafts(const DeviceStepPlan& plan);

  const StepState& state() const { return state_; }
  const int32_t* token_lists() const { return token_lists_; }
  const DeviceLogitBias* biases() const { return biases_; }
  // [max_rows, num_mask_words()] of the step that is launched next; null before the first of all.
  const uint32_t* masks() const { return masks_; }
  int num_mask_words() const { return (vocab_size_ + 31) / 32; }
  // Whether logits of some seat have masks, a bias or penalties.
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
  DeviceArray<int32_t> token_lists_;     // what the DeviceRanges of seats are of
  DeviceArray<DeviceLogitBias> biases_;  // what those of biases are of
  DeviceArray<int32_t> count_tables_;    // [num_seats, vocab_size], once there are penalties
  DeviceArray<uint32_t> masks_;          // once there are grammars
  bool any_edits_ = false;
  bool all_greedy_ = false;
};

}  // namespace specdec::cuda
