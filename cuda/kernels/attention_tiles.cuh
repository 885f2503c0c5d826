// Tiles of keys and values: a block's shared memory, the lookup of a tile's rows in the cache,
// their copy, and the unpacking of int8 codes.
//
// Matrices in shared memory are rows of 16-byte chunks. Chunk c of row r lies at c ^ (r & 7), so
// that ldmatrix finds eight rows of a column in different banks.
#pragma once

#include <cstdint>

#include "cuda/common/kv_layout.cuh"
#include "cuda/common/numeric.cuh"
#include "cuda/common/ptx.cuh"
#include "cuda/kernels/attention_items.cuh"

namespace specdec::cuda::SPECDEC_TARGET {

constexpr int kChunkBytes = 16;
constexpr int kChunk = 8;  // elements

// kDim: head_dim, padded with zeros. kCodes: the cache is int8. kWarpRows: most m16 tiles of an
// item's pairs. With 1 or 2 this is the kernel for batches of few rows: it computes every item as
// if it had that many tiles and has no soft cap, so that its code is short.
//
// The kernel for few rows leaves half of an SM's registers, and shared memory for a block of the
// output projection, to the projections before and after it, whose blocks can then share the SM.
// Fewer blocks with more stages keep as many bytes in flight: 64 KB per SM with a 16-bit cache,
// where about 40 KB are needed to read at full speed. Those of an item of one short split are in
// flight before queries arrive.
//
// Heads of more than 256 have only this kernel, for any number of rows: one warp's registers cannot
// hold sums of 16 pairs and all columns. The columns of 16 pairs are always divided among four
// warps, and tiles are half as long, so that two stages fit. So prompts are slow: only 32 pairs
// read keys and values together, and their warps wait for each other three times per tile.
template <class T, int kDim, bool kCodes, int kWarpRows>
struct AttentionTiles {
  using Element = T;
  static constexpr int kPaddedDim = kDim;
  static constexpr bool kIsInt8 = kCodes;
  static constexpr int kElementBytes = kCodes ? 1 : 2;  // of the cache
  static constexpr bool kIsFew = kWarpRows <= 2;
  static constexpr bool kIsLarge = kDim > kMaxCappedHeadDim;
  static_assert(kIsFew || !kIsLarge);
  static constexpr int kTile = kIsLarge ? kAttentionTile / 2 : kAttentionTile;  // positions
  static constexpr int kWarps = kIsLarge ? 4 * kWarpRows : 4;
  static constexpr int kThreads = kWarps * kWarpSize;
  static constexpr int kMostWarpRows = kDim <= 128 || kIsFew ? kWarpRows : 2;
  static constexpr int kPairBits = kMostWarpRows == 1 ? 4 : kMostWarpRows == 2 ? 5 : 6;
  static constexpr int kPairs = 1 << kPairBits;  // per item
  static_assert(kPairs == 16 * kMostWarpRows);
  // Names of launches that work the list out, and of those that read it.
  static constexpr const char* kName = kPairs == 16   ? "attention 16"
                                       : kPairs == 32 ? "attention 32"
                                                      : "attention 64";
  static constexpr const char* kReaderName =
      kPairs == 16 ? "attention 16 planned" : "attention 32 planned";
  static constexpr int kBlocksPerSm = kIsFew                ? (kDim <= 64 ? 2 : 1)
                                      : kDim > 128          ? 1
                                      : kDim > 64 || kCodes ? 2
                                                            : 3;
  // Blocks per SM that the compiler leaves registers for.
  static constexpr int kRegisterBlocks =
      kIsFew && kThreads == 128 ? 2 * kBlocksPerSm : kBlocksPerSm;
  static constexpr int kStages = kIsFew && kDim <= 128 ? 3 : 2;
  static constexpr int kTileElements = kTile * kDim;
  static constexpr int kRawBytes = kTile * kDim;   // keys' or values' codes of a tile
  static constexpr int kScaleThreads = 2 * kTile;  // each loads a scale of a tile

