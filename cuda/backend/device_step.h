// Steps without the host on a CUDA device: the launches of a step, recorded as a graph the second
// time a step of its shape runs.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "cuda/backend/cuda_backend.h"
#include "cuda/backend/sample_lists.h"
#include "cuda/kernels/step.h"

namespace specdec::cuda {

class CudaDeviceStep final : public DeviceStep {
 public:
  CudaDeviceStep(CudaBackend& backend, const KernelTable& kernels, const DeviceStepConfig& config);
  ~CudaDeviceStep() override;

  int64_t bytes_on_demand() const override;
  void set_seats(std::span<const DeviceSeat> slots) override;
  void add_blocks(std::span<const NewBlock> blocks) override;
  void deactivate(std::span<const int> slots) override;
  void launch(const DeviceStepPlan& plan) override;
  StepOutcome wait() override;
  int num_under_way() const override { return num_launched_ - num_collected_; }

 private:
  static constexpr int kHostDrafts = -1;  // Shape::num_passes
  // Everything the launches of a step depend on.
  struct Shape {
    int num_slots = 0;
    int num_passes = 0;  // of the draft model; -1: the host drafted
    int num_rows = 0;    // of the target's pass
    int lag = 0;
    int num_logprobs = -1;   // reported beside the sampled token; -1: none at all
    bool any_edits = false;  // of logits, before they are sampled from
  };
  // What the host reads of one step.
  struct Ring {
    Buffer reports;  // pinned StepReport [num_slots]
    Buffer times;    // pinned StepTimes
    // Pinned, once logprobs are wanted: as the sampler leaves them.
    Buffer logprobs;
    Buffer num_logprobs;
    Buffer cu_rows;
    std::unique_ptr<Event> done;
    Shape shape;
  };

  Shape shape_of(const DeviceStepPlan& plan) const;
  bool is_weighed(const Shape& shape) const {
    return weighs_drafts(config_.verification) && shape.num_passes != 0;
  }
  bool grows_trees() const { return config_.tree.width > 1; }
  // Whether the target's pass may run trees.
  bool may_be_trees(const Shape& shape) const {
    return shape.num_passes < 0 || (grows_trees() && shape.num_passes > 0);
  }
  void set_drafts(std::span<const HostDraft> drafts);
  StepTrees trees(const Shape& shape);
  StepGrowths growths();
  void accept(const Shape& shape);
  // Moves the KV of what was accepted from where `places` says (KvMovesParams).
  void move_kv(const Shape& shape, StepModel& model, const Buffer& layers, const int32_t* places);
  Buffer layers_of(StepModel& model);
  AcceptedDrafts accepted();
  StepSlots state(int num_slots);
  StepBatch batch(int max_rows);
  BatchView view(int num_slots, int num_rows);
  BatchView tree_view(int num_slots, int num_rows);
  StepSlot record_of(int index, const DeviceSeat& from, SampleLists& lists);
  int32_t* count_table(int slot);
  size_t count_tables_bytes() const;
  size_t num_logprobs_bytes() const;
  size_t logprobs_bytes() const;
  void upload_lists(const SampleLists& lists);
  void report(const Shape& shape);
  static PositionLogprobs read_logprobs(const Ring& ring, int row);
  void reserve(const Shape& shape);
  // Samples from rows of the last forward of `model`: the first num_rows of sample_ids_.
  void sample(const Shape& shape, StepModel& model, int num_rows);
  SampleOutputs draft_outputs(int first_row);
  SampleOutputs reported_outputs(const Shape& shape, int first_row);
  void draft(const Shape& shape);
  void draft_chain_rows(const Shape& shape, int pass, int num_rows);
  void draft_tree_rows(const Shape& shape, int pass, int num_rows);
  void grow_trees(const Shape& shape, int pass);
  void verify(const Shape& shape);
  void change(std::span<const SlotChange> changes);

  CudaBackend& backend_;
  const KernelTable& kernels_;
  DeviceStepConfig config_;

  Buffer slots_;                         // StepSlot [num_slots]
  Buffer block_tables_;                  // int32 [num_slots, max_blocks_per_request]
  Buffer token_lists_;                   // int32: what the slots' rows and stops are ranges of
  Buffer biases_;                        // DeviceLogitBias
  Buffer pinned_slots_, pinned_tables_;  // of the host, on their way to the device
  Buffer token_ids_, positions_, slot_mapping_, cu_rows_, base_lens_, sample_ids_;
  Buffer is_tree_, masks_, parents_, paths_, seeds_, attempts_, cu_attempts_;  // StepTrees
  Buffer chains_;  // uint8 [num_slots], zeros: the draft model's first pass, or all
  Buffer growths_, nodes_, frontiers_, num_kv_slots_, kv_places_;  // StepGrowths
  Buffer num_candidates_, candidates_;  // of samples: int32, DeviceCandidate [tree_width]
  Buffer num_accepted_, accepted_nodes_, num_emitted_, emitted_;  // AcceptedDrafts
  Buffer targets_;            // float [max_rows, vocab_size], where drafts are weighed
  Buffer distributions_;      // float [num_slots, max_drafts, vocab_size] of independent drafts
  Buffer residuals_;          // double [max_rows]
  Buffer moves_, num_moves_;  // KV slots of accepted nodes: int64 [num_slots * max_drafts, 2]
  Buffer layers_;             // KvLayerPointers of the target
  Buffer draft_layers_;       // ... of the draft model
  Buffer samples_;            // DeviceSampleRow [max_rows]
  Buffer sampled_;            // int32 [max_rows]
  Buffer logits_;             // float [logit_rows_, vocab_size]
  Buffer processed_;          // likewise, where raw logprobs and edits meet
  Buffer sampler_;            // SampleWorkspace
  Buffer num_logprobs_;       // int32 [max_rows]
  Buffer logprobs_;           // DeviceLogprob [max_rows, max_logprobs + 1]
  Buffer count_tables_;       // int32 [num_slots, vocab_size], once there are penalties
  Buffer accept_rates_;       // double [max_drafts]
  Buffer reports_;            // StepReport [num_slots]
  Buffer times_;              // StepTimes, begun; then reported

  int logit_rows_ = 0;
  bool any_edits_ = false;  // some slot has masks, bias or penalties
  std::array<Ring, 2> rings_;
  int num_launched_ = 0;
  int num_collected_ = 0;
};

}  // namespace specdec::cuda
