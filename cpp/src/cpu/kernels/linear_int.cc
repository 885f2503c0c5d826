// Products of integer weights and rows, exact within a group: see linear_int.h.
#include "cpu/kernels/linear_int.h"

#include "cpu/kernels/linear.h"
#include "cpu/kernels/simd_int.h"

namespace specdec::cpu::SPECDEC_ISA {
namespace {

// Rows and blocks of a register tile: each pair is an accumulator of integers. Float sums stay in
// memory between groups.
#if defined(__AVX512F__)
constexpr int kMaxRows = 8;
constexpr int kMaxBlocks = 2;
#else
constexpr int kMaxRows = 4;
constexpr int kMaxBlocks = 1;
#endif

constexpr int kGroupsOfRecord = kIntRecordDepth / kIntGroup;
constexpr int kGroupQuads = kIntGroup / 4;
constexpr int kCodesLine = 64;                 // bytes of codes read at once
constexpr int64_t kAheadBytes = 4 << 10;       // of one block
constexpr int64_t kWeightsL1Bytes = 24 << 10;  // of one group of blocks, between passes of rows

template <PackedFormat kFormat>
struct IntFormat {
  static constexpr bool kIsInt4 = kFormat == kPackedInt4Grouped || kFormat == kPackedInt4GroupedMin;
  static constexpr bool kHasMins =
      kFormat == kPackedInt8GroupedMin || kFormat == kPackedInt4GroupedMin;
  static constexpr bool kIsGrouped = kFormat != kPackedInt8;
  static constexpr int kOffset = !kIsInt4 ? kInt8Offset : kHasMins ? 0 : kInt4Offset;
  static constexpr int kHeaderBytes =
      kIsGrouped ? (kHasMins ? 2 : 1) * kIntHeaderBytes : 0;  // of a record
  static constexpr int kRecordBytes = kHeaderBytes + (kIsInt4 ? kInt4CodesBytes : kInt8CodesBytes);
  static constexpr int kQuadsOfLine = kIsInt4 ? 2 : 1;
};

// Where a tile stands: the rows at its first row and k, the weights at its first block and k.
struct IntSpan {
  const int8_t* x;
  const float* x_scales;
  const int32_t* x_sums;
  int64_t x_stride;        // k of a row, padded
  const uint8_t* weights;  // a record
  int64_t block_bytes;
  int64_t num_records;
  bool is_first;  // of k
  // What is fetched while a record is used: so many bytes further on, for the first `turn` records
  // and for the rest. Zero: nothing.
  int64_t turn;
  int64_t ahead[kMaxBlocks];
  int64_t ahead_after_turn[kMaxBlocks];
};

template <class Format, int kRows, int kBlocks>
class IntTile {
 public:
  IntTile(const IntSpan& span, float* sums, int64_t sums_stride)
      : span_(span), sums_(sums), sums_stride_(sums_stride) {}

  void run() {
    const uint8_t* weights = span_.weights;
    for (int64_t record = 0; record < span_.num_records; ++record) {
      const int64_t* ahead = record < span_.turn ? span_.ahead : span_.ahead_after_turn;
      for (int group = 0; group < kGroupsOfRecord; ++group) {
        run_group(weights, record * kGroupsOfRecord + group, group, ahead);
      }
      weights += Format::kRecordBytes;
    }
  }

 private:
  struct Dots {
    I32x16 of[kRows][kBlocks];
  };

  // `index` counts the groups of the span, `group` those of the record.
  void run_group(const uint8_t* record, int64_t index, int group, const int64_t* ahead) {
    Dots dots;
    const int64_t groups_stride = span_.x_stride / kIntGroup;
    const int32_t* x_sums = span_.x_sums + index;
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const I32x16 start = broadcast_int(-Format::kOffset * x_sums[r * groups_stride]);
#pragma GCC unroll 4
      for (int b = 0; b < kBlocks; ++b) dots.of[r][b] = start;
    }
    constexpr int kLines = kGroupQuads / Format::kQuadsOfLine;  // of codes of a group
    const uint8_t* codes = record + Format::kHeaderBytes + group * kLines * kCodesLine;
    const int8_t* x = span_.x + index * kIntGroup;
#pragma GCC unroll 2
    for (int line = 0; line < kLines; ++line) {
      add_line(codes + line * kCodesLine, x + line * 4 * Format::kQuadsOfLine, ahead, dots);
    }
    if (Format::kIsGrouped && group < Format::kHeaderBytes / kIntHeaderBytes) {
      fetch(record + group * kIntHeaderBytes, ahead);
    }
    add_to_sums(dots, record, index, group);
  }

  void fetch(const uint8_t* weights, const int64_t* ahead) const {
#pragma GCC unroll 4
    for (int b = 0; b < kBlocks; ++b) {
      __builtin_prefetch(weights + b * span_.block_bytes + ahead[b], 0, 3);
    }
  }