  // Shared memory, in bytes from its start.
  static constexpr int kQuery = 0;
  static constexpr int kTiles = kQuery + kPairs * kDim * 2;  // [stages][K, V]; int8: one stage
  static constexpr int kRaw = kTiles + (kCodes ? 1 : kStages) * 2 * kTileElements * 2;
  static constexpr int kWeights = kRaw + (kCodes ? kStages * 2 * kRawBytes : 0);
  static constexpr int kRingBytes = kWeights - kTiles;
  static constexpr int kMaxima = kWeights + 2 * 16 * kAttentionTile * 2;
  static constexpr int kScales = kMaxima + (kIsLarge ? 4 * kPairs : 64) * 4;
  static constexpr int kRows = kScales + (kCodes ? kStages * 2 * kTile * 4 : 0);
  static constexpr int kRanges = kRows + kStages * kTile * 4;
  static constexpr int kItemEnds = kRanges + 3 * kPairs * 4;
  static constexpr int shared_bytes(int num_requests, int mask_words) {
    return kItemEnds + 2 * num_requests * 4 + 64 * mask_words * 2;
  }
};

template <class T>
__device__ __forceinline__ T* chunk_at(T* matrix, int row, int chunk, int row_elements) {
  return matrix + row * row_elements + ((chunk ^ (row & 7)) * kChunk);
}

// A block's shared memory.
template <class Tiles>
struct AttentionMemory {
  using T = typename Tiles::Element;
  unsigned char* base;
  int num_requests;

  __device__ T* query() const { return reinterpret_cast<T*>(base + Tiles::kQuery); }
  // [2] keys, values
  __device__ T* tile(int stage) const {
    return reinterpret_cast<T*>(base + Tiles::kTiles) +
           (Tiles::kIsInt8 ? 0 : stage) * 2 * Tiles::kTileElements;
  }
  __device__ unsigned char* raw(int stage) const {
    return base + Tiles::kRaw + stage * 2 * Tiles::kRawBytes;
  }
  __device__ T* weights() const { return reinterpret_cast<T*>(base + Tiles::kWeights); }
  __device__ float* maxima() const { return reinterpret_cast<float*>(base + Tiles::kMaxima); }
  // [2][tile] scales of keys, then of values
  __device__ float* scales(int stage) const {
    return reinterpret_cast<float*>(base + Tiles::kScales) + stage * 2 * Tiles::kTile;
  }
  // The memory of all stages, free while no tile is in use.
  __device__ unsigned char* ring() const { return base + Tiles::kTiles; }
  // [tile] rows of the cache; -1: none
  __device__ int* rows(int stage) const {
    return reinterpret_cast<int*>(base + Tiles::kRows) + stage * Tiles::kTile;
  }
  // Per pair: the first position it sees, and one past the last.
  __device__ int* begins() const { return reinterpret_cast<int*>(base + Tiles::kRanges); }
  __device__ int* limits() const { return begins() + Tiles::kPairs; }
  // Per pair: its row in the request * num_heads + its head.
  __device__ int* row_heads() const { return limits() + Tiles::kPairs; }
  __device__ int* item_ends() const { return reinterpret_cast<int*>(base + Tiles::kItemEnds); }
  __device__ int* partial_begins() const { return item_ends() + num_requests; }
  // For an item of one tree row: its ancestors, as offsets from base_len, in order.
  __device__ uint16_t* ancestors() const {
    return reinterpret_cast<uint16_t*>(partial_begins() + num_requests);
  }
};

// Positions that an item's pairs see.
struct ItemRange {
  int begin;  // the first that any pair sees
  int limit;
  int common_begin;  // from here to common_limit all pairs see everything
  int common_limit;
};

struct ItemWork {
  WorkShape shape;
  Item item;
  ItemRange range;
};

// A block's work; in shared memory, to spare registers.
struct BlockWork : ItemWork {
  int next;  // item
};

// An entry of the work list. It has no ancestors of tree rows: every layer lists those itself.
template <class Tiles>
struct StoredItem {
  ItemWork work;
  int ranges[3 * Tiles::kPairs];  // AttentionMemory::begins, limits, row_heads
};

// Finds the cache rows of tiles: thread t < kTile finds the row of the tile's key t. The block
// table is read one iteration before the row is needed.
template <int kTile>
struct RowFinder {
  int block = -1;  // block id; -1: nothing to read
  int offset = 0;

