#include "cpu/kernels/attention.h"

#include "cpu/kernels/attention_groups.h"
#include "cpu/kernels/attention_rows.h"
#include "cpu/kernels/attention_softmax.h"
#include "cpu/kernels/attention_tiles.h"
#include "cpu/kernels/attention_words.h"

namespace specdec::cpu::SPECDEC_ISA {
namespace {

// One task, chunk by chunk: scores of all pairs, their weights, and the weighted values. Slots up
// to shared_end are computed for all rows together. Rows of a tree also see slots of their own past
// base_len (the tail): scores of the tail are computed once for all slots, each row picks those of
// its path, and a row's values are gathered in order of position.
template <class T, class Stored>
class Attention {
 public:
  Attention(const AttentionTask& task, const AttentionTask* next)
      : task_(task),
        rows_(task),
        sums_(task),
        groups_(task, next, rows_.shared_end(), block_groups_of(task)) {}

  void run() {
    if (!rows_.in_order() && task_.chunk_end * kAttentionChunk > task_.base_len) score_tail();
    if (task_.partials == nullptr) sums_.clear_totals();
    for (int chunk = task_.chunk_begin; chunk < task_.chunk_end; ++chunk) {
      attend_chunk(chunk);
      if (task_.partials == nullptr) sums_.merge(sums_.chunk(chunk));
    }
    if (task_.partials == nullptr) sums_.template write_out<Element>();
  }

 private:
  using Word = typename T::Word;
  using Element = typename T::Element;
  static constexpr bool kPacked = sizeof(Stored) < sizeof(Element);
  static constexpr int kGroupWords = kGroupTokens / T::kPerWord;  // rows of words of a value group

  static int block_groups_of(const AttentionTask& task) {
    const int group_bytes = task.head_dim * kGroupTokens * static_cast<int>(sizeof(Element));
    return clamp(kAttentionBlockBytes / group_bytes, kTileVectors, kChunkGroups) / kTileVectors *
           kTileVectors;
  }

  // Words of a query, and of a group of keys or values as activations.
  int num_words() const { return task_.head_dim / T::kPerWord; }
  int group_words() const { return num_words() * kGroupTokens; }
  // A pair's scores in the chunk; its weights take their place.
  float* scores(int pair) const { return task_.scores + int64_t{pair} * kScoreStride; }
  Word* weights(int pair) const { return static_cast<Word*>(static_cast<void*>(scores(pair))); }
  const Word* query(int pair) const {
    const int row = pair / task_.group_size, head = pair % task_.group_size;
    const void* q =
        static_cast<const Element*>(task_.q) + row * task_.row_stride + head * task_.head_dim;
    return static_cast<const Word*>(q);
  }
  static PrefetchShare share_of(int tile, int num_tiles) {
    return kPacked ? PrefetchShare{} : prefetch_share(tile, num_tiles);
  }

  void attend_chunk(int chunk) {
    const int first = chunk * kAttentionChunk;
    const int begin =
        max_of(0, round_down(rows_.shared_begin(), kGroupTokens) - first) / kGroupTokens;
    const int end = groups_below(min_of(rows_.shared_end() - first, kAttentionChunk));
    float* const out = sums_.chunk(chunk);
    // The group in which a tree's own slots begin is put together row by row.
    const int whole_end =
        rows_.in_order() ? end : min_of(max_of(0, task_.base_len - first) / kGroupTokens, end);
    if (begin < end) {
      groups_.enter_chunk(chunk, begin, end);
      score_chunk(first, begin, end);
    }
    for (int pair = 0; pair < rows_.num_pairs(); ++pair) {
      softmax(first, pair, out + int64_t{pair} * sums_.stride());
    }
    if (begin < whole_end) weigh_values(first, begin, whole_end, out);
    if (!rows_.in_order()) weigh_tails(first, out);
  }

  // --- scores

