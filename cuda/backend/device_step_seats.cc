#include "cuda/backend/device_step_seats.h"

#include <algorithm>
#include <vector>

#include "core/check.h"

namespace specdec::cuda {
namespace {

constexpr size_t kLeastListSize = 1 << 12;

StepSeatState state_of(const DeviceSeatState& from) {
  SPECDEC_CHECK_LE(from.pending.size(), static_cast<size_t>(kMaxStepDrafts));
  StepSeatState state = {.slot = from.slot,
                         .first_records = {from.first_records[0], from.first_records[1]},
                         .kept_slot = -1,
                         .num_pending = static_cast<int32_t>(from.pending.size()),
                         .pending = {}};
  std::ranges::copy(from.pending, state.pending);
  return state;
}

}  // namespace

SeatTable::SeatTable(CudaBackend& backend, const StepKernels& kernels,
                     const DeviceStepConfig& config)
    : backend_(backend),
      kernels_(kernels),
      tree_(config.tree),
      vocab_size_(config.target->vocab_size()),
      layout_(backend.device()) {
  const auto seats = static_cast<size_t>(config.num_seats);
  state_ = {.seats = layout_.array<StepSeat>(seats),
            .drafts = layout_.array<SeatDrafts>(seats),
            .states = layout_.array<StepSeatState>(config.has_states ? seats : 0),
            .block_tables = layout_.array<int32_t>(seats * config.max_blocks_per_request),
            .num_seats = config.num_seats,
            .max_blocks = config.max_blocks_per_request,
            .block_size = config.block_size};
  if (config.span.num_rows > 0) {
    span_tables_ = layout_.array<int32_t>(seats * config.max_blocks_per_request);
  }
  count_tables_.size = seats * vocab_size_;
  masks_.size = static_cast<size_t>(config.max_rows) * num_mask_words();
}

int32_t* SeatTable::clear_count_table(int index) {
  layout_.reserve(count_tables_, "token counts for penalties");
  int32_t* table = count_tables_ + static_cast<size_t>(index) * vocab_size_;
  backend_.stream().fill(table, 0, vocab_size_ * sizeof(int32_t));
  return table;
}

StepSeat SeatTable::record_of(int index, const DeviceSeat& from, SampleLists& lists) {
  SampleRow row = from.sampling;
  SPECDEC_CHECK_LT(row.forced_token, 0);
  row.counts = {};  // the device keeps them in a table, because they change with every token
  StepSeat seat = {.is_active = from.is_active,
                   .num_tokens = from.num_tokens,
                   .num_seen = from.num_seen,
                   .num_prompt_tokens = from.num_prompt_tokens,
                   .max_num_tokens = from.max_num_tokens,
                   .max_depth = std::min(from.max_depth, tree_.max_nodes),
                   .min_tokens = from.min_tokens,
                   .stops = lists.add_tokens(from.stop_token_ids),
                   .tail = {},
                   .sampling = lists.add(row),
                   .count_table = nullptr};
  const size_t num_tail = std::min<size_t>(from.tokens.size(), kStepTail);
  std::ranges::copy(from.tokens.last(num_tail), seat.tail + kStepTail - num_tail);
  if (from.min_tokens > 0) seat.sampling.early_banned = seat.stops;
  if (!from.sampling.counts.empty()) {
    seat.sampling.count_table = seat.count_table = clear_count_table(index);
  }
  return seat;
}

bool SeatTable::set(std::span<const DeviceSeat> seats) {
  SPECDEC_CHECK_LE(seats.size(), static_cast<size_t>(state_.num_seats));
  SampleLists lists;
  std::vector<StepSeat> records(state_.num_seats);
  std::vector<StepSeatState> states(state_.states != nullptr ? state_.num_seats : 0);
  std::vector<NewBlock> blocks;
  std::vector<SeatTokenCount> counts;
  any_edits_ = false;
  all_greedy_ = true;
  for (int i = 0; i < static_cast<int>(seats.size()); ++i) {
    const DeviceSeat& seat = seats[i];
    records[i] = record_of(i, seat, lists);
    if (!states.empty()) states[i] = state_of(seat.state);
    const auto num_blocks = static_cast<int>(seat.blocks.size());
    SPECDEC_CHECK_LE(num_blocks, state_.max_blocks);
    for (int index = 0; index < num_blocks; ++index) {
      blocks.push_back({.seat = i, .index = index, .block = seat.blocks[index]});
    }
    for (const TokenCount& count : seat.sampling.counts) {
      counts.push_back({i, count.token_id, 2 * count.output_count + 1});
    }
    any_edits_ |= seat.min_tokens > 0;
    all_greedy_ &= is_greedy(seat.sampling.temperature);
  }
  any_edits_ |= lists.edits() || !counts.empty();
  const bool moved = upload(lists);
  Staging& staging = backend_.staging();
  staging.upload_to(state_.seats, records.data(), records.size() * sizeof(StepSeat));
  if (state_.states != nullptr) {
    staging.upload_to(state_.states, states.data(), states.size() * sizeof(StepSeatState));
  }
  change({.blocks = staging.upload(std::span<const NewBlock>(blocks)),
          .num_blocks = static_cast<int32_t>(blocks.size()),
          .counts = staging.upload(std::span<const SeatTokenCount>(counts)),
          .num_counts = static_cast<int32_t>(counts.size())});
  return moved;
}

bool SeatTable::upload(const SampleLists& lists) {
  const auto fit = [&]<class T>(DeviceArray<T>& array, std::span<const T> values) {
    if (values.empty()) return false;
    const size_t size = std::max(values.size(), kLeastListSize);
    const bool moved = layout_.grow(array, size, "lists of tokens");
    backend_.staging().upload_to(array, values.data(), values.size_bytes());
    return moved;
  };
  const bool moved = fit(token_lists_, lists.tokens());
  return fit(biases_, lists.biases()) || moved;
}

void SeatTable::set_drafts(const DeviceStepPlan& plan) {
  std::vector<SeatDrafts> records(plan.num_seats);
  for (const HostDraft& draft : plan.host_drafts) {
    const auto num_drafts = static_cast<int>(draft.tokens.size());
    SPECDEC_CHECK_LE(num_drafts, tree_.max_nodes);
    SPECDEC_CHECK_EQ(draft.tokens.size(), draft.parents.size());
    SeatDrafts& record = records[draft.seat];
    record.num_drafts = num_drafts;
    std::ranges::copy(draft.tokens, record.tokens);
    std::ranges::copy(draft.parents, record.parents);
    for (int i = 0; i < num_drafts; ++i) {
      if (draft.parents[i] != i) record.is_tree = 1;
    }
  }
  if (!plan.masks.empty()) set_masks(plan.masks, records);
  backend_.staging().upload_to(state_.drafts, records.data(), records.size() * sizeof(SeatDrafts));
}

void SeatTable::set_masks(std::span<const HostMasks> masks, std::span<SeatDrafts> records) {
  const auto num_words = static_cast<size_t>(num_mask_words());
  std::vector<uint32_t> words;
  for (const HostMasks& seat : masks) {
    SeatDrafts& record = records[seat.seat];
    SPECDEC_CHECK_EQ(seat.nodes.size(), static_cast<size_t>(record.num_drafts) + 1);
    const auto first = static_cast<int32_t>(words.size() / num_words);
    record.masks = {first, first + record.num_drafts + 1};
    for (const std::span<const uint32_t> node : seat.nodes) {
      SPECDEC_CHECK_EQ(node.size(), num_words);
      words.insert(words.end(), node.begin(), node.end());
    }
  }
  layout_.reserve(masks_, "masks of grammars");
  SPECDEC_CHECK_LE(words.size(), masks_.size);
  backend_.staging().upload_to(masks_, words.data(), words.size() * sizeof(uint32_t));
}

void SeatTable::add_blocks(std::span<const NewBlock> blocks) {
  change({.blocks = backend_.staging().upload(blocks),
          .num_blocks = static_cast<int32_t>(blocks.size())});
}

void SeatTable::set_kept_slots(std::span<const KeptSlot> slots) {
  change({.kept_slots = backend_.staging().upload(slots),
          .num_kept_slots = static_cast<int32_t>(slots.size())});
}

void SeatTable::deactivate(std::span<const int> seats) {
  change(
      {.ended = backend_.staging().upload(seats), .num_ended = static_cast<int32_t>(seats.size())});
}

void SeatTable::change(ChangeSeatsParams changes) {
  changes.state = state_;
  changes.span_tables = span_tables_;
  kernels_.change_seats(backend_.stream(), changes);
}

}  // namespace specdec::cuda