  __device__ __forceinline__ void look_up(const AttentionParams& params, const BlockWork& work,
                                          const uint16_t* ancestors, int tile) {
    block = -1;
    if (threadIdx.x >= kTile) return;
    const int position = tile * kTile + static_cast<int>(threadIdx.x);
    if (position < work.range.begin || position >= work.range.limit) return;
    const Item& item = work.item;
    int slot = position;
    if (item.by_row && position >= item.extent.base_len) {
      slot = item.extent.base_len + ancestors[position - item.extent.base_len];
    }
    offset = slot % params.kv.block_size;
    block = __ldcg(params.batch.block_tables +
                   static_cast<int64_t>(item.request) * params.batch.max_blocks_per_request +
                   slot / params.kv.block_size);
  }
  __device__ __forceinline__ void store(const AttentionParams& params, const BlockWork& work,
                                        int* rows) const {
    if (threadIdx.x >= kTile) return;
    const PagedKvView& kv = params.kv;
    rows[threadIdx.x] =
        block < 0 ? -1 : (block * kv.num_kv_heads + work.item.kv_head) * kv.block_size + offset;
  }
};

// Begins the copy of a tile's keys and values, in the dtype of the cache.
template <class Tiles>
__device__ __forceinline__ void begin_copy(const AttentionMemory<Tiles>& memory,
                                           const PagedKvView& kv, int stage) {
  constexpr int kPerChunk = kChunkBytes / Tiles::kElementBytes;
  constexpr int kRowChunks = Tiles::kPaddedDim / kPerChunk;
  const int* rows = memory.rows(stage);
  const int row_bytes = kv.head_dim * Tiles::kElementBytes;
#pragma unroll 1
  for (int part = 0; part < 2; ++part) {
    const char* source = static_cast<const char*>(part == 0 ? kv.keys : kv.values);
#pragma unroll 2
    for (int i = threadIdx.x; i < Tiles::kTile * kRowChunks; i += Tiles::kThreads) {
      const int key = i / kRowChunks, chunk = i % kRowChunks;
      const int row = rows[key];
      const bool valid = row >= 0 && chunk * kChunkBytes < row_bytes;
      const char* from =
          valid ? source + static_cast<int64_t>(row) * row_bytes + chunk * kChunkBytes : source;
      void* to;
      if constexpr (Tiles::kIsInt8) {
        to = memory.raw(stage) + part * Tiles::kRawBytes + i * kChunkBytes;
      } else {
        to = chunk_at(memory.tile(stage) + part * Tiles::kTileElements, key, chunk,
                      Tiles::kPaddedDim);
      }
      ptx::copy_async_16(to, from, valid);
    }
  }
}

// Whether the thread has a scale of every tile.
template <class Tiles>
__device__ __forceinline__ bool has_scale() {
  return Tiles::kThreads == Tiles::kScaleThreads || threadIdx.x < Tiles::kScaleThreads;
}

// The scale of the tile's key (or value) with index threadIdx.x % kTile.
template <class Tiles>
__device__ __forceinline__ float load_scale(const PagedKvView& kv, const int* rows) {
  if (!has_scale<Tiles>()) return 0.0f;
  const int row = rows[threadIdx.x % Tiles::kTile];
  if (row < 0) return 0.0f;
  const KvLayout layout = {kv.num_blocks, kv.block_size, kv.num_kv_heads, kv.head_dim};
  const void* codes = threadIdx.x < Tiles::kTile ? kv.keys : kv.values;
  return __ldcg(layout.scales(codes) + row);
}

template <class T>
__device__ __forceinline__ uint32_t unpack_codes(uint32_t codes, int first, float scale) {
  const float low = static_cast<float>(static_cast<int8_t>(codes >> (8 * first)));
  const float high = static_cast<float>(static_cast<int8_t>(codes >> (8 * first + 8)));
  return pack<T>(low * scale, high * scale);
}

// Unpacks a tile of codes into act elements.
template <class Tiles>
__device__ __forceinline__ void unpack_tile(const AttentionMemory<Tiles>& memory, int stage) {
  using T = typename Tiles::Element;
  constexpr int kRowChunks = Tiles::kPaddedDim / kChunkBytes;
  constexpr int kPartChunks = Tiles::kTile * kRowChunks;
#pragma unroll 2
  for (int i = threadIdx.x; i < 2 * kPartChunks; i += Tiles::kThreads) {
    const int part = i / kPartChunks, key = i % kPartChunks / kRowChunks, chunk = i % kRowChunks;
    const float scale = memory.scales(stage)[part * Tiles::kTile + key];
    const uint4 codes = *reinterpret_cast<const uint4*>(memory.raw(stage) + i * kChunkBytes);
    const uint4 low =
        make_uint4(unpack_codes<T>(codes.x, 0, scale), unpack_codes<T>(codes.x, 2, scale),
                   unpack_codes<T>(codes.y, 0, scale), unpack_codes<T>(codes.y, 2, scale));
    const uint4 high =
        make_uint4(unpack_codes<T>(codes.z, 0, scale), unpack_codes<T>(codes.z, 2, scale),
                   unpack_codes<T>(codes.w, 0, scale), unpack_codes<T>(codes.w, 2, scale));
    T* tile = memory.tile(stage) + part * Tiles::kTileElements;
    *reinterpret_cast<uint4*>(chunk_at(tile, key, 2 * chunk, Tiles::kPaddedDim)) = low;
    *reinterpret_cast<uint4*>(chunk_at(tile, key, 2 * chunk + 1, Tiles::kPaddedDim)) = high;
  }
}

}  // namespace specdec::cuda::SPECDEC_TARGET