  void add_line(const uint8_t* codes, const int8_t* x, const int64_t* ahead, Dots& dots) const {
    Quads w[Format::kQuadsOfLine][kBlocks];
#pragma GCC unroll 4
    for (int b = 0; b < kBlocks; ++b) {
      const uint8_t* line = codes + b * span_.block_bytes;
      if constexpr (Format::kIsInt4) {
        load_half_byte_quads(line, w[0][b], w[1][b]);
      } else {
        w[0][b] = load_quads(line);
      }
    }
    fetch(codes, ahead);
#pragma GCC unroll 2
    for (int i = 0; i < Format::kQuadsOfLine; ++i) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const QuadFactor factor = broadcast_quad(x + r * span_.x_stride + 4 * i);
#pragma GCC unroll 4
        for (int b = 0; b < kBlocks; ++b) {
          dots.of[r][b] = dot_quads(dots.of[r][b], w[i][b], factor);
        }
      }
    }
  }

  void add_to_sums(const Dots& dots, const uint8_t* record, int64_t index, int group) {
    const int64_t groups_stride = span_.x_stride / kIntGroup;
    const bool starts = span_.is_first && index == 0;
    F32x16 scales[kBlocks];
    F32x16 mins[kBlocks];
#pragma GCC unroll 4
    for (int b = 0; b < kBlocks; ++b) {
      const uint8_t* header = record + b * span_.block_bytes + group * kIntHeaderBytes / 2;
      if constexpr (Format::kIsGrouped) {
        scales[b] = load_half(reinterpret_cast<const uint16_t*>(header));
      }
      if constexpr (Format::kHasMins) {
        mins[b] = load_half(reinterpret_cast<const uint16_t*>(header + kIntHeaderBytes));
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const float x_scale = span_.x_scales[r * groups_stride + index];
      const float x_sum = static_cast<float>(span_.x_sums[r * groups_stride + index]);
#pragma GCC unroll 4
      for (int b = 0; b < kBlocks; ++b) {
        float* place = sums_ + r * sums_stride_ + b * kLanes;
        F32x16 factor = broadcast(x_scale);
        if constexpr (Format::kIsGrouped) factor = scales[b] * factor;
        F32x16 sum = starts ? zero() : load(place);
        sum = sum + to_float(dots.of[r][b]) * factor;
        if constexpr (Format::kHasMins) sum = sum + mins[b] * broadcast(x_scale * x_sum);
        store(place, sum);
      }
    }
  }

  const IntSpan& span_;
  float* sums_;  // [kRows, sums_stride_]
  int64_t sums_stride_;
};

using IntTileFunction = void (*)(const IntSpan&, float*, int64_t);

template <class Format, int kRows, int kBlocks>
void run_int_tile(const IntSpan& span, float* sums, int64_t sums_stride) {
  IntTile<Format, kRows, kBlocks>(span, sums, sums_stride).run();
}

template <class Format, int kRows>
constexpr IntTileFunction int_tile_of_rows(int blocks) {
  if constexpr (kRows > kMaxRows) {
    return nullptr;
  } else if constexpr (kMaxBlocks == 1) {
    return run_int_tile<Format, kRows, 1>;
  } else {
    return blocks == 1 ? run_int_tile<Format, kRows, 1> : run_int_tile<Format, kRows, 2>;
  }
}

template <class Format>
IntTileFunction int_tile(int rows, int blocks) {
  static_assert(kMaxRows <= 8 && kMaxBlocks <= 2);
  static constexpr IntTileFunction kTiles[8][2] = {
      {int_tile_of_rows<Format, 1>(1), int_tile_of_rows<Format, 1>(2)},
      {int_tile_of_rows<Format, 2>(1), int_tile_of_rows<Format, 2>(2)},
      {int_tile_of_rows<Format, 3>(1), int_tile_of_rows<Format, 3>(2)},
      {int_tile_of_rows<Format, 4>(1), int_tile_of_rows<Format, 4>(2)},
      {int_tile_of_rows<Format, 5>(1), int_tile_of_rows<Format, 5>(2)},
      {int_tile_of_rows<Format, 6>(1), int_tile_of_rows<Format, 6>(2)},
      {int_tile_of_rows<Format, 7>(1), int_tile_of_rows<Format, 7>(2)},
      {int_tile_of_rows<Format, 8>(1), int_tile_of_rows<Format, 8>(2)}};
  return kTiles[rows - 1][blocks - 1];
}

// How the k of some blocks is cut, and what its tiles fetch. With one pass over the weights a tile
// fetches its own blocks a little ahead, then the beginning of the next blocks. With several, a
// part of k stays in the L1 cache between passes, and the passes share out the next part's blocks.
template <class Format>
class IntPlan {
 public:
  IntPlan(const LinearTask& task, int num_blocks, int num_passes)
      : num_records_(task.padded_k / kIntRecordDepth),
        num_blocks_(num_blocks),
        num_passes_(num_passes),
        next_blocks_(num_blocks * task.block_bytes) {
    part_ = num_records_;
    if (num_passes > 1) {
      const int64_t most = kWeightsL1Bytes / (num_blocks * int64_t{Format::kRecordBytes});
      const int64_t num_parts = (num_records_ + most - 1) / most;
      part_ = (num_records_ + num_parts - 1) / num_parts;
    }
  }
  int64_t num_records() const { return num_records_; }
  int64_t part() const { return part_; }  // records

