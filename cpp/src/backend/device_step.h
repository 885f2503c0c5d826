// Steps that follow each other on the device without the host. One launch is a whole step: the
// draft model's passes, the target's pass over the drafts, sampling, acceptance and the bookkeeping
// for the next step. The host says how deep to draft, may launch a step before it has read what the
// step before brought, and reads outcomes later.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "backend/op_args.h"
#include "backend/step_outcome.h"
#include "core/draft_sampling.h"
#include "core/step_rules.h"
#include "specdec/speculative_config.h"

namespace specdec {

// For a draft head that scores only part of its target's vocabulary, as in SampleArgs. Empty: all
// of it.
struct DraftVocabulary {
  const int32_t* token_ids = nullptr;
  int target_vocab_size = 0;
};

// A model as a device step runs it: its arguments are in device memory, and no call waits.
class StepModel {
 public:
  virtual ~StepModel() = default;
  // `level` of a draft head: 0 where the rows are committed tokens, d where they are drafts of
  // depth d.
  virtual void forward(const BatchView& batch, int level = 0) = 0;
  // Logits of rows of the last forward: [num_rows, vocab_size()]. Null ids: of all its rows.
  virtual void compute_logits(const int32_t* row_ids, int num_rows, float* logits) = 0;
  // The likeliest tokens of such rows, as ids of the target's vocabulary (BestTokensArgs). False:
  // not possible without their logits, and nothing was done.
  virtual bool best_tokens(const int32_t* row_ids, int num_rows, int32_t* tokens) {
    static_cast<void>(row_ids), static_cast<void>(num_rows), static_cast<void>(tokens);
    return false;
  }
  // What a Markov head adds to logits of a token, where token_ids[i] comes before the token of row
  // i: [num_rows, vocab_size()].
  virtual bool has_markov_head() const { return false; }
  virtual void compute_markov_logits(const int32_t* token_ids, int num_rows, float* out) {
    static_cast<void>(token_ids), static_cast<void>(num_rows), static_cast<void>(out);
  }
  // Of a head that drafts over masks: blocks beside the pool's, for rows that no later pass reads,
  // with ids in a row. Known once there is a cache.
  virtual std::span<const int32_t> spare_blocks() const { return {}; }
  virtual int vocab_size() const = 0;
  virtual DraftVocabulary draft_vocabulary() const { return {}; }
  // The layers that have keys and values of their own, those of one shape together. May be called
  // once there is a cache, which is made after the device step.
  virtual std::span<const PagedKvView> kv_layers() const = 0;
  // The features that its passes store for a drafter, which move with the KV; width 0: none.
  virtual PagedRowsView features() const { return {}; }
};

// Rows of all spans in a step, whose logits are held.
inline constexpr int kMaxSpanRows = 512;

struct DeviceStepConfig {
  int num_seats = 0;   // requests at once
  int max_rows = 0;    // of a pass
  int block_size = 0;  // tokens
  int max_blocks_per_request = 0;
  int max_logprobs = 0;  // most likely tokens reported in addition to the sampled one
  // Limits of a request's drafts in one step. With a width above 1 the draft model grows trees,
  // equal to those of ModelDrafter.
  TreeShape tree = {};
  DraftSampling sampling = DraftSampling::kCoupled;  // of the draft model's tokens
  Verification verification = Verification::kExact;
  bool accepts_trees = false;  // made on the host
  bool has_states = false;     // the target has recurrent layers
  // Synthetic verification accepts draft i with rate i, given that all before it were accepted.
  std::vector<double> synthetic_rates = {};
  LogprobsMode logprobs_mode = LogprobsMode::kRaw;
  StepModel* target = nullptr;
  StepModel* draft = nullptr;  // null: nothing is drafted
  DraftModelKind draft_kind = DraftModelKind::kModel;
  SpanConfig span = {};  // of kSpanHead
};

// How the recurrent state of a seat's request goes on.
struct DeviceSeatState {
  int32_t slot = -1;
  // The first record that drafts write: of the next step, and of the one after it, in turn.
  std::array<int32_t, 2> first_records = {};
  std::span<const int32_t> pending = {};  // records of committed tokens that the slot lacks
};

// A request's seat in the device step, as the host sets it between steps.
struct DeviceSeat {
  bool is_active = false;
  int num_tokens = 0;  // committed; the last has no KV yet
  int num_prompt_tokens = 0;
  int max_num_tokens = 0;  // at which it ends
  int num_seen = 0;        // tokens whose KV the draft model has
  // The deepest draft; needs first_unseen() >= num_tokens - kMaxUnseen.
  int max_depth = 0;
  std::span<const int32_t> tokens;      // the last kMaxUnseen committed ones, or all
  std::vector<int32_t> stop_token_ids;  // end the request once min_tokens are there
  int min_tokens = 0;                   // of the output; no stop token is sampled before
  SampleRow sampling;  // of the next token; position and path advance on the device
  std::span<const int32_t> blocks;
  DeviceSeatState state = {};  // of a target with recurrent layers
};

// A block a request got since its seat was set.
struct NewBlock {
  int seat = 0;
  int index = 0;  // in the request's table
  int32_t block = 0;
};

// A slot for the state that a step may keep for a seat (kept_tokens).
struct KeptSlot {
  int seat = 0;
  int32_t slot = 0;
};

// The host's drafts for a seat. Node 0 is the root, and node i + 1 is draft i, a child of node
// parents[i].
struct HostDraft {
  int seat = 0;
  std::span<const int32_t> tokens;
  std::span<const int32_t> parents;
};

// The tokens that a grammar allows after a seat's root and after each of its drafts, in their
// order.
struct HostMasks {
  int seat = 0;
  std::vector<std::span<const uint32_t>> nodes;  // SampleRow::allowed_mask
};

struct DeviceStepPlan {
  int num_seats = 0;   // seats 0 to num_seats - 1 are in use; inactive seats have no rows
  int num_passes = 0;  // of the draft model: the depth of its drafts
  // Drafts made on the host, instead of num_passes; seats that are not listed have none. Such a
  // step is launched only when no other is under way.
  std::span<const HostDraft> host_drafts = {};
  // Grammar masks; seats that are not listed may get any token. A step with masks has no passes
  // either, and is launched only when no other is under way.
  std::span<const HostMasks> masks = {};
  std::span<const KeptSlot> kept_slots = {};  // of a target with recurrent layers
  int max_unseen = 2;  // tokens of a request the draft model has not seen: a power of two
  bool want_logprobs = false;
};

class DeviceStep {
 public:
  virtual ~DeviceStep() = default;

  // Device memory that steps may still take, for requests with logprobs, penalties or grammars.
  virtual int64_t bytes_on_demand() const = 0;

  // Sets all seats; no step may be under way.
  virtual void set_seats(std::span<const DeviceSeat> seats) = 0;
  // Both take effect in steps that are launched afterwards.
  virtual void add_blocks(std::span<const NewBlock> blocks) = 0;
  virtual void deactivate(std::span<const int> seats) = 0;

  // Queues a step; at most two may be under way.
  virtual void launch(const DeviceStepPlan& plan) = 0;
  // Waits for the oldest step under way: one outcome for each seat in use.
  virtual StepOutcome wait() = 0;
  virtual int num_under_way() const = 0;
};

}  // namespace specdec
