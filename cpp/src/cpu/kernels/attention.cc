#include "cpu/kernels/attention.h"

#include "cpu/kernels/attention_groups.h"
#include "cpu/kernels/attention_results.h"
#include "cpu/kernels/attention_rows.h"
#include "cpu/kernels/attention_softmax.h"
#include "cpu/kernels/attention_tiles.h"
#include "cpu/kernels/attention_words.h"
#include "cpu/kernels/kv_copy.h"
#include "cpu/kernels/lanes.h"
#include "cpu/kernels/prefetch.h"

namespace specdec::cpu::SPECDEC_ISA {
namespace {

template <class T, class Stored, PrefetchInto kInto>
struct Kernel : TaskRows {
  using Word = typename T::Word;
  using Element = typename T::Element;
  using Tiles = RegisterTiles<T, kInto>;
  static constexpr bool kPacked = sizeof(Stored) < sizeof(Element);
  static constexpr int kGroupWords = Tiles::kGroupWords;

  Kernel(const AttentionTask& t, const AttentionTask* n) : TaskRows(t), results(t), next(n) {}

  const ChunkResults results;
  const AttentionTask* next;
  const int num_words = task.head_dim / T::kPerWord;  // of a query
  const int group_words = num_words * kGroupTokens;
  const int block_groups =
      clamp(kAttentionBlockBytes / (group_words * static_cast<int>(sizeof(Word))), kTileVectors,
            kChunkGroups) /
      kTileVectors * kTileVectors;
  GroupOffsets here, after;          // this chunk's, and the chunk's to prefetch
  int located = -1;                  // the chunk of this task that `after` describes
  const char* keys_after = nullptr;  // null: nothing to prefetch
  int first_after = 0;               // group at which `after` begins

  float* scores(int pair) const { return task.scores + int64_t{pair} * kScoreStride; }
  Word* weights(int pair) const { return static_cast<Word*>(static_cast<void*>(scores(pair))); }
  const Word* query(int pair) const {
    const int row = pair / task.group_size, head = pair % task.group_size;
    const void* q =
        static_cast<const Element*>(task.q) + row * task.row_stride + head * task.head_dim;
    return static_cast<const Word*>(q);
  }
  const char* group(const void* base, int slot) const { return group_at<Stored>(task, base, slot); }

  void attend() {
    arrange();
    if (!in_order && task.chunk_end * kAttentionChunk > task.base_len) open_tail();
    if (task.partials == nullptr) results.clear_totals();
    for (int chunk = task.chunk_begin; chunk < task.chunk_end; ++chunk) {
      attend_chunk(chunk);
      if (task.partials == nullptr) results.merge(task.accumulators);
    }
    if (task.partials == nullptr) results.write_out<Element>();
  }

  void attend_chunk(int chunk) {
    const int first = chunk * kAttentionChunk;
    const int begin = max_of(0, round_down(shared_begin, kGroupTokens) - first) / kGroupTokens;
    const int end = groups_below(min_of(shared_end - first, kAttentionChunk));
    float* const out = results.partials(chunk);
    // The group in which a tree's own slots begin is assembled row by row.
    const int whole_end =
        in_order ? end : min_of(max_of(0, task.base_len - first) / kGroupTokens, end);
    if (begin < end) {
      locate(chunk, begin, end);
      score_chunk(first, begin, end);
    }
    for (int pair = 0; pair < num_pairs; ++pair) {
      softmax(first, pair, out + int64_t{pair} * results.partial_stride);
    }
    if (begin < whole_end) weigh_values(chunk, begin, whole_end, out);
    if (!in_order) weigh_tails(first, out);
  }

  static int groups_below(int position) { return (position + kGroupTokens - 1) / kGroupTokens; }

  // --- what is read next ---

  // Locates this chunk's groups and the groups to prefetch meanwhile.
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

