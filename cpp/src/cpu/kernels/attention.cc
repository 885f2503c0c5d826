// Scores, softmax and weighted values of one attention task, each in order of position: nothing a
// row computes depends on the other rows of the task or on how the task was cut.
#include "cpu/kernels/attention.h"

#include "cpu/kernels/math.h"

namespace specdec::cpu::SPECDEC_ISA {
namespace {

// Register tiles: kTilePairs (row, head) pairs by kTileVectors vectors of positions or of values.
#if defined(__AVX512F__)
constexpr int kTilePairs = 6;
constexpr int kTileVectors = 4;
#elif defined(__AVX2__)
constexpr int kTilePairs = 4;
constexpr int kTileVectors = 1;
#else
constexpr int kTilePairs = 2;
constexpr int kTileVectors = 1;
#endif
// Positions whose keys and values are read by all tiles before the next ones: they stay in L1.
constexpr int kChunk = 64;
// Values are fetched this many positions before they are used, keys one chunk before: blocks are
// too short for the hardware to follow.
constexpr int kValuesAhead = 16;
constexpr int kMaxTiles = (kMaxAttentionPairs + kTilePairs - 1) / kTilePairs;

// Element types. A word is what one broadcast of the query meets: an element, or two of bfloat16.
struct F32Type {
  using Word = float;
  using Element = float;
  static constexpr int kElementsPerWord = 1;
  static F32x16 load_word(const float* p) { return load(p); }
  static F32x16 broadcast_word(const float* p) { return broadcast(*p); }
  static F32x16 dot(F32x16 acc, F32x16 a, F32x16 b) { return fma(a, b, acc); }
  static F32x16 load_values(const float* p) { return load(p); }
  static void store_values(float* p, F32x16 a, int n) { store_partial(p, a, n); }
};
struct Bf16Type {
  using Word = uint32_t;
  using Element = uint16_t;
  static constexpr int kElementsPerWord = 2;
  static Bf16Pairs load_word(const uint32_t* p) { return load_pairs(p); }
  static Bf16Pairs broadcast_word(const uint32_t* p) { return broadcast_pair(p); }
  static F32x16 dot(F32x16 acc, Bf16Pairs a, Bf16Pairs b) { return dot_bf16(acc, a, b); }
  static F32x16 load_values(const uint16_t* p) { return load_bf16(p); }
  static void store_values(uint16_t* p, F32x16 a, int n) { store_bf16_partial(p, a, n); }
};

void prefetch(const void* begin, int64_t num_bytes) {
  constexpr int64_t kLineBytes = 64;
  for (int64_t i = 0; i < num_bytes; i += kLineBytes) {
    __builtin_prefetch(static_cast<const char*>(begin) + i);
  }
}

int min_of(int a, int b) { return a < b ? a : b; }
int max_of(int a, int b) { return a > b ? a : b; }
int round_down(int x) { return x & ~(kLanes - 1); }
int round_up(int x) { return (x + kLanes - 1) & ~(kLanes - 1); }

// What a row sees: positions [begin, end). Slots equal positions below base_len, and everywhere in
// a chain; in a tree the slots of positions from base_len on are the row's ancestors.
struct RowSpan {
  int begin = 0;
  int end = 0;
  int first_slot = 0;  // slots to score: [first_slot, slot_end)
  int slot_end = 0;
  int chain_end = 0;  // positions below are their own slots
};

// Consecutive pairs computed in registers together, and the positions that all of them see.
struct Tile {
  int first_pair = 0;
  int num_pairs = 0;
  int first_slot = 0, slot_end = 0;      // scores
  int shared_begin = 0, shared_end = 0;  // values
};

template <class T>
struct Kernel {
  using Word = typename T::Word;
  using Element = typename T::Element;

  explicit Kernel(const AttentionTask& args) : task(args) {}

  const AttentionTask& task;
  int num_words = task.head_dim / T::kElementsPerWord;
  int acc_stride = round_up(task.head_dim);
  int num_pairs = task.num_rows * task.group_size;
  RowSpan rows[kMaxAttentionRows];
  Tile tiles[kMaxTiles];
  int num_tiles = 0;
  int first_slot = 0;  // of all rows, a multiple of 16: column 0 of the scores
  int slot_end = 0;
  float sums[kMaxAttentionPairs];

