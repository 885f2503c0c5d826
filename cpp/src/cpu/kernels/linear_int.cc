// Products of integer weights and rows, exact within a group: see linear_int.h.
#include "cpu/kernels/linear_int.h"

#include <type_traits>
#include <utility>

#include "cpu/kernels/linear.h"
#include "cpu/kernels/prefetch.h"
#include "cpu/kernels/row_pointers.h"
#include "cpu/kernels/simd_int.h"
#include "cpu/kernels/sum_slices.h"
#if defined(SPECDEC_NEON)
#include "cpu/kernels/linear_int_neon.h"
#endif

namespace specdec::cpu::SPECDEC_ISA {
namespace {

// Rows and blocks of a register tile: each pair is an accumulator of integers. Float sums stay in
// memory between groups.
#if defined(__AVX512F__)
constexpr int kMaxRows = 8;
constexpr int kMaxBlocks = 2;
static_assert(kMaxBlocks <= kMaxCellBlocks);
#elif defined(__AVXVNNI__)
constexpr int kMaxRows = 6;
constexpr int kMaxBlocks = 1;
#elif defined(__ARM_FEATURE_DOTPROD)
constexpr int kMaxRows = 8;
constexpr int kMaxBlocks = 1;
#else
constexpr int kMaxRows = 4;
constexpr int kMaxBlocks = 1;
#endif
constexpr int kGroupScaleBytes = kLanes * 2;
constexpr int64_t kWeightsL1Bytes = 24 << 10;  // of one group of blocks, between passes of rows

// kInto: the cache into which a pass over the weights prefetches later lines.
template <PackedFormat kFormat, PrefetchInto kInto>
struct IntFormat {
  static constexpr PrefetchInto kPrefetchInto = kInto;
  static constexpr bool kHasMins =
      kFormat == kPackedInt8GroupedMin || kFormat == kPackedInt4GroupedMin;
  static constexpr bool kHasZeros = kFormat == kPackedInt4GroupedZero;
  static constexpr bool kHasSmallTable = kFormat == kPackedInt4SmallTable;
  static constexpr bool kHasTable = kFormat == kPackedInt4Table || kHasSmallTable;
  static constexpr bool kIsInt4 =
      kFormat == kPackedInt4Grouped || kFormat == kPackedInt4GroupedMin || kHasZeros || kHasTable;
  static constexpr bool kIsGrouped = kFormat != kPackedInt8;
  static constexpr int kGroup = kFormat == kPackedInt8Grouped16 ? kSmallIntGroup : kIntGroup;
  static constexpr int kGroupsOfRecord = kIntRecordDepth / kGroup;
  using Dot = std::conditional_t<kHasSmallTable, SmallTableDot,
                                 std::conditional_t<kIsInt4 && !kHasTable, Int4Dot, Int8Dot>>;
  static constexpr int kOffset = kHasSmallTable          ? kSmallTableOffset
                                 : !kIsInt4 || kHasTable ? kInt8Offset
                                 : kHasMins || kHasZeros ? 0
                                                         : kInt4Offset;
  static constexpr int kHeaderBytes =  // of a record
      kIsGrouped ? (kHasMins || kHasZeros ? 2 : 1) * kGroupsOfRecord * kGroupScaleBytes : 0;
  static constexpr int kRecordBytes = kHeaderBytes + (kIsInt4 ? kInt4CodesBytes : kInt8CodesBytes);
  static constexpr int kLineQuads = kIsInt4 ? 2 : 1;
  static constexpr int kGroupLines = kGroup / 4 / kLineQuads;
  using RowGroup = IntRowGroup<typename Dot::Code, kGroup>;
};

// Up to this many rows work on one block at a time, because memory limits them rather than
// arithmetic. 4-bit weights do as much arithmetic for half the bytes, so the limit is lower.
template <class Format>
constexpr int kSingleBlockRows = Format::kIsInt4 ? 1 : 4;

// Pointers of a tile: the rows at its first row and k, the weights at its first block and k.
template <class Format>
struct IntSpan {
  const uint8_t* x;
  int64_t x_stride;        // bytes from one row to the next
  const uint8_t* weights;  // a record
  int64_t block_bytes;
  const int8_t* table;
  SliceSpan slices;
  // Prefetches one line per line of weights used, starting here and moving by ahead_step bytes per
  // block's worth.
  const uint8_t* ahead;
  int64_t ahead_stride;
};

template <int kRows, int kBlocks>
struct IntDots {
  I32x16 of[kRows][kBlocks];
};

#if defined(SPECDEC_NEON)

// Sums the span's k step by step. A step is whole records.
template <class Format, int kRows, int kBlocks>
void run_int_tile(const IntSpan<Format>& span, const TileSums& tile_sums) {
  static_assert(kBlocks == 1);
  SliceSums<kRows> sums;
  SliceSpan slices = span.slices;
  const uint8_t* record = span.weights;
  RowPointers<uint8_t> x(span.x, span.x_stride);
  const HalfBytes<Format> half_bytes(span.table);
  do {
    const SumsAt own = tile_sums.unfinished(*slices.slice, kLanes);
    begin_slice(slices.starts, own, sums);
    const uint8_t* const end = record + k_of_slice(slices) / kIntRecordDepth * Format::kRecordBytes;
    for (; record < end; record += Format::kRecordBytes) {
#pragma GCC unroll 1
      for (int group = 0; group < Format::kGroupsOfRecord; ++group) {
        add_group<Format, kRows>(
            record + Format::kHeaderBytes + group * (Format::kGroupLines * kLineBytes),
            record + group * kGroupScaleBytes, half_bytes, x, sums);
        x.advance(sizeof(typename Format::RowGroup));
      }
    }
    if (!completes_slice(slices)) return end_slice(sums, 0, own, own);
    end_slice(sums, slices.slice->num_folds, own, tile_sums.result(*slices.slice, kLanes));
  } while (next_slice(slices));
}
#else

// Lines of a group that are unrolled: all of them, since in a loop the compiler moves accumulators
// around. Sets whose vector registers cannot hold the sums would only compile more slowly.
#ifdef __AVX2__
inline constexpr int kUnrolledLines = 8;
#else
inline constexpr int kUnrolledLines = 1;
#endif

// The weights of a line's quad.
template <class Format>
inline typename Format::Dot::Weights weights_at(const uint8_t* line, int quad,
                                                const BytesX64& table) {
  if constexpr (Format::kHasTable) {
    return Format::Dot::of(look_up(table, load_half_bytes(line, quad)));
  } else {
    return Format::Dot::of(Format::kIsInt4 ? load_half_bytes(line, quad) : load_bytes(line));
  }
}

// Computes the integer sums of one group, prefetching one line per line used.
template <class Format, int kRows, int kBlocks>
inline IntDots<kRows, kBlocks> dot_group(const IntSpan<Format>& span, const uint8_t* codes,
                                         const BytesX64& table, const RowPointers<uint8_t>& x,
                                         const uint8_t* ahead) {
  using Dot = typename Format::Dot;
  const auto start = [&](int row) {
    return Format::kOffset == 0 ? 0 : group_of<Format>(x, row).start;
  };
  typename Dot::Sums sums[kRows][kBlocks];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int b = 0; b < kBlocks; ++b) sums[r][b] = Dot::begin(start(r));
  }
#pragma GCC unroll kUnrolledLines
  for (int line = 0; line < Format::kGroupLines; ++line) {
#pragma GCC unroll 4
    for (int b = 0; b < kBlocks; ++b) {
      prefetch_line<Format::kPrefetchInto>(ahead + b * kLineBytes);
    }
    ahead += span.ahead_stride;
    // Keeps the compiler from computing all of the group's addresses at once
    asm("" : "+r"(ahead));
#pragma GCC unroll 2
    for (int i = 0; i < Format::kLineQuads; ++i) {
      typename Dot::Weights w[kBlocks];
#pragma GCC unroll 4
      for (int b = 0; b < kBlocks; ++b) {
        w[b] = weights_at<Format>(codes + line * kLineBytes + b * span.block_bytes, i, table);
      }
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const int offset = 4 * (line * Format::kLineQuads + i);
        const typename Dot::Factor factor = Dot::factor(group_of<Format>(x, r).codes + offset);
#pragma GCC unroll 4
        for (int b = 0; b < kBlocks; ++b) sums[r][b] = Dot::dot(sums[r][b], w[b], factor);
      }
    }
  }
  IntDots<kRows, kBlocks> dots;
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int b = 0; b < kBlocks; ++b) dots.of[r][b] = Dot::end(sums[r][b], start(r));
  }
  return dots;
}

