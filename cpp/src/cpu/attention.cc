// Attention over the paged cache and the operations on the cache itself.
#include <algorithm>
#include <cstring>
#include <vector>

#include "core/check.h"
#include "cpu/cpu_backend.h"

namespace specdec::cpu {
namespace {

constexpr int kLanes = 16;
// (row, head) pairs of a task: enough to use each key and value many times while it is in L1.
constexpr int kTargetPairs = 24;
// Scores of a task that stay in L2.
constexpr int64_t kTargetScores = 128 * 1024;

int64_t round_up(int64_t x) { return (x + kLanes - 1) / kLanes * kLanes; }

// Query rows [first_row, first_row + num_rows) of a request and one KV head.
struct WorkItem {
  int request = 0;
  int kv_head = 0;
  int first_row = 0;
  int num_rows = 0;
};

// Floats of one thread's scratch.
struct ScratchShape {
  int64_t scores = 0;
  int64_t accumulators = 0;
  int64_t tail_slots = 0;

  int64_t num_floats() const { return scores + accumulators + round_up(tail_slots); }
  void cover(const ScratchShape& other) {
    scores = std::max(scores, other.scores);
    accumulators = std::max(accumulators, other.accumulators);
    tail_slots = std::max(tail_slots, other.tail_slots);
  }
};

bool is_tree(const BatchView& batch, int request) {
  return batch.is_tree != nullptr && batch.is_tree[request] != 0;
}

// Slots past base_len that the request's rows may see.
int num_tail_slots(const BatchView& batch, int request) {
  if (is_tree(batch, request) && batch.num_tree_slots != nullptr) {
    return batch.num_tree_slots[request];
  }
  return batch.cu_rows[request + 1] - batch.cu_rows[request];
}

// Floats between the scores of two pairs: an odd number of vectors, so that pairs do not fall into
// the same cache sets.
int64_t score_stride(const TreeAttentionArgs& args, int request) {
  const BatchView& batch = *args.batch;
  const int64_t num_tail = num_tail_slots(batch, request);
  int64_t slots = batch.base_lens[request] + num_tail;
  if (args.sliding_window > 0) slots = std::min(slots, args.sliding_window + num_tail);
  return round_up(slots + 2 * kLanes) | kLanes;
}

ScratchShape scratch_of(const TreeAttentionArgs& args, const WorkItem& item) {
  const int64_t pairs = item.num_rows * (args.num_heads / args.kv.num_kv_heads);
  return {.scores = pairs * score_stride(args, item.request),
          .accumulators = pairs * round_up(args.kv.head_dim),
          .tail_slots =
              is_tree(*args.batch, item.request)
                  ? static_cast<int64_t>(item.num_rows) * num_tail_slots(*args.batch, item.request)
                  : 0};
}

std::vector<WorkItem> split_work(const TreeAttentionArgs& args) {
  const BatchView& batch = *args.batch;
  const int group_size = args.num_heads / args.kv.num_kv_heads;
  std::vector<WorkItem> items;
  for (int request = 0; request < batch.num_requests; ++request) {
    const int num_rows = batch.cu_rows[request + 1] - batch.cu_rows[request];
    if (is_tree(batch, request)) {
      SPECDEC_CHECK_LE(num_rows, num_tail_slots(batch, request));
      SPECDEC_CHECK_LE(num_tail_slots(batch, request), 64 * batch.mask_words);
    }
    const int64_t pairs =
        std::min<int64_t>(kTargetPairs, kTargetScores / score_stride(args, request));
    const int step =
        std::clamp(static_cast<int>(pairs / group_size), 1, static_cast<int>(kMaxAttentionRows));
    for (int row = 0; row < num_rows; row += step) {
      for (int head = 0; head < args.kv.num_kv_heads; ++head) {
        items.push_back({request, head, row, std::min(step, num_rows - row)});
      }
    }
  }
  return items;
}

AttentionTask make_task(const TreeAttentionArgs& args, const WorkItem& item,
                        const ScratchShape& shape, float* scratch) {
  const BatchView& batch = *args.batch;
  const PagedKvView& kv = args.kv;
  const int group_size = args.num_heads / kv.num_kv_heads;
  const int64_t row = batch.cu_rows[item.request] + item.first_row;
  const int64_t offset_bytes =
      (row * args.num_heads + item.kv_head * group_size) * kv.head_dim * size_of(kv.dtype);
  const bool tree = is_tree(batch, item.request);
  return {
      .q = static_cast<const char*>(args.q) + offset_bytes,
      .out = static_cast<char*>(args.out) + offset_bytes,
      .row_stride = static_cast<int64_t>(args.num_heads) * kv.head_dim,
      .num_rows = item.num_rows,
      .group_size = group_size,
      .head_dim = kv.head_dim,
      .scale = args.scale,
      .keys = kv.keys,
      .values = kv.values,
      .block_table =
          batch.block_tables + static_cast<int64_t>(item.request) * batch.max_blocks_per_request,
      .block_size = kv.block_size,
      .num_kv_heads = kv.num_kv_heads,
      .kv_head = item.kv_head,
      .base_len = batch.base_lens[item.request],
      .first_row = item.first_row,
      .sliding_window = args.sliding_window,
      .mask = tree ? batch.ancestor_mask + row * batch.mask_words : nullptr,
      .mask_words = batch.mask_words,
      .num_tree_slots = num_tail_slots(batch, item.request),
      .scores = scratch,
      .score_stride = score_stride(args, item.request),
      .accumulators = scratch + shape.scores,
      .tail_slots = reinterpret_cast<int32_t*>(scratch + shape.scores + shape.accumulators),
  };
}

void check_kv(const PagedKvView& kv) {
  SPECDEC_CHECK(kv.dtype == DType::kF32 || kv.dtype == DType::kBF16);
  SPECDEC_CHECK_GT(kv.block_size, 0);
  SPECDEC_CHECK_EQ(kv.block_size % kLanes, 0);
  SPECDEC_CHECK_GT(kv.num_kv_heads, 0);
  SPECDEC_CHECK_GT(kv.head_dim, 0);
  SPECDEC_CHECK_LE(kv.head_dim, static_cast<int>(kMaxHeadDim));
  SPECDEC_CHECK(kv.dtype == DType::kF32 || kv.head_dim % 2 == 0);
}

// Copies token `from` to `to` of one layer and KV head. Elements of a key lie block_size words
// apart, a word being an element or a pair of bfloat16.
void copy_token(const PagedKvView& kv, int head, int64_t from, int64_t to) {
  const size_t element_bytes = size_of(kv.dtype);
  const size_t head_bytes = element_bytes * kv.block_size * kv.head_dim;
  const auto start = [&](void* base, int64_t slot) {
    return static_cast<char*>(base) +
           static_cast<size_t>(slot / kv.block_size * kv.num_kv_heads + head) * head_bytes;
  };
  constexpr size_t kWordBytes = 4;
  const size_t num_words = kv.head_dim * element_bytes / kWordBytes;
  const char* key = start(kv.keys, from) + from % kv.block_size * kWordBytes;
  char* key_out = start(kv.keys, to) + to % kv.block_size * kWordBytes;
  for (size_t word = 0; word < num_words; ++word) {
    const size_t offset = word * kv.block_size * kWordBytes;
    std::memcpy(key_out + offset, key + offset, kWordBytes);
  }
  const size_t row_bytes = element_bytes * kv.head_dim;
  std::memmove(start(kv.values, to) + to % kv.block_size * row_bytes,
               start(kv.values, from) + from % kv.block_size * row_bytes, row_bytes);
}

}  // namespace

float* CpuBackend::grow_scratch(Buffer& buffer, int64_t num_floats) {
  const size_t size_bytes = num_floats * sizeof(float);
  // By half more than asked: a context grows with every step.
  if (buffer.size_bytes() < size_bytes) {
    buffer = {};
    buffer = Buffer::host(size_bytes + size_bytes / 2, "scratch of the CPU backend");
  }
  return buffer.as<float>();
}

size_t CpuBackend::kv_layer_bytes(const PagedKvView& shape) const {
  check_kv(shape);
  const size_t elements = static_cast<size_t>(shape.num_blocks) * shape.num_kv_heads *
                          shape.block_size * shape.head_dim;
  // Kernels read values a vector at a time, past the last row of a head_dim that is no multiple.
  return (elements + kLanes) * size_of(shape.dtype);
}

void CpuBackend::tree_attention(const TreeAttentionArgs& args) {
  check_kv(args.kv);
  SPECDEC_CHECK_EQ(args.num_heads % args.kv.num_kv_heads, 0);
  SPECDEC_CHECK_LE(args.num_heads / args.kv.num_kv_heads, static_cast<int>(kMaxAttentionPairs));
  const std::vector<WorkItem> items = split_work(args);
  ScratchShape shape;
  for (const WorkItem& item : items) shape.cover(scratch_of(args, item));
  float* scratch = grow_scratch(attention_scratch_, shape.num_floats() * num_threads());
  const auto kernel =
      args.kv.dtype == DType::kBF16 ? kernels_.attention.bf16 : kernels_.attention.f32;
  pool_.parallel_for(items.size(), 1, [&](int64_t begin, int64_t end, int thread) {
    for (int64_t i = begin; i < end; ++i) {
      kernel(make_task(args, items[i], shape, scratch + thread * shape.num_floats()));
    }
  });
}

void CpuBackend::copy_kv(const CopyKvArgs& args) {
  if (args.layers.empty() || args.slots.empty()) return;
  std::vector<std::pair<const PagedKvView*, int>> heads;
  for (const PagedKvView& layer : args.layers) {
    check_kv(layer);
    for (int head = 0; head < layer.num_kv_heads; ++head) heads.emplace_back(&layer, head);
  }
  pool_.parallel_for(heads.size(), 4, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      for (const auto& [from, to] : args.slots) {
        if (from != to) copy_token(*heads[i].first, heads[i].second, from, to);
      }
    }
  });
}

}  // namespace specdec::cpu
