#include "cuda/backend/staged_batch.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace specdec::cuda {
namespace {

constexpr size_t kAlignment = 16;
constexpr int kLeastStride = 64;  // block ids per request's table

// Lays out arrays one after another in a host image, which is copied as a whole.
class Layout {
 public:
  explicit Layout(std::vector<std::byte>& image) : image_(image) { image_.clear(); }

  // Adds `count` elements, padded with `filler` to `padded_count`; returns their offset.
  template <class T>
  size_t add(const T* values, size_t count, size_t padded_count, T filler) {
    const size_t begin = image_.size();
    const size_t size_bytes = padded_count * sizeof(T);
    image_.resize(begin + (size_bytes + kAlignment - 1) / kAlignment * kAlignment);
    T* out = reinterpret_cast<T*>(image_.data() + begin);
    std::copy_n(values, count, out);
    std::fill(out + count, out + padded_count, filler);
    return begin;
  }

 private:
  std::vector<std::byte>& image_;
};

}  // namespace

int padded_count(int count) {
  if (count <= 2) return count;
  if (count <= 16) return (count + 3) / 4 * 4;
  return static_cast<int>(std::bit_ceil(static_cast<unsigned>(count)));
}

BatchView StagedBatch::put(const BatchView& batch, bool* moved) {
  const size_t num_rows = static_cast<size_t>(batch.num_rows);
  const size_t num_requests = static_cast<size_t>(batch.num_requests);
  BatchView view = batch;
  view.is_recordable = true;
  view.num_rows = padded_count(batch.num_rows);
  view.num_requests = padded_count(batch.num_requests);
  view.max_blocks_per_request = static_cast<int>(
      std::bit_ceil(static_cast<unsigned>(std::max(batch.max_blocks_per_request, kLeastStride))));
  const size_t rows = static_cast<size_t>(view.num_rows);
  const size_t requests = static_cast<size_t>(view.num_requests);
  const size_t stride = static_cast<size_t>(view.max_blocks_per_request);

  Layout layout(image_);
  const size_t token_ids = layout.add<int32_t>(batch.token_ids, num_rows, rows, 0);
  const size_t positions = layout.add<int32_t>(batch.positions, num_rows, rows, 0);
  const size_t slots = layout.add<int64_t>(batch.slot_mapping, num_rows, rows, 0);
  const size_t cu_rows =
      layout.add<int32_t>(batch.cu_rows, num_requests + 1, requests + 1, batch.num_rows);
  const size_t base_lens = layout.add<int32_t>(batch.base_lens, num_requests, requests, 0);
  const size_t is_tree = layout.add<uint8_t>(batch.is_tree, num_requests, requests, 0);
  const size_t tree_slots = layout.add<int32_t>(
      batch.num_tree_slots, batch.num_tree_slots != nullptr ? num_requests : 0, requests, 0);
  const size_t words = static_cast<size_t>(batch.mask_words);
  const bool has_masks = batch.ancestor_mask != nullptr;
  const size_t masks = layout.add<uint64_t>(batch.ancestor_mask, has_masks ? num_rows * words : 0,
                                            has_masks ? rows * words : 0, 0);
  const auto add_slots = [&](const int64_t* values) {
    return layout.add<int64_t>(values, values != nullptr ? num_rows : 0,
                               values != nullptr ? rows : 0, -1);
  };
  const size_t feature_slots = add_slots(batch.feature_slots);
  const size_t state_slots = add_slots(batch.state_slots);
  const RecurrentRows& states = batch.recurrent;
  const bool has_states = states.slots_in != nullptr;
  size_t slots_in = 0, cu_pending = 0, cu_stores = 0, parents = 0, records = 0;
  if (has_states) {
    const auto add_bounds = [&](const int32_t* bounds) {
      return layout.add<int32_t>(bounds, num_requests + 1, requests + 1, bounds[num_requests]);
    };
    slots_in = layout.add<int32_t>(states.slots_in, num_requests, requests, -1);
    cu_pending = add_bounds(states.cu_pending);
    cu_stores = add_bounds(states.cu_stores);
    parents = layout.add<int32_t>(states.parents, num_rows, rows, -1);
    records = layout.add<int32_t>(states.records, num_rows, rows, -1);
  }
  const size_t tables = layout.add<int32_t>(nullptr, 0, requests * stride, 0);
  for (size_t i = 0; i < num_requests; ++i) {
    std::copy_n(batch.block_tables + i * batch.max_blocks_per_request, batch.max_blocks_per_request,
                reinterpret_cast<int32_t*>(image_.data() + tables) + i * stride);
  }
  // The lengths of these do not follow from the batch's size, so both begin at one place, the last:
  // pending records come behind the stores, and their bounds count the stores as well.
  const size_t lists = image_.size();
  if (has_states) {
    static_assert(sizeof(StateStore) == 2 * sizeof(int32_t));
    const auto num_stores = static_cast<size_t>(states.cu_stores[num_requests]);
    const auto num_pending = static_cast<size_t>(states.cu_pending[num_requests]);
    image_.resize(lists + num_stores * sizeof(StateStore) + num_pending * sizeof(int32_t));
    auto* const stores = reinterpret_cast<StateStore*>(image_.data() + lists);
    std::copy_n(states.stores, num_stores, stores);
    std::copy_n(states.pending, num_pending, reinterpret_cast<int32_t*>(stores + num_stores));
    auto* const bounds = reinterpret_cast<int32_t*>(image_.data() + cu_pending);
    for (size_t i = 0; i <= requests; ++i) bounds[i] += 2 * states.cu_stores[num_requests];
  }

  *moved = memory_.size_bytes() < image_.size();
  if (*moved) memory_ = device_.allocate(std::bit_ceil(image_.size()), "batches");
  std::byte* memory = memory_.as<std::byte>();
  staging_.upload_to(memory, image_.data(), image_.size());
  view.token_ids = reinterpret_cast<const int32_t*>(memory + token_ids);
  view.positions = reinterpret_cast<const int32_t*>(memory + positions);
  view.slot_mapping = reinterpret_cast<const int64_t*>(memory + slots);
  view.cu_rows = reinterpret_cast<const int32_t*>(memory + cu_rows);
  view.base_lens = reinterpret_cast<const int32_t*>(memory + base_lens);
  view.is_tree = reinterpret_cast<const uint8_t*>(memory + is_tree);
  if (view.num_tree_slots != nullptr) {
    view.num_tree_slots = reinterpret_cast<const int32_t*>(memory + tree_slots);
  }
  if (has_masks) view.ancestor_mask = reinterpret_cast<const uint64_t*>(memory + masks);
  if (view.feature_slots != nullptr) {
    view.feature_slots = reinterpret_cast<const int64_t*>(memory + feature_slots);
  }
  if (view.state_slots != nullptr) {
    view.state_slots = reinterpret_cast<const int64_t*>(memory + state_slots);
  }
  if (has_states) {
    view.recurrent = {.slots_in = reinterpret_cast<const int32_t*>(memory + slots_in),
                      .cu_pending = reinterpret_cast<const int32_t*>(memory + cu_pending),
                      .pending = reinterpret_cast<const int32_t*>(memory + lists),
                      .cu_stores = reinterpret_cast<const int32_t*>(memory + cu_stores),
                      .stores = reinterpret_cast<const StateStore*>(memory + lists),
                      .parents = reinterpret_cast<const int32_t*>(memory + parents),
                      .records = reinterpret_cast<const int32_t*>(memory + records)};
  }
  view.block_tables = reinterpret_cast<const int32_t*>(memory + tables);
  return view;
}

}  // namespace specdec::cuda