  // Fills a block with the groups of `base` from group first_group of the chunk on.
  void fill_block(const void* base, int first_group, int end, Block<Word>& block) const {
    block.first_group = first_group;
    block.num_groups = min_of(block_groups, end - first_group);
    for (int g = 0; g < block_groups; ++g) {
      const char* start = static_cast<const char*>(base) + here.offsets[first_group + g];
      block.groups[g] = static_cast<const Word*>(static_cast<const void*>(start));
    }
  }
  void look_ahead(const void* base, const GroupOffsets& groups, int first_group,
                  Block<Word>& block) const {
    for (int g = 0; g < block_groups; ++g) {
      block.ahead[g] = static_cast<const char*>(base) + groups.offsets[first_group + g];
    }
  }

  void prefetch_group(const char* start) const {
    for (int64_t i = 0; i < group_bytes<Stored>(task.head_dim); i += kLineBytes) {
      prefetch_line<kInto>(start + i);
    }
  }

  // --- scores ---

  // Scores tile t against groups [begin, end) of the block.
  template <int P>
  void score_groups(int t, const Block<Word>& block, int begin, int end,
                    typename Tiles::ScoreTile args) const {
    if (tiles[t].num_pairs == P) {
      for (int g = begin; g < end; g += kTileVectors) {
        const Word* const* keys = block.groups + g;
        const char* const* ahead = block.ahead + g;
        if (kPacked || t >= kTileVectors) {
          Tiles::template score_tile<P, 0>(args, keys, ahead, 0);
        } else if (num_tiles >= kTileVectors) {
          Tiles::template score_tile<P, 1>(args, keys, ahead, t);
        } else if (t == 0) {
          Tiles::template score_tile<P, kTileVectors>(args, keys, ahead, 0);
        } else {
          Tiles::template score_tile<P, 0>(args, keys, ahead, 0);
        }
        for (int p = 0; p < P; ++p) args.out[p] += kTileVectors * kLanes;
      }
    } else if constexpr (P > 1) {
      score_groups<P - 1>(t, block, begin, end, args);
    }
  }

  // Keys of the block as activations. The last group is repeated to fill a whole tile.
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

  // Scores groups [begin, end) of the chunk.
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

  // Scores groups [begin, end) of the block for tile t. `begin` is a multiple of a tile's vectors.
  void score_tile_groups(int t, const Block<Word>& block, int begin, int end, float* out,
                         int stride) const {
    typename Tiles::ScoreTile args;
    args.num_words = num_words;
    args.factor = task.scale * kLog2E;
    for (int p = 0; p < tiles[t].num_pairs; ++p) {
      args.q[p] = query(tiles[t].first_pair + p);
      args.out[p] = out + int64_t{tiles[t].first_pair + p} * stride;
    }
    score_groups<kTilePairs>(t, block, begin, end, args);
  }

  // Computes all rows' scores for the slots past base_len, starting with the group that holds
  // base_len, and unpacks those slots' values where the cache holds codes.
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

  // Turns a pair's scores of the chunk into weights; unseen positions get 0. Writes the sums and
  // the maximum behind the accumulators, which are set to zero.
  void softmax(int first, int pair, float* partial) const {
    for (int i = 0; i < results.acc_stride; i += kLanes) store(partial + i, zero());
    const int r = pair / task.group_size;
    const int begin = max_of(rows[r].begin - first, 0);
    const int end = min_of(rows[r].end - first, kAttentionChunk);
    float* const s = scores(pair);
    int seen = 0;  // number of positions, rounded up to two vectors
    if (begin < end) {
      if (!in_order) take_tail_scores(first, pair, r, end);
      if (task.soft_cap != 0.0f) cap_scores(s, round_down(begin, kLanes), end, task.soft_cap);
      seen = round_up(end, 2 * kLanes);
      hide_scores(s, begin, end, seen);
      weigh_scores<T>(s, seen, weights(pair), partial + results.acc_stride);
    } else {
      store(partial + results.acc_stride + kLanes, broadcast(-__builtin_inff()));
    }
    for (int i = seen; i < kAttentionChunk; i += 2 * kLanes) {
      T::store_weights(weights(pair) + i / T::kPerWord, zero(), zero());
    }
  }