// Where a group's sums start from, and where they are stored.
struct GroupSums {
  SumsAt from;
  SumsAt to;
};

// sums += the group's integer sums, scaled. The result is then folded kFolds times with the partial
// sums before it. `header` points at the group's scales.
template <class Format, bool kStarts, int kFolds, int kRows, int kBlocks>
inline void add_group(const IntSpan<Format>& span, const IntDots<kRows, kBlocks>& dots,
                      const uint8_t* header, const RowPointers<uint8_t>& x, GroupSums sums) {
  F32x16 scales[kBlocks];
  F32x16 mins[kBlocks];  // or zeros
#pragma GCC unroll 4
  for (int b = 0; b < kBlocks; ++b) {
    const uint8_t* from = header + b * span.block_bytes;
    if constexpr (Format::kIsGrouped) {
      scales[b] = load_half(reinterpret_cast<const uint16_t*>(from));
    }
    if constexpr (Format::kHasMins || Format::kHasZeros) {
      mins[b] = load_half(reinterpret_cast<const uint16_t*>(from + kIntHeaderBytes));
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    const auto& group = group_of<Format>(x, r);
#pragma GCC unroll 4
    for (int b = 0; b < kBlocks; ++b) {
      const float* from = sums.from.data + b * kLanes;
      F32x16 factor = broadcast(group.scale);
      if constexpr (Format::kIsGrouped) factor = scales[b] * factor;
      F32x16 sum = kStarts ? zero() : load(from);
      F32x16 dot = to_float(dots.of[r][b]);
      if constexpr (Format::kHasZeros) dot = fused(mins[b], broadcast(group.min), dot);
      sum = fused(dot, factor, sum);
      if constexpr (Format::kHasMins) sum = fused(mins[b], broadcast(group.min), sum);
#pragma GCC unroll 4
      for (int f = 1; f <= kFolds; ++f) sum = load(from - f * kBlocks * kLanes) + sum;
      store(sums.to.data + b * kLanes, sum);
    }
    // Without this the compiler computes the addresses of all rows first and runs out of registers.
    sums.from.data += sums.from.stride;
    sums.to.data += sums.to.stride;
    asm("" : "+r"(sums.from.data), "+r"(sums.to.data));
  }
}

// The same with `num_folds` known only at run time.
template <class Format, int kRows, int kBlocks>
inline void add_last_group(int num_folds, const IntSpan<Format>& span,
                           const IntDots<kRows, kBlocks>& dots, const uint8_t* header,
                           const RowPointers<uint8_t>& x, const GroupSums& sums) {
  switch (num_folds) {
    case 0:
      return add_group<Format, false, 0>(span, dots, header, x, sums);
    case 1:
      return add_group<Format, false, 1>(span, dots, header, x, sums);
    case 2:
      return add_group<Format, false, 2>(span, dots, header, x, sums);
    default:
      return add_group<Format, false, 3>(span, dots, header, x, sums);
  }
}

// The sums of a step without any k: zeros, folded.
inline void fold_zeros(int num_rows, int64_t width, int num_folds, const GroupSums& sums) {
  for (int r = 0; r < num_rows; ++r) {
    for (int64_t i = 0; i < width; i += kLanes) {
      const float* from = sums.from.data + r * sums.from.stride + i;
      F32x16 sum = zero();
      for (int f = 1; f <= num_folds; ++f) sum = load(from - f * width) + sum;
      store(sums.to.data + r * sums.to.stride + i, sum);
    }
  }
}

// Sums the span's k step by step. A step is whole records.
template <class Format, int kRows, int kBlocks>
void run_int_tile(const IntSpan<Format>& tile, const TileSums& tile_sums) {
  constexpr int64_t kWidth = kBlocks * kLanes;
  const IntSpan<Format> span = tile;  // local copies, which stores to sums cannot alias
  const TileSums sums = tile_sums;
  SliceSpan slices = tile.slices;
  const uint8_t* record = span.weights;
  RowPointers<uint8_t> x(span.x, span.x_stride);
  const uint8_t* ahead = span.ahead;
  const BytesX64 table = Format::kHasTable ? load_table(span.table, Format::kOffset) : BytesX64{};
  do {
    // The step's last group folds the sums into `to`.
    const SumsAt own = sums.unfinished(*slices.slice, kWidth);
    const SumsAt to = sums.result(*slices.slice, kWidth);
    bool starts = slices.starts;
    const uint8_t* const end = record + k_of_slice(slices) / kIntRecordDepth * Format::kRecordBytes;
    if (record == end) fold_zeros(kRows, kWidth, slices.slice->num_folds, {own, to});
    for (; record < end; record += Format::kRecordBytes) {
      const bool is_last = record + Format::kRecordBytes == end && completes_slice(slices);
      for (int group = 0; group < Format::kGroupsOfRecord; ++group) {
        const uint8_t* codes =
            record + Format::kHeaderBytes + group * (Format::kGroupLines * kLineBytes);
        const auto dots = dot_group<Format, kRows, kBlocks>(span, codes, table, x, ahead);
        const uint8_t* header = record + group * kGroupScaleBytes;
        if (is_last && group + 1 == Format::kGroupsOfRecord) {
          add_last_group<Format, kRows, kBlocks>(slices.slice->num_folds, span, dots, header, x,
                                                 {own, to});
        } else if (starts) {
          add_group<Format, true, 0, kRows, kBlocks>(span, dots, header, x, {own, own});
        } else {
          add_group<Format, false, 0, kRows, kBlocks>(span, dots, header, x, {own, own});
        }
        starts = false;
        ahead += Format::kGroupLines * span.ahead_stride;
        x.advance(sizeof(typename Format::RowGroup));
      }
      for (int line = 0; line < Format::kHeaderBytes / kLineBytes; ++line) {
        for (int b = 0; b < kBlocks; ++b) {
          prefetch_line<Format::kPrefetchInto>(ahead + b * kLineBytes);
        }
        ahead += span.ahead_stride;
      }
    }
    if (!completes_slice(slices)) return;
  } while (next_slice(slices));
}

#endif

template <class Format>
using IntTileFunction = void (*)(const IntSpan<Format>&, const TileSums&);

template <class Format, int kBlocks, int... kRowsLessOne>
IntTileFunction<Format> int_tile_of_rows(int64_t rows,
                                         std::integer_sequence<int, kRowsLessOne...>) {
  static constexpr IntTileFunction<Format> kTiles[] = {
      run_int_tile<Format, kRowsLessOne + 1, kBlocks>...};
  return kTiles[rows - 1];
}

template <class Format>
IntTileFunction<Format> int_tile(int64_t rows, int64_t blocks) {
  constexpr std::make_integer_sequence<int, kMaxRows> kSizes;
  if constexpr (kMaxBlocks == 2) {
    if (blocks == 2) return int_tile_of_rows<Format, 2>(rows, kSizes);
  }
  return int_tile_of_rows<Format, 1>(rows, kSizes);
}

// Multiplies the sums of one block by its outputs' scales.
void scale_outputs(const LinearTask& task, int64_t block) {
  const char* scales = static_cast<const char*>(task.weights) + block * task.block_bytes;
  const F32x16 scale = load(reinterpret_cast<const float*>(scales));
  for (int64_t row = 0; row < task.num_rows; ++row) {
    float* sums = task.sums + row * task.sums_stride + block * kLanes;
    store(sums, load(sums) * scale);
  }
}

// Runs all rows and all of k at once.
template <class Format>
IntSpan<Format> whole_span(const LinearTask& task) {
  IntSpan<Format> span{};
  span.x = static_cast<const uint8_t*>(task.x);
  span.x_stride = task.x_stride * int64_t{sizeof(typename Format::RowGroup)};
  span.weights =
      static_cast<const uint8_t*>(task.weights) + (Format::kIsGrouped ? 0 : kIntHeaderBytes);
  span.block_bytes = task.block_bytes;
  span.table = task.table;
  span.slices = slice_span(task, 0, task.padded_k);
  return span;
}

// Runs all rows in one pass over the weights. The weights are one stream from memory even where two
// blocks are used side by side: the next two blocks are prefetched one after the other.
template <class Format>
void run_one_pass(const LinearTask& task) {
  IntSpan<Format> span = whole_span<Format>(task);
  const int64_t most = task.num_rows <= kSingleBlockRows<Format> ? 1 : kMaxBlocks;
  const int64_t distance = most == 1 ? kAheadBytes<Format::kPrefetchInto> : most * task.block_bytes;
  span.ahead_stride = most * kLineBytes;
  for (int64_t block = 0; block < task.num_blocks; block += most) {
    const int64_t blocks = task.num_blocks - block < most ? task.num_blocks - block : most;
    span.ahead = span.weights + distance;
    int_tile<Format>(task.num_rows, blocks)(span, tile_sums(task, 0, block, blocks * kLanes));
    span.weights += blocks * task.block_bytes;
  }
}

// Runs several passes over some blocks, over a part of k at a time that stays in the L1 cache. Each
// pass prefetches an equal share of the next part.
template <class Format>
void run_passes(const LinearTask& task, int64_t block, int64_t num_blocks, int64_t num_passes) {
  const IntSpan<Format> whole = whole_span<Format>(task);
  const uint8_t* weights = whole.weights + block * task.block_bytes;
  const int64_t most = kWeightsL1Bytes / (num_blocks * int64_t{Format::kRecordBytes});
  const int64_t num_records = task.padded_k / kIntRecordDepth;
  const int64_t num_parts = (num_records + most - 1) / most;
  const int64_t part = (num_records + num_parts - 1) / num_parts;  // records
  const int64_t piece = part * Format::kRecordBytes;               // of one block
  const int64_t share = num_blocks * piece / num_passes;
  const bool is_whole = part >= num_records;
  for (int64_t record = 0; record < num_records; record += part) {
    IntSpan<Format> span = whole;
    const bool is_last = record + part >= num_records;
    const int64_t count = is_last ? num_records - record : part;
    span.slices = slice_span(task, record * kIntRecordDepth, (record + count) * kIntRecordDepth);
    span.weights = weights + record * Format::kRecordBytes;
    span.ahead_stride = share / (count * (Format::kRecordBytes / kLineBytes));
    const uint8_t* next = is_last ? weights + num_blocks * task.block_bytes : span.weights + piece;
    for (int64_t pass = 0; pass < num_passes; ++pass) {
      const int64_t row = task.num_rows * pass / num_passes;
      const int64_t rows = task.num_rows * (pass + 1) / num_passes - row;
      span.x = whole.x + row * whole.x_stride +
               record * Format::kGroupsOfRecord * int64_t{sizeof(typename Format::RowGroup)};
      const int64_t offset = pass * share;
      span.ahead = next + offset / piece * task.block_bytes + offset % piece;
      TileSums sums = tile_sums(task, row, block, num_blocks * kLanes);
      if (is_whole) sums.partials = task.partials;
      int_tile<Format>(rows, num_blocks)(span, sums);
    }
  }
}

template <PackedFormat kFormat, PrefetchInto kInto>
void run_int(const LinearTask& task) {
  using Format = IntFormat<kFormat, PrefetchInto::kL1>;
  const int64_t num_passes = (task.num_rows + kMaxRows - 1) / kMaxRows;
  if (num_passes == 1) {
    run_one_pass<IntFormat<kFormat, kInto>>(task);
  } else {
    for (int64_t block = 0; block < task.num_blocks; block += kMaxBlocks) {
      const int64_t left = task.num_blocks - block;
      run_passes<Format>(task, block, left < kMaxBlocks ? left : kMaxBlocks, num_passes);
    }
  }
  if (!Format::kIsGrouped && task.scales_outputs) {
    for (int64_t block = 0; block < task.num_blocks; ++block) scale_outputs(task, block);
  }
}

// Only where products of bytes are widened does a small table have a kernel of its own.
constexpr bool kWidensBytes = !std::is_same_v<Int8Dot::Code, int8_t>;
constexpr PackedFormat kSmallTableKernel = kWidensBytes ? kPackedInt4SmallTable : kPackedInt4Table;

template <PrefetchInto kInto>
void set_int_kernels(LinearKernels& kernels) {
  kernels.run[kPackedInt8] = run_int<kPackedInt8, kInto>;
  kernels.run[kPackedInt8Grouped] = run_int<kPackedInt8Grouped, kInto>;
  kernels.run[kPackedInt8GroupedMin] = run_int<kPackedInt8GroupedMin, kInto>;
  kernels.run[kPackedInt4Grouped] = run_int<kPackedInt4Grouped, kInto>;
  kernels.run[kPackedInt4GroupedMin] = run_int<kPackedInt4GroupedMin, kInto>;
  kernels.run[kPackedInt4GroupedZero] = run_int<kPackedInt4GroupedZero, kInto>;
  kernels.run[kPackedInt4Table] = run_int<kPackedInt4Table, kInto>;
  kernels.run[kPackedInt4SmallTable] = run_int<kSmallTableKernel, kInto>;
  kernels.run[kPackedInt8Grouped16] = run_int<kPackedInt8Grouped16, kInto>;
}

}  // namespace

void add_int_kernels(PrefetchInto into, LinearKernels& kernels);
void add_int_kernels(PrefetchInto into, LinearKernels& kernels) {
  kernels.widens_int8 = kWidensBytes;
#if defined(SPECDEC_NEON)
  kernels.signed_int8 = true;
#endif
  if constexpr (kProjectionsIntoL2) {
    if (into == PrefetchInto::kL2) return set_int_kernels<PrefetchInto::kL2>(kernels);
  }
  set_int_kernels<PrefetchInto::kL1>(kernels);
}

}  // namespace specdec::cpu::SPECDEC_ISA