  // Groups [begin, end) of the chunk.
  void score_chunk(int first, int begin, int end) const {
    Block<Word> block;
    for (int g = round_down(begin, kTileVectors); g < end; g += groups_.block_groups()) {
      groups_.read_keys(g, end, begin, block);
      open_keys(block);
      for (int t = 0; t < rows_.num_tiles(); ++t) {
        const Tile& tile = rows_.tile(t);
        const int tile_begin = max_of(0, tile.begin - first) / kGroupTokens;
        const int low = max_of(0, round_down(tile_begin, kTileVectors) - g);
        const int high = min_of(block.num_groups, groups_below(tile.end - first) - g);
        if (low >= high) continue;
        score_block(t, block, low, high, task_.scores + (g + low) * kGroupTokens, kScoreStride);
      }
    }
  }

  // Keys of the block as activations; the last group stands for those up to a whole tile.
  void open_keys(Block<Word>& block) const {
    if constexpr (kPacked) {
      Word* out = static_cast<Word*>(task_.blocks);
      for (int g = 0; g < block.num_groups; ++g, out += group_words()) {
        const void* start = block.groups[g];
        groups_.prefetch_group(block.ahead[g]);
        T::unpack_keys(static_cast<const int8_t*>(start) + kGroupHeaderBytes<Stored>,
                       static_cast<const float*>(start), task_.head_dim, out);
        block.groups[g] = out;
      }
    }
    for (int g = block.num_groups; g < round_up(block.num_groups, kTileVectors); ++g) {
      block.groups[g] = block.groups[g - 1];
    }
  }

  // Groups [begin, end) of the block, begin a whole number of vectors, for tile t.
  void score_block(int t, const Block<Word>& block, int begin, int end, float* out,
                   int stride) const {
    const Tile& tile = rows_.tile(t);
    ScoreTile<T> args;
    args.num_words = num_words();
    args.scale = task_.scale * kLog2E;
    for (int p = 0; p < tile.num_pairs; ++p) {
      args.q[p] = query(tile.first_pair + p);
      args.out[p] = out + int64_t{tile.first_pair + p} * stride;
    }
    score_groups<T, kTilePairs>(tile.num_pairs, args, block.groups, block.ahead, begin, end,
                                share_of(t, rows_.num_tiles()));
  }

  // Of the slots past base_len, from the group of base_len on: all rows' scores, and the values as
  // activations where the cache holds codes.
  void score_tail() const {
    const int begin = round_down(task_.base_len, kGroupTokens);
    const int end = rows_.tail_end();
    if constexpr (kPacked) {
      Word* out = static_cast<Word*>(task_.tail_groups);
      for (int slot = begin; slot < end; slot += kGroupTokens, out += group_words()) {
        const void* start = groups_.group(task_.values, slot);
        T::unpack_values(static_cast<const int8_t*>(start) + kGroupHeaderBytes<Stored>,
                         static_cast<const float*>(start), task_.head_dim, out);
      }
    }
    Block<Word> block;
    for (int slot = begin; slot < end; slot += groups_.block_groups() * kGroupTokens) {
      block.num_groups = min_of(groups_.block_groups(), groups_below(end - slot));
      for (int g = 0; g < groups_.block_groups(); ++g) {
        const int place = slot + min_of(g, block.num_groups - 1) * kGroupTokens;
        const char* start = groups_.group(task_.keys, place);
        block.groups[g] = static_cast<const Word*>(static_cast<const void*>(start));
        block.ahead[g] = start;
      }
      open_keys(block);
      for (int t = 0; t < rows_.num_tiles(); ++t) {
        score_block(t, block, 0, block.num_groups, task_.tail_scores + (slot - begin),
                    task_.tail_stride);
      }
    }
  }

  // --- weights

