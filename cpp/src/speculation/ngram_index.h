// Finds where each n-gram of a growing sequence occurred. Appending a token and looking up the
// longest n-gram at the end take the same time whatever the length of the sequence.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace specdec {

class NgramIndex {
 public:
  NgramIndex(int min_length, int max_length);

  struct Match {
    int length = 0;
    int end = 0;  // index of the token after the occurrence
  };

  // The longest n-gram at the end of `tokens` that occurred before, at its latest earlier position.
  // An occurrence may overlap the end. `tokens` must begin with the tokens of the last call; the
  // index keeps no copy.
  std::optional<Match> find_longest(std::span<const int32_t> tokens);

  // The occurrence of the same n-gram before `match`; empty if there is none.
  std::optional<Match> previous(Match match) const;

  int64_t memory_bytes() const;

 private:
  // Occurrences of n-grams of one length, each identified by its end. A hash table leads to the
  // latest occurrence of an n-gram, which links back to the earlier ones.
  struct Table {
    std::vector<int32_t> buckets;   // ends; 0: free; the size is a power of two
    std::vector<int32_t> previous;  // [end - length] the occurrence before; 0: none
    int num_used = 0;
  };

  void insert(std::span<const int32_t> tokens, int end);
  void grow(Table& table, int length, std::span<const int32_t> tokens);
  Table& table(int length) { return tables_[length - min_length_]; }

  int min_length_;
  int max_length_;
  int num_indexed_ = 0;  // every n-gram that ends here or before is indexed
  std::vector<Table> tables_;
  std::vector<uint64_t> hashes_;  // scratch, [length]
};

}  // namespace specdec
