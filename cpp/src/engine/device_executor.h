// Runs pure decoding steps on a device that needs no host between their passes (DeviceStep). Each
// running request has a seat there. A step planned ahead is launched while the previous one runs,
// and the device drafts for it by itself. The same launch verifies a step for which the host
// drafted.
//
// Either the device's seats are those of the running requests (`seating_`), or it has none. Seats
// are taken while no step is under way. They are given up when half of them are empty, and once the
// host has run a step. The host runs a step when there is other work than decoding, when a request
// needs something that a device step does not do, and when the draft model has to catch up
// (`host_is_next_`).
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "core/thread_pool.h"
#include "engine/drafting.h"
#include "engine/engine_models.h"
#include "engine/step.h"

namespace specdec {

struct DeviceExecutorConfig {
  int max_num_seqs = 0;
  int max_rows = 0;       // of a step
  int max_model_len = 0;  // tokens
  int block_size = 0;
  LogprobsMode logprobs_mode = LogprobsMode::kRaw;
  SpeculativeConfig speculative;

  static DeviceExecutorConfig of(const EngineModels& models);
  // The rows and the sequences that one step has room for; the host runs larger steps.
  int step_rows() const;
  int step_seqs() const;
};

class DeviceExecutor final : public StepExecutor {
 public:
  static constexpr int kMaxUnderWay = 2;  // steps

  // Allocates the memory of device steps, before the KV cache gets the rest. Null where the backend
  // has no device steps, or none for this speculation or these ranks. All ranks make the call
  // alike.
  static std::unique_ptr<DeviceStep> make_step(const EngineModels& models,
                                               const DeviceExecutorConfig& config);
  // The step as made with the same configuration. The next two are borrowed; `drafting` may be
  // null.
  DeviceExecutor(std::unique_ptr<DeviceStep> device, Drafting* drafting, ThreadPool& threads,
                 const DeviceExecutorConfig& config);

  // The number of draft model passes for a step planned ahead for `running`, all running sequences;
  // zero passes without a draft model on the device. Empty where the host has to run the next step:
  // it drafts or makes masks, a request needs something that device steps do not do, or the draft
  // model is so far behind that it has to catch up on the host.
  std::optional<PassesAhead> passes_ahead(std::span<CompletionState* const> running);
  // The shape of the trees that the device drafts; each pass adds a level.
  const TreeShape& tree_shape() const { return shape_; }

  // Whether launch() can run this step, planned and drafted by the host, for `num_running`
  // sequences that run. Nothing may be under way.
  bool can_run(const Step& step, int num_running);

  void launch(const Step& step) override;
  StepOutcome wait() override;
  int num_under_way() const { return device_->num_under_way(); }

  // After the host ran a step, the device's state of its requests is out of date.
  void give_up_seats() {
    seating_.reset();
    host_is_next_ = false;
  }

 private:
  struct Seat {
    Sequence::Precedence precedence;
    bool is_taken = false;
    std::vector<int32_t> blocks;  // as the device knows them
  };
  struct Seating {
    std::vector<Seat> seats;  // in order of precedence
    bool want_logprobs = false;
    int num_unseen = 1;  // by the draft model, most of a sequence's tokens when the next step runs

    unsigned num_taken() const;
  };
  struct Launch {
    std::vector<int> seat_of;  // by index in the plan
  };

  bool serves(const CompletionState& completion) const;
  // The masks of all rows of a step; false where a grammar fails.
  bool make_masks(const Step& step);
  // Makes sure that these completions, and no others, have seats. False where the host has to run
  // them.
  bool seat(std::span<CompletionState* const> completions);
  std::optional<Seating> take_seats(std::span<CompletionState* const> completions);
  DeviceSeat seat_of(CompletionState& completion) const;
  void vacate_others(std::span<CompletionState* const> completions);
  int most_passes() const;
  DraftModelKind kind() const {
    return drafter_ == nullptr ? DraftModelKind::kModel : drafter_->kind();
  }
  // Blocks that a sequence got since the device heard of it.
  void add_new_blocks(const Sequence& sequence, int seat, std::vector<NewBlock>& added);

  std::unique_ptr<DeviceStep> device_;
  DeviceExecutorConfig config_;
  Drafting* drafting_;
  ModelDrafter* drafter_;  // whose model runs on the device; null: the device drafts nothing
  ThreadPool& threads_;
  bool drafts_on_host_;
  TreeShape shape_;    // shape of the device's drafts
  int span_rows_ = 0;  // of the draft head's spans
  std::optional<Seating> seating_;
  bool host_is_next_ = false;
  int num_steps_until_catch_up_ = 0;
  std::deque<Launch> launches_;  // under way, oldest first
};

}  // namespace specdec