  float* scores(int pair, int slot) const {
    return task.scores + pair * task.score_stride + (slot - first_slot);
  }
  int32_t* tail_slots(int row) const {
    return task.tail_slots + static_cast<int64_t>(row) * task.num_tree_slots;
  }
  const Element* query(int pair) const {
    const int row = pair / task.group_size, head = pair % task.group_size;
    return static_cast<const Element*>(task.q) + row * task.row_stride + head * task.head_dim;
  }
  int64_t block_of(int slot) const {
    return static_cast<int64_t>(task.block_table[slot / task.block_size]) * task.num_kv_heads +
           task.kv_head;
  }
  const Word* key_words(int slot) const {
    return static_cast<const Word*>(task.keys) + block_of(slot) * num_words * task.block_size +
           slot % task.block_size;
  }
  const Element* value_row(int slot) const {
    const int64_t row = block_of(slot) * task.block_size + slot % task.block_size;
    return static_cast<const Element*>(task.values) + row * task.head_dim;
  }

  void run() {
    plan_rows();
    plan_tiles();
    score();
    for (int slot = first_slot; slot < min_of(first_slot + kChunk, slot_end); ++slot) {
      prefetch(value_row(slot), task.head_dim * static_cast<int64_t>(sizeof(Element)));
    }
    for (int pair = 0; pair < num_pairs; ++pair) softmax(pair);
    weigh_values();
    for (int pair = 0; pair < num_pairs; ++pair) finish(pair);
  }

  void plan_rows() {
    first_slot = task.base_len + task.first_row;
    for (int r = 0; r < task.num_rows; ++r) {
      RowSpan& row = rows[r];
      if (task.mask == nullptr) {
        row.end = row.slot_end = row.chain_end = task.base_len + task.first_row + r + 1;
      } else {
        const int num_ancestors = list_ancestors(r);
        row.chain_end = task.base_len;
        row.end = task.base_len + num_ancestors;
        row.slot_end = num_ancestors > 0 ? tail_slots(r)[num_ancestors - 1] + 1 : task.base_len;
      }
      row.begin = task.sliding_window > 0 ? max_of(0, row.end - task.sliding_window) : 0;
      row.first_slot = min_of(row.begin, row.chain_end);
      first_slot = min_of(first_slot, row.first_slot);
      slot_end = max_of(slot_end, row.slot_end);
    }
    first_slot = round_down(first_slot);
  }

  // Writes the slots of a tree row's ancestors (itself last) and returns how many there are.
  int list_ancestors(int r) {
    const uint64_t* mask = task.mask + static_cast<int64_t>(r) * task.mask_words;
    int32_t* slots = tail_slots(r);
    int count = 0;
    for (int first = 0; first < task.num_tree_slots; first += 64) {
      const int num_bits = min_of(64, task.num_tree_slots - first);
      for (uint64_t bits = mask[first / 64] & (~uint64_t{0} >> (64 - num_bits)); bits != 0;
           bits &= bits - 1) {
        slots[count++] = task.base_len + first + __builtin_ctzll(bits);
      }
    }
    return count;
  }

  void plan_tiles() {
    num_tiles = (num_pairs + kTilePairs - 1) / kTilePairs;
    int pair = 0;
    for (int t = 0; t < num_tiles; ++t) {
      Tile& tile = tiles[t];
      tile.first_pair = pair;
      tile.num_pairs = (num_pairs - pair + num_tiles - t - 1) / (num_tiles - t);
      pair += tile.num_pairs;
      const int first_row = tile.first_pair / task.group_size;
      const int last_row = (pair - 1) / task.group_size;
      tile.first_slot = rows[first_row].first_slot;
      tile.shared_end = rows[first_row].chain_end;
      for (int r = first_row; r <= last_row; ++r) {
        tile.first_slot = min_of(tile.first_slot, rows[r].first_slot);
        tile.slot_end = max_of(tile.slot_end, rows[r].slot_end);
        tile.shared_begin = max_of(tile.shared_begin, rows[r].begin);
        tile.shared_end = min_of(tile.shared_end, rows[r].chain_end);
      }
    }
  }

  // --- scores: each a chain of fused multiply-adds over the head dimension ---

  struct ScoreTile {
    const Word* q[kTilePairs];
    float* out[kTilePairs];
  };

