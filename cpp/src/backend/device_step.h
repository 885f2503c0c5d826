// Steps that follow each other on the device without the host: a draft model's passes, the target's
// pass over the drafts, sampling, acceptance and the bookkeeping of the next step, as one launch.
// The host says how many tokens to draft, may launch a step before it has seen what the one before
// brought, and reads outcomes later.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "backend/op_args.h"
#include "backend/step_outcome.h"

namespace specdec {

// A model as a device step runs it. What it is given is in device memory; nothing waits.
class StepModel {
 public:
  virtual ~StepModel() = default;
  virtual void forward(const BatchView& batch) = 0;
  // Logits of rows of the last forward: [num_rows, vocab_size()].
  virtual void compute_logits(const int32_t* row_ids, int num_rows, float* logits) = 0;
  virtual int vocab_size() const = 0;
  // Once there is a cache: a device step is made before.
  virtual std::span<const PagedKvView> kv_layers() const = 0;
};

struct DeviceStepConfig {
  int num_slots = 0;   // requests at once
  int max_drafts = 0;  // of a request and step; nodes of a tree
  int max_rows = 0;    // of a pass
  int block_size = 0;  // tokens
  int max_blocks_per_request = 0;
  int max_logprobs = 0;  // most likely tokens reported beside the sampled one
  // Continuations of a node that the draft model considers, and nodes of a level that it runs: it
  // grows trees like those of DraftModelDrafter. 1: chains.
  int tree_width = 1;
  bool argmax_drafts = false;  // the draft model's likeliest tokens, whatever the temperature
  // The draft model's tokens are drawn with noise of their own.
  bool independent_drafts = false;
  // Drafts are weighed (Verification::kRejection, kBlock) instead of compared.
  bool is_weighed = false;
  bool is_block = false;
  bool accepts_trees = false;  // drafts of the host
  // Not empty: the i-th draft is accepted with rate i given all before, whatever the tokens.
  std::vector<double> synthetic_rates;
  LogprobsMode logprobs_mode = LogprobsMode::kRaw;
  StepModel* target = nullptr;
  StepModel* draft = nullptr;  // null: nothing is drafted

  // Drafts that are verified after so many passes of the draft model.
  int num_nodes(int num_passes) const { return std::min(num_passes * tree_width, max_drafts); }
};

// Tokens a draft model may not have seen when it begins to draft, the last committed one included.
inline constexpr int kMaxStepLag = 16;

// One request as the host knows it between steps.
struct DeviceSlot {
  bool is_active = false;
  int num_tokens = 0;  // committed; the last has no KV yet
  int num_prompt_tokens = 0;
  int max_num_tokens = 0;    // at which it ends
  int num_draft_tokens = 0;  // whose KV the draft model has: num_tokens - kMaxStepLag or more
  int max_drafts = 0;        // of a path, in a step
  std::span<const int32_t> tokens;      // the last kMaxStepLag committed ones, or all
  std::vector<int32_t> stop_token_ids;  // end the request once min_tokens are there
  int min_tokens = 0;                   // of the output; no stop token is sampled before
  SampleRow sampling;  // of the next token; position and path advance on the device
  std::span<const int32_t> blocks;
};

// A block a request got since its slot was set.
struct NewBlock {
  int slot = 0;
  int index = 0;  // in the request's table
  int32_t block = 0;
};

// What the host drafted for a slot: parents[i] is the node that draft i continues, node 0 the root
// and node i + 1 draft i.
struct HostDraft {
  int slot = 0;
  std::span<const int32_t> tokens;
  std::span<const int32_t> parents;
};

struct DeviceStepPlan {
  int num_slots = 0;   // in use: slots 0 to num_slots - 1; inactive ones have no rows
  int num_passes = 0;  // of the draft model: how deep its drafts get
  // Instead: drafts of the host, of slots that have some. Such a step is launched once the ones
  // before it have been waited for.
  std::span<const HostDraft> host_drafts = {};
  int max_lag = 2;  // tokens the draft model has not seen: at most this, a power of two
  bool want_logprobs = false;
};

class DeviceStep {
 public:
  virtual ~DeviceStep() = default;

  // Device memory that steps may yet take, for requests that want more than tokens.
  virtual int64_t bytes_on_demand() const = 0;

  // Sets all slots; no step may be under way.
  virtual void set_slots(std::span<const DeviceSlot> slots) = 0;
  // For the steps launched from now on.
  virtual void add_blocks(std::span<const NewBlock> blocks) = 0;
  virtual void deactivate(std::span<const int> slots) = 0;

  // Queues a step; at most two may be under way.
  virtual void launch(const DeviceStepPlan& plan) = 0;
  // Waits for the oldest step under way: one outcome for each slot in use.
  virtual StepOutcome wait() = 0;
  virtual int num_under_way() const = 0;
};

}  // namespace specdec
