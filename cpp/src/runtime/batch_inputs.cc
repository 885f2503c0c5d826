#include "runtime/batch_inputs.h"

#include <algorithm>

#include "core/check.h"

namespace specdec {

void BatchInputs::clear() {
  token_ids_.clear();
  positions_.clear();
  slot_mapping_.clear();
  feature_slots_.clear();
  state_slots_.clear();
  cu_rows_.assign(1, 0);
  base_lens_.clear();
  is_tree_.clear();
  num_tree_slots_.clear();
  ancestor_mask_.clear();
  mask_words_ = 1;
  has_tree_ = false;
  slots_in_.clear();
  cu_pending_.assign(1, 0);
  pending_.clear();
  cu_stores_.assign(1, 0);
  stores_.clear();
  state_parents_.clear();
  records_.clear();
  tables_.clear();
  block_tables_.clear();
}

int64_t BatchInputs::RequestBlocks::slot(int token_index) const {
  const int own = table->num_blocks(), size = table->block_size();
  const int block = token_index / size;
  const BlockId id = block < own ? table->ids()[block] : spare[block - own];
  return int64_t{id} * size + token_index % size;
}

template <class Add>
int BatchInputs::add_whole(const Add& add) {
  const int first_row = num_rows();
  const int num_before = num_requests();
  const bool had_tree = has_tree_;
  try {
    add(first_row);
  } catch (...) {
    cut(first_row, num_before, had_tree);
    throw;
  }
  return first_row;
}

void BatchInputs::cut(int num_rows, int num_requests, bool has_tree) {
  const auto shrink = [](auto& values, size_t size) {
    if (values.size() > size) values.resize(size);
  };
  for (auto* of_rows : {&token_ids_, &positions_}) shrink(*of_rows, num_rows);
  for (auto* slots : {&slot_mapping_, &feature_slots_, &state_slots_}) shrink(*slots, num_rows);
  for (auto* of_requests : {&base_lens_, &num_tree_slots_}) shrink(*of_requests, num_requests);
  shrink(cu_rows_, num_requests + 1);
  shrink(is_tree_, num_requests);
  shrink(tables_, num_requests);
  has_tree_ = has_tree;
  shrink(slots_in_, num_requests);
  for (auto* starts : {&cu_pending_, &cu_stores_}) shrink(*starts, num_requests + 1);
  shrink(pending_, cu_pending_.back());
  shrink(stores_, cu_stores_.back());
  for (auto* of_rows : {&state_parents_, &records_}) shrink(*of_rows, num_rows);
  shrink(ancestor_mask_, has_tree ? static_cast<size_t>(num_rows) * mask_words_ : 0);
}

void BatchInputs::begin_request(std::span<const int32_t> tokens, int base_len, int first_slot,
                                const RequestBlocks& blocks) {
  SPECDEC_CHECK(!tokens.empty());
  block_tables_.clear();
  const int num_slots = first_slot + static_cast<int>(tokens.size());
  SPECDEC_CHECK_LE(base_len + num_slots, blocks.num_blocks() * blocks.table->block_size());
  base_lens_.push_back(base_len);
  num_tree_slots_.push_back(num_slots);
  tables_.push_back(blocks);
  token_ids_.insert(token_ids_.end(), tokens.begin(), tokens.end());
  for (int slot = first_slot; slot < num_slots; ++slot) {
    slot_mapping_.push_back(blocks.slot(base_len + slot));
  }
  cu_rows_.push_back(num_rows());
}

void BatchInputs::begin_tree_masks(int mask_words) {
  is_tree_.push_back(1);
  has_tree_ = true;
  widen_masks(mask_words);
  ancestor_mask_.resize(token_ids_.size() * mask_words_, 0);
}

void BatchInputs::add_states(const StateAccess& states, int num_rows,
                             std::span<const int32_t> parents) {
  SPECDEC_CHECK_EQ(slots_in_.size() + 1, base_lens_.size());  // all requests have them, or none
  slots_in_.push_back(states.slot_in);
  pending_.insert(pending_.end(), states.pending.begin(), states.pending.end());
  cu_pending_.push_back(static_cast<int32_t>(pending_.size()));
  stores_.insert(stores_.end(), states.stores.begin(), states.stores.end());
  cu_stores_.push_back(static_cast<int32_t>(stores_.size()));
  const int num_committed = states.num_committed_rows();
  SPECDEC_CHECK_LE(num_committed, num_rows);
  for (int row = 0; row < num_rows; ++row) {
    state_parents_.push_back(parents.empty() ? row - 1 : parents[row]);
    const int draft = row - num_committed;
    records_.push_back(draft < 0 ? -1 : states.first_record + draft);
  }
}

int BatchInputs::add_chain(std::span<const int32_t> tokens, int base_len, const BlockTable& blocks,
                           bool keeps_state, const StateAccess* states) {
  return add_whole([&](int) {
    begin_request(tokens, base_len, /*first_slot=*/0, {.table = &blocks});
    is_tree_.push_back(0);
    const int offset = features_ == RowFeatures::kOfPreviousToken ? -1 : 0;
    for (int i = 0; reads_features() && i < static_cast<int>(tokens.size()); ++i) {
      const int token = base_len + i + offset;
      feature_slots_.push_back(token < 0 ? -1 : blocks.slot(token));
      state_slots_.push_back(-1);
    }
    if (reads_features() && keeps_state) state_slots_.back() = slot_mapping_.back();
    for (size_t i = 0; i < tokens.size(); ++i) positions_.push_back(base_len + static_cast<int>(i));
    if (has_tree_) ancestor_mask_.resize(token_ids_.size() * mask_words_, 0);
    if (states != nullptr) add_states(*states, static_cast<int>(tokens.size()), {});
  });
}

void BatchInputs::add_masks(int num_masks, int32_t token, int64_t feature_slot) {
  SPECDEC_CHECK(!is_tree_.empty() && is_tree_.back() == 0);
  const BlockTable& blocks = *tables_.back().table;
  const int end = base_lens_.back() + num_tree_slots_.back();
  SPECDEC_CHECK_LE(end + num_masks, blocks.capacity_tokens());
  for (int position = end; position < end + num_masks; ++position) {
    token_ids_.push_back(token);
    positions_.push_back(position);
    slot_mapping_.push_back(blocks.slot(position));
    if (!reads_features()) continue;
    feature_slots_.push_back(feature_slot);
    state_slots_.push_back(-1);
  }
  num_tree_slots_.back() += num_masks;
  cu_rows_.back() = num_rows();
  if (has_tree_) ancestor_mask_.resize(token_ids_.size() * mask_words_, 0);
}

int BatchInputs::add_span(int32_t token, int num_masks, int32_t mask_token, int base_len,
                          const BlockTable& blocks, std::span<const BlockId> spare_blocks) {
  return add_whole([&](int first_row) {
    const int num_rows = 1 + num_masks;
    std::vector<int32_t> tokens(static_cast<size_t>(num_rows), mask_token);
    tokens[0] = token;
    const int missing =
        num_blocks_for(base_len + num_rows, blocks.block_size()) - blocks.num_blocks();
    SPECDEC_CHECK_LE(missing, static_cast<int>(spare_blocks.size()));
    begin_request(tokens, base_len, /*first_slot=*/0,
                  {.table = &blocks, .spare = spare_blocks.first(std::max(missing, 0))});
    begin_tree_masks((num_rows + 63) / 64);
    for (int row = 0; row < num_rows; ++row) {
      positions_.push_back(base_len + row);
      uint64_t* mask = &ancestor_mask_[static_cast<size_t>(first_row + row) * mask_words_];
      for (int slot = 0; slot < num_rows; ++slot) mask[slot / 64] |= uint64_t{1} << (slot % 64);
      if (!reads_features()) continue;
      feature_slots_.push_back(-1);
      state_slots_.push_back(-1);
    }
  });
}

int BatchInputs::add_tree(std::span<const int32_t> tokens, std::span<const int32_t> parents,
                          int base_len, const BlockTable& blocks, const StateAccess* states) {
  SPECDEC_CHECK_EQ(tokens.size(), parents.size());
  return add_whole([&](int first_row) {
    begin_request(tokens, base_len, /*first_slot=*/0, {.table = &blocks});
    begin_tree_masks(static_cast<int>((tokens.size() + 63) / 64));
    for (size_t i = 0; i < tokens.size(); ++i) {
      const int parent = parents[i];
      SPECDEC_CHECK_LT(parent, static_cast<int>(i));
      uint64_t* mask = &ancestor_mask_[(first_row + i) * mask_words_];
      if (i == 0) {
        SPECDEC_CHECK_EQ(parent, -1);
        positions_.push_back(base_len);
      } else {
        SPECDEC_CHECK_GE(parent, 0);
        const uint64_t* parent_mask = &ancestor_mask_[(first_row + parent) * mask_words_];
        std::copy_n(parent_mask, mask_words_, mask);
        positions_.push_back(positions_[first_row + parent] + 1);
      }
      mask[i / 64] |= uint64_t{1} << (i % 64);
    }
    if (states != nullptr) add_states(*states, static_cast<int>(tokens.size()), parents);
  });
}

int BatchInputs::add_tree_level(std::span<const int32_t> tokens, std::span<const int32_t> depths,
                                int num_slots_before, std::span<const uint64_t> masks,
                                int mask_words, int base_len, const BlockTable& blocks,
                                std::span<const int> parent_slots) {
  SPECDEC_CHECK_EQ(tokens.size(), depths.size());
  if (reads_features()) SPECDEC_CHECK_EQ(tokens.size(), parent_slots.size());
  SPECDEC_CHECK_EQ(masks.size(), tokens.size() * static_cast<size_t>(mask_words));
  return add_whole([&](int first_row) {
    begin_request(tokens, base_len, num_slots_before, {.table = &blocks});
    begin_tree_masks(mask_words);
    for (size_t i = 0; i < tokens.size(); ++i) {
      positions_.push_back(base_len + depths[i]);
      std::copy_n(&masks[i * mask_words], mask_words,
                  &ancestor_mask_[(first_row + i) * mask_words_]);
      if (!reads_features()) continue;
      feature_slots_.push_back(blocks.slot(base_len + parent_slots[i]));
      state_slots_.push_back(slot_mapping_[first_row + i]);
    }
  });
}

void BatchInputs::widen_masks(int mask_words) {
  if (mask_words <= mask_words_) return;
  const size_t num_masks = ancestor_mask_.size() / mask_words_;
  std::vector<uint64_t> wider(num_masks * mask_words, 0);
  for (size_t i = 0; i < num_masks; ++i) {
    std::copy_n(&ancestor_mask_[i * mask_words_], mask_words_, &wider[i * mask_words]);
  }
  ancestor_mask_ = std::move(wider);
  mask_words_ = mask_words;
}

void BatchInputs::read_block_tables() {
  max_blocks_ = 0;
  for (const RequestBlocks& blocks : tables_) {
    max_blocks_ = std::max(max_blocks_, blocks.num_blocks());
  }
  block_tables_.assign(tables_.size() * max_blocks_, kNullBlock);
  for (size_t i = 0; i < tables_.size(); ++i) {
    const auto to = block_tables_.begin() + static_cast<ptrdiff_t>(i) * max_blocks_;
    const auto end = std::ranges::copy(tables_[i].table->ids(), to).out;
    std::ranges::copy(tables_[i].spare, end);
  }
}

BatchView BatchInputs::view() {
  if (block_tables_.empty()) read_block_tables();
  BatchView view;
  view.num_requests = num_requests();
  view.num_rows = num_rows();
  view.token_ids = token_ids_.data();
  view.positions = positions_.data();
  view.slot_mapping = slot_mapping_.data();
  view.feature_slots = reads_features() ? feature_slots_.data() : nullptr;
  view.state_slots = reads_features() ? state_slots_.data() : nullptr;
  view.cu_rows = cu_rows_.data();
  view.base_lens = base_lens_.data();
  view.block_tables = block_tables_.data();
  view.max_blocks_per_request = max_blocks_;
  view.is_tree = is_tree_.data();
  view.ancestor_mask = has_tree_ ? ancestor_mask_.data() : nullptr;
  view.mask_words = mask_words_;
  view.num_tree_slots = num_tree_slots_.data();
  if (!slots_in_.empty()) {
    view.recurrent = {.slots_in = slots_in_.data(),
                      .cu_pending = cu_pending_.data(),
                      .pending = pending_.data(),
                      .cu_stores = cu_stores_.data(),
                      .stores = stores_.data(),
                      .parents = state_parents_.data(),
                      .records = records_.data()};
  }
  return view;
}

}  // namespace specdec
