// The implementation of specdec::Engine.
#pragma once

#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "engine/device_executor.h"
#include "engine/drafting.h"
#include "engine/engine_models.h"
#include "engine/failure.h"
#include "engine/host_executor.h"
#include "engine/ranks.h"
#include "engine/request.h"
#include "engine/sizes.h"
#include "engine/step.h"
#include "runtime/model_runner.h"
#include "sched/scheduler.h"
#include "specdec/engine.h"

namespace specdec {

class Engine::Impl {
 public:
  explicit Impl(const EngineConfig& given,
                const BackendMaker& make_backend = specdec::make_backend);
  ~Impl();
  static Engine engine_of(std::unique_ptr<Impl> impl) { return Engine(std::move(impl)); }

  void add_request(uint64_t id, const PreparedRequest& prepared);
  bool abort(uint64_t id);
  bool stop_completion(uint64_t id, int index);
  std::vector<RequestOutput> step();
  std::exception_ptr failure() const { return failure_; }
  bool has_ranks() const { return ranks_ != nullptr; }
  std::vector<RequestOutput> check_ranks();
  bool has_unfinished_requests() const { return !requests_.empty(); }
  int reset_prefix_cache() { return scheduler_->prefix_cache().reset(); }
  EngineStats stats() const;
  EngineLoad load() const;
  const ModelInfo& model_info() const { return info_; }
  // The states that are tapped, and where a sequence's rows of them lie.
  PagedRowsView features() const { return models_.target().features(); }
  PrefixCache& prefix_cache() { return scheduler_->prefix_cache(); }

 private:
  // Outputs of the step under way, by arrival.
  using Outputs = std::map<uint64_t, RequestOutput>;

  // Whether completions return states.
  bool has_taps() const { return !config_.tapped_layers.empty() || config_.tap_final_hidden; }
  // Called where draft lengths adapt.
  void time_passes();
  void fill_model_info();

  std::vector<RequestOutput> run_step();
  // Steps of the host that may be under way at once: as many as the model has stages.
  int num_groups() const { return config_.pipeline_parallel_size; }
  // A decoding step that can be launched before the outcomes of the steps under way are known;
  // empty when there is none.
  std::optional<Step> plan_ahead();
  Step plan_and_draft();
  Step step_of(ExecutionPlan plan);
  void launch(Step step);
  // Waits for the oldest step under way.
  std::vector<RequestOutput> commit_oldest();
  // Waits for the steps of the host whose requests have all ended: stages of the model may be at
  // work on them.
  void drain();
  // The requests that progressed or ended, oldest first.
  std::vector<RequestOutput> commit(Step& step, StepOutcome& outcome, double wait_begin);
  void leave_out_ended(Step& step, StepOutcome& outcome);
  void record_drafts(Step& step, const StepOutcome& outcome);
  void report(CompletionState& completion, int num_new_tokens,
              std::vector<PositionLogprobs> logprobs, Outputs& outputs);
  void retire_finished(Outputs& outputs);
  // Appends the outputs in the order in which their requests came.
  static void move_in_order(Outputs& outputs, std::vector<RequestOutput>& ordered);
  // Ends the requests that failed.
  void fail_requests(const std::vector<Failure>& failures, Outputs& outputs);
  // Ends every request with an error that is none's own, and the engine with them.
  std::vector<RequestOutput> fail_engine(const std::exception_ptr& error);

  void finish(CompletionState& completion, FinishReason reason);
  RequestOutput& output_of(Outputs& outputs, const Request& request);
  CompletionState& completion_of(const Sequence& sequence);
  void erase(uint64_t id);
  void stop_waiting(const Request& request);

  std::unique_ptr<Ranks> ranks_;  // null: one device
  EngineModels models_;
  EngineConfig config_;
  std::unique_ptr<BlockPool> pool_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<Drafting> drafting_;  // null without speculation
  std::unique_ptr<HostExecutor> host_;
  std::unique_ptr<DeviceExecutor> device_;  // null where the device runs no steps by itself
  ModelInfo info_;
  EngineStats stats_;

  uint64_t next_ordinal_ = 0;  // of sequences
  uint64_t num_requests_added_ = 0;
  int num_waiting_ = 0;  // requests that were not yet scheduled
  int64_t num_waiting_tokens_ = 0;
  std::unordered_map<uint64_t, std::unique_ptr<Request>> requests_;
  std::unordered_map<uint64_t, CompletionState*> completions_;  // by ordinal

  DraftTree device_tree_;       // the device's drafts for one sequence; kept to reuse its memory
  std::deque<Step> under_way_;  // launched and not committed, oldest first
  double latest_launch_time_ = 0;
  double last_wait_end_ = 0;
  std::exception_ptr failure_;  // EngineFailed; null while the engine has not failed
};

}  // namespace specdec
