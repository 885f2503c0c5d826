#include "cpu/kernels/attention.h"

#include "cpu/kernels/attention_words.h"
#include "cpu/kernels/lanes.h"
#include "cpu/kernels/prefetch.h"

namespace specdec::cpu::SPECDEC_ISA {
namespace {

// Register tiles: kTilePairs (row, head) pairs by kTileVectors vectors of positions or of values.
#if defined(__AVX512F__)
constexpr int kTilePairs = 6;
constexpr int kTileVectors = 4;
#elif defined(__AVX2__) || defined(SPECDEC_NEON)
constexpr int kTilePairs = 4;
constexpr int kTileVectors = 1;
#else
constexpr int kTilePairs = 2;
constexpr int kTileVectors = 1;
#endif
constexpr int kMaxTiles = (kMaxAttentionPairs + kTilePairs - 1) / kTilePairs;
constexpr int kChunkGroups = kAttentionChunk / kGroupTokens;
// A score no other is below: its weight is 0.
constexpr float kLowest = -1e30f;
constexpr float kLog2E = 0x1.715476p+0f;

int min_of(int a, int b) { return a < b ? a : b; }
int max_of(int a, int b) { return a > b ? a : b; }
int clamp(int x, int low, int high) { return max_of(low, min_of(x, high)); }
int round_down(int x, int unit) { return x / unit * unit; }
int round_up(int x, int unit) { return (x + unit - 1) / unit * unit; }

// Positions [begin, end) that a row sees.
struct RowSpan {
  int begin;
  int end;
};

// Consecutive pairs computed in registers together, and the shared slots that any of them sees.
struct Tile {
  int first_pair;
  int num_pairs;
  int begin;
  int end;
};

// Groups of keys or values: those being worked on, and those to be read next.
template <class Word>
struct Block {
  int first_group = 0;  // in the chunk
  int num_groups = 0;
  const Word* groups[kChunkGroups];
  const char* ahead[kChunkGroups];
};

// Where the groups of a chunk lie, in bytes from the first of all; the outermost ones stand for
// what lies beyond them.
struct ChunkPlaces {
  int64_t offsets[2 * kChunkGroups];
};

template <class Stored>
const char* group_at(const AttentionTask& task, const void* base, int slot) {
  const int64_t physical =
      int64_t{task.block_table[slot / task.block_size]} * task.block_size + slot % task.block_size;
  return static_cast<const char*>(base) +
         group_index(physical, task.kv_head, task.num_blocks, task.block_size) *
             group_bytes<Stored>(task.head_dim);
}

// Groups [begin, end) of the chunk that begins at slot `first`.
template <class Stored>
void locate_groups(const AttentionTask& task, int first, int begin, int end, ChunkPlaces& places) {
  const int groups_per_block = task.block_size / kGroupTokens;
  const int64_t bytes = group_bytes<Stored>(task.head_dim);
  const int64_t head = group_index(0, task.kv_head, task.num_blocks, task.block_size) * bytes;
  int block = (first / kGroupTokens + begin) / groups_per_block;
  int within = (first / kGroupTokens + begin) % groups_per_block;
  for (int g = begin; g < end; ++g) {
    const int64_t index = int64_t{task.block_table[block]} * groups_per_block + within;
    places.offsets[g] = head + index * bytes;
    if (++within == groups_per_block) {
      within = 0;
      ++block;
    }
  }
  for (int g = 0; g < begin; ++g) places.offsets[g] = places.offsets[begin];
  for (int g = end; g < 2 * kChunkGroups; ++g) places.offsets[g] = places.offsets[end - 1];
}

template <class T, class Stored, PrefetchInto kInto>
struct Kernel {
  using Word = typename T::Word;
  using Element = typename T::Element;
  static constexpr bool kPacked = sizeof(Stored) < sizeof(Element);
  static constexpr int kGroupWords = kGroupTokens / T::kPerWord;  // rows of words of a value group

  Kernel(const AttentionTask& t, const AttentionTask* n) : task(t), next(n) {}

