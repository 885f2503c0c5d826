// Decoding without the host on the critical path: while nothing but decoding is to be done, steps
// are launched one ahead of what the host has seen. What a step brings is committed like any
// other's. Everything else (prompts, admissions, preemption, requests a device step does not serve)
// is left to the engine's ordinary step, once the steps under way are through.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "engine/drafting.h"
#include "engine/request.h"
#include "sched/scheduler.h"

namespace specdec {

struct DeviceLoopConfig {
  int max_num_seqs = 0;
  int max_drafts = 0;     // of a sequence and step; nodes of a tree
  int max_rows = 0;       // of a step
  int max_model_len = 0;  // tokens
  int block_size = 0;
  LogprobsMode logprobs_mode = LogprobsMode::kRaw;
  Verification verification = Verification::kExact;
  std::vector<double> synthetic_rates;

  bool is_weighed() const { return weighs_drafts(verification); }
  // What one step has room for; more is left to the ordinary step.
  int step_rows() const;
  int step_seqs() const;
};

class DeviceLoop {
 public:
  // Takes the memory of steps, before the KV cache gets what is left. Null where the backend has no
  // device steps, or none that serve this speculation.
  static std::unique_ptr<DeviceStep> make_step(Backend& backend, ModelRunner& target,
                                               const SpeculativeConfig& speculative,
                                               const DraftModels& draft_models,
                                               const DeviceLoopConfig& config);
  // The step as made with the same configuration; the rest is borrowed. `drafting` may be null.
  DeviceLoop(std::unique_ptr<DeviceStep> device, Scheduler& scheduler, Drafting* drafting,
             const DeviceLoopConfig& config);

  // One sequence of a step that is done.
  struct Progress {
    CompletionState* completion = nullptr;
    ScheduledSequence scheduled;
    DraftTree tree;                                // that the device drafted
    std::optional<int> num_passes = std::nullopt;  // of the draft model, where the device has one
    SequenceOutcome outcome;
  };
  struct Step {
    std::vector<Progress> sequences;
    double draft_seconds = 0;
    double target_seconds = 0;
  };
  using CompletionSource = std::function<CompletionState*(uint64_t ordinal)>;  // null: it is gone

  // Launches what can be launched and waits for the oldest step. False when none is under way and
  // the ordinary step has to run.
  bool run(const CompletionSource& completions, Step& step);

  // Runs what the host planned and drafted for as one step on the device, and waits for it: one
  // outcome for each sequence of the plan. None when it is not all decoding, or not all of it is
  // served.
  using TreeSource = std::function<const DraftTree*(size_t index)>;  // null: no drafts
  std::optional<StepOutcome> verify(const ExecutionPlan& plan, const TreeSource& trees,
                                    const CompletionSource& completions);
  // The ordinary step ran: the device knows its requests no longer.
  void forget() { is_current_ = false; }

 private:
  struct Launch {
    int num_passes = 0;
  };

  bool serves(const Sequence& sequence) const;
  // Puts the running sequences into seats; false when some cannot be served.
  bool fill_seats(const CompletionSource& completions);
  DeviceSeat seat_of(CompletionState& completion);
  std::optional<DeviceSeat> try_seat_of(CompletionState& completion);
  std::optional<int> choose_passes();
  int most_passes() const;
  int padded_lag() const;
  bool reserve(int num_passes);
  bool can_verify(const ExecutionPlan& plan, const TreeSource& trees) const;
  // Lets the seats of completions that have ended go.
  void vacate(const CompletionSource& completions);
  // Blocks that a seat got since the device heard of it.
  void add_new_blocks(size_t index, std::vector<NewBlock>& added);
  bool can_launch(const CompletionSource& completions);
  bool launch(const CompletionSource& completions);
  void collect(const CompletionSource& completions, StepOutcome outcome, int num_passes,
               Step& step);

  std::unique_ptr<DeviceStep> device_;
  Scheduler& scheduler_;
  Drafting* drafting_;
  DraftModelDrafter* drafter_;  // null: the device drafts nothing
  bool drafts_on_host_;
  DeviceLoopConfig config_;
  TreeShape shape_;  // of what the device drafts

  // One of the device, as the host knows it.
  struct Seat {
    uint64_t ordinal = 0;
    bool is_taken = false;
    Sequence* sequence = nullptr;
    int num_tokens_ahead = 0;     // at most, once the steps under way are through
    int num_seen = 0;             // by the draft model, of what is committed
    std::vector<int32_t> blocks;  // as the device knows them

    int most_tokens(const TreeShape& shape, int num_passes) const;
  };
  std::vector<Seat> seats_;
  bool is_current_ = false;  // the device's seats are the running sequences
  bool want_logprobs_ = false;
  int lag_ = 1;  // tokens the draft model has not seen when the next step runs
  int num_steps_until_catch_up_ = 0;
  std::deque<Launch> launches_;  // under way, oldest first
};

}  // namespace specdec
