// Attention over the paged cache and the operations on the cache itself.
#include <algorithm>
#include <atomic>
#include <vector>

#include "core/check.h"
#include "cpu/attention_work.h"
#include "cpu/cpu_backend.h"

namespace specdec::cpu {
namespace {

constexpr int kLanes = 16;
// Kernels read values and write unpacked ones a whole vector at a time, and so past the end of a
// head_dim that is not a multiple of 16.
constexpr int64_t kVectorBytes = 64;

int64_t round_up(int64_t x) { return (x + kLanes - 1) / kLanes * kLanes; }

// Floats of one thread's scratch, the parts in the order of AttentionTask.
struct ScratchShape {
  int64_t scores = 0;
  int64_t accumulators = 0;
  int64_t tail_scores = 0;
  int64_t tail_slots = 0;
  int64_t blocks = 0;
  int64_t groups = 0;
  int64_t tail_groups = 0;

  int64_t num_floats() const {
    return scores + accumulators + tail_scores + tail_slots + blocks + groups + tail_groups;
  }
};

int tail_stride(const BatchView& batch, int request) {
  return static_cast<int>(round_up(num_tail_slots(batch, request) + 128));
}

int64_t partial_stride(int head_dim) { return round_up(head_dim) + kPartialExtra; }

// Scratch large enough for any unit of the work.
ScratchShape scratch_shape(const TreeAttentionArgs& args, const AttentionWork& work) {
  const int group_size = args.num_heads / args.kv.num_kv_heads;
  const int64_t group_floats = int64_t{kLanes} * args.kv.head_dim;  // of float32 at most
  constexpr int64_t kPad = kVectorBytes / sizeof(float);
  int64_t most_pairs = 0;
  ScratchShape shape;
  for (const AttentionUnit& unit : work.units) {
    const int64_t pairs = int64_t{unit.num_rows} * group_size;
    most_pairs = std::max(most_pairs, pairs);
    if (!is_tree(*args.batch, unit.request)) continue;
    const int64_t num_tail = num_tail_slots(*args.batch, unit.request);
    shape.tail_scores = std::max(shape.tail_scores, pairs * tail_stride(*args.batch, unit.request));
    shape.tail_slots = std::max(shape.tail_slots, round_up(unit.num_rows * num_tail));
    shape.tail_groups = (round_up(num_tail) / kLanes + 2) * group_floats + kPad;
  }
  shape.scores = most_pairs * kScoreStride;
  shape.accumulators = 2 * most_pairs * partial_stride(args.kv.head_dim);
  shape.blocks = std::max<int64_t>(kAttentionBlockBytes / sizeof(float), 4 * group_floats) + kPad;
  shape.groups = round_up(3 * group_floats) + kPad;
  if (args.kv.dtype != DType::kI8) shape.tail_groups = 0;
  return shape;
}

// Memory of tree_attention: the calling thread's scratch and where partial results go.
struct TaskMemory {
  const ScratchShape& shape;
  float* scratch;
  float* partials;
};

AttentionTask make_task(const TreeAttentionArgs& args, DType act_dtype, const AttentionUnit& unit,
                        const AttentionPortion& portion, const TaskMemory& memory) {
  const BatchView& batch = *args.batch;
  const PagedKvView& kv = args.kv;
  const int group_size = args.num_heads / kv.num_kv_heads;
  const int64_t row = batch.cu_rows[unit.request] + unit.first_row;
  const int64_t offset_bytes =
      (row * args.num_heads + unit.kv_head * group_size) * kv.head_dim * size_of(act_dtype);
  float* free = memory.scratch;
  const auto take = [&](int64_t num_floats) {
    float* part = free;
    free += num_floats;
    return part;
  };
  return {
      .q = static_cast<const char*>(args.q) + offset_bytes,
      .out = static_cast<char*>(args.out) + offset_bytes,
      .row_stride = static_cast<int64_t>(args.num_heads) * kv.head_dim,
      .num_rows = unit.num_rows,
      .group_size = group_size,
      .head_dim = kv.head_dim,
      .scale = args.scale,
      .soft_cap = args.soft_cap,
      .sinks = args.sinks != nullptr ? args.sinks + unit.kv_head * group_size : nullptr,
      .keys = kv.keys,
      .values = kv.values,
      .block_table =
          batch.block_tables + static_cast<int64_t>(unit.request) * batch.max_blocks_per_request,
      .block_size = kv.block_size,
      .num_blocks = kv.num_blocks,
      .kv_head = unit.kv_head,
      .base_len = batch.base_lens[unit.request],
      .first_row = unit.first_row,
      .sliding_window = args.sliding_window,
      .mask = is_tree(batch, unit.request) ? batch.ancestor_mask + row * batch.mask_words : nullptr,
      .mask_words = batch.mask_words,
      .num_tree_slots = num_tail_slots(batch, unit.request),
      .chunk_begin = portion.chunk_begin,
      .chunk_end = portion.chunk_end,
      .first_chunk = unit.first_chunk(),
      .chunk_limit = unit.chunk_limit(),
      .first_position = unit.first_position,
      .partials = unit.num_portions > 1
                      ? memory.partials + unit.partials * partial_stride(kv.head_dim)
                      : nullptr,
      .scores = take(memory.shape.scores),
      .accumulators = take(memory.shape.accumulators),
      .tail_scores = take(memory.shape.tail_scores),
      .tail_stride = tail_stride(batch, unit.request),
      .tail_slots = reinterpret_cast<int32_t*>(take(memory.shape.tail_slots)),
      .blocks = take(memory.shape.blocks),
      .groups = take(memory.shape.groups),
      .tail_groups = take(memory.shape.tail_groups),
  };
}

}  // namespace

float* CpuBackend::grow_scratch(Buffer& buffer, int64_t num_floats) {
  const size_t size_bytes = num_floats * sizeof(float);
  // Allocates half more than asked for, because a context grows with every step.
  if (buffer.size_bytes() < size_bytes) {
    buffer = {};
    buffer = Buffer::host(size_bytes + size_bytes / 2, "scratch of the CPU backend");
  }
  return buffer.as<float>();
}

KvKind CpuBackend::kv_kind(const PagedKvView& kv) const {
  SPECDEC_CHECK(kv.dtype == act_dtype_ || kv.dtype == DType::kI8);
  SPECDEC_CHECK_GT(kv.block_size, 0);
  SPECDEC_CHECK_EQ(kv.block_size % kLanes, 0);
  SPECDEC_CHECK_GT(kv.num_kv_heads, 0);
  SPECDEC_CHECK_GT(kv.head_dim, 0);
  SPECDEC_CHECK_LE(kv.head_dim, static_cast<int>(kMaxHeadDim));
  if (act_dtype_ == DType::kF32) return kv.dtype == DType::kI8 ? kKvF32I8 : kKvF32;
  SPECDEC_CHECK_EQ(kv.head_dim % 2, 0);
  return kv.dtype == DType::kI8 ? kKvBf16I8 : kKvBf16;
}

size_t CpuBackend::kv_layer_bytes(const PagedKvView& shape) const {
  const int64_t num_groups =
      int64_t{shape.num_blocks} * shape.num_kv_heads * (shape.block_size / kLanes);
  const auto group_bytes = kernels_.attention.by_kind[kv_kind(shape)].group_bytes;
  return static_cast<size_t>(num_groups * group_bytes(shape.head_dim) + kVectorBytes);
}

void CpuBackend::tree_attention(const TreeAttentionArgs& args) {
  SPECDEC_CHECK_EQ(args.num_heads % args.kv.num_kv_heads, 0);
  SPECDEC_CHECK_LE(args.num_heads / args.kv.num_kv_heads, static_cast<int>(kMaxAttentionPairs));
  const AttentionKernels& kernels = kernels_.attention.by_kind[kv_kind(args.kv)];
  const AttentionWork work = divide_attention(args, num_threads());
  const ScratchShape shape = scratch_shape(args, work);
  const int64_t thread_floats = shape.num_floats();
  float* scratch =
      grow_scratch(attention_scratch_, thread_floats * num_threads() +
                                           work.num_partials * partial_stride(args.kv.head_dim));
  float* partials = scratch + thread_floats * num_threads();
  std::vector<std::atomic<int>> completed(work.units.size());  // portions of each unit

  pool_.parallel_for(work.num_slices(), 1, [&](int64_t slice, int64_t slice_end, int thread) {
    const TaskMemory memory = {shape, scratch + thread * thread_floats, partials};
    const auto task_of = [&](int i) {
      const AttentionPortion& portion = work.portions[i];
      return make_task(args, act_dtype_, work.units[portion.unit], portion, memory);
    };
    const int begin = work.slices[slice], end = work.slices[slice_end];
    if (begin == end) return;
    AttentionTask task = task_of(begin);
    for (int i = begin; i < end; ++i) {
      const AttentionTask next = task_of(std::min(i + 1, end - 1));
      kernels.attend(task, i + 1 < end ? &next : nullptr);
      const int unit = work.portions[i].unit;
      const int num_portions = work.units[unit].num_portions;
      if (num_portions > 1 &&
          completed[unit].fetch_add(1, std::memory_order_acq_rel) + 1 == num_portions) {
        kernels.finish(task);
      }
      task = next;
    }
  });
}

void CpuBackend::copy_kv(const CopyKvArgs& args) {
  if (args.slots.empty()) return;
  const int64_t row_bytes = args.features.width * static_cast<int64_t>(size_of(act_dtype_));
  char* features = static_cast<char*>(args.features.rows);
  for (const auto& [from, to] : args.slots) {
    if (row_bytes == 0 || from == to) continue;
    std::copy_n(features + from * row_bytes, row_bytes, features + to * row_bytes);
  }
  std::vector<std::pair<const PagedKvView*, int>> heads;
  for (const PagedKvView& layer : args.layers) {
    for (int head = 0; head < layer.num_kv_heads; ++head) heads.emplace_back(&layer, head);
  }
  pool_.parallel_for(heads.size(), 4, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const PagedKvView& layer = *heads[i].first;
      const auto copy_token = kernels_.attention.by_kind[kv_kind(layer)].copy_token;
      for (const auto& [from, to] : args.slots) {
        if (from == to) continue;
        copy_token({.keys = layer.keys,
                    .values = layer.values,
                    .block_size = layer.block_size,
                    .num_blocks = layer.num_blocks,
                    .kv_head = heads[i].second,
                    .head_dim = layer.head_dim,
                    .from = from,
                    .to = to});
      }
    }
  });
}

}  // namespace specdec::cpu
