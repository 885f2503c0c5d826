#include "speculation/ngram_index.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace specdec {
namespace {

// The hash of tokens[end - length, end) extends the hash of one token less, so the hashes of all
// lengths cost one step each.
uint64_t extend_hash(uint64_t hash, int32_t token) {
  hash = (hash ^ static_cast<uint32_t>(token)) * 0x9e3779b97f4a7c15u;
  return hash ^ (hash >> 29);
}

uint64_t hash_of(std::span<const int32_t> tokens, int end, int length) {
  uint64_t hash = 0;
  for (int i = 1; i <= length; ++i) hash = extend_hash(hash, tokens[end - i]);
  return hash;
}

bool same_ngram(std::span<const int32_t> tokens, int end, int other_end, int length) {
  const auto first = tokens.begin();
  return std::equal(first + (end - length), first + end, first + (other_end - length));
}

// The bucket that holds the n-gram ending at `end`, or the free bucket for it.
size_t find_bucket(const std::vector<int32_t>& buckets, std::span<const int32_t> tokens, int end,
                   int length, uint64_t hash) {
  size_t bucket = hash & (buckets.size() - 1);
  while (buckets[bucket] != 0 && !same_ngram(tokens, end, buckets[bucket], length)) {
    bucket = (bucket + 1) & (buckets.size() - 1);
  }
  return bucket;
}

}  // namespace

NgramIndex::NgramIndex(int min_length, int max_length)
    : min_length_(min_length),
      max_length_(max_length),
      tables_(max_length - min_length + 1),
      hashes_(max_length + 1) {
  SPECDEC_CHECK_GE(min_length, 1);
  SPECDEC_CHECK_GE(max_length, min_length);
  for (Table& table : tables_) table.buckets.assign(64, 0);
}

void NgramIndex::grow(Table& table, int length, std::span<const int32_t> tokens) {
  std::vector<int32_t> old(table.buckets.size() * 2, 0);
  old.swap(table.buckets);
  for (const int32_t end : old) {
    if (end == 0) continue;
    table.buckets[find_bucket(table.buckets, tokens, end, length, hash_of(tokens, end, length))] =
        end;
  }
}

void NgramIndex::insert(std::span<const int32_t> tokens, int end) {
  uint64_t hash = 0;
  for (int length = 1; length <= std::min(max_length_, end); ++length) {
    hash = extend_hash(hash, tokens[end - length]);
    if (length < min_length_) continue;
    Table& into = table(length);
    if (static_cast<size_t>(into.num_used) * 2 >= into.buckets.size()) grow(into, length, tokens);
    int32_t& latest = into.buckets[find_bucket(into.buckets, tokens, end, length, hash)];
    into.num_used += latest == 0;
    into.previous.push_back(std::exchange(latest, end));
  }
}

std::optional<NgramIndex::Match> NgramIndex::find_longest(std::span<const int32_t> tokens) {
  const int size = static_cast<int>(tokens.size());
  // N-grams that end with the last token are being looked up now; the next call indexes them.
  for (; num_indexed_ + 1 < size; ++num_indexed_) insert(tokens, num_indexed_ + 1);
  SPECDEC_CHECK_LE(num_indexed_, size);
  const int longest = std::min(max_length_, size - 1);
  for (int i = 1; i <= longest; ++i) hashes_[i] = extend_hash(hashes_[i - 1], tokens[size - i]);
  for (int length = longest; length >= min_length_; --length) {
    const std::vector<int32_t>& buckets = table(length).buckets;
    const int32_t end = buckets[find_bucket(buckets, tokens, size, length, hashes_[length])];
    if (end != 0) return Match{.length = length, .end = end};
  }
  return std::nullopt;
}

std::optional<NgramIndex::Match> NgramIndex::previous(Match match) const {
  const Table& from = tables_[match.length - min_length_];
  const int32_t end = from.previous[match.end - match.length];
  if (end == 0) return std::nullopt;
  return Match{.length = match.length, .end = end};
}

int64_t NgramIndex::memory_bytes() const {
  size_t num_entries = 0;
  for (const Table& table : tables_)
    num_entries += table.buckets.capacity() + table.previous.capacity();
  return static_cast<int64_t>(num_entries * sizeof(int32_t) + tables_.capacity() * sizeof(Table) +
                              hashes_.capacity() * sizeof(uint64_t));
}

}  // namespace specdec
