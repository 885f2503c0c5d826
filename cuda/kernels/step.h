// What strings the passes of a step together on the device: rows from the state of the requests,
// and the state after what was sampled.
#pragma once

#include <cstdint>

#include "cuda/gpu/device.h"
#include "cuda/kernels/sampling.h"
#include "cuda/kernels/verify.h"

namespace specdec::cuda {

inline constexpr int kStepTail = 16;       // committed tokens kept of a slot
inline constexpr int kMaxStepDrafts = 63;  // of a request: masks have a word
inline constexpr int kMaxStepSlots = 1024;
inline constexpr int kMaxTreeWidth = 16;
// Every node is drafted below the root or below one whose KV has a place in a mask.
inline constexpr int kMaxTreeNodes = kMaxTreeWidth * (1 + kMaxStepDrafts);

// A request on the device.
struct StepSlot {
  int32_t is_active;
  int32_t num_tokens;        // committed; the last has no KV yet
  int32_t num_draft_tokens;  // whose KV the draft model has
  int32_t num_prompt_tokens;
  int32_t max_num_tokens;
  int32_t max_drafts;
  int32_t min_tokens;
  DeviceRange stops;        // of token_lists: tokens that end the request
  int32_t tail[kStepTail];  // the last committed tokens, the very last at the end
  int32_t num_drafts;       // of the step under way; of a tree that grows: how deep it may get
  int32_t is_tree;          // parents are to be read; else a chain
  int32_t drafts[kMaxStepDrafts];
  int32_t parents[kMaxStepDrafts];  // nodes: 0 is the root, i + 1 the i-th draft
  DeviceSampleRow sampling;         // of a token, but for position and path
  int32_t* count_table;             // [vocab_size], which `sampling` reads; null without penalties
};

struct StepSlots {
  StepSlot* slots;        // [num_slots]
  int32_t* block_tables;  // [num_slots, max_blocks]
  int32_t num_slots;
  int32_t max_blocks;
  int32_t block_size;
};

// A batch as Backend's operations take it, and the rows of it that sample. Written by the kernels.
struct StepBatch {
  int32_t* token_ids;        // [max_rows]
  int32_t* positions;        // [max_rows]
  int64_t* slot_mapping;     // [max_rows]
  int32_t* cu_rows;          // [num_slots + 1]
  int32_t* base_lens;        // [num_slots]
  int32_t* sample_ids;       // [max_samples] rows
  DeviceSampleRow* samples;  // [max_samples]
  int32_t max_rows;          // rows past those in use are padding
};

// The rows of the draft model's pass number `pass`: the tokens it has not seen, then one draft
// after the other. Samples: one a slot.
struct DraftRowsParams {
  StepSlots state;
  StepBatch batch;
  const int32_t* sampled;  // [num_slots] by the pass before; null in the first
  uint64_t* started;       // nanoseconds; null after the first pass
  int32_t pass;
  int32_t num_drafts;  // asked for in this step
  int32_t argmax;
  int32_t num_candidates;  // of the samples; 0: chains are drafted
  // Drafts drawn independently of the target: where the distribution of the i-th draft of a slot
  // goes, [num_slots, max_drafts, vocab_size]; or null.
  float* distributions;
  int32_t max_drafts;
  int32_t vocab_size;
};

// A drafted node of a tree that grows: 0 is the root, i + 1 the i-th.
struct StepTreeNode {
  int32_t token;
  int32_t parent;
  float survival;    // probability of its path by the draft model
  int32_t kv_place;  // past the tokens before the root, which has place 0; 0: it did not run
};

// A node whose continuations the next pass drafts.
struct StepFrontier {
  int32_t node;
  float survival;
  uint64_t mask;  // places of KV: its ancestors' and, once it has one, its own
};

struct StepGrowth {
  int32_t num_nodes;
  int32_t num_frontier;
};

// The trees of a step, of so many passes.
struct StepGrowths {
  StepGrowth* slots;        // [num_slots]
  StepTreeNode* nodes;      // [num_slots, capacity]
  StepFrontier* frontiers;  // [num_slots, width]
  int32_t* num_kv_slots;    // [num_slots] places in use, the root's with them
  int32_t* kv_places;       // [num_slots, kMaxStepDrafts] of the drafts that are left
  int32_t capacity;         // at most kMaxTreeNodes
  int32_t width;            // at most kMaxTreeWidth
  int32_t max_nodes;        // verified, and run by the draft model; fewer of shallower trees
};

// The rows of the draft model's pass number `pass`, of those after the first: the frontiers.
// Samples: `width` a slot.
struct TreeRowsParams {
  StepSlots state;
  StepBatch batch;
  StepGrowths growths;
  uint8_t* is_tree;  // [num_slots]
  uint64_t* masks;   // [max_rows]
  int32_t* paths;    // [num_slots * width, kMaxStepDrafts]
  int32_t pass;
  int32_t argmax;
};

// Adds what a pass sampled and chooses the next frontiers; after the last, cuts the trees down and
// leaves them as the slots' drafts.
struct GrowTreesParams {
  StepSlots state;
  StepGrowths growths;
  const int32_t* num_candidates;      // by sample
  const DeviceCandidate* candidates;  // by sample, [width], best first
  int32_t pass;
  int32_t is_last;
};

// What the target's pass needs of trees, and what weighing drafts needs.
struct StepTrees {
  uint8_t* is_tree;         // [num_slots]
  uint64_t* masks;          // [max_rows]
  int32_t* parents;         // [max_rows]
  int32_t* paths;           // [max_rows, kMaxStepDrafts] tokens from the root to a tree's node
  uint64_t* seeds;          // [num_slots]
  VerifyAttempt* attempts;  // [max_rows]
  int32_t* cu_attempts;     // [num_slots + 1]
  float* targets;           // [max_rows, vocab_size] distributions to come; null: not wanted
  int32_t vocab_size;
  int32_t max_drafts;  // distributions of drafts a slot
  int32_t has_draft_distributions;
};

// The rows of the target's pass: the last token and the drafts of every slot, each of which
// samples.
struct VerifyRowsParams {
  StepSlots state;
  StepBatch batch;
  StepTrees trees;
  const int32_t* sampled;  // [num_slots] by the draft model's last pass; null without one
  uint64_t* started;       // nanoseconds
  int32_t num_drafts;      // of chains whose last is in `sampled`; -1: the slots hold their drafts
};

// What the host learns of a slot.
struct StepReport {
  int32_t num_drafts;
  int32_t num_accepted;
  int32_t num_tokens;  // emitted
  int32_t is_tree;     // else parents are those of a chain, and not written
  int32_t drafts[kMaxStepDrafts];
  int32_t parents[kMaxStepDrafts];
  int32_t nodes[kMaxStepDrafts];  // accepted
  int32_t tokens[kMaxStepDrafts + 1];
};

struct StepTimes {
  uint64_t draft;   // nanoseconds at which the passes of the draft model began
  uint64_t verify;  // the target's
  uint64_t end;
};

// Appends what was accepted, ends requests, advances the state, reports.
struct CommitParams {
  StepSlots state;
  const int32_t* cu_rows;   // [num_slots + 1] of the target's pass
  const int32_t* sampled;   // [max_rows]
  AcceptedDrafts accepted;  // by the walk, or by weighing where `is_weighed`
  int32_t is_weighed;       // slots without drafts emit their sample all the same
  int32_t grew_trees;       // of which the draft model may not have run the last node accepted
  const int32_t* token_lists;
  StepReport* reports;     // [num_slots]
  const StepTimes* times;  // of this step, `end` not yet
  StepTimes* reported_times;
};

// Drafts of the host for a slot, whose others have none.
struct SlotDrafts {
  int32_t slot;
  int32_t num_drafts;
  int32_t first;  // of tokens and parents
  int32_t is_tree;
};
struct SetDraftsParams {
  StepSlots state;
  const SlotDrafts* drafts;  // [num_slots_drafted]
  const int32_t* tokens;
  const int32_t* parents;
  int32_t num_drafted;
};

// A block id for a slot's table; index -1: ends the slot; index -2: `block` is a token that stands
// in its text, `count` what its entry of the count table is.
struct SlotChange {
  int32_t slot;
  int32_t index;
  int32_t block;
  int32_t count;
};
inline constexpr int kEndSlot = -1;
inline constexpr int kCountToken = -2;
struct ChangeSlotsParams {
  StepSlots state;
  const SlotChange* changes;
  int32_t num_changes;
};

struct StepKernels {
  void (*draft_rows)(Stream&, const DraftRowsParams&);
  void (*tree_rows)(Stream&, const TreeRowsParams&);
  void (*grow_trees)(Stream&, const GrowTreesParams&);
  void (*verify_rows)(Stream&, const VerifyRowsParams&);
  void (*commit)(Stream&, const CommitParams&);
  void (*set_drafts)(Stream&, const SetDraftsParams&);
  void (*change_slots)(Stream&, const ChangeSlotsParams&);
};

namespace native {
StepKernels step_kernels();
}
namespace emulated {
StepKernels step_kernels();
}

}  // namespace specdec::cuda