  // Turns a pair's scores of the chunk into weights, 0 where it sees nothing. Writes their sums and
  // maximum to `partial`, and zeros to its values.
  void softmax(int first, int pair, float* partial) const {
    const int width = sums_.width();
    for (int i = 0; i < width; i += kLanes) store(partial + i, zero());
    const int row = pair / task_.group_size;
    const RowSpan& span = rows_.span(row);
    const int begin = max_of(span.begin - first, 0);
    const int end = min_of(span.end - first, kAttentionChunk);
    float* const s = scores(pair);
    int seen = 0;  // positions, to the end of two vectors
    if (begin < end) {
      if (!rows_.in_order()) take_tail_scores(first, pair, row, end);
      if (task_.soft_cap != 0.0f) cap_scores(s, round_down(begin, kLanes), end);
      seen = round_up(end, 2 * kLanes);
      hide_scores(s, begin, end, seen);
      weigh_scores<T>(s, seen, weights(pair), partial + width);
    } else {
      sums_.hide(partial);
    }
    for (int i = seen; i < kAttentionChunk; i += 2 * kLanes) {
      T::store_weights(weights(pair) + i / T::kPerWord, zero(), zero());
    }
  }

  void cap_scores(float* s, int begin, int end) const {
    for (int i = begin; i < end; i += kLanes) {
      store(s + i, soft_cap(load(s + i), task_.soft_cap * kLog2E));
    }
  }

  // A tree row's scores of its own slots, in order of position.
  void take_tail_scores(int first, int pair, int row, int end) const {
    const float* tail = task_.tail_scores + int64_t{pair} * task_.tail_stride;
    const int32_t* slots = rows_.tail_slots(row);
    const int origin = round_down(task_.base_len, kGroupTokens);
    for (int i = max_of(task_.base_len - first, 0); i < end; ++i) {
      scores(pair)[i] = tail[slots[first + i - task_.base_len] - origin];
    }
  }

  // --- values

  // Groups [begin, end) of the chunk: every row sees them, or has weights of zero for them.
  void weigh_values(int first, int begin, int end, float* out) const {
    Block<Word> block;
    for (int g = begin; g < end; g += groups_.block_groups()) {
      groups_.read_values(g, end, block);
      open_values(first, block);
      for (int t = 0; t < rows_.num_tiles(); ++t) {
        const Tile& tile = rows_.tile(t);
        const int low = max_of(0, max_of(0, tile.begin - first) / kGroupTokens - g);
        const int high = min_of(block.num_groups, groups_below(tile.end - first) - g);
        if (low >= high) continue;
        weigh_block(tile.first_pair, tile.num_pairs, block, low, high, (g + low) * kGroupTokens,
                    out, share_of(t, rows_.num_tiles()));
      }
    }
  }

  // Groups [begin, end) of the block for `count` pairs; their first token is `token` of the chunk.
  void weigh_block(int first_pair, int count, const Block<Word>& block, int begin, int end,
                   int token, float* out, PrefetchShare share) const {
    ValueTile<T> tile;
    tile.head_dim = task_.head_dim;
    for (int p = 0; p < count; ++p) {
      tile.weights[p] = weights(first_pair + p) + token / T::kPerWord;
      tile.acc[p] = out + int64_t{first_pair + p} * sums_.stride();
    }
    add_values<T, kTilePairs>(count, tile, block.groups, block.ahead, begin, end, sums_.width(),
                              share);
  }

  // Values of the block as activations, with zeros outside of what any row sees.
  void open_values(int first, Block<Word>& block) const {
    for (int g = 0; g < block.num_groups; ++g) {
      const int slot = first + (block.first_group + g) * kGroupTokens;
      const bool whole = slot >= rows_.shared_begin() && slot + kGroupTokens <= rows_.shared_end();
      const void* start = block.groups[g];
      Word* out = static_cast<Word*>(task_.blocks) + int64_t{g} * group_words();
      if constexpr (kPacked) {
        groups_.prefetch_group(block.ahead[g]);
        T::unpack_values(static_cast<const int8_t*>(start) + kGroupHeaderBytes<Stored>,
                         static_cast<const float*>(start), task_.head_dim, out);
      } else if (whole) {
        continue;
      } else {
        __builtin_memcpy(out, start, group_words() * sizeof(Word));
      }
      if (!whole) clear_unseen(slot, out);
      block.groups[g] = out;
    }
  }

