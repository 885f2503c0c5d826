// The kernels between the passes of a step on the device: they make rows from the requests' state,
// and advance the state by the sampled tokens. core/step_rules.h has the rules that host and device
// share.
//
// Plain version: the host's step. DeviceExecutorTest (tests/cuda/engine/device_executor_test.cc)
// compares answers with those of HostExecutor, DeviceDrafts (device_drafters_test.cc) chains and
// trees with those of ModelDrafter. PassRowsTest (tests/cuda/backend/pass_rows_test.cc) lists the
// expected rows of a draft pass.
#pragma once

#include <cstdint>

#include "backend/device_step.h"
#include "cuda/gpu/device.h"
#include "cuda/kernels/sampling.h"
#include "cuda/kernels/verify.h"

namespace specdec::cuda {

inline constexpr int kStepTail = 16;  // committed tokens that a seat keeps
static_assert(kStepTail >= kMaxUnseen, "a draft model reads the tokens it has not seen there");
inline constexpr int kMaxStepDrafts = 63;  // per request: with the root, a bit each in a mask
inline constexpr int kMaxStepSeats = 1024;
inline constexpr int kMaxTreeWidth = 16;
// A tree has the candidates of the root and of each node that the draft model runs.
inline constexpr int kMaxTreeNodes = kMaxTreeWidth * (1 + kMaxStepDrafts);

// A request's seat: its state on the device from step to step.
struct StepSeat {
  int32_t is_active;
  int32_t num_tokens;  // committed; the last has no KV yet
  int32_t num_seen;    // tokens whose KV the draft model has
  int32_t num_prompt_tokens;
  int32_t max_num_tokens;
  int32_t max_depth;  // of drafts
  int32_t min_tokens;
  DeviceRange stops;         // range of token_lists: tokens that end the request
  int32_t tail[kStepTail];   // the last committed tokens, the very last at the end
  DeviceSampleRow sampling;  // of the next token; position and path are set for each row
  int32_t* count_table;      // [vocab_size], which `sampling` reads; null without penalties
};

// The recurrent state of a seat's request: see DeviceSeatState. The commit advances it.
struct StepSeatState {
  int32_t slot;
  int32_t first_records[2];
  int32_t kept_slot;  // for the state that the next step may keep; -1: none
  int32_t num_pending;
  int32_t pending[kMaxStepDrafts];
};

// A seat's drafts in the step under way. Node 0 is the root, node i + 1 is draft i.
struct SeatDrafts {
  int32_t depth_limit;  // how deep the draft model may draft for the seat
  int32_t num_drafts;
  int32_t is_tree;    // draft i continues node parents[i]; in a chain it continues node i
  DeviceRange masks;  // range of StepMemory::masks, one per node; empty: all tokens
  int32_t tokens[kMaxStepDrafts];
  int32_t parents[kMaxStepDrafts];  // not written for chains
};

struct StepState {
  StepSeat* seats;        // [num_seats]
  SeatDrafts* drafts;     // [num_seats]
  StepSeatState* states;  // [num_seats], or null: the target has no recurrent layers
  int32_t* block_tables;  // [num_seats, max_blocks]
  int32_t num_seats;
  int32_t max_blocks;
  int32_t block_size;
};

// A batch as Backend's operations take it, and the rows of it that sample. Written by the kernels.
struct StepBatch {
  int32_t* token_ids;        // [max_rows]
  int32_t* positions;        // [max_rows]
  int64_t* slot_mapping;     // [max_rows]
  int32_t* cu_rows;          // [num_seats + 1]
  int32_t* base_lens;        // [num_seats]
  int32_t* sample_ids;       // [max_rows] the row that makes each sample
  DeviceSampleRow* samples;  // [max_rows]
  int64_t* feature_slots;    // [max_rows] for a draft head, as in BatchView; or null
  int64_t* state_slots;      // [max_rows] likewise
  int32_t max_rows;          // rows past those in use are padding
};

// RecurrentRows of the target's pass; StepTrees has the parents.
struct StepStates {
  int32_t* slots_in;    // [num_seats]
  int32_t* cu_pending;  // [num_seats + 1]
  int32_t* pending;     // [max_rows]
  int32_t* cu_stores;   // [num_seats + 1]
  StateStore* stores;   // [2 * num_seats]
  int32_t* records;     // [max_rows]
};

// A node of a growing tree. The i-th is node i + 1; the root has no entry.
struct StepTreeNode {
  int32_t token;
  int32_t parent;
  float survival;     // probability of its path by the draft model
  int32_t kv_offset;  // of its KV slot from the root's; 0 if the model has not run it
};

// A node whose continuations the next pass drafts.
struct StepFrontier {
  int32_t node;
  float survival;
  uint64_t mask;  // KV offsets that its row attends to: its ancestors' and, when it runs, its own
};

struct StepGrowth {
  int32_t num_nodes;
  int32_t num_frontier;
};

// The trees that a draft model grows in a step.
struct StepGrowths {
  StepGrowth* seats;        // [num_seats]
  StepTreeNode* nodes;      // [num_seats, capacity]
  StepFrontier* frontiers;  // [num_seats, shape.width]
  int32_t* num_kv_slots;    // [num_seats] in use by the root and the nodes that ran
  int32_t* kv_offsets;      // [num_seats, kMaxStepDrafts] of the drafts that remain
  int32_t capacity;         // at most kMaxTreeNodes
  TreeShape shape;          // bounds the nodes that are verified, and those that the model runs
};

// What a head that drafts over masks reads and leaves, beside StepBatch.
struct StepSpans {
  SpanConfig span;  // without rows where the head is of another kind
  int32_t*
      block_tables;      // [num_seats, max_blocks]: StepState's, with spare blocks after the root's
  int32_t* first_spare;  // [num_seats] the entry of block_tables that has the first of them
  int32_t* tokens_before;  // [num_seats * shape.width] of each sample, for a Markov head
  int32_t first_spare_block;
  int32_t num_spare;  // of a seat
};

// Trees for the target's pass, and what weighing drafts reads.
struct StepTrees {
  uint8_t* is_tree;         // [num_seats]
  uint64_t* masks;          // [max_rows]
  int32_t* parents;         // [max_rows]
  int32_t* paths;           // [max_rows, kMaxStepDrafts] tokens from the root's child to a node
  uint64_t* seeds;          // [num_seats]
  VerifyAttempt* attempts;  // [max_rows]
  int32_t* cu_attempts;     // [num_seats + 1]
  float* targets;           // [max_rows, vocab_size] distributions of the target
};

// A seat's report to the host.
struct StepReport {
  int32_t num_drafts;
  int32_t num_accepted;
  int32_t num_tokens;  // emitted
  int32_t is_tree;     // as in SeatDrafts
  int32_t drafts[kMaxStepDrafts];
  int32_t parents[kMaxStepDrafts];
  int32_t accepted[kMaxStepDrafts];  // nodes
  int32_t tokens[kMaxStepDrafts + 1];
};

// When the parts of a step began and when it ended, in nanoseconds.
struct StepTimes {
  uint64_t draft;   // the draft model's passes
  uint64_t verify;  // the target's pass
  uint64_t end;
  uint64_t step;  // number of steps that ended before it
};

inline constexpr int kStepsUnderWay = 2;  // at most; each has reports of its own

// The memory of device steps, and the settings that all steps share.
struct StepMemory {
  StepState state;
  StepBatch batch;
  StepTrees trees;
  StepStates states;    // arrays only if the target has recurrent layers
  StepGrowths growths;  // arrays only if trees are grown, the shape always
  StepSpans spans;
  AcceptedDrafts accepted;
  // Samples of the last pass: one token each and, if trees are grown, candidates, best first.
  int32_t* sampled;             // [max_rows]
  int32_t* num_candidates;      // [num_seats * shape.width]
  DeviceCandidate* candidates;  // [num_seats * shape.width, shape.width]
  float* distributions;         // [num_seats, max_nodes, vocab_size] of independent drafts, or null
  const int32_t* token_lists;   // the array that DeviceRanges refer to
  const uint32_t* masks;        // [max_rows, num_mask_words], or null in steps without masks
  // [num_seats] Reports of ended steps, used in turn, and the steps' times. In host memory, which
  // the device writes directly, so that no copy stands between two steps.
  StepReport* reports[kStepsUnderWay];
  StepTimes* ended_times[kStepsUnderWay];
  StepTimes* times;     // of the step that runs
  uint64_t* num_ended;  // steps that ended
  int32_t vocab_size;
  int32_t num_mask_words;
  DraftModelKind draft_kind;
  int32_t argmax;      // the draft model's likeliest tokens are drafted
  int32_t is_weighed;  // StepTrees::targets and attempts are read
};

struct StepParams {
  StepMemory memory;
  int32_t num_passes;  // of the draft model in this step
  int32_t has_host_drafts;
  int32_t pass;  // draft pass to prepare, or that has sampled
};

// The rows that a pass has.
enum class PassRows : uint8_t {
  kDraft,   // draft model: in pass 0 the tokens it has not seen, then the last draft of each chain.
            // One sample per seat.
  kTree,    // draft model, later passes of trees: the frontiers. shape.width samples per seat.
  kVerify,  // target: the last token and the drafts of each seat. Every row samples.
  kContext,      // head that drafts over masks: the tokens it has not seen, without the last
  kSpan,         // then the last token and masks
  kSpanSamples,  // no rows: which rows of the span sample in a pass. One sample per seat, or
                 // shape.width of a later pass of trees.
};

// The value `count` for entry `token` of a seat's count table.
struct SeatTokenCount {
  int32_t seat;
  int32_t token;
  int32_t count;
};

// Changes that the host makes between steps.
struct ChangeSeatsParams {
  StepState state = {};
  int32_t* span_tables = nullptr;  // StepSpans::block_tables, or null
  const int32_t* ended = nullptr;  // [num_ended] seats that are no longer active
  int32_t num_ended = 0;
  const NewBlock* blocks = nullptr;  // [num_blocks]
  int32_t num_blocks = 0;
  const KeptSlot* kept_slots = nullptr;  // [num_kept_slots]
  int32_t num_kept_slots = 0;
  const SeatTokenCount* counts = nullptr;  // [num_counts]
  int32_t num_counts = 0;
};

struct StepKernels {
  void (*make_rows)(Stream&, PassRows, const StepParams&);
  // Adds the candidates of a pass to the trees and chooses the next frontiers. After the last pass
  // the likeliest nodes become the seats' drafts.
  void (*grow_trees)(Stream&, const StepParams&);
  // Appends accepted tokens, ends requests, advances the state, reports.
  void (*commit)(Stream&, const StepParams&);
  // VerifyKernels::walk and commit, in one launch.
  void (*walk_and_commit)(Stream&, const StepParams&, const WalkParams&);
  void (*change_seats)(Stream&, const ChangeSeatsParams&);
};

namespace native {
StepKernels step_kernels();
}
namespace emulated {
StepKernels step_kernels();
}

}  // namespace specdec::cuda
