// Counts of every pattern of up to max_depth tokens in a set of sequences, and of its
// continuations: a path-compressed trie of all suffixes, cut at max_depth. Sequences are appended
// token by token and evicted oldest first. (Suffix decoding, Oliaro et al. 2024.)
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

namespace specdec {

// Tokens that may follow, as a tree: parents before children; parent -1 for tokens that follow
// directly.
struct SuffixDraft {
  struct Node {
    int32_t token = 0;
    int parent = -1;
    double probability = 0;  // estimated, of the whole path
  };
  std::vector<Node> nodes;
  double score = 0;      // sum of the probabilities: the expected number of accepted tokens
  int match_length = 0;  // of the pattern that was continued
};

struct SuffixDraftLimits {
  int max_depth = 0;
  int max_nodes = 0;
  int tree_width = 1;  // 1: a chain of the most frequent tokens
  double max_spec_factor = 1.0;
  double min_token_prob = 0.1;
};

class SuffixTree {
 public:
  explicit SuffixTree(int max_depth);
  ~SuffixTree();
  SuffixTree(SuffixTree&&) noexcept;

  // Appends to the open sequence; opens one if there is none.
  void append(int32_t token);
  void close_sequence();
  // Forgets the oldest closed sequence; there must be one.
  void evict_oldest();

  int num_texts() const { return static_cast<int>(closed_lengths_.size()); }  // closed sequences
  int open_length() const { return open_length_; }

  // The best draft after the last tokens of `context`. Every length m at which those tokens are a
  // pattern of the tree gives a draft: at most floor(m * max_spec_factor) tokens deep; each token
  // multiplies the probability by count(longer pattern) / count(pattern), and tokens below
  // min_token_prob are left out. The draft with the highest score wins, between equal scores the
  // one of the longest match. Tokens of equal count are ordered by their last occurrence.
  SuffixDraft draft(std::span<const int32_t> context, const SuffixDraftLimits& limits) const;
  // The same after the open sequence, whose position in the tree is known.
  SuffixDraft draft_open(const SuffixDraftLimits& limits) const;

  // Occurrences of a pattern of 1 to max_depth tokens.
  int64_t count(std::span<const int32_t> pattern) const;

  int64_t used_bytes() const;    // in use
  int64_t memory_bytes() const;  // allocated, free nodes included
  // Throws InternalError if an invariant does not hold. Visits everything.
  void check_integrity() const;

 private:
  struct Node;
  // A pattern: the first `offset` tokens of a node's label below its parent.
  struct Locus {
    int node = -1;
    int offset = 0;
  };

  Node& node(int index);
  const Node& node(int index) const;
  int new_node();
  void free_node(int index);
  int32_t label(const Node& node, int offset) const;

  size_t find_bucket(int parent, int32_t token) const;
  int find_child(int parent, int32_t token) const { return buckets_[find_bucket(parent, token)]; }
  void insert_into_table(int child);
  void erase_from_table(int child);

  int advance(int at, int32_t token, int64_t start);
  int add_leaf(int parent, int32_t token, int64_t start);
  int split_first(int child, int64_t start);
  void shift_first(int child);
  void merge_into_child(int index);
  void increment(int child, int64_t start);
  void decrement(int child);
  void remove_suffix(int64_t start, int length);

  Locus find(std::span<const int32_t> pattern) const;
  void best_children(const Node& parent, double probability, const SuffixDraftLimits& limits,
                     std::vector<int>& best) const;
  SuffixDraft draft_from(Locus from, int budget, const SuffixDraftLimits& limits) const;
  void keep_better(SuffixDraft& best, Locus from, int match_length,
                   const SuffixDraftLimits& limits) const;

  static constexpr int kChunk = 256;  // nodes
  static constexpr int kRoot = 0;

  int max_depth_;
  std::vector<std::unique_ptr<Node[]>> chunks_;
  std::vector<int> free_;
  int num_nodes_ = 0;             // in use
  int64_t children_bytes_ = 0;    // of all child lists
  std::vector<int32_t> buckets_;  // hash table of children by parent and first token; -1: free
  std::deque<int32_t> stream_;    // all sequences one after the other, the open one last
  int64_t stream_begin_ = 0;      // position of stream_[0] among all tokens ever appended
  std::deque<int> closed_lengths_;
  int open_length_ = 0;
  // [d]: the node that ends with the last d tokens of the open sequence. It always exists: a
  // pattern at the end of a sequence is counted once more than its continuations, so it has a node
  // of its own.
  std::vector<int> active_;
};

}  // namespace specdec
