// What a device step keeps of the requests, as the host sets it.
#include <algorithm>
#include <bit>
#include <vector>

#include "core/check.h"
#include "cuda/backend/device_step.h"

namespace specdec::cuda {
namespace {

constexpr size_t kLeastListBytes = 1 << 14;

}  // namespace

int32_t* CudaDeviceStep::count_table(int slot) {
  const size_t vocab_size = static_cast<size_t>(config_.target->vocab_size());
  if (count_tables_.empty()) {
    count_tables_ = backend_.device().allocate(count_tables_bytes(), "token counts for penalties");
  }
  int32_t* table = count_tables_.as<int32_t>() + slot * vocab_size;
  backend_.stream().fill(table, 0, vocab_size * sizeof(int32_t));
  return table;
}

StepSlot CudaDeviceStep::record_of(int index, const DeviceSeat& from, SampleLists& lists) {
  StepSlot slot{};
  slot.is_active = from.is_active;
  slot.num_tokens = from.num_tokens;
  slot.num_draft_tokens = from.num_seen;
  slot.num_prompt_tokens = from.num_prompt_tokens;
  slot.max_num_tokens = from.max_num_tokens;
  slot.max_drafts = std::min(from.max_depth, config_.tree.max_nodes);
  slot.min_tokens = from.min_tokens;
  const size_t num_tail = std::min<size_t>(from.tokens.size(), kStepTail);
  std::ranges::copy(from.tokens.last(num_tail), slot.tail + kStepTail - num_tail);
  SampleRow row = from.sampling;
  row.counts = {};  // they are kept in a table, which grows with the text
  slot.sampling = lists.add(row);
  slot.stops = lists.add_tokens(from.stop_token_ids);
  if (from.min_tokens > 0) slot.sampling.early_banned = slot.stops;
  if (!from.sampling.counts.empty()) {
    slot.count_table = count_table(index);
    slot.sampling.count_table = slot.count_table;
  }
  return slot;
}

Buffer CudaDeviceStep::layers_of(StepModel& model) {
  std::vector<KvLayerPointers> layers;
  for (const PagedKvView& layer : model.kv_layers()) {
    layers.push_back({.keys = layer.keys, .values = layer.values});
  }
  const size_t size_bytes = layers.size() * sizeof(KvLayerPointers);
  Buffer buffer = backend_.device().allocate(size_bytes, "device steps");
  backend_.stream().copy_to_device(buffer.data(), layers.data(), size_bytes);
  backend_.stream().synchronize();
  return buffer;
}

void CudaDeviceStep::set_seats(std::span<const DeviceSeat> slots) {
  SPECDEC_CHECK_EQ(num_under_way(), 0);
  SPECDEC_CHECK_LE(slots.size(), static_cast<size_t>(config_.num_seats));
  Stream& stream = backend_.stream();
  stream.synchronize();  // the pinned copies may still be read
  // The caches are there by the time that there are requests.
  if (!moves_.empty() && layers_.empty()) {
    layers_ = layers_of(*config_.target);
    if (config_.tree.width > 1) draft_layers_ = layers_of(*config_.draft);
  }
  SampleLists lists;
  std::vector<SlotChange> counts;
  auto* records = pinned_slots_.as<StepSlot>();
  auto* tables = pinned_tables_.as<int32_t>();
  std::fill_n(records, config_.num_seats, StepSlot{});
  for (size_t i = 0; i < slots.size(); ++i) {
    const int index = static_cast<int>(i);
    records[i] = record_of(index, slots[i], lists);
    SPECDEC_CHECK_LE(slots[i].blocks.size(), static_cast<size_t>(config_.max_blocks_per_request));
    std::ranges::copy(slots[i].blocks, tables + i * config_.max_blocks_per_request);
    for (const TokenCount& count : slots[i].sampling.counts) {
      counts.push_back({.slot = index,
                        .index = kCountToken,
                        .block = count.token_id,
                        .count = 2 * count.output_count + 1});
    }
  }
  any_edits_ =
      lists.edits() || !counts.empty() ||
      std::ranges::any_of(slots, [](const DeviceSeat& slot) { return slot.min_tokens > 0; });
  upload_lists(lists);
  stream.copy_to_device(slots_.data(), records, slots_.size_bytes());
  stream.copy_to_device(
      block_tables_.data(), tables,
      slots.size() * static_cast<size_t>(config_.max_blocks_per_request) * sizeof(int32_t));
  change(counts);
}

// The launches of recorded steps name these arrays, so they move only when they have to.
void CudaDeviceStep::upload_lists(const SampleLists& lists) {
  const auto fit = [&](Buffer& buffer, size_t size_bytes) {
    if (buffer.size_bytes() >= size_bytes) return;
    buffer = backend_.device().allocate(std::bit_ceil(std::max(size_bytes, kLeastListBytes)),
                                        "lists of tokens");
    backend_.recorder().forget(this);
  };
  fit(token_lists_, lists.tokens().size_bytes());
  fit(biases_, lists.biases().size_bytes());
  Stream& stream = backend_.stream();
  const void* tokens = backend_.staging().upload(lists.tokens());
  const void* biases = backend_.staging().upload(lists.biases());
  if (tokens != nullptr) stream.copy(token_lists_.data(), tokens, lists.tokens().size_bytes());
  if (biases != nullptr) stream.copy(biases_.data(), biases, lists.biases().size_bytes());
}

void CudaDeviceStep::add_blocks(std::span<const NewBlock> blocks) {
  std::vector<SlotChange> changes;
  for (const NewBlock& added : blocks) {
    changes.push_back({.slot = added.seat, .index = added.index, .block = added.block, .count = 0});
  }
  change(changes);
}

void CudaDeviceStep::deactivate(std::span<const int> slots) {
  std::vector<SlotChange> changes;
  for (int slot : slots) {
    changes.push_back({.slot = slot, .index = kEndSlot, .block = 0, .count = 0});
  }
  change(changes);
}

void CudaDeviceStep::change(std::span<const SlotChange> changes) {
  if (changes.empty()) return;
  kernels_.step.change_slots(backend_.stream(),
                             {.state = state(config_.num_seats),
                              .changes = backend_.staging().upload(changes),
                              .num_changes = static_cast<int32_t>(changes.size())});
}

}  // namespace specdec::cuda