  // Copies a tree row's scores of its own slots, in order of position.
  void take_tail_scores(int first, int pair, int r, int end) const {
    const float* tail = task.tail_scores + int64_t{pair} * task.tail_stride;
    const int32_t* slots = tail_slots(r);
    const int origin = round_down(task.base_len, kGroupTokens);
    for (int i = max_of(task.base_len - first, 0); i < end; ++i) {
      scores(pair)[i] = tail[slots[first + i - task.base_len] - origin];
    }
  }

  // --- values ---

  // Weighs groups [begin, end) of the block for num_pairs_here pairs. `lines`: see kLines.
  template <int P>
  void add_values(int num_pairs_here, const typename Tiles::ValueTile& tile,
                  const Block<Word>& block, int begin, int end, int lines, int first_line) const {
    if (num_pairs_here == P) {
      constexpr int V = kTileVectors;
      int column = 0;
      for (; column + V * kLanes <= results.acc_stride; column += V * kLanes) {
        if (lines == 0) {
          Tiles::template value_tile<P, V, 0>(tile, block, begin, end, column, 0);
        } else if (lines == 1) {
          Tiles::template value_tile<P, V, 1>(tile, block, begin, end, column, first_line);
        } else {
          Tiles::template value_tile<P, V, V>(tile, block, begin, end, column, 0);
        }
      }
      for (; column < results.acc_stride; column += kLanes) {
        if (lines == 0) {
          Tiles::template value_tile<P, 1, 0>(tile, block, begin, end, column, 0);
        } else {
          Tiles::template value_tile<P, 1, 1>(tile, block, begin, end, column, 0);
        }
      }
    } else if constexpr (P > 1) {
      add_values<P - 1>(num_pairs_here, tile, block, begin, end, lines, first_line);
    }
  }

  typename Tiles::ValueTile value_tile_of(int first_pair, int count, int column, float* out) const {
    typename Tiles::ValueTile tile;
    tile.head_dim = task.head_dim;
    for (int p = 0; p < count; ++p) {
      tile.weights[p] = weights(first_pair + p) + column / T::kPerWord;
      tile.acc[p] = out + int64_t{first_pair + p} * results.partial_stride;
    }
    return tile;
  }

  // Zeroes the values in the group at `slot` that no row sees. Their weights are zero, but memory
  // that was never written may hold NaN.
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

  // Values of the block as activations. Values that no row sees are zeros.
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

  // Weighs groups [begin, end) of the chunk; every row sees these slots, or has a weight of zero
  // for them.
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
        const auto args =
            value_tile_of(tile.first_pair, tile.num_pairs, (g + low) * kGroupTokens, out);
        add_values<kTilePairs>(tile.num_pairs, args, block, low, high, lines, t);
      }
    }
  }

  // Weighs the rest of a tree's rows in the chunk, in groups assembled from each row's own slots.
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

  // The values of 16 positions of row r, zeros at positions that it does not see.
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

  // The group of values that holds `slot`, at or after the group of base_len.
  const Word* tail_group(int slot) const {
    const char* start = group(task.values, round_down(slot, kGroupTokens));
    if constexpr (kPacked) {
      const int64_t index = slot / kGroupTokens - task.base_len / kGroupTokens;
      return static_cast<const Word*>(task.tail_groups) + index * group_words;
    }
    return static_cast<const Word*>(static_cast<const void*>(start));
  }
};

template <class T, class Stored, PrefetchInto kInto>
void attend(const AttentionTask& task, const AttentionTask* next) {
  Kernel<T, Stored, kInto>(task, next).attend();
}
template <class T>
void finish(const AttentionTask& task) {
  const ChunkResults results(task);
  results.clear_totals();
  for (int chunk = task.first_chunk; chunk < task.chunk_limit; ++chunk) {
    results.merge(results.partials(chunk));
  }
  results.write_out<typename T::Element>();
}

template <class T, class Stored, PrefetchInto kInto>
AttentionKernels kernels_of() {
  return {attend<T, Stored, kInto>, finish<T>, copy_token<T, Stored>, group_bytes<Stored>};
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