  const AttentionTask& task;
  const AttentionTask* next;
  const int num_pairs = task.num_rows * task.group_size;
  const int num_words = task.head_dim / T::kPerWord;  // of a query
  const int group_words = num_words * kGroupTokens;
  const int acc_stride = round_up(task.head_dim, kLanes);
  const int partial_stride = acc_stride + kPartialExtra;
  const int block_groups =
      clamp(kAttentionBlockBytes / (group_words * static_cast<int>(sizeof(Word))), kTileVectors,
            kChunkGroups) /
      kTileVectors * kTileVectors;
  RowSpan rows[kMaxAttentionRows];
  Tile tiles[kMaxTiles];
  int num_tiles = 0;
  // Whether every row sees its request's slots in order, without a gap: slots are positions then.
  bool in_order = true;
  int shared_begin = 0, shared_end = 0;  // slots that are their own positions for all rows
  int tail_end = 0;                      // of slots that any row sees
  ChunkPlaces here, after;               // of this chunk, and of what is read after it
  int located = -1;                      // the chunk of this task that `after` is of
  const char* keys_after = nullptr;      // null: nothing is read after it
  int first_after = 0;                   // group of `after`

  float* scores(int pair) const { return task.scores + int64_t{pair} * kScoreStride; }
  Word* weights(int pair) const { return static_cast<Word*>(static_cast<void*>(scores(pair))); }
  int32_t* tail_slots(int row) const {
    return task.tail_slots + int64_t{row} * task.num_tree_slots;
  }
  const Word* query(int pair) const {
    const int row = pair / task.group_size, head = pair % task.group_size;
    const void* q =
        static_cast<const Element*>(task.q) + row * task.row_stride + head * task.head_dim;
    return static_cast<const Word*>(q);
  }
  // Where the results of a chunk go, and where they are merged.
  float* partials(int chunk) const {
    if (task.partials == nullptr) return task.accumulators;
    return task.partials + int64_t{chunk - task.first_chunk} * num_pairs * partial_stride;
  }
  float* totals() const { return task.accumulators + int64_t{num_pairs} * partial_stride; }
  const char* group(const void* base, int slot) const { return group_at<Stored>(task, base, slot); }

  void attend() {
    plan_rows();
    plan_tiles();
    if (!in_order && task.chunk_end * kAttentionChunk > task.base_len) open_tail();
    if (task.partials == nullptr) clear_totals();
    for (int chunk = task.chunk_begin; chunk < task.chunk_end; ++chunk) {
      attend_chunk(chunk);
      if (task.partials == nullptr) merge(task.accumulators);
    }
    if (task.partials == nullptr) write_out();
  }

  void finish() {
    clear_totals();
    for (int chunk = task.first_chunk; chunk < task.chunk_limit; ++chunk) merge(partials(chunk));
    write_out();
  }

  void plan_rows() {
    int end = 0;
    for (int r = 0; r < task.num_rows; ++r) {
      rows[r].end = task.base_len + (task.mask == nullptr ? task.first_row + r + 1 : list_slots(r));
      const int window_begin = task.sliding_window > 0 ? rows[r].end - task.sliding_window : 0;
      rows[r].begin = max_of(task.first_position, window_begin);
      end = max_of(end, rows[r].end);
    }
    shared_begin = task.first_position;
    shared_end = in_order ? end : task.base_len;
  }

  // Writes the slots of a tree row's ancestors (itself last) and returns how many there are.
  int list_slots(int r) {
    const uint64_t* mask = task.mask + int64_t{r} * task.mask_words;
    int32_t* slots = tail_slots(r);
    int count = 0;
    for (int first = 0; first < task.num_tree_slots; first += 64) {
      const int num_bits = min_of(64, task.num_tree_slots - first);
      for (uint64_t bits = mask[first / 64] & (~uint64_t{0} >> (64 - num_bits)); bits != 0;
           bits &= bits - 1) {
        slots[count++] = task.base_len + first + __builtin_ctzll(bits);
      }
    }
    if (count > 0) {
      in_order = in_order && slots[count - 1] == task.base_len + count - 1;
      tail_end = max_of(tail_end, slots[count - 1] + 1);
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
      tile.begin = shared_end;
      tile.end = 0;
      for (int r = pair / task.group_size; r <= (pair + tile.num_pairs - 1) / task.group_size;
           ++r) {
        tile.begin = min_of(tile.begin, rows[r].begin);
        tile.end = max_of(tile.end, min_of(rows[r].end, shared_end));
      }
      pair += tile.num_pairs;
    }
  }