  // The part of k that begins at `record`, in a pass: what concerns the weights.
  IntSpan span(int64_t record, int pass) const {
    IntSpan span{};
    const int64_t left = num_records_ - record;
    span.num_records = left < part_ ? left : part_;
    span.is_first = record == 0;
    const bool is_last = left <= part_;
    if (num_passes_ == 1) {
      constexpr int64_t kAhead = (kAheadBytes + Format::kRecordBytes - 1) / Format::kRecordBytes;
      span.turn = num_records_ > kAhead ? num_records_ - kAhead : 0;
      for (int b = 0; b < num_blocks_; ++b) {
        span.ahead[b] = kAhead * Format::kRecordBytes;
        span.ahead_after_turn[b] = next_blocks_ - span.turn * Format::kRecordBytes;
      }
      return span;
    }
    for (int b = pass; b < num_blocks_; b += num_passes_) {
      span.ahead_after_turn[b] =
          is_last ? next_blocks_ - record * Format::kRecordBytes : part_ * Format::kRecordBytes;
    }
    return span;
  }

 private:
  int64_t num_records_;
  int num_blocks_;
  int num_passes_;
  int64_t next_blocks_;  // bytes
  int64_t part_;
};

// sums *= the outputs' scales, of one block.
void scale_outputs(const LinearTask& task, int64_t block) {
  const char* scales = static_cast<const char*>(task.weights) + block * task.block_bytes;
  const F32x16 scale = load(reinterpret_cast<const float*>(scales));
  for (int64_t row = 0; row < task.num_rows; ++row) {
    float* place = task.sums + row * task.sums_stride + block * kLanes;
    store(place, load(place) * scale);
  }
}

// The product for at most kMaxBlocks blocks.
template <class Format>
void run_int_blocks(const LinearTask& task, int64_t block, int num_blocks) {
  const uint8_t* weights = static_cast<const uint8_t*>(task.weights) + block * task.block_bytes +
                           (Format::kIsGrouped ? 0 : kIntHeaderBytes);
  const int num_passes = static_cast<int>((task.num_rows + kMaxRows - 1) / kMaxRows);
  const IntPlan<Format> plan(task, num_blocks, num_passes);
  for (int64_t record = 0; record < plan.num_records(); record += plan.part()) {
    for (int pass = 0; pass < num_passes; ++pass) {
      const int64_t row = int64_t{pass} * kMaxRows;
      const int rows =
          task.num_rows - row < kMaxRows ? static_cast<int>(task.num_rows - row) : kMaxRows;
      const int64_t first_k = row * task.padded_k + record * kIntRecordDepth;
      IntSpan span = plan.span(record, pass);
      span.x = static_cast<const int8_t*>(task.x) + first_k;
      span.x_scales = task.x_scales + first_k / kIntGroup;
      span.x_sums = task.x_sums + first_k / kIntGroup;
      span.x_stride = task.padded_k;
      span.weights = weights + record * Format::kRecordBytes;
      span.block_bytes = task.block_bytes;
      int_tile<Format>(rows, num_blocks)(span, task.sums + row * task.sums_stride + block * kLanes,
                                         task.sums_stride);
    }
  }
  if constexpr (!Format::kIsGrouped) {
    for (int b = 0; b < num_blocks; ++b) scale_outputs(task, block + b);
  }
}

template <PackedFormat kFormat>
void run_int(const LinearTask& task) {
  // One pass reads memory in one stream; several share what is in the cache.
  const int64_t most = task.num_rows <= kMaxRows ? 1 : kMaxBlocks;
  for (int64_t block = 0; block < task.num_blocks; block += most) {
    const int64_t left = task.num_blocks - block;
    run_int_blocks<IntFormat<kFormat>>(task, block, static_cast<int>(left < most ? left : most));
  }
}

}  // namespace

void add_int_kernels(LinearKernels& kernels);
void add_int_kernels(LinearKernels& kernels) {
  kernels.run[kPackedInt8] = run_int<kPackedInt8>;
  kernels.run[kPackedInt8Grouped] = run_int<kPackedInt8Grouped>;
  kernels.run[kPackedInt8GroupedMin] = run_int<kPackedInt8GroupedMin>;
  kernels.run[kPackedInt4Grouped] = run_int<kPackedInt4Grouped>;
  kernels.run[kPackedInt4GroupedMin] = run_int<kPackedInt4GroupedMin>;
}

}  // namespace specdec::cpu::SPECDEC_ISA
