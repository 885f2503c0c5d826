// The engine: continuous batching over one model, on one device or several.
//
//   specdec::EngineConfig config;
//   config.model = "/path/to/checkpoint";
//   specdec::Engine engine(config);
//   engine.add_request(1, {1, 2, 3}, params);
//   while (engine.has_unfinished_requests())
//     for (const specdec::RequestOutput& output : engine.step()) ...
//
// An engine is used by one thread at a time (engine_loop.h has one for several); it owns the
// threads it computes with.
#pragma once

#include <array>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "specdec/acceptance_stats.h"
#include "specdec/config.h"
#include "specdec/draft_policy_stats.h"
#include "specdec/prepared_request.h"
#include "specdec/request_output.h"

namespace specdec {

// The contribution of one drafter.
struct DrafterStats {
  std::string name;
  int64_t num_draft_tokens = 0;
  int64_t num_accepted_tokens = 0;
  int64_t memory_bytes = 0;  // of its bookkeeping on the host
};

// Steps by the number of tokens they computed, drafts included: the last token of a bucket, and of
// the last bucket none.
struct StepTokens {
  static constexpr std::array<int, 13> kBounds = {1,   8,    16,   32,   64,   128,  256,
                                                  512, 1024, 2048, 4096, 8192, 16384};
  std::array<int64_t, kBounds.size() + 1> counts = {};  // by bucket
  int64_t sum = 0;                                      // tokens of all steps

  void record(int num_tokens);
};

struct EngineStats {
  int num_running = 0;
  int num_waiting = 0;
  int num_kv_blocks = 0;
  int num_free_kv_blocks = 0;    // includes cached blocks nothing refers to
  int num_cached_kv_blocks = 0;  // blocks the prefix cache can serve
  int64_t num_steps = 0;
  int64_t num_device_steps = 0;      // of them, run by a GPU as one launch
  int64_t num_overlapped_steps = 0;  // of them, launched while others were under way
  int64_t num_prompt_tokens = 0;     // prompt rows computed
  int64_t num_cached_tokens = 0;     // prompt tokens served by the prefix cache
  int64_t num_generation_tokens = 0;
  int64_t num_preemptions = 0;
  int64_t num_finished_requests = 0;
  int64_t num_aborted_requests = 0;
  StepTokens step_tokens;
  double schedule_seconds = 0;  // time in each part of all steps
  double draft_seconds = 0;
  double forward_seconds = 0;  // rows through the layers; drafts are verified here
  double sample_seconds = 0;
  double commit_seconds = 0;

  AcceptanceStats acceptance;  // of all completions
  std::vector<DrafterStats> drafters;
  DraftPolicyStats draft_policy;  // zero unless the draft length adapts
};

// How busy an engine is. Unfinished requests run or wait.
struct EngineLoad {
  int num_running = 0;             // requests that were scheduled, preempted ones included
  int num_waiting = 0;             // requests that were not yet
  int64_t num_waiting_tokens = 0;  // tokens of the waiting requests' prompts
  int num_free_kv_blocks = 0;      // includes cached blocks nothing refers to
  int num_kv_blocks = 0;
};

// One finished completion, as generate() returns it.
struct Completion {
  std::vector<int32_t> token_ids;
  std::vector<PositionLogprobs> logprobs;
  FinishReason finish_reason = FinishReason::kNone;
  std::shared_ptr<const TappedStates> tapped_states;  // null unless the engine has taps
};

// Whether the request is to go on.
using OutputCallback = std::function<bool(const RequestOutput& output)>;

class Engine {
 public:
  class Impl;  // not part of the API

  // Loads the checkpoint. Throws InvalidArgument, CheckpointError, OutOfMemory or Unavailable.
  explicit Engine(const EngineConfig& config);
  ~Engine();
  Engine(Engine&&) noexcept;
  Engine& operator=(Engine&&) noexcept;

  // Queues a request under a number of the caller's, which no unfinished request has. Throws
  // InvalidArgument (id in use, or what PreparedRequest's constructor throws); the engine is
  // unchanged then. Throws EngineFailed once the engine has failed.
  void add_request(uint64_t id, const PreparedRequest& request);
  void add_request(uint64_t id, std::vector<int32_t> prompt_token_ids, SamplingParams params,
                   RequestOptions options = {});

  // Ends a request; nothing more is reported for it. False when the id is unknown or finished.
  bool abort(uint64_t id);

  // Ends one completion of a request with FinishReason::kStop (a stop string was seen); its outputs
  // are not reported again. False when it is unknown or finished.
  bool stop_completion(uint64_t id, int index);

  // Runs one step and returns the requests that progressed or finished in it, oldest first. An
  // error of one request ends that request only (RequestOutput::error). An error that belongs to no
  // request, such as a device's, ends all requests in this way and also the engine: later steps
  // return nothing.
  std::vector<RequestOutput> step();

  // Whether the models are on several devices, whose ranks may be gone while no step runs.
  bool has_ranks() const;
  // Checks the ranks without waiting for them. If one has died, all requests and the engine end as
  // in step(), which makes the same check.
  std::vector<RequestOutput> check_ranks();
  // The error that ended the engine, EngineFailed or RankFailure; null while it works.
  std::exception_ptr failure() const;

  bool has_unfinished_requests() const;

  // Runs every prompt to its end; the outer index is the prompt, the inner one the completion.
  // `on_output` is called with what each request got in a step (request_id is its index); where it
  // returns false, the request ends with FinishReason::kAbort. Throws InvalidArgument before
  // anything runs if a prompt or parameter is bad or requests are unfinished, Error or EngineFailed
  // where an error ends a request or the engine on the way, and what `on_output` throws.
  std::vector<std::vector<Completion>> generate(const std::vector<std::vector<int32_t>>& prompts,
                                                const SamplingParams& params,
                                                const OutputCallback& on_output = nullptr);
  std::vector<std::vector<Completion>> generate(const std::vector<PreparedRequest>& requests,
                                                const OutputCallback& on_output = nullptr);

  // Drops every cached block and recurrent state. Returns how many blocks were dropped. Running
  // requests keep theirs, which no other request finds, before or after they end.
  int reset_prefix_cache();

  EngineStats stats() const;
  EngineLoad load() const;
  const ModelInfo& model_info() const;

 private:
  explicit Engine(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace specdec