  void attend_chunk(int chunk) {
    const int first = chunk * kAttentionChunk;
    const int begin = max_of(0, round_down(shared_begin, kGroupTokens) - first) / kGroupTokens;
    const int end = groups_below(min_of(shared_end - first, kAttentionChunk));
    float* const out = partials(chunk);
    // The group in which a tree's own slots begin is put together row by row.
    const int whole_end =
        in_order ? end : min_of(max_of(0, task.base_len - first) / kGroupTokens, end);
    if (begin < end) {
      locate(chunk, begin, end);
      score_chunk(first, begin, end);
    }
    for (int pair = 0; pair < num_pairs; ++pair) {
      softmax(first, pair, out + int64_t{pair} * partial_stride);
    }
    if (begin < whole_end) weigh_values(chunk, begin, whole_end, out);
    if (!in_order) weigh_tails(first, out);
  }

  static int groups_below(int position) { return (position + kGroupTokens - 1) / kGroupTokens; }

  // --- what is read next ---

  // Finds this chunk's groups, and those that are read after it.
  void locate(int chunk, int begin, int end) {
    if (located == chunk) {
      here = after;
    } else {
      locate_groups<Stored>(task, chunk * kAttentionChunk, begin, end, here);
    }
    const int first = (chunk + 1) * kAttentionChunk;
    keys_after = nullptr;
    if (chunk + 1 < task.chunk_end && first < shared_end) {
      located = chunk + 1;
      locate_groups<Stored>(task, first, 0,
                            groups_below(min_of(shared_end - first, kAttentionChunk)), after);
      keys_after = static_cast<const char*>(task.keys);
      first_after = 0;
    } else if (chunk + 1 == task.chunk_end && next != nullptr) {
      const int next_first = next->chunk_begin * kAttentionChunk;
      const int next_begin = max_of(0, next->first_position - next_first) / kGroupTokens;
      const int next_end = groups_below(min_of(next->base_len - next_first, kAttentionChunk));
      if (next_begin >= next_end) return;
      locate_groups<Stored>(*next, next_first, next_begin, next_end, after);
      keys_after = static_cast<const char*>(next->keys);
      first_after = next_begin;
    }
  }

  // A block of `base` from group first_group of the chunk on.
  void fill_block(const void* base, int first_group, int end, Block<Word>& block) const {
    block.first_group = first_group;
    block.num_groups = min_of(block_groups, end - first_group);
    for (int g = 0; g < block_groups; ++g) {
      const char* start = static_cast<const char*>(base) + here.offsets[first_group + g];
      block.groups[g] = static_cast<const Word*>(static_cast<const void*>(start));
    }
  }
  void look_ahead(const void* base, const ChunkPlaces& places, int first_group,
                  Block<Word>& block) const {
    for (int g = 0; g < block_groups; ++g) {
      block.ahead[g] = static_cast<const char*>(base) + places.offsets[first_group + g];
    }
  }

  void prefetch_group(const char* start) const {
    for (int64_t i = 0; i < group_bytes<Stored>(task.head_dim); i += kLineBytes) {
      prefetch_line<kInto>(start + i);
    }
  }

  // --- scores: each a chain of dot products over the words of the query ---

  struct ScoreTile {
    const Word* q[kTilePairs];
    float* out[kTilePairs];
  };

