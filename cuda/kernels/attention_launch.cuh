// Launches of the attention kernel: its workspace, its shared memory, where a pass's work list is
// kept, and which variant runs.
#pragma once

#include <algorithm>

#include "core/check.h"
#include "cuda/kernels/attention_kernel.cuh"
#include "cuda/kernels/projection.h"

namespace specdec::cuda::SPECDEC_TARGET {

// Counters and arrivals have the same addresses in all launches, whatever their rows and heads, so
// that a launch finds them at zero, as every launch leaves them.
inline AttentionWorkspace share_workspace(const AttentionParams& params, int padded_dim) {
  constexpr size_t kCounterBytes = 256;
  const auto round_down = [](size_t bytes) { return bytes / 256 * 256; };
  char* base = static_cast<char*>(params.workspace);
  const size_t arrival_bytes = round_down(params.workspace_bytes / 64);
  const size_t used = 2 * kCounterBytes + arrival_bytes;
  AttentionWorkspace workspace;
  workspace.counters = reinterpret_cast<uint32_t*>(base);
  workspace.arrivals = reinterpret_cast<uint32_t*>(base + kCounterBytes);
  const size_t partial_bytes = (padded_dim + 2) * sizeof(float);
  const size_t fitting =
      used < params.workspace_bytes ? (params.workspace_bytes - used) / partial_bytes : 0;
  workspace.capacity = static_cast<int64_t>(std::min(fitting, arrival_bytes / sizeof(uint32_t)));
  char* partials = base + kCounterBytes + arrival_bytes;
  workspace.sums = reinterpret_cast<float*>(partials);
  workspace.values = reinterpret_cast<float*>(
      partials + (workspace.capacity * 2 * sizeof(float) + 255) / 256 * 256);
  return workspace;
}

// Requests per launch: a block has 8 bytes of shared memory for each. More requests take further
// launches.
constexpr int kMostRequests = 960;
constexpr int kMostMaskWords = 32;  // trees of 2,048 slots

// `count` requests from `begin` on. Rows keep their indices.
inline BatchView requests_from(BatchView batch, int64_t begin, int count) {
  batch.num_requests = count;
  batch.cu_rows += begin;
  batch.base_lens += begin;
  batch.block_tables += begin * batch.max_blocks_per_request;
  if (batch.is_tree != nullptr) batch.is_tree += begin;
  if (batch.num_tree_slots != nullptr) batch.num_tree_slots += begin;
  return batch;
}

// Shared memory of an SM's block for few rows together with that of an output projection of up to 8
// rows, whose weights load while attention runs.
template <class Tiles>
constexpr int64_t shared_bytes_with_projection() {
  return Tiles::shared_bytes(kFewAttentionRows, 8) + few_rows_exchange_bytes(8, 2) +
         2 * kBlockExtraSharedBytes;
}

template <class Tiles>
int shared_bytes_of(const BatchView& batch) {
  return Tiles::shared_bytes(batch.num_requests,
                             batch.ancestor_mask != nullptr ? batch.mask_words : 0);
}

// Upper bound of the number of items for any lengths: see WorkShape. An item of shared splits has a
// block's share of all tiles, except the last item of each list.
template <class Tiles>
int64_t most_items(const AttentionParams& params) {
  const BatchView& batch = params.batch;
  const auto pair_tiles = [](int64_t pairs) { return (pairs + Tiles::kPairs - 1) / Tiles::kPairs; };
  const int64_t rows = batch.num_rows;
  const int64_t group_size = params.num_heads / params.kv.num_kv_heads;
  const int64_t num_blocks = int64_t{params.num_multiprocessors} * Tiles::kBlocksPerSm;
  const int64_t lists = rows * group_size / Tiles::kPairs + batch.num_requests;
  const bool may_have_trees = batch.ancestor_mask != nullptr;
  const int64_t tail_splits = may_have_trees ? batch.mask_words * 64 / kShortSplit + 2 : 0;
  const int64_t tails = rows * pair_tiles(group_size) * tail_splits;
  return num_blocks + params.kv.num_kv_heads * (lists + tails);
}

constexpr size_t kListHeaderBytes = 256;

// Whether the work list is written to memory. With prompts every layer works it out: that takes no
// time worth saving there.
template <class Tiles>
bool keeps_work_list(const AttentionParams& params) {
  if (!Tiles::kIsFew || params.work_list.memory == nullptr) return false;
  const auto most = static_cast<size_t>(most_items<Tiles>(params));
  return kListHeaderBytes + most * sizeof(StoredItem<Tiles>) <= params.work_list.size_bytes;
}

template <class Tiles>
void launch_requests(Stream& stream, const AttentionParams& params) {
  constexpr float kLog2E = 1.44269504088896340736f;
  const bool keeps = keeps_work_list<Tiles>(params);
  char* work_list = static_cast<char*>(params.work_list.memory);
  const AttendArgs args = {.params = params,
                           .workspace = share_workspace(params, Tiles::kPaddedDim),
                           .scale_log2 = params.scale * kLog2E,
                           .score_limit = params.soft_cap / params.scale,
                           .num_stored = keeps ? reinterpret_cast<int*>(work_list) : nullptr,
                           .stored_items = keeps ? work_list + kListHeaderBytes : nullptr};
  const auto num_blocks = static_cast<unsigned>(params.num_multiprocessors * Tiles::kBlocksPerSm);
  const LaunchConfig config = {
      .grid = {num_blocks},
      .block = {Tiles::kThreads},
      .shared_bytes = static_cast<size_t>(shared_bytes_of<Tiles>(params.batch)),
      .overlaps_previous = true,
      .lets_next_start_early = true,
      .reads_before_wait = true};
  if constexpr (Tiles::kIsFew) {
    void (*reader)(AttendArgs) = attend_kernel<Tiles, true>;
    if (keeps && params.work_list.is_made) {
      return launch(Tiles::kReaderName, stream, reader, config, args);
    }
    // Loads the next layers' kernel: their first launch may be in a capture, which could not load
    // it.
    if (keeps && !stream.is_capturing()) {
      stream.prepare({.name = Tiles::kReaderName,
                      .config = config,
                      .function = reinterpret_cast<const void*>(reader)});
    }
  }
  launch(Tiles::kName, stream, attend_kernel<Tiles, false>, config, args);
}

template <class T, int kDim, bool kCodes>
void launch_attention(Stream& stream, const AttentionParams& params) {
  using One = AttentionTiles<T, kDim, kCodes, 1>;
  using Two = AttentionTiles<T, kDim, kCodes, 2>;
  // The kernel for all else.
  using Any = AttentionTiles<T, kDim, kCodes, kDim <= kMaxCappedHeadDim ? 4 : 1>;
  static_assert(Any::shared_bytes(kMostRequests, kMostMaskWords) <= attention_shared_bytes(kDim));
  if constexpr (kDim == 128 && !kCodes) {
    static_assert(shared_bytes_with_projection<One>() <= kStepSharedBytes);
    static_assert(shared_bytes_with_projection<Two>() <= kStepSharedBytes);
  }
  if constexpr (Any::kIsFew) SPECDEC_CHECK_EQ(params.soft_cap, 0.0f);
  const int group_size = params.num_heads / params.kv.num_kv_heads;
  // Most rows that a request can have; one if none speculates.
  const int most_rows = params.batch.num_rows - params.batch.num_requests + 1;
  AttentionParams turn = params;
  int begin = 0;
  do {  // runs without requests, too: all rows become zeros
    const int left = params.batch.num_requests - begin;
    turn.batch = requests_from(params.batch, begin, left < kMostRequests ? left : kMostRequests);
    if (params.batch.num_requests > kMostRequests) turn.work_list = {};  // a list serves one launch
    const bool is_few =
        Any::kIsFew || (params.batch.num_rows <= kFewAttentionRows && params.soft_cap == 0.0f);
    if (is_few && most_rows * group_size <= 16 &&
        shared_bytes_of<One>(turn.batch) <= params.max_shared_bytes) {
      launch_requests<One>(stream, turn);
    } else if (is_few && shared_bytes_of<Two>(turn.batch) <= params.max_shared_bytes) {
      launch_requests<Two>(stream, turn);
    } else {
      launch_requests<Any>(stream, turn);
    }
    begin += kMostRequests;
  } while (begin < params.batch.num_requests);
}

template <class T, bool kCodes>
void launch_attention_by_dim(Stream& stream, const AttentionParams& params) {
  if (params.kv.head_dim <= 64) {
    launch_attention<T, 64, kCodes>(stream, params);
  } else if (params.kv.head_dim <= 128) {
    launch_attention<T, 128, kCodes>(stream, params);
  } else if (params.kv.head_dim <= 256) {
    launch_attention<T, 256, kCodes>(stream, params);
  } else {
    launch_attention<T, 512, kCodes>(stream, params);
  }
}

template <class T>
void launch_attention_for(Stream& stream, const AttentionParams& params) {
  if (params.kv.dtype == DType::kI8) {
    launch_attention_by_dim<T, true>(stream, params);
  } else {
    launch_attention_by_dim<T, false>(stream, params);
  }
}

}  // namespace specdec::cuda::SPECDEC_TARGET
