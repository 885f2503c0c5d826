// Steps that run without the host on a CUDA device. A step's launches are recorded as a graph the
// second time a step of its shape runs.
#pragma once

#include "cuda/backend/cuda_backend.h"
#include "cuda/backend/device_step_reports.h"
#include "cuda/backend/device_step_seats.h"
#include "cuda/kernels/step.h"

namespace specdec::cuda {

class CudaDeviceStep final : public DeviceStep {
 public:
  CudaDeviceStep(CudaBackend& backend, const KernelTable& kernels, const DeviceStepConfig& config);
  ~CudaDeviceStep() override;

  int64_t bytes_on_demand() const override;
  void set_seats(std::span<const DeviceSeat> seats) override;
  void add_blocks(std::span<const NewBlock> blocks) override { seats_.add_blocks(blocks); }
  void deactivate(std::span<const int> seats) override { seats_.deactivate(seats); }
  void launch(const DeviceStepPlan& plan) override;
  StepOutcome wait() override { return reports_.wait(); }
  int num_under_way() const override { return reports_.num_under_way(); }

 private:
  // A model and the caches of its layers, in device memory.
  struct Model {
    StepModel* model = nullptr;
    DeviceArray<KvLayerPointers> layers = {};
  };

  bool grows_trees() const { return config_.tree.width > 1; }
  bool has_draft_head() const {
    return draft_.model != nullptr && config_.draft_kind != DraftModelKind::kModel;
  }
  bool drafts_spans() const { return config_.span.num_rows > 0; }
  bool reads_target_kv() const {
    return draft_.model != nullptr && config_.draft_kind == DraftModelKind::kTargetKvDraftHead;
  }
  bool grew_trees(const StepShape& shape) const { return grows_trees() && shape.num_passes > 0; }
  bool is_weighed(const StepShape& shape) const {
    return weighs_drafts(config_.verification) && shape.has_drafts();
  }
  StepShape shape_of(const DeviceStepPlan& plan) const;
  void allocate();
  void find_layers(Model& model);

  StepParams params(const StepShape& shape, int num_rows, int pass = 0) const;
  BatchView view(const StepShape& shape, int num_rows, bool has_trees) const;
  RecurrentRows recurrent_rows() const;
  void draft(const StepShape& shape);
  // The same by a head that drafts over masks: one pass, then samples level after level.
  void draft_spans(const StepShape& shape);
  // Makes the rows in the arrays that `params` names, and runs them through the model.
  void forward(const Model& model, const BatchView& rows, PassRows kind, const StepParams& params);
  void verify(const StepShape& shape);
  VerifyTrees trees(const StepShape& shape) const;
  WalkParams walk_params(const StepShape& shape) const;
  void accept(const StepShape& shape);
  // Moves the KV of accepted nodes to the slots that a chain would have (KvMovesParams).
  void move_kv(const StepShape& shape, const Model& model, const int32_t* kv_offsets);
  // Logits over the target's vocabulary, for samples [first, first + num_rows) of the last forward
  // pass of `model`.
  void compute_logits(const Model& model, int first, int num_rows);
  // Samples from the rows sample_ids[0 .. num_rows) of the last forward pass of `model`.
  void sample(const StepShape& shape, const Model& model, int num_rows);
  // Whether only the likeliest token of such rows is wanted.
  bool takes_best(const StepShape& shape, bool is_draft) const;
  SampleOutputs draft_outputs(int first_row) const;

  CudaBackend& backend_;
  const KernelTable& kernels_;
  const DeviceStepConfig config_;
  const int vocab_size_;
  const int logit_rows_;  // rows whose logits fit in logits_
  Model target_, draft_;

  DeviceLayout layout_;
  SeatTable seats_;
  StepMemory memory_{};
  DeviceArray<uint8_t> no_trees_;          // [num_seats] BatchView::is_tree of chains
  DeviceArray<float> logits_, processed_;  // [logit_rows, vocab_size]; SampleRowsParams::processed
  // [logit_rows, the draft head's vocabulary], for a draft head that scores only part of the
  // target's vocabulary.
  DeviceArray<float> draft_head_logits_;
  DeviceArray<float> span_logits_;    // [rows of spans, the draft head's vocabulary]
  DeviceArray<char> sampler_;         // SampleWorkspace
  DeviceArray<double> residuals_;     // [max_rows], if drafts are weighed
  DeviceArray<double> accept_rates_;  // [max_nodes], for synthetic verification
  DeviceArray<int64_t> moves_;        // [num_seats * max_nodes, 2] KV slots, from and to
  DeviceArray<int32_t> num_moves_;    // [1]
  StepReports reports_;
};

}  // namespace specdec::cuda