  // Reads kLines of the vectors' groups ahead, from vector first_line on.
  template <int P, int kLines>
  __attribute__((noinline)) void score_tile(const ScoreTile& tile, const Word* const* keys,
                                            const char* const* ahead, int first_line) const {
    constexpr int V = kTileVectors;
    F32x16 acc[P][V];
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) acc[p][v] = zero();
    }
    for (int w = 0; w < num_words; ++w) {
      decltype(T::load_word(keys[0])) k[V];
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) k[v] = T::load_word(keys[v] + w * kLanes);
#pragma GCC unroll 8
      for (int line = 0; line < kLines; ++line) {
        prefetch_line<kInto>(ahead[first_line + line] + w * kLineBytes);
      }
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) {
        const auto q = T::broadcast_word(tile.q[p] + w);
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) acc[p][v] = T::dot(acc[p][v], q, k[v]);
      }
    }
    const F32x16 scale = broadcast(task.scale * kLog2E);
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) store(tile.out[p] + v * kLanes, acc[p][v] * scale);
    }
  }

  // Scores of tile number t with groups [begin, end) of the block.
  template <int P>
  void score_groups(int t, const Block<Word>& block, int begin, int end, ScoreTile args) const {
    if (tiles[t].num_pairs == P) {
      for (int g = begin; g < end; g += kTileVectors) {
        const Word* const* keys = block.groups + g;
        const char* const* ahead = block.ahead + g;
        if (kPacked || t >= kTileVectors) {
          score_tile<P, 0>(args, keys, ahead, 0);
        } else if (num_tiles >= kTileVectors) {
          score_tile<P, 1>(args, keys, ahead, t);
        } else if (t == 0) {
          score_tile<P, kTileVectors>(args, keys, ahead, 0);
        } else {
          score_tile<P, 0>(args, keys, ahead, 0);
        }
        for (int p = 0; p < P; ++p) args.out[p] += kTileVectors * kLanes;
      }
    } else if constexpr (P > 1) {
      score_groups<P - 1>(t, block, begin, end, args);
    }
  }

  // Keys of the block as activations; the last group stands for those up to a whole tile.
  void open_keys(Block<Word>& block) const {
    if constexpr (kPacked) {
      Word* out = static_cast<Word*>(task.blocks);
      for (int g = 0; g < block.num_groups; ++g, out += group_words) {
        const void* start = block.groups[g];
        prefetch_group(block.ahead[g]);
        T::unpack_keys(static_cast<const int8_t*>(start) + kGroupHeaderBytes<Stored>,
                       static_cast<const float*>(start), task.head_dim, out);
        block.groups[g] = out;
      }
    }
    for (int g = block.num_groups; g < round_up(block.num_groups, kTileVectors); ++g) {
      block.groups[g] = block.groups[g - 1];
    }
  }

  // Groups [begin, end) of the chunk.
  void score_chunk(int first, int begin, int end) const {
    Block<Word> block;
    for (int g = round_down(begin, kTileVectors); g < end; g += block_groups) {
      fill_block(task.keys, g, end, block);
      if (g + block_groups < end) {
        look_ahead(task.keys, here, g + block_groups, block);
      } else {
        look_ahead(task.values, here, begin, block);
      }
      open_keys(block);
      for (int t = 0; t < num_tiles; ++t) {
        const int tile_begin = max_of(0, tiles[t].begin - first) / kGroupTokens;
        const int low = max_of(0, round_down(tile_begin, kTileVectors) - g);
        const int high = min_of(block.num_groups, groups_below(tiles[t].end - first) - g);
        if (low >= high) continue;
        score_tile_groups(t, block, low, high, task.scores + (g + low) * kGroupTokens,
                          kScoreStride);
      }
    }
  }

  // Groups [begin, end) of the block, begin a whole number of tiles, for tile t.
  void score_tile_groups(int t, const Block<Word>& block, int begin, int end, float* out,
                         int stride) const {
    ScoreTile args;
    for (int p = 0; p < tiles[t].num_pairs; ++p) {
      args.q[p] = query(tiles[t].first_pair + p);
      args.out[p] = out + int64_t{tiles[t].first_pair + p} * stride;
    }
    score_groups<kTilePairs>(t, block, begin, end, args);
  }

  // Of the slots past base_len, from the group of base_len on: all rows' scores, and the values as
  // activations where the cache holds codes.
  void open_tail() const {
    const int begin = round_down(task.base_len, kGroupTokens);
    if constexpr (kPacked) {
      Word* out = static_cast<Word*>(task.tail_groups);
      for (int slot = begin; slot < tail_end; slot += kGroupTokens, out += group_words) {
        const void* start = group(task.values, slot);
        T::unpack_values(static_cast<const int8_t*>(start) + kGroupHeaderBytes<Stored>,
                         static_cast<const float*>(start), task.head_dim, out);
      }
    }
    Block<Word> block;
    for (int slot = begin; slot < tail_end; slot += block_groups * kGroupTokens) {
      block.num_groups = min_of(block_groups, groups_below(tail_end - slot));
      for (int g = 0; g < block_groups; ++g) {
        const char* start = group(task.keys, slot + min_of(g, block.num_groups - 1) * kGroupTokens);
        block.groups[g] = static_cast<const Word*>(static_cast<const void*>(start));
        block.ahead[g] = start;
      }
      open_keys(block);
      for (int t = 0; t < num_tiles; ++t) {
        score_tile_groups(t, block, 0, block.num_groups, task.tail_scores + (slot - begin),
                          task.tail_stride);
      }
    }
  }

  // --- softmax: weights 2^(score - maximum), their sums in 16 lanes ---

  // Turns a pair's scores of the chunk into weights, 0 where it sees nothing. Writes sums and
  // maximum behind the accumulators, and zeros to those.
  void softmax(int first, int pair, float* partial) const {
    for (int i = 0; i < acc_stride; i += kLanes) store(partial + i, zero());
    const int r = pair / task.group_size;
    const int begin = max_of(rows[r].begin - first, 0);
    const int end = min_of(rows[r].end - first, kAttentionChunk);
    float* const s = scores(pair);
    int seen = 0;  // positions, to the end of two vectors
    if (begin < end) {
      if (!in_order) take_tail_scores(first, pair, r, end);
      if (task.soft_cap != 0.0f) cap_scores(s, round_down(begin, kLanes), end);
      seen = round_up(end, 2 * kLanes);
      hide_scores(s, begin, end, seen);
      weigh_scores(s, seen, weights(pair), partial + acc_stride);
    } else {
      store(partial + acc_stride + kLanes, broadcast(-__builtin_inff()));
    }
    for (int i = seen; i < kAttentionChunk; i += 2 * kLanes) {
      T::store_weights(weights(pair) + i / T::kPerWord, zero(), zero());
    }
  }

  void cap_scores(float* s, int begin, int end) const {
    for (int i = begin; i < end; i += kLanes) {
      store(s + i, soft_cap(load(s + i), task.soft_cap * kLog2E));
    }
  }

  // Hides those of [0, limit) outside of [begin, end).
  static void hide_scores(float* s, int begin, int end, int limit) {
    for (int i = 0; i + kLanes <= begin; i += kLanes) store(s + i, broadcast(kLowest));
    for (int i = round_down(begin, kLanes); i < begin; ++i) s[i] = kLowest;
    for (int i = round_down(end, kLanes); i < limit; i += kLanes) {
      store(s + i, load_partial(s + i, max_of(end - i, 0), kLowest));
    }
  }

  // Weights of scores [0, count), a multiple of two vectors; their sums and maximum to `totals`.
  static void weigh_scores(const float* s, int count, Word* words, float* totals) {
    constexpr int kStep = 2 * kLanes;
    F32x16 first = load(s), second = load(s + kLanes);
    for (int i = kStep; i < count; i += kStep) {
      first = max(first, load(s + i));
      second = max(second, load(s + i + kLanes));
    }
    const F32x16 top = broadcast(reduce_max(max(first, second)));
    F32x16 sum = zero();
    for (int i = 0; i < count; i += kStep) {
      Word* const out = words + i / T::kPerWord;
      T::store_weights(out, T::exp2(load(s + i) - top), T::exp2(load(s + i + kLanes) - top));
      sum = T::add_weights(sum, out);
    }
    store(totals, sum);
    store(totals + kLanes, top);
  }

  // A tree row's scores of its own slots, in order of position.
  void take_tail_scores(int first, int pair, int r, int end) const {
    const float* tail = task.tail_scores + int64_t{pair} * task.tail_stride;
    const int32_t* slots = tail_slots(r);
    const int origin = round_down(task.base_len, kGroupTokens);
    for (int i = max_of(task.base_len - first, 0); i < end; ++i) {
      scores(pair)[i] = tail[slots[first + i - task.base_len] - origin];
    }
  }

  // --- values: each element of the result a chain of dot products over the words of weights ---

  struct ValueTile {
    const Word* weights[kTilePairs];
    float* acc[kTilePairs];
  };

  template <int P, int V, int kLines>
  __attribute__((noinline)) void value_tile(const ValueTile& tile, const Block<Word>& block,
                                            int begin, int end, int column, int first_line) const {
    F32x16 acc[P][V];
    const Word* weights[P];
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
      weights[p] = tile.weights[p];
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) acc[p][v] = load(tile.acc[p] + column + v * kLanes);
    }
    for (int g = begin; g < end; ++g) {
      const Word* row = block.groups[g] + column;
      const char* ahead = block.ahead[g] + (column + first_line * kLanes) * sizeof(Word);
      for (int i = 0; i < kGroupWords; ++i) {
        decltype(T::load_word(row)) value[V];
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) value[v] = T::load_word(row + v * kLanes);
#pragma GCC unroll 8
        for (int line = 0; line < kLines; ++line) prefetch_line<kInto>(ahead + line * kLineBytes);
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p) {
          const auto weight = T::broadcast_word(weights[p] + i);
#pragma GCC unroll 8
          for (int v = 0; v < V; ++v) acc[p][v] = T::dot(acc[p][v], weight, value[v]);
        }
        row += task.head_dim;
        ahead += task.head_dim * sizeof(Word);
      }
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) weights[p] += kGroupWords;
    }
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) store(tile.acc[p] + column + v * kLanes, acc[p][v]);
    }
  }

  // Groups [begin, end) of the block for num_pairs_here pairs; `lines`: see score_tile.
  template <int P>
  void add_values(int num_pairs_here, const ValueTile& tile, const Block<Word>& block, int begin,
                  int end, int lines, int first_line) const {
    if (num_pairs_here == P) {
      constexpr int V = kTileVectors;
      int column = 0;
      for (; column + V * kLanes <= acc_stride; column += V * kLanes) {
        if (lines == 0) {
          value_tile<P, V, 0>(tile, block, begin, end, column, 0);
        } else if (lines == 1) {
          value_tile<P, V, 1>(tile, block, begin, end, column, first_line);
        } else {
          value_tile<P, V, V>(tile, block, begin, end, column, 0);
        }
      }
      for (; column < acc_stride; column += kLanes) {
        if (lines == 0) {
          value_tile<P, 1, 0>(tile, block, begin, end, column, 0);
        } else {
          value_tile<P, 1, 1>(tile, block, begin, end, column, 0);
        }
      }
    } else if constexpr (P > 1) {
      add_values<P - 1>(num_pairs_here, tile, block, begin, end, lines, first_line);
    }
  }

  ValueTile value_tile_of(int first_pair, int count, int column, float* out) const {
    ValueTile tile;
    for (int p = 0; p < count; ++p) {
      tile.weights[p] = weights(first_pair + p) + column / T::kPerWord;
      tile.acc[p] = out + int64_t{first_pair + p} * partial_stride;
    }
    return tile;
  }

  // Sets the tokens of a group of values at `slot` that no row sees to zero: their weights are zero
  // too, but memory nobody wrote may hold anything.
  void clear_unseen(int slot, Word* group) const {
    for (int word = 0; word < kGroupWords; ++word, group += task.head_dim) {
      uint32_t keep = 0;
      for (int part = 0; part < T::kPerWord; ++part) {
        const int position = slot + word * T::kPerWord + part;
        if (position < shared_begin || position >= shared_end) continue;
        keep |= (0xffffffffu >> (32 - 32 / T::kPerWord)) << (32 / T::kPerWord * part);
      }
      if (keep == 0xffffffffu) continue;
      uint32_t* bits = static_cast<uint32_t*>(static_cast<void*>(group));
      for (int i = 0; i < task.head_dim; ++i) bits[i] &= keep;
    }
  }

  // Values of the block as activations, with zeros outside of what any row sees.
  void open_values(int first, Block<Word>& block) const {
    for (int g = 0; g < block.num_groups; ++g) {
      const int slot = first + (block.first_group + g) * kGroupTokens;
      const bool whole = slot >= shared_begin && slot + kGroupTokens <= shared_end;
      const void* start = block.groups[g];
      Word* out = static_cast<Word*>(task.blocks) + int64_t{g} * group_words;
      if constexpr (kPacked) {
        prefetch_group(block.ahead[g]);
        T::unpack_values(static_cast<const int8_t*>(start) + kGroupHeaderBytes<Stored>,
                         static_cast<const float*>(start), task.head_dim, out);
      } else if (whole) {
        continue;
      } else {
        __builtin_memcpy(out, start, group_words * sizeof(Word));
      }
      if (!whole) clear_unseen(slot, out);
      block.groups[g] = out;
    }
  }

  // Groups [begin, end) of the chunk, seen alike by all rows or with weights of zero.
  void weigh_values(int chunk, int begin, int end, float* out) const {
    const int first = chunk * kAttentionChunk;
    Block<Word> block;
    for (int g = begin; g < end; g += block_groups) {
      fill_block(task.values, g, end, block);
      if (g + block_groups < end) {
        look_ahead(task.values, here, g + block_groups, block);
      } else if (keys_after != nullptr) {
        look_ahead(keys_after, after, first_after, block);
      } else {
        look_ahead(task.values, here, g, block);
      }
      open_values(first, block);
      for (int t = 0; t < num_tiles; ++t) {
        const Tile& tile = tiles[t];
        const int low = max_of(0, max_of(0, tile.begin - first) / kGroupTokens - g);
        const int high = min_of(block.num_groups, groups_below(tile.end - first) - g);
        if (low >= high) continue;
        int lines = 0;
        if (!kPacked && num_tiles >= kTileVectors && t < kTileVectors) lines = 1;
        if (!kPacked && num_tiles < kTileVectors && t == 0) lines = kTileVectors;
        const ValueTile args =
            value_tile_of(tile.first_pair, tile.num_pairs, (g + low) * kGroupTokens, out);
        add_values<kTilePairs>(tile.num_pairs, args, block, low, high, lines, t);
      }
    }
  }

  // The rest of a tree's rows in the chunk: groups put together from each row's own slots.
  void weigh_tails(int first, float* out) const {
    Block<Word> block;
    block.num_groups = 1;
    block.groups[0] = static_cast<const Word*>(task.groups);
    block.ahead[0] = nullptr;
    for (int r = 0; r < task.num_rows; ++r) {
      const int begin =
          max_of(first, round_down(max_of(task.base_len, rows[r].begin), kGroupTokens));
      const int end = min_of(rows[r].end, first + kAttentionChunk);
      for (int position = begin; position < end; position += kGroupTokens) {
        gather_values(r, position, static_cast<Word*>(task.groups));
        for (int head = 0; head < task.group_size; head += kTilePairs) {
          const int count = min_of(kTilePairs, task.group_size - head);
          add_values<kTilePairs>(
              count, value_tile_of(r * task.group_size + head, count, position - first, out), block,
              0, 1, 0, 0);
        }
      }
    }
  }

  // The values of 16 positions of row r, zeros where it sees none.
  void gather_values(int r, int position, Word* out) const {
    static const Word kZeros[1024] = {};  // the largest head_dim
    for (int word = 0; word < kGroupWords; ++word, out += task.head_dim) {
      const Word* sources[T::kPerWord];
      int parts[T::kPerWord];
      for (int part = 0; part < T::kPerWord; ++part, ++position) {
        sources[part] = kZeros;
        parts[part] = 0;
        if (position < rows[r].begin || position >= rows[r].end) continue;
        const int slot =
            position < task.base_len ? position : tail_slots(r)[position - task.base_len];
        const int token = slot % kGroupTokens;
        sources[part] = tail_group(slot) + int64_t{token / T::kPerWord} * task.head_dim;
        parts[part] = token % T::kPerWord;
      }
      T::join_values(sources, parts, task.head_dim, out);
    }
  }

  // The group of values of a slot from the group of base_len on.
  const Word* tail_group(int slot) const {
    const char* start = group(task.values, round_down(slot, kGroupTokens));
    if constexpr (kPacked) {
      const int64_t index = slot / kGroupTokens - task.base_len / kGroupTokens;
      return static_cast<const Word*>(task.tail_groups) + index * group_words;
    }
    return static_cast<const Word*>(static_cast<const void*>(start));
  }

  // --- merging ---

  void clear_totals() const {
    for (int pair = 0; pair < num_pairs; ++pair) {
      store(totals() + int64_t{pair} * partial_stride + acc_stride + kLanes,
            broadcast(-__builtin_inff()));
    }
  }

  // Adds the results of a chunk to the totals.
  void merge(const float* chunk) const {
    const float nothing = -__builtin_inff();
    float* total = totals();
    for (int pair = 0; pair < num_pairs; ++pair) {
      merge_pair(chunk, total, nothing);
      chunk += partial_stride;
      total += partial_stride;
    }
  }
  void merge_pair(const float* chunk, float* total, float nothing) const {
    const int top = acc_stride + kLanes;
    if (chunk[top] == nothing) return;
    if (total[top] == nothing) {
      for (int i = 0; i < partial_stride; i += kLanes) store(total + i, load(chunk + i));
      return;
    }
    const F32x16 old_top = load(total + top), new_top = load(chunk + top);
    const F32x16 smaller = exp2_negative(zero() - abs(old_top - new_top));
    const F32x16 one = broadcast(1.0f);
    const F32x16 old_factor = select_less(old_top, new_top, smaller, one);
    const F32x16 new_factor = select_less(old_top, new_top, one, smaller);
    for (int i = 0; i <= acc_stride; i += kLanes) {  // the sums lie behind the accumulators
      store(total + i, fma(load(chunk + i), new_factor, load(total + i) * old_factor));
    }
    store(total + top, max(old_top, new_top));
  }

  void write_out() const {
    for (int pair = 0; pair < num_pairs; ++pair) {
      const float* total = totals() + int64_t{pair} * partial_stride;
      const int row = pair / task.group_size, head = pair % task.group_size;
      Element* out = static_cast<Element*>(task.out) + row * task.row_stride + head * task.head_dim;
      const F32x16 sum = broadcast(reduce_add(load(total + acc_stride)));
      for (int i = 0; i < task.head_dim; i += kLanes) {
        // Zero comes out positive, however it came about.
        const F32x16 result = (load(total + i) + zero()) / sum;
        store_lanes(out + i, result, min_of(kLanes, task.head_dim - i));
      }
    }
  }
};