  template <int P, int V, bool kPrefetch>
  void score_tile(const ScoreTile& tile, const Word* const* keys, const Word* const* next) const {
    F32x16 acc[P][V];
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) acc[p][v] = zero();
    }
    int64_t offset = 0;
    for (int w = 0; w < num_words; ++w, offset += task.block_size) {
      decltype(T::load_word(keys[0])) k[V];
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) {
        k[v] = T::load_word(keys[v] + offset);
        if constexpr (kPrefetch) __builtin_prefetch(next[v] + offset);
      }
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) {
        const auto q = T::broadcast_word(tile.q[p] + w);
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) acc[p][v] = T::dot(acc[p][v], q, k[v]);
      }
    }
    const F32x16 scale = broadcast(task.scale);
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) store(tile.out[p] + v * kLanes, acc[p][v] * scale);
    }
  }

  // `next` are the keys to fetch meanwhile, or null.
  template <int P>
  void score_pairs(int count, ScoreTile tile, const Word* const* keys, const Word* const* next,
                   int num_vectors) const {
    if (count == P) {
      while (num_vectors > 0) {
        const int done = num_vectors >= kTileVectors ? kTileVectors : 1;
        if (done == 1) {
          score_tile<P, 1, false>(tile, keys, nullptr);
        } else if (next == nullptr) {
          score_tile<P, kTileVectors, false>(tile, keys, nullptr);
        } else {
          score_tile<P, kTileVectors, true>(tile, keys, next);
          next += done;
        }
        num_vectors -= done;
        keys += done;
        for (int p = 0; p < P; ++p) tile.out[p] += done * kLanes;
      }
    } else if constexpr (P > 1) {
      score_pairs<P - 1>(count, tile, keys, next, num_vectors);
    }
  }

  void score() const {
    constexpr int kChunkVectors = kChunk / kLanes;
    const Word* keys[2 * kChunkVectors];  // of a chunk and of the next
    const int end_of_slots = round_up(slot_end);
    for (int chunk = first_slot; chunk < slot_end; chunk += kChunk) {
      for (int v = 0; v < 2 * kChunkVectors; ++v) {
        const int slot = chunk + v * kLanes;
        keys[v] = slot < end_of_slots ? key_words(slot) : keys[0];
      }
      for (int t = 0; t < num_tiles; ++t) {
        const Tile& tile = tiles[t];
        const int begin = max_of(chunk, round_down(tile.first_slot));
        const int end = min_of(chunk + kChunk, round_up(tile.slot_end));
        if (begin >= end) continue;
        ScoreTile args;
        for (int p = 0; p < tile.num_pairs; ++p) {
          args.q[p] =
              static_cast<const Word*>(static_cast<const void*>(query(tile.first_pair + p)));
          args.out[p] = scores(tile.first_pair + p, begin);
        }
        const int first = (begin - chunk) / kLanes;
        score_pairs<kTilePairs>(tile.num_pairs, args, keys + first,
                                t == 0 ? keys + kChunkVectors + first : nullptr,
                                (end - begin) / kLanes);
      }
    }
  }

  // --- softmax: sums in 16 lanes by position modulo 16, then a fixed tree ---

  // Turns a pair's scores into exp(score - max), in order of position.
  void softmax(int pair) {
    const int r = pair / task.group_size;
    const RowSpan& row = rows[r];
    if (task.mask != nullptr) {
      // In rising order to <= from: the scores of ancestors move to their positions in place.
      const int32_t* slots = tail_slots(r);
      for (int position = task.base_len; position < row.end; ++position) {
        *scores(pair, position) = *scores(pair, slots[position - task.base_len]);
      }
    }
    const float lowest = -__builtin_inff();
    const int begin = round_down(row.begin), end = round_up(row.end);
    for (int position = begin; position < row.begin; ++position) *scores(pair, position) = lowest;
    for (int position = row.end; position < end; ++position) *scores(pair, position) = lowest;

    F32x16 highest = broadcast(lowest);
    float* const first = scores(pair, begin);
    const int count = end - begin;
    for (int i = 0; i < count; i += kLanes) highest = max(highest, load(first + i));
    const F32x16 top = broadcast(reduce_max(highest));
    F32x16 sum = zero();
    for (int i = 0; i < count; i += kLanes) {
      const F32x16 e = exp(load(first + i) - top);
      store(first + i, e);
      sum = sum + e;
    }
    sums[pair] = reduce_add(sum);
  }

  // --- values: one accumulator an output element, in order of position ---

  template <int P, int V, bool kPrefetch>
  void value_tile(int first_pair, int first_position, const Element* const* values, int count,
                  int column) const {
    F32x16 acc[P][V];
    const float* weights[P];
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
      weights[p] = scores(first_pair + p, first_position);
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v)
        acc[p][v] = load(accumulator(first_pair + p, column + v * kLanes));
    }
    for (int i = 0; i < count; ++i) {
      const Element* const row = values[i] + column;
      if constexpr (kPrefetch) {
        prefetch(values[i + kValuesAhead] + column, V * kLanes * sizeof(Element));
      }
      F32x16 value[V];
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) value[v] = T::load_values(row + v * kLanes);
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) {
        const F32x16 weight = broadcast(weights[p][i]);
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) acc[p][v] = fma(weight, value[v], acc[p][v]);
      }
    }
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) {
        store(accumulator(first_pair + p, column + v * kLanes), acc[p][v]);
      }
    }
  }
  float* accumulator(int pair, int column) const {
    return task.accumulators + static_cast<int64_t>(pair) * acc_stride + column;
  }

  // Adds the weighted values of `count` positions from first_position to num_pairs <= kTilePairs.
  // With kPrefetch, `values` goes on for kValuesAhead more.
  template <int P, bool kPrefetch>
  void add_values(int num_pairs_here, int first_pair, int first_position,
                  const Element* const* values, int count) const {
    if (num_pairs_here == P) {
      int column = 0;
      for (; column + kTileVectors * kLanes <= acc_stride; column += kTileVectors * kLanes) {
        value_tile<P, kTileVectors, kPrefetch>(first_pair, first_position, values, count, column);
      }
      for (; column < acc_stride; column += kLanes) {
        value_tile<P, 1, kPrefetch>(first_pair, first_position, values, count, column);
      }
    } else if constexpr (P > 1) {
      add_values<P - 1, kPrefetch>(num_pairs_here, first_pair, first_position, values, count);
    }
  }

  // The positions [begin, end) of row r, for those of the tile's pairs that are of that row.
  void add_row_values(const Tile& tile, int r, int begin, int end) const {
    const int first = max_of(tile.first_pair, r * task.group_size);
    const int last = min_of(tile.first_pair + tile.num_pairs, (r + 1) * task.group_size);
    const Element* values[kChunk];
    while (begin < end) {
      const int count = min_of(kChunk, end - begin);
      for (int i = 0; i < count; ++i) {
        const int position = begin + i;
        const bool in_chain = position < rows[r].chain_end;
        values[i] = value_row(in_chain ? position : tail_slots(r)[position - task.base_len]);
      }
      add_values<kTilePairs, false>(last - first, first, begin, values, count);
      begin += count;
    }
  }

  // Positions before (after) the ones all rows of the tile see.
  void add_private_values(bool before) const {
    for (int t = 0; t < num_tiles; ++t) {
      const Tile& tile = tiles[t];
      const int last_row = (tile.first_pair + tile.num_pairs - 1) / task.group_size;
      for (int r = tile.first_pair / task.group_size; r <= last_row; ++r) {
        if (tile.shared_begin >= tile.shared_end) {
          if (before) add_row_values(tile, r, rows[r].begin, rows[r].end);
        } else if (before) {
          add_row_values(tile, r, rows[r].begin, tile.shared_begin);
        } else {
          add_row_values(tile, r, tile.shared_end, rows[r].end);
        }
      }
    }
  }

  void weigh_values() const {
    const int64_t num_floats = static_cast<int64_t>(num_pairs) * acc_stride;
    for (int64_t i = 0; i < num_floats; i += kLanes) store(task.accumulators + i, zero());
    add_private_values(true);
    for (int chunk = first_slot; chunk < slot_end; chunk += kChunk) {
      const Element* values[kChunk + kValuesAhead];
      for (int i = 0; i < kChunk + kValuesAhead; ++i) {
        values[i] = value_row(min_of(chunk + i, slot_end - 1));
      }
      for (int t = 0; t < num_tiles; ++t) {
        const Tile& tile = tiles[t];
        const int begin = max_of(chunk, tile.shared_begin);
        const int end = min_of(chunk + kChunk, tile.shared_end);
        if (begin >= end) continue;
        const auto add =
            t == 0 ? &Kernel::add_values<kTilePairs, true> : &Kernel::add_values<kTilePairs, false>;
        (this->*add)(tile.num_pairs, tile.first_pair, begin, values + (begin - chunk), end - begin);
      }
    }
    add_private_values(false);
  }

  void finish(int pair) const {
    const int row = pair / task.group_size, head = pair % task.group_size;
    Element* out = static_cast<Element*>(task.out) + row * task.row_stride + head * task.head_dim;
    const F32x16 sum = broadcast(sums[pair]);
    for (int column = 0; column < task.head_dim; column += kLanes) {
      const F32x16 result = load(accumulator(pair, column)) / sum;
      T::store_values(out + column, result, min_of(kLanes, task.head_dim - column));
    }
  }
};

template <class T>
void attend(const AttentionTask& task) {
  Kernel<T> kernel(task);
  kernel.run();
}

}  // namespace

AttentionKernels attention_kernels();
AttentionKernels attention_kernels() { return {attend<Bf16Type>, attend<F32Type>}; }

}  // namespace specdec::cpu::SPECDEC_ISA