  // Sets the tokens of a group of values at `slot` that no row sees to zero: their weights are zero
  // too, but memory nobody wrote may hold anything.
  void clear_unseen(int slot, Word* group) const {
    for (int word = 0; word < kGroupWords; ++word, group += task_.head_dim) {
      uint32_t keep = 0;
      for (int part = 0; part < T::kPerWord; ++part) {
        const int position = slot + word * T::kPerWord + part;
        if (position < rows_.shared_begin() || position >= rows_.shared_end()) continue;
        keep |= (0xffffffffu >> (32 - 32 / T::kPerWord)) << (32 / T::kPerWord * part);
      }
      if (keep == 0xffffffffu) continue;
      uint32_t* bits = static_cast<uint32_t*>(static_cast<void*>(group));
      for (int i = 0; i < task_.head_dim; ++i) bits[i] &= keep;
    }
  }

  // The rest of a tree's rows in the chunk: groups put together from each row's own slots.
  void weigh_tails(int first, float* out) const {
    Block<Word> block;
    block.num_groups = 1;
    block.groups[0] = static_cast<const Word*>(task_.groups);
    block.ahead[0] = nullptr;
    for (int r = 0; r < task_.num_rows; ++r) {
      const RowSpan& span = rows_.span(r);
      const int begin = max_of(first, round_down(max_of(task_.base_len, span.begin), kGroupTokens));
      const int end = min_of(span.end, first + kAttentionChunk);
      for (int position = begin; position < end; position += kGroupTokens) {
        gather_values(r, position, static_cast<Word*>(task_.groups));
        for (int head = 0; head < task_.group_size; head += kTilePairs) {
          weigh_block(r * task_.group_size + head, min_of(kTilePairs, task_.group_size - head),
                      block, 0, 1, position - first, out, {});
        }
      }
    }
  }

  // The values of 16 positions of row r, zeros where it sees none.
  void gather_values(int r, int position, Word* out) const {
    static const Word kZeros[1024] = {};  // the largest head_dim
    const RowSpan& span = rows_.span(r);
    for (int word = 0; word < kGroupWords; ++word, out += task_.head_dim) {
      const Word* sources[T::kPerWord];
      int parts[T::kPerWord];
      for (int part = 0; part < T::kPerWord; ++part, ++position) {
        sources[part] = kZeros;
        parts[part] = 0;
        if (position < span.begin || position >= span.end) continue;
        const int slot =
            position < task_.base_len ? position : rows_.tail_slots(r)[position - task_.base_len];
        const int token = slot % kGroupTokens;
        sources[part] = tail_group(slot) + int64_t{token / T::kPerWord} * task_.head_dim;
        parts[part] = token % T::kPerWord;
      }
      T::join_values(sources, parts, task_.head_dim, out);
    }
  }

  // The group of values of a slot from the group of base_len on.
  const Word* tail_group(int slot) const {
    const char* start = groups_.group(task_.values, round_down(slot, kGroupTokens));
    if constexpr (kPacked) {
      const int64_t index = slot / kGroupTokens - task_.base_len / kGroupTokens;
      return static_cast<const Word*>(task_.tail_groups) + index * group_words();
    }
    return static_cast<const Word*>(static_cast<const void*>(start));
  }

  const AttentionTask& task_;
  AttentionRows rows_;
  AttentionSums sums_;
  GroupReader<Word, Stored> groups_;
};

template <class T, class Stored>
void attend(const AttentionTask& task, const AttentionTask* next) {
  Attention<T, Stored>(task, next).run();
}
template <class T>
void finish(const AttentionTask& task) {
  const AttentionSums sums(task);
  sums.clear_totals();
  for (int chunk = task.first_chunk; chunk < task.chunk_limit; ++chunk) {
    sums.merge(sums.chunk(chunk));
  }
  sums.write_out<typename T::Element>();
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

template <class T, class Stored>
AttentionKernels kernels_of() {
  return {attend<T, Stored>, finish<T>, copy_token<T, Stored>, group_bytes<Stored>};
}

}  // namespace

AttentionKernelSet attention_kernels();
AttentionKernelSet attention_kernels() {
  return {{kernels_of<Bf16Words, uint16_t>(), kernels_of<F32Words, float>(),
           kernels_of<Bf16Words, int8_t>(), kernels_of<F32Words, int8_t>()}};
}

}  // namespace specdec::cpu::SPECDEC_ISA
