// Builds the packed batch of one step (BatchView) from the rows of its requests. Keeps its memory
// between steps. A call of add_chain(), add_tree() or add_tree_level() that throws adds nothing.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/op_args.h"
#include "core/state_access.h"
#include "kv/block_table.h"

namespace specdec {

// The features that a row of a chain reads (BatchView::feature_slots).
enum class RowFeatures : uint8_t {
  kNone,
  kOfPreviousToken,  // of draft heads whose rows begin with features
  kOfToken,          // of draft heads that make keys and values of features
};

class BatchInputs {
 public:
  explicit BatchInputs(RowFeatures features = RowFeatures::kNone) : features_(features) {}

  void clear();

  // A chain: a prompt chunk or a decode. The first token's position is base_len, the number of
  // tokens whose KV is in the cache. The block table must have room for base_len + tokens.size()
  // slots and outlive the batch. For a draft head, the last row stores its state if drafts follow.
  // Returns the index of the first row.
  // `states`: of a model with recurrent layers, else null.
  int add_chain(std::span<const int32_t> tokens, int base_len, const BlockTable& blocks,
                bool keeps_state = false, const StateAccess* states = nullptr);

  // Rows after the chain that was added last, at its next positions and slots, whose text is not
  // known: `token` stands for it, and in a head the features at `feature_slot`.
  void add_masks(int num_masks, int32_t token, int64_t feature_slot);

  // Rows that all see each other: a token at position base_len, and `num_masks` rows of
  // `mask_token` at the positions after it. Slots that the block table has no room for are taken
  // from `spare_blocks`, which must outlive the batch. Rows read no features. Returns the index of
  // the first row.
  int add_span(int32_t token, int num_masks, int32_t mask_token, int base_len,
               const BlockTable& blocks, std::span<const BlockId> spare_blocks);

  // A tree: tokens[0] is the root (the last committed token), parents[i] < i the row that row i
  // continues, parents[0] = -1.
  int add_tree(std::span<const int32_t> tokens, std::span<const int32_t> parents, int base_len,
               const BlockTable& blocks, const StateAccess* states = nullptr);

  // Adds further nodes of a tree whose earlier nodes are in the cache: `num_slots_before` of them,
  // the root at slot base_len first. The new nodes take the slots after these, in order. depths[i]
  // counts from the root; masks [tokens.size(), mask_words] name slots past base_len, the node's
  // own included. For a draft head, parent_slots[i] is its parent's slot relative to base_len.
  int add_tree_level(std::span<const int32_t> tokens, std::span<const int32_t> depths,
                     int num_slots_before, std::span<const uint64_t> masks, int mask_words,
                     int base_len, const BlockTable& blocks,
                     std::span<const int> parent_slots = {});

  // The batch so far; valid until rows are added. Block tables are read by the first call.
  BatchView view();

  int num_rows() const { return static_cast<int>(token_ids_.size()); }
  int num_requests() const { return static_cast<int>(base_lens_.size()); }

 private:
  // Runs `add` and, if it throws, removes the rows that it had added. Returns the index of the
  // first row that it added.
  template <class Add>
  int add_whole(const Add& add);
  void cut(int num_rows, int num_requests, bool has_tree);
  // The blocks of a request: its table's, and then those that rows of a span need beside them.
  struct RequestBlocks {
    const BlockTable* table = nullptr;
    std::span<const BlockId> spare = {};

    int num_blocks() const { return table->num_blocks() + static_cast<int>(spare.size()); }
    int64_t slot(int token_index) const;
  };
  void begin_request(std::span<const int32_t> tokens, int base_len, int first_slot,
                     const RequestBlocks& blocks);
  bool reads_features() const { return features_ != RowFeatures::kNone; }
  void begin_tree_masks(int mask_words);
  void widen_masks(int mask_words);
  // Row i of the request continues parents[i], or the row before it where there are no parents.
  void add_states(const StateAccess& states, int num_rows, std::span<const int32_t> parents);
  void read_block_tables();

  RowFeatures features_;
  std::vector<int32_t> token_ids_;
  std::vector<int32_t> positions_;
  std::vector<int64_t> slot_mapping_;
  std::vector<int64_t> feature_slots_;  // of a head; else empty
  std::vector<int64_t> state_slots_;
  std::vector<int32_t> cu_rows_{0};
  std::vector<int32_t> base_lens_;
  std::vector<uint8_t> is_tree_;
  std::vector<int32_t> num_tree_slots_;
  std::vector<uint64_t> ancestor_mask_;  // [num_rows, mask_words_] once there is a tree
  int mask_words_ = 1;
  bool has_tree_ = false;
  // As RecurrentRows; empty but for the zeros of other models.
  std::vector<int32_t> slots_in_;
  std::vector<int32_t> cu_pending_{0};
  std::vector<int32_t> pending_;
  std::vector<int32_t> cu_stores_{0};
  std::vector<StateStore> stores_;
  std::vector<int32_t> state_parents_;
  std::vector<int32_t> records_;
  std::vector<RequestBlocks> tables_;
  std::vector<int32_t> block_tables_;  // of the first max_blocks_ of each; empty: not read yet
  int max_blocks_ = 0;
};

}  // namespace specdec
