#include "speculation/suffix_tree.h"

#include <algorithm>
#include <cmath>
#include <queue>
#include <utility>

#include "core/check.h"

namespace specdec {

// A node stands for the patterns that end within its label: these occur at the same positions and
// have one continuation. The label is read from the text at its last occurrence, which is the last
// to be evicted.
struct SuffixTree::Node {
  int64_t occurrence = 0;  // position in the stream where the last occurrence begins
  int32_t begin = 0;       // tokens before the label
  int32_t length = 0;      // tokens of the label
  int32_t count = 0;
  int32_t parent = -1;
  int32_t child_index = 0;    // index in the parent's children
  int32_t first_token = 0;    // of the label
  std::vector<int> children;  // by count, highest first
};

inline SuffixTree::Node& SuffixTree::node(int index) {
  return chunks_[index / kChunk][index % kChunk];
}

inline const SuffixTree::Node& SuffixTree::node(int index) const {
  return chunks_[index / kChunk][index % kChunk];
}

namespace {

// Heap bytes of an allocation of `bytes`, its header included.
int64_t heap_bytes(size_t bytes) {
  return bytes == 0 ? 0 : static_cast<int64_t>(std::max<size_t>((bytes + 8 + 15) / 16 * 16, 32));
}

uint64_t hash_of(int parent, int32_t token) {
  uint64_t hash =
      (static_cast<uint64_t>(static_cast<uint32_t>(parent)) << 32) | static_cast<uint32_t>(token);
  hash = (hash ^ (hash >> 32)) * 0x9e3779b97f4a7c15u;
  hash = (hash ^ (hash >> 29)) * 0xbf58476d1ce4e5b9u;
  return hash ^ (hash >> 32);
}

}  // namespace

SuffixTree::SuffixTree(int max_depth)
    : max_depth_(max_depth), buckets_(kChunk, -1), active_(1, kRoot) {
  SPECDEC_CHECK_GE(max_depth, 1);
  new_node();
}

SuffixTree::~SuffixTree() = default;
SuffixTree::SuffixTree(SuffixTree&&) noexcept = default;

int SuffixTree::new_node() {
  if (free_.empty()) {
    const int first = static_cast<int>(chunks_.size()) * kChunk;
    chunks_.push_back(std::make_unique<Node[]>(kChunk));
    for (int i = kChunk - 1; i >= 0; --i) free_.push_back(first + i);
  }
  const int index = free_.back();
  free_.pop_back();
  ++num_nodes_;
  return index;
}

void SuffixTree::free_node(int index) {
  children_bytes_ -= heap_bytes(node(index).children.capacity() * sizeof(int));
  node(index) = Node();
  free_.push_back(index);
  --num_nodes_;
}

int32_t SuffixTree::label(const Node& of, int offset) const {
  return stream_[of.occurrence + of.begin + offset - stream_begin_];
}

// --- children by token ---

// The bucket of the child, or the free bucket for it.
size_t SuffixTree::find_bucket(int parent, int32_t token) const {
  const size_t mask = buckets_.size() - 1;
  size_t bucket = hash_of(parent, token) & mask;
  for (; buckets_[bucket] >= 0; bucket = (bucket + 1) & mask) {
    const Node& child = node(buckets_[bucket]);
    if (child.parent == parent && child.first_token == token) break;
  }
  return bucket;
}

void SuffixTree::insert_into_table(int child) {
  if (static_cast<size_t>(num_nodes_) * 2 >= buckets_.size()) {
    std::vector<int32_t> old(buckets_.size() * 2, -1);
    old.swap(buckets_);
    for (const int32_t other : old) {
      if (other < 0) continue;
      buckets_[find_bucket(node(other).parent, node(other).first_token)] = other;
    }
  }
  buckets_[find_bucket(node(child).parent, node(child).first_token)] = child;
}

void SuffixTree::erase_from_table(int child) {
  const size_t mask = buckets_.size() - 1;
  size_t hole = find_bucket(node(child).parent, node(child).first_token);
  SPECDEC_CHECK_EQ(buckets_[hole], child);
  // Entries that a collision had pushed past the hole move back into the hole.
  for (size_t bucket = (hole + 1) & mask; buckets_[bucket] >= 0; bucket = (bucket + 1) & mask) {
    const Node& moved = node(buckets_[bucket]);
    const size_t home = hash_of(moved.parent, moved.first_token) & mask;
    if (((bucket - home) & mask) < ((bucket - hole) & mask)) continue;
    buckets_[hole] = buckets_[bucket];
    hole = bucket;
  }
  buckets_[hole] = -1;
}

// --- counts ---

// Keeps children in order of their counts: the child swaps with the first child of equal count.
void SuffixTree::increment(int child, int64_t start) {
  Node& grown = node(child);
  std::vector<int>& children = node(grown.parent).children;
  const auto first = std::partition_point(
      children.begin(), children.end(), [&](int other) { return node(other).count > grown.count; });
  std::swap(node(*first).child_index, grown.child_index);
  std::swap(*first, children[node(*first).child_index]);
  ++grown.count;
  grown.occurrence = start;
}

void SuffixTree::decrement(int child) {
  Node& shrunk = node(child);
  std::vector<int>& children = node(shrunk.parent).children;
  const auto last =
      std::partition_point(children.begin(), children.end(),
                           [&](int other) { return node(other).count >= shrunk.count; }) -
      1;
  std::swap(node(*last).child_index, shrunk.child_index);
  std::swap(*last, children[node(*last).child_index]);
  --shrunk.count;
}

// --- appending ---

int SuffixTree::add_leaf(int parent, int32_t token, int64_t start) {
  const int leaf = new_node();
  Node& above = node(parent);
  Node& added = node(leaf);
  added.occurrence = start;
  added.begin = above.begin + above.length;
  added.length = 1;
  added.count = 1;
  added.parent = parent;
  added.child_index = static_cast<int32_t>(above.children.size());
  added.first_token = token;
  children_bytes_ -= heap_bytes(above.children.capacity() * sizeof(int));
  above.children.push_back(leaf);
  children_bytes_ += heap_bytes(above.children.capacity() * sizeof(int));
  insert_into_table(leaf);
  return leaf;
}

// Splits off a node with the first token of `child`, which occurred once more, above the rest of
// the label.
int SuffixTree::split_first(int child, int64_t start) {
  const int split = new_node();
  Node& rest = node(child);
  Node& first = node(split);
  first.occurrence = rest.occurrence;
  first.begin = rest.begin;
  first.length = 1;
  first.count = rest.count;
  first.parent = rest.parent;
  first.child_index = rest.child_index;
  first.first_token = rest.first_token;
  first.children.push_back(child);
  children_bytes_ += heap_bytes(first.children.capacity() * sizeof(int));
  node(first.parent).children[first.child_index] = split;
  buckets_[find_bucket(first.parent, first.first_token)] = split;
  ++rest.begin;
  --rest.length;
  rest.parent = split;
  rest.child_index = 0;
  rest.first_token = label(rest, 0);
  insert_into_table(child);
  increment(split, start);
  return split;
}

// Moves the first token of `child`, its parent's only child, to the end of the parent's label.
void SuffixTree::shift_first(int child) {
  Node& rest = node(child);
  erase_from_table(child);
  ++node(rest.parent).length;
  ++rest.begin;
  --rest.length;
  rest.first_token = label(rest, 0);
  insert_into_table(child);
}

// Merges `index` and its only child; the child's number stays.
void SuffixTree::merge_into_child(int index) {
  Node& upper = node(index);
  SPECDEC_CHECK_EQ(upper.children.size(), size_t{1});
  const int child = upper.children[0];
  Node& lower = node(child);
  SPECDEC_CHECK_EQ(upper.count, lower.count);
  erase_from_table(child);
  const size_t bucket = find_bucket(upper.parent, upper.first_token);
  lower.parent = upper.parent;
  lower.child_index = upper.child_index;
  lower.first_token = upper.first_token;
  lower.begin = upper.begin;
  lower.length += upper.length;
  buckets_[bucket] = child;
  node(lower.parent).children[lower.child_index] = child;
  free_node(index);
}

// Extends by `token` an occurrence that began at `start` and ended with node `at`. Returns the node
// with which the occurrence ends now.
int SuffixTree::advance(int at, int32_t token, int64_t start) {
  const int child = find_child(at, token);
  Node& before = node(at);
  if (child < 0) {
    // This is the only occurrence, so its leaf grows.
    if (at != kRoot && before.count == 1) {
      ++before.length;
      return at;
    }
    return add_leaf(at, token, start);
  }
  const Node& next = node(child);
  // True when the same token follows every other occurrence: `at` then needs no node.
  const bool in_one_way = at != kRoot && before.count == next.count + 1;
  if (next.length == 1) {
    increment(child, start);
    if (in_one_way) merge_into_child(at);
    return child;
  }
  if (!in_one_way) return split_first(child, start);
  shift_first(child);
  return at;
}

void SuffixTree::append(int32_t token) {
  const int64_t position = stream_begin_ + static_cast<int64_t>(stream_.size());
  stream_.push_back(token);
  ++open_length_;
  // The longest occurrence goes first, because it may make nodes that shorter ones reach.
  if (static_cast<int>(active_.size()) <= max_depth_) active_.push_back(-1);
  for (int depth = static_cast<int>(active_.size()) - 1; depth >= 1; --depth) {
    active_[depth] = advance(active_[depth - 1], token, position - depth + 1);
  }
}

void SuffixTree::close_sequence() {
  if (open_length_ == 0) return;
  closed_lengths_.push_back(open_length_);
  open_length_ = 0;
  active_.assign(1, kRoot);
}

// --- eviction ---

void SuffixTree::remove_suffix(int64_t start, int length) {
  std::vector<int> path;
  int at = kRoot;
  for (int depth = 0; depth < length; depth += node(at).length) {
    at = find_child(at, stream_[start + depth - stream_begin_]);
    SPECDEC_CHECK_GE(at, 0);
    decrement(at);
    path.push_back(at);
  }
  SPECDEC_CHECK_EQ(node(at).begin + node(at).length, length);
  for (; !path.empty(); path.pop_back()) {
    const int index = path.back();
    const Node& left = node(index);
    if (left.count == 0) {
      SPECDEC_CHECK(left.children.empty());
      std::vector<int>& siblings = node(left.parent).children;
      SPECDEC_CHECK_EQ(siblings.back(), index);
      siblings.pop_back();
      erase_from_table(index);
      free_node(index);
    } else if (left.children.size() == 1 && node(left.children[0]).count == left.count) {
      merge_into_child(index);
    }
  }
}

void SuffixTree::evict_oldest() {
  SPECDEC_CHECK(!closed_lengths_.empty());
  const int length = closed_lengths_.front();
  closed_lengths_.pop_front();
  for (int i = 0; i < length; ++i) {
    remove_suffix(stream_begin_ + i, std::min(max_depth_, length - i));
  }
  stream_.erase(stream_.begin(), stream_.begin() + length);
  stream_begin_ += length;
}

// --- drafting ---

SuffixTree::Locus SuffixTree::find(std::span<const int32_t> pattern) const {
  Locus at{.node = kRoot, .offset = 0};
  for (const int32_t token : pattern) {
    if (at.offset < node(at.node).length) {
      if (label(node(at.node), at.offset) != token) return {};
      ++at.offset;
      continue;
    }
    at = {.node = find_child(at.node, token), .offset = 1};
    if (at.node < 0) return {};
  }
  return at;
}

int64_t SuffixTree::count(std::span<const int32_t> pattern) const {
  const Locus at = find(pattern);
  return at.node < 0 ? 0 : node(at.node).count;
}

// The most frequent children whose paths reach the least probability, best first.
void SuffixTree::best_children(const Node& parent, double probability,
                               const SuffixDraftLimits& limits, std::vector<int>& best) const {
  best.clear();
  const std::vector<int>& children = parent.children;
  const auto later = [&](int a, int b) { return node(a).occurrence > node(b).occurrence; };
  for (auto first = children.begin(); first != children.end();) {
    const int count = node(*first).count;
    const size_t wanted = limits.tree_width - best.size();
    if (wanted == 0 || probability * count / parent.count < limits.min_token_prob) return;
    auto last = first;
    while (last != children.end() && node(*last).count == count) ++last;
    best.insert(best.end(), first, last);
    const auto group = best.end() - (last - first);
    const size_t taken = std::min(wanted, static_cast<size_t>(last - first));
    std::partial_sort(group, group + taken, best.end(), later);
    best.erase(group + taken, best.end());
    first = last;
  }
}

SuffixDraft SuffixTree::draft_from(Locus from, int budget, const SuffixDraftLimits& limits) const {
  struct Candidate {
    double probability = 0;
    int order = 0;  // order of discovery, for ties
    Locus locus;
    int parent = -1;
    int depth = 0;
    bool operator<(const Candidate& other) const {
      return probability != other.probability ? probability < other.probability
                                              : order > other.order;
    }
  };
  SuffixDraft draft;
  std::priority_queue<Candidate> candidates;
  std::vector<int> children;
  int order = 0;
  Candidate at{.probability = 1.0, .order = 0, .locus = from, .parent = -1, .depth = 0};
  while (static_cast<int>(draft.nodes.size()) < limits.max_nodes) {
    const Node& reached = node(at.locus.node);
    const int parent = static_cast<int>(draft.nodes.size()) - 1;
    if (at.depth < budget && at.locus.offset < reached.length) {
      const Locus next{.node = at.locus.node, .offset = at.locus.offset + 1};
      candidates.push({at.probability, order++, next, parent, at.depth + 1});
    } else if (at.depth < budget) {
      best_children(reached, at.probability, limits, children);
      for (const int child : children) {
        const double probability = at.probability * node(child).count / reached.count;
        candidates.push({probability, order++, {child, 1}, parent, at.depth + 1});
      }
    }
    if (candidates.empty()) break;
    at = candidates.top();
    candidates.pop();
    const int32_t token = label(node(at.locus.node), at.locus.offset - 1);
    draft.nodes.push_back({.token = token, .parent = at.parent, .probability = at.probability});
    draft.score += at.probability;
  }
  return draft;
}

void SuffixTree::keep_better(SuffixDraft& best, Locus from, int match_length,
                             const SuffixDraftLimits& limits) const {
  const double allowed = std::floor(match_length * limits.max_spec_factor + 1e-6);
  const int budget = static_cast<int>(std::min<double>(limits.max_depth, allowed));
  SuffixDraft draft = draft_from(from, budget, limits);
  if (draft.nodes.empty() || draft.score < best.score) return;
  best = std::move(draft);
  best.match_length = match_length;
}

SuffixDraft SuffixTree::draft(std::span<const int32_t> context,
                              const SuffixDraftLimits& limits) const {
  SuffixDraft best;
  const int longest = std::min(static_cast<int>(context.size()), max_depth_);
  for (int length = 1; length <= longest; ++length) {
    const Locus at = find(context.last(length));
    if (at.node < 0) break;  // nothing longer occurs either
    keep_better(best, at, length, limits);
  }
  return best;
}

SuffixDraft SuffixTree::draft_open(const SuffixDraftLimits& limits) const {
  SuffixDraft best;
  for (int length = 1; length < static_cast<int>(active_.size()); ++length) {
    const Node& at = node(active_[length]);
    if (at.count == 1) break;  // its first occurrence: no token has followed it yet
    keep_better(best, {.node = active_[length], .offset = at.length}, length, limits);
  }
  return best;
}

// --- memory and invariants ---

int64_t SuffixTree::used_bytes() const {
  return num_nodes_ * static_cast<int64_t>(sizeof(Node)) + children_bytes_ +
         static_cast<int64_t>((buckets_.size() + stream_.size()) * sizeof(int32_t) +
                              closed_lengths_.size() * sizeof(int));
}

int64_t SuffixTree::memory_bytes() const {
  const int64_t num_free = static_cast<int64_t>(chunks_.size()) * kChunk - num_nodes_;
  return used_bytes() + num_free * static_cast<int64_t>(sizeof(Node)) +
         static_cast<int64_t>(free_.capacity() * sizeof(int));
}

void SuffixTree::check_integrity() const {
  std::vector<int> pending = {kRoot};
  int num_seen = 0;
  int64_t children_bytes = 0;
  while (!pending.empty()) {
    const int index = pending.back();
    const Node& at = node(index);
    pending.pop_back();
    ++num_seen;
    children_bytes += heap_bytes(at.children.capacity() * sizeof(int));
    int64_t continued = 0;
    for (size_t i = 0; i < at.children.size(); ++i) {
      const Node& child = node(at.children[i]);
      SPECDEC_CHECK_EQ(child.parent, index);
      SPECDEC_CHECK_EQ(child.child_index, static_cast<int32_t>(i));
      SPECDEC_CHECK_EQ(child.begin, at.begin + at.length);
      SPECDEC_CHECK_GE(child.length, 1);
      SPECDEC_CHECK_LE(child.begin + child.length, max_depth_);
      SPECDEC_CHECK_GE(child.count, 1);
      SPECDEC_CHECK_GE(child.occurrence, stream_begin_);
      SPECDEC_CHECK_EQ(child.first_token, label(child, 0));
      SPECDEC_CHECK_EQ(find_child(index, child.first_token), at.children[i]);
      if (i > 0) SPECDEC_CHECK_LE(child.count, node(at.children[i - 1]).count);
      continued += child.count;
      pending.push_back(at.children[i]);
    }
    if (index == kRoot) continue;
    SPECDEC_CHECK_LE(continued, at.count);
    SPECDEC_CHECK(at.children.size() != 1 || continued < at.count);  // otherwise it would be merged
  }
  SPECDEC_CHECK_EQ(num_seen, num_nodes_);
  SPECDEC_CHECK_EQ(children_bytes, children_bytes_);
  SPECDEC_CHECK_EQ(std::count_if(buckets_.begin(), buckets_.end(), [](int i) { return i >= 0; }),
                   num_nodes_ - 1);
}

}  // namespace specdec
