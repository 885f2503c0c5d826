// What is behind specdec::Engine.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "backend/backend.h"
#include "engine/device_loop.h"
#include "engine/drafting.h"
#include "engine/failure.h"
#include "engine/limits.h"
#include "engine/request.h"
#include "engine/step_sampler.h"
#include "runtime/model_runner.h"
#include "sched/scheduler.h"
#include "specdec/engine.h"

namespace specdec {

class Engine::Impl {
 public:
  using BackendMaker = std::function<std::unique_ptr<Backend>(const BackendConfig&)>;
  explicit Impl(const EngineConfig& given,
                const BackendMaker& make_backend = specdec::make_backend);

  void add_request(const std::string& id, std::vector<int32_t> prompt,
                   const SamplingParams& params);
  void check_request(const std::vector<int32_t>& prompt, const SamplingParams& params) const;
  bool abort(const std::string& id);
  bool stop_completion(const std::string& id, int index);
  std::vector<RequestOutput> step();
  bool has_failed() const { return !failure_.empty(); }
  bool has_unfinished_requests() const { return !requests_.empty(); }
  int reset_prefix_cache() { return scheduler_->prefix_cache().reset(); }
  EngineStats stats() const;
  const ModelInfo& model_info() const { return info_; }

 private:
  // Outputs of the step under way, by arrival.
  using Outputs = std::map<uint64_t, RequestOutput>;

  std::vector<RequestOutput> run_step();
  // Ends every request with an error that is none's own, and the engine with them.
  std::vector<RequestOutput> fail_engine(const std::exception_ptr& error);
  void fill_model_info(const ModelConfig& model, const CacheSize& cache);
  // A step of the device loop; nothing when there is no loop or it has nothing to run.
  std::optional<std::vector<RequestOutput>> device_step();
  // The two ways to run a plan: as one step on the device, where it can be, and pass by pass.
  std::optional<std::vector<SequenceOutcome>> verify_on_device(const ExecutionPlan& plan);
  std::vector<SequenceOutcome> run(ExecutionPlan& plan);
  DeviceLoop::CompletionSource completion_source() const;
  // The results of a step, oldest request first.
  std::vector<RequestOutput> end_step(Outputs& outputs);
  static std::vector<RequestOutput> in_order(Outputs& outputs);
  ExecutionPlan plan_and_draft();
  // Fills steps_ for a plan with its drafts.
  void list_steps(const ExecutionPlan& plan);
  void forward(ExecutionPlan& plan);
  int add_rows(const SequenceStep& step);
  // Takes a sequence out of the step; fail_requests() ends its request.
  void drop(ExecutionPlan& plan, size_t index, const std::exception_ptr& error);
  void compact_kv(const std::vector<SequenceOutcome>& emissions);
  void commit(const ExecutionPlan& plan, std::vector<SequenceOutcome>& emissions, Outputs& outputs);
  void report(CompletionState& completion, int num_new_tokens,
              std::vector<PositionLogprobs> logprobs, Outputs& outputs);
  void fail_requests(Outputs& outputs);
  void finish(CompletionState& completion, FinishReason reason);
  void retire_finished(Outputs& outputs);
  RequestOutput& output_of(Outputs& outputs, const Request& request);
  CompletionState& completion_of(const Sequence& sequence);
  void erase(const std::string& id);

  EngineConfig config_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<ModelRunner> runner_;
  std::unique_ptr<BlockPool> pool_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<DraftModels> draft_models_;
  std::unique_ptr<Drafting> drafting_;  // null without speculation
  std::unique_ptr<StepSampler> sampler_;
  std::unique_ptr<DeviceLoop> loop_;  // null where the device does no steps of its own
  ModelInfo info_;
  EngineStats stats_;

  uint64_t next_ordinal_ = 0;  // of sequences
  uint64_t num_requests_added_ = 0;
  std::unordered_map<std::string, std::unique_ptr<Request>> requests_;
  std::unordered_map<uint64_t, CompletionState*> completions_;  // by ordinal

  // The step under way; kept between steps for their memory.
  BatchInputs inputs_;
  std::vector<SequenceStep> steps_;  // by index in the plan
  std::vector<Failure> failures_;
  std::string failure_;  // of the engine; empty while it has not failed
};

}  // namespace specdec
