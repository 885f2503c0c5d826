// The drafting side of an engine: makes its drafters, asks them each step, counts what was
// accepted.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/device_step.h"
#include "engine/adaptive_drafter.h"
#include "engine/failure.h"
#include "engine/request.h"
#include "runtime/draft_model_drafter.h"
#include "runtime/model_runner.h"
#include "sched/scheduler.h"
#include "specdec/acceptance_stats.h"
#include "specdec/config.h"
#include "specdec/engine.h"
#include "speculation/draft_schedule.h"
#include "speculation/drafter.h"

namespace specdec {

class Speculator {
 public:
  // Loads the draft models. Throws like Engine. Two phases, as the target is: the KV pool is sized
  // once all weights are there.
  Speculator(const EngineConfig& config, Backend& backend, const ModelConfig& target,
             int max_model_len);

  // KV bytes of the draft models for one block.
  int64_t cache_block_bytes(const KvFormat& format) const;
  // The most KV heads of a draft model; 0 without one.
  int num_kv_heads() const;
  // ModelRunner::rehearse() of the draft models.
  void rehearse(const KvFormat& format);
  // Makes the drafters. The pool must outlive the speculator.
  void start(const BlockPool& pool, const KvFormat& format, int64_t target_weight_bytes);

  // Drafted tokens (tree nodes) a decoding sequence may have in the step being planned.
  int budget(const Sequence& sequence, int num_decoding);
  // Draws up a tree for every sequence of the plan with draft slots and writes its size to the
  // plan. Returns those for which drafting failed; they have no drafts.
  std::vector<Failure> draft(ExecutionPlan& plan,
                             const std::function<CompletionState&(const Sequence&)>& completion_of);
  // The tree of plan.sequences[index]; null without drafts.
  const DraftTree* tree(size_t index) const;

  // Records that `nodes` of a completion's tree were accepted.
  void record(const DraftTree& tree, CompletionState& completion, const std::vector<int>& nodes);
  // Tokens a sequence got in this step, whether by drafts or not.
  void record_tokens(const Sequence& sequence, std::span<const int32_t> tokens);
  // What came after draft() took so long.
  void end_step(double seconds);
  // The sequence is over, whatever way.
  void finish(const Sequence& sequence);

  // The draft model whose passes a device step can run, known before start(): the only drafter, of
  // the target's vocabulary and length.
  struct DeviceDraft {
    ModelRunner* runner = nullptr;
    DraftSampling sampling = DraftSampling::kCoupled;
  };
  std::optional<DeviceDraft> device_draft() const { return device_draft_; }
  // Its drafter, after start(); null without one.
  DraftModelDrafter* device_drafter() const {
    return device_draft_.has_value() ? model_drafter_ : nullptr;
  }
  TreeShape tree_shape() const {
    return {.width = config_.tree_width, .max_nodes = config_.max_nodes()};
  }
  // Longest draft of a sequence in any step.
  int longest_draft(const Sequence& sequence) const;
  // Passes of the draft model in a device step, `limit` at most, for sequences of whose tokens it
  // has not seen `num_unseen`.
  int plan_levels(std::span<const Sequence* const> sequences, int limit, int num_unseen);
  // What became of a sequence in a device step of so many passes, before its tokens are recorded.
  void record_levels(CompletionState& completion, int num_passes, const SequenceOutcome& outcome);
  // ... and how long its passes of the draft model took.
  void record_passes(int num_passes, int num_rows, double seconds);

  void fill_stats(EngineStats& stats) const;
  int64_t weight_bytes() const;
  int64_t kv_cache_bytes() const;

 private:
  std::optional<DeviceDraft> find_device_draft(int max_model_len) const;
  int depth_limit(const Sequence& sequence) const;
  // Levels of a sequence's tree in a device step of so many passes.
  int num_levels(const Sequence& sequence, int num_passes) const;
  void begin_step(const ExecutionPlan& plan);
  std::unique_ptr<Drafter> make_drafter(size_t index, const BlockPool& pool,
                                        const KvFormat& format);
  std::unique_ptr<Drafter> combine(std::vector<std::unique_ptr<Drafter>> drafters,
                                   const std::vector<double>& relative_costs);

  SpeculativeConfig config_;
  int max_rows_;
  int vocab_size_;
  DraftSchedule schedule_;
  std::vector<std::unique_ptr<ModelRunner>> runners_;  // by drafter, until start(); null: no model
  std::vector<int> max_lens_;                          // by drafter: tokens its positions reach
  std::optional<DeviceDraft> device_draft_;
  int64_t weight_bytes_ = 0;
  int64_t kv_cache_bytes_ = 0;
  std::unique_ptr<Drafter> drafter_;
  std::vector<const Drafter*> parts_;           // the drafters it is made of
  DraftModelDrafter* model_drafter_ = nullptr;  // the last draft model
  AdaptiveDrafter* adaptive_ = nullptr;         // it, where the length of drafts adapts

  int num_decoding_ = 0;          // sequences, in the step being planned
  std::vector<DraftTree> trees_;  // by index in the plan; kept for their memory
  std::vector<bool> has_tree_;
  std::vector<DraftRequest> requests_;

  AcceptanceStats acceptance_;
  std::vector<DrafterStats> drafter_stats_;
};

}  // namespace specdec