template <class T, class Stored, PrefetchInto kInto>
void attend(const AttentionTask& task, const AttentionTask* next) {
  Kernel<T, Stored, kInto>(task, next).attend();
}
template <class T, class Stored>
void finish(const AttentionTask& task) {
  Kernel<T, Stored, PrefetchInto::kL1>(task, nullptr).finish();
}

template <class T, class Stored>
void copy_token(const KvCopyTask& task) {
  const auto locate = [&](void* base, int64_t slot) {
    return static_cast<char*>(base) +
           group_index(slot, task.kv_head, task.num_blocks, task.block_size) *
               group_bytes<Stored>(task.head_dim);
  };
  const int from = static_cast<int>(task.from % kGroupTokens);
  const int to = static_cast<int>(task.to % kGroupTokens);
  const auto move = [&](void* base, auto index) {
    char* source = locate(base, task.from);
    char* target = locate(base, task.to);
    const Stored* in =
        static_cast<const Stored*>(static_cast<void*>(source + kGroupHeaderBytes<Stored>));
    Stored* out = static_cast<Stored*>(static_cast<void*>(target + kGroupHeaderBytes<Stored>));
    for (int i = 0; i < task.head_dim; ++i) out[index(to, i)] = in[index(from, i)];
    if constexpr (kGroupHeaderBytes<Stored> > 0) {
      static_cast<float*>(static_cast<void*>(target))[to] =
          static_cast<const float*>(static_cast<void*>(source))[from];
    }
  };
  move(task.keys, [](int token, int i) { return key_index<T::kPerWord>(token, i); });
  move(task.values,
       [&](int token, int i) { return value_index<T::kPerWord>(token, i, task.head_dim); });
}

template <class T, class Stored, PrefetchInto kInto>
AttentionKernels kernels_of() {
  return {attend<T, Stored, kInto>, finish<T, Stored>, copy_token<T, Stored>, group_bytes<Stored>};
}

template <PrefetchInto kInto>
AttentionKernelSet kernels_of_all_kinds() {
  return {{kernels_of<Bf16Words, uint16_t, kInto>(), kernels_of<F32Words, float, kInto>(),
           kernels_of<Bf16Words, int8_t, kInto>(), kernels_of<F32Words, int8_t, kInto>()}};
}

}  // namespace

AttentionKernelSet attention_kernels(PrefetchInto into);
AttentionKernelSet attention_kernels(PrefetchInto into) {
  if constexpr (kAttentionIntoL2) {
    if (into == PrefetchInto::kL2) return kernels_of_all_kinds<PrefetchInto::kL2>();
  }
  return kernels_of_all_kinds<PrefetchInto::kL1>();
}

}  // namespace specdec::cpu::SPECDEC_ISA
