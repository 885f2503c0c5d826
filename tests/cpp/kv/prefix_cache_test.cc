#include "kv/prefix_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "specdec/error.h"

namespace specdec {
namespace {

using Tokens = std::vector<int32_t>;

constexpr int kBlockSize = 2;

std::vector<BlockId> ids_of(const std::vector<BlockRef>& blocks) {
  std::vector<BlockId> ids;
  for (const BlockRef& block : blocks) ids.push_back(block.id());
  return ids;
}

class PrefixCacheTest : public ::testing::Test {
 protected:
  // A sequence that has computed `tokens`, and cached them.
  BlockTable computed(const Tokens& tokens) {
    BlockTable table(kBlockSize);
    EXPECT_TRUE(table.reserve(pool_, static_cast<int>(tokens.size())));
    cache_.insert(tokens, table);
    return table;
  }
  std::vector<BlockId> match(const Tokens& tokens, int max_tokens = 1000) {
    BlockTable table(kBlockSize);  // gives back tail first, as sequences do
    table.adopt(cache_.match(tokens, max_tokens).blocks);
    return head(table, table.num_blocks());
  }
  std::vector<BlockId> head(const BlockTable& table, int num_blocks) {
    return {table.ids().begin(), table.ids().begin() + num_blocks};
  }
  void TearDown() override {
    pool_.check_integrity();
    cache_.check_integrity();
  }

  BlockPool pool_{8};
  PrefixCache cache_{pool_, kBlockSize};
};

TEST_F(PrefixCacheTest, FindsTheLongestRunOfFullBlocks) {
  const BlockTable table = computed({1, 2, 3, 4, 5});
  EXPECT_EQ(cache_.num_cached_blocks(), 2);  // 5 fills no block
  EXPECT_EQ(match({1, 2, 3, 4, 5, 6}), head(table, 2));
  EXPECT_EQ(match({1, 2, 3, 9, 5, 6}), head(table, 1));
  EXPECT_EQ(match({1, 2, 3}), head(table, 1));
  EXPECT_TRUE(match({9, 2, 3, 4}).empty());
  EXPECT_TRUE(match({3, 4}).empty());  // same block content behind another prefix
  EXPECT_TRUE(match({}).empty());
}

TEST_F(PrefixCacheTest, MatchCoversAtMostMaxTokens) {
  const BlockTable table = computed({1, 2, 3, 4});
  EXPECT_EQ(match({1, 2, 3, 4}, 4), head(table, 2));
  EXPECT_EQ(match({1, 2, 3, 4}, 3), head(table, 1));
  EXPECT_TRUE(match({1, 2, 3, 4}, 1).empty());
  EXPECT_TRUE(match({1, 2, 3, 4}, 0).empty());
}

TEST_F(PrefixCacheTest, MatchHoldsItsBlocks) {
  BlockTable table = computed({1, 2, 3, 4});
  const std::vector<BlockRef> blocks = cache_.match(Tokens{1, 2, 3, 4}, 4).blocks;
  table.clear();
  EXPECT_EQ(pool_.num_free(), 6);
  EXPECT_EQ(pool_.ref_count(blocks[0].id()), 1);
}

TEST_F(PrefixCacheTest, CachedBlocksStayFindableAfterTheSequenceEnds) {
  BlockTable table = computed({1, 2, 3, 4});
  const std::vector<BlockId> ids = head(table, 2);
  table.clear();
  EXPECT_EQ(pool_.num_free(), 8);
  EXPECT_EQ(pool_.num_evictable(), 2);
  EXPECT_EQ(match({1, 2, 3, 4}), ids);
}

TEST_F(PrefixCacheTest, FirstInsertWinsAndTheSecondBlockStaysPrivate) {
  BlockTable first = computed({1, 2, 3, 4});
  BlockTable second = computed({1, 2, 3, 4, 5, 6});  // computed in parallel
  EXPECT_EQ(cache_.num_cached_blocks(), 3);
  EXPECT_FALSE(pool_.is_cached(second.ids()[0]));
  EXPECT_FALSE(pool_.is_cached(second.ids()[1]));
  EXPECT_TRUE(pool_.is_cached(second.ids()[2]));
  std::vector<BlockId> expected = head(first, 2);
  expected.push_back(second.ids()[2]);
  EXPECT_EQ(match({1, 2, 3, 4, 5, 6}), expected);
  second.clear();
  EXPECT_EQ(pool_.num_evictable(), 1);
}

TEST_F(PrefixCacheTest, EvictsChildrenBeforeParents) {
  BlockTable table = computed({1, 2, 3, 4, 5, 6});
  const std::vector<BlockId> ids = head(table, 3);
  table.clear();
  BlockTable other(kBlockSize);
  ASSERT_TRUE(other.reserve(pool_, 12));  // 6 of 8: one block more than is free
  EXPECT_EQ(match({1, 2, 3, 4, 5, 6}), (std::vector<BlockId>{ids[0], ids[1]}));
  ASSERT_TRUE(other.reserve(pool_, 14));
  EXPECT_EQ(match({1, 2, 3, 4, 5, 6}), (std::vector<BlockId>{ids[0]}));
  ASSERT_TRUE(other.reserve(pool_, 16));
  EXPECT_TRUE(match({1, 2, 3, 4, 5, 6}).empty());
  EXPECT_EQ(cache_.num_cached_blocks(), 0);
}

TEST_F(PrefixCacheTest, EvictsThePrefixUnusedForLongest) {
  BlockTable first = computed({1, 1});
  BlockTable second = computed({2, 2});
  first.clear();
  second.clear();
  match({1, 1});  // a hit makes it recent again
  BlockTable other(kBlockSize);
  ASSERT_TRUE(other.reserve(pool_, 14));
  EXPECT_TRUE(match({2, 2}).empty());
  EXPECT_EQ(match({1, 1}).size(), 1u);
}

// A child can be in use while its parent is not: its owner holds a private copy of the parent.
TEST_F(PrefixCacheTest, EvictingAParentDetachesWhatHangsBelow) {
  BlockTable first = computed({1, 2});
  BlockTable second = computed({1, 2, 3, 4});
  BlockTable third(kBlockSize);
  third.adopt(cache_.match(Tokens{1, 2, 3, 4}, 4).blocks);
  ASSERT_TRUE(third.reserve(pool_, 6));
  cache_.insert(Tokens{1, 2, 3, 4, 5, 6}, third);
  const BlockId used_child = second.ids()[1];
  const BlockId unused_grandchild = third.ids()[2];
  third.clear();
  first.clear();
  ASSERT_EQ(cache_.num_cached_blocks(), 3);
  // The grandchild went first, so touch it: now the parent is the next victim.
  pool_.share(unused_grandchild);

  BlockTable other(kBlockSize);
  ASSERT_TRUE(other.reserve(pool_, 10));
  EXPECT_EQ(cache_.num_cached_blocks(), 0);
  EXPECT_FALSE(pool_.is_cached(used_child));
  EXPECT_EQ(pool_.ref_count(used_child), 1);
  EXPECT_FALSE(pool_.is_cached(unused_grandchild));
  EXPECT_EQ(pool_.num_evictable(), 0);
  EXPECT_EQ(pool_.num_free(), 1);  // the grandchild's

  // A detached block can be cached again.
  cache_.insert(Tokens{1, 2, 3, 4}, second);
  EXPECT_EQ(match({1, 2, 3, 4}), head(second, 2));
}

TEST_F(PrefixCacheTest, InsertingAgainAddsOnlyWhatIsNew) {
  BlockTable table = computed({1, 2, 3, 4});
  ASSERT_TRUE(table.reserve(pool_, 8));
  cache_.insert(Tokens{1, 2, 3, 4, 5, 6, 7}, table);
  EXPECT_EQ(cache_.num_cached_blocks(), 3);
  EXPECT_EQ(match({1, 2, 3, 4, 5, 6}), head(table, 3));
}

TEST_F(PrefixCacheTest, ResetDropsBlocksAndLeavesThoseInUseToTheirOwners) {
  BlockTable first = computed({1, 2, 3, 4});
  BlockTable second(kBlockSize);
  second.adopt(cache_.match(Tokens{1, 2}, 2).blocks);
  first.clear();
  EXPECT_EQ(cache_.reset(), 2);
  EXPECT_EQ(cache_.num_cached_blocks(), 0);
  EXPECT_TRUE(match({1, 2, 3, 4}).empty());
  EXPECT_EQ(pool_.ref_count(second.ids()[0]), 1);
  EXPECT_EQ(pool_.num_evictable(), 0);
  second.clear();
  EXPECT_EQ(pool_.num_free(), 8);
  EXPECT_EQ(cache_.reset(), 0);
}

TEST_F(PrefixCacheTest, WhatRanAtAResetIsCachedNoMore) {
  BlockTable cached = computed({1, 2, 3, 4}), twin(kBlockSize);
  ASSERT_TRUE(twin.reserve(pool_, 4));  // not inserted yet
  cache_.reset();
  ASSERT_TRUE(cached.reserve(pool_, 6));  // the third block is computed after the reset
  cache_.insert(Tokens{1, 2, 3, 4, 5, 6}, cached);
  cache_.insert(Tokens{1, 2, 3, 4}, twin);
  EXPECT_EQ(cache_.num_cached_blocks(), 0);

  const std::vector<BlockId> freed = head(twin, 2);
  twin.clear();
  const BlockTable later = computed({1, 2, 3, 4});  // in blocks that were in use at the reset
  EXPECT_EQ((std::set<BlockId>{later.ids()[0], later.ids()[1]}),
            (std::set<BlockId>{freed[0], freed[1]}));
  EXPECT_EQ(match({1, 2, 3, 4}), head(later, 2));
  cache_.insert(Tokens{1, 2, 3, 4, 5, 6}, cached);  // nor behind what others have cached
  EXPECT_EQ(cache_.num_cached_blocks(), 2);
}

TEST_F(PrefixCacheTest, SaltsShareNoBlock) {
  const Tokens tokens{1, 2, 3, 4};
  BlockTable plain = computed(tokens);
  BlockTable a(kBlockSize), b(kBlockSize);
  ASSERT_TRUE(a.reserve(pool_, 4) && b.reserve(pool_, 2));
  EXPECT_TRUE(cache_.match(tokens, 4, "a").blocks.empty());
  cache_.insert(tokens, a, "a");
  cache_.insert(Tokens{1, 2}, b, "b");
  EXPECT_EQ(cache_.num_cached_blocks(), 5);
  EXPECT_EQ(ids_of(cache_.match(tokens, 4).blocks), head(plain, 2));
  EXPECT_EQ(ids_of(cache_.match(tokens, 4, "a").blocks), head(a, 2));
  EXPECT_EQ(ids_of(cache_.match(tokens, 4, "b").blocks), head(b, 1));
  EXPECT_TRUE(cache_.match(tokens, 4, "ab").blocks.empty());

  // A salt is evicted as any other prefix is, and may come back.
  plain.clear();
  a.clear();
  b.clear();
  BlockTable other(kBlockSize);
  ASSERT_TRUE(other.reserve(pool_, 14));
  EXPECT_TRUE(cache_.match(tokens, 4, "a").blocks.empty());
  EXPECT_EQ(ids_of(cache_.match(tokens, 4, "b").blocks).size(), 1u);  // was given back last
  other.clear();
  ASSERT_TRUE(other.reserve(pool_, 4));
  cache_.insert(tokens, other, "a");
  EXPECT_EQ(ids_of(cache_.match(tokens, 4, "a").blocks), head(other, 2));
}

TEST_F(PrefixCacheTest, RefusesMoreTokensThanBlocks) {
  BlockTable table(kBlockSize);
  ASSERT_TRUE(table.reserve(pool_, 2));
  EXPECT_THROW(cache_.insert(Tokens{1, 2, 3, 4}, table), InternalError);
  BlockTable other(kBlockSize + 1);
  EXPECT_THROW(cache_.insert(Tokens{1, 2, 3}, other), InternalError);
}

TEST(PrefixCacheExactnessTest, EqualHashesAreNotAHit) {
  // Two pairs of tokens that leave the upper half of the hash's state equal; a third token then
  // makes up for the difference in the lower half.
  const auto state_after = [](int32_t first, int32_t second) {
    constexpr uint64_t kMultiplier = 0x9E3779B97F4A7C15u;
    const auto fold = [](uint64_t bits) { return bits ^ (bits >> 32); };
    const uint64_t bits = (fold(kMultiplier) ^ static_cast<uint64_t>(first)) * kMultiplier;
    return fold((fold(bits) ^ static_cast<uint64_t>(second)) * kMultiplier);
  };
  std::mt19937 random(3);
  std::map<uint64_t, std::pair<int32_t, int32_t>> by_upper_half;
  Tokens cached, other;
  for (int i = 0; i < 10000000 && cached.empty(); ++i) {
    const std::pair tokens{static_cast<int32_t>(random() >> 1),
                           static_cast<int32_t>(random() >> 1)};
    const uint64_t state = state_after(tokens.first, tokens.second);
    const auto [entry, is_new] = by_upper_half.emplace(state >> 32, tokens);
    if (is_new) continue;
    const auto [first, second] = entry->second;
    cached = {tokens.first, tokens.second, 0};
    other = {first, second, static_cast<int32_t>(state ^ state_after(first, second))};
  }
  ASSERT_FALSE(cached.empty());
  ASSERT_NE(cached, other);
  ASSERT_EQ(PrefixCache::hash_edge(kNullBlock, cached), PrefixCache::hash_edge(kNullBlock, other));

  BlockPool pool(2);
  PrefixCache cache(pool, 3);
  BlockTable table(3);
  ASSERT_TRUE(table.reserve(pool, 3));
  cache.insert(cached, table);
  EXPECT_EQ(cache.match(cached, 3).blocks.size(), 1u);
  EXPECT_TRUE(cache.match(other, 3).blocks.empty());
}

TEST(PrefixCacheLifeTest, DestroyingTheCacheFreesItsBlocks) {
  BlockPool pool(4);
  BlockTable in_use(kBlockSize);
  {
    PrefixCache cache(pool, kBlockSize);
    BlockTable table(kBlockSize);
    ASSERT_TRUE(table.reserve(pool, 6));
    cache.insert(Tokens{1, 2, 3, 4, 5, 6}, table);
    in_use.adopt(cache.match(Tokens{1, 2}, 2).blocks);
  }
  EXPECT_EQ(pool.num_evictable(), 0);
  EXPECT_EQ(pool.num_free(), 3);
  in_use.clear();
  std::vector<BlockRef> all;
  while (std::optional<BlockRef> ref = pool.allocate()) all.push_back(*std::move(ref));
  EXPECT_EQ(all.size(), 4u);
  pool.check_integrity();
}

TEST(PrefixCacheLifeTest, VeryDeepPrefixesNeedNoStack) {
  constexpr int kNumBlocks = 300000;
  BlockPool pool(kNumBlocks);
  PrefixCache cache(pool, 1);
  const Tokens tokens(kNumBlocks, 5);
  BlockTable table(1);
  ASSERT_TRUE(table.reserve(pool, kNumBlocks));
  cache.insert(tokens, table);
  table.clear();
  EXPECT_EQ(cache.reset(), kNumBlocks);  // from the root down
  EXPECT_EQ(cache.num_cached_blocks(), 0);
}

// The same behaviour written naively: a list of cached prefixes, found by comparing whole prefixes.
struct CacheModel {
  std::map<Tokens, BlockId> prefixes;
  std::map<BlockId, int> ref_counts;
  std::deque<BlockId> unused;  // cached, no reference; longest unused first

  bool is_cached(BlockId id) const {
    return std::ranges::any_of(prefixes, [id](const auto& entry) { return entry.second == id; });
  }
  void take(BlockId id) {
    ++ref_counts[id];
    std::erase(unused, id);
  }
  void release(BlockId id) {
    if (--ref_counts[id] == 0 && is_cached(id)) unused.push_back(id);
  }
  void evict(BlockId victim) {
    const auto entry = std::ranges::find_if(
        prefixes, [victim](const auto& candidate) { return candidate.second == victim; });
    ASSERT_NE(entry, prefixes.end());
    const Tokens prefix = entry->first;
    std::erase_if(prefixes, [&](const auto& candidate) {
      const bool below = candidate.first.size() >= prefix.size() &&
                         std::equal(prefix.begin(), prefix.end(), candidate.first.begin());
      if (below) std::erase(unused, candidate.second);
      return below;
    });
  }
  std::vector<BlockId> match(const Tokens& tokens, int max_tokens) const {
    std::vector<BlockId> ids;
    const int limit = std::min<int>(max_tokens, static_cast<int>(tokens.size()));
    for (int end = kBlockSize; end <= limit; end += kBlockSize) {
      const auto entry = prefixes.find(Tokens(tokens.begin(), tokens.begin() + end));
      if (entry == prefixes.end()) break;
      ids.push_back(entry->second);
    }
    return ids;
  }
  void insert(const Tokens& tokens, std::span<const BlockId> ids) {
    for (size_t end = kBlockSize; end <= tokens.size(); end += kBlockSize) {
      prefixes.emplace(Tokens(tokens.begin(), tokens.begin() + end), ids[end / kBlockSize - 1]);
    }
  }
};

TEST(PrefixCacheRandomTest, AgreesWithANaiveListOfPrefixes) {
  constexpr int kNumBlocks = 14;
  constexpr size_t kMaxTokens = 9;
  struct Live {
    std::string salt;
    Tokens tokens;
    BlockTable table{kBlockSize};
    bool precedes_reset = false;  // has blocks from before the latest reset
    // To the model, tokens behind a salt are other tokens.
    Tokens model_tokens() const {
      Tokens shifted = tokens;
      for (int32_t& token : shifted) token += salt.empty() ? 0 : 100;
      return shifted;
    }
  };
  BlockPool pool(kNumBlocks);
  PrefixCache cache(pool, kBlockSize);
  CacheModel model;
  std::vector<Live> live;
  std::mt19937 random(11);
  const auto pick = [&](size_t size) { return static_cast<size_t>(random() % size); };
  int64_t num_hits = 0, num_evictions = 0, num_resets = 0;

  // Grows a table by at most one block, and has the model do the same.
  const auto grow = [&](Live& sequence, size_t num_tokens) {
    const int before = sequence.table.num_blocks();
    const bool must_evict = pool.num_free() == pool.num_evictable() && pool.num_free() > 0;
    if (!sequence.table.reserve(pool, static_cast<int>(num_tokens))) return false;
    if (sequence.table.num_blocks() == before) return true;
    const BlockId id = sequence.table.ids().back();
    if (must_evict) {
      ++num_evictions;
      EXPECT_EQ(model.unused.front(), id);
      model.evict(model.unused.front());
    }
    EXPECT_EQ(model.ref_counts[id], 0);
    EXPECT_FALSE(model.is_cached(id));
    model.take(id);
    return true;
  };

  for (int operation = 0; operation < 150000; ++operation) {
    const size_t kind = pick(100);
    if (kind < 25 && live.size() < 6) {  // a sequence arrives: match, then compute its first tokens
      Live sequence;
      if (pick(4) == 0) sequence.salt = "a";
      for (size_t i = pick(kMaxTokens); i > 0; --i) {
        sequence.tokens.push_back(static_cast<int32_t>(pick(2)));
      }
      const int limit = static_cast<int>(pick(kMaxTokens));
      const std::vector<BlockId> expected = model.match(sequence.model_tokens(), limit);
      std::vector<BlockRef> blocks = cache.match(sequence.tokens, limit, sequence.salt).blocks;
      ASSERT_EQ(ids_of(blocks), expected);
      num_hits += !blocks.empty();
      sequence.table.adopt(std::move(blocks));
      for (const BlockId id : expected) model.take(id);
      sequence.tokens.resize(expected.size() * kBlockSize);
      live.push_back(std::move(sequence));
    } else if (kind < 75 && !live.empty()) {  // a sequence computes one token
      Live& sequence = live[pick(live.size())];
      if (sequence.tokens.size() < kMaxTokens && grow(sequence, sequence.tokens.size() + 1)) {
        sequence.tokens.push_back(static_cast<int32_t>(pick(2)));
        if (pick(4) > 0) {
          cache.insert(sequence.tokens, sequence.table, sequence.salt);
          if (!sequence.precedes_reset) {
            model.insert(sequence.model_tokens(), sequence.table.ids());
          }
        }
      }
    } else if (kind < 99 && !live.empty()) {  // a sequence ends
      std::swap(live[pick(live.size())], live.back());
      const std::span<const BlockId> ids = live.back().table.ids();
      for (size_t i = ids.size(); i > 0; --i) model.release(ids[i - 1]);
      live.pop_back();
    } else if (kind == 99 && pick(10) == 0) {
      ++num_resets;
      ASSERT_EQ(cache.reset(), static_cast<int>(model.prefixes.size()));
      model.prefixes.clear();
      model.unused.clear();
      for (Live& sequence : live) sequence.precedes_reset |= sequence.table.num_blocks() > 0;
    }
    pool.check_integrity();
    cache.check_integrity();
    ASSERT_EQ(cache.num_cached_blocks(), static_cast<int>(model.prefixes.size()));
    ASSERT_EQ(pool.num_evictable(), static_cast<int>(model.unused.size()));
    for (BlockId id = 1; id <= kNumBlocks; ++id) {
      ASSERT_EQ(pool.ref_count(id), model.ref_counts[id]);
    }
  }
  EXPECT_GT(num_hits, 1000);
  EXPECT_GT(num_evictions, 1000);
  EXPECT_GT(num_resets, 10);
  live.clear();
  EXPECT_EQ(pool.num_free(), kNumBlocks);
  EXPECT_EQ(cache.reset(), static_cast<int>(model.prefixes.size()));
  EXPECT_EQ(pool.num_evictable(), 0);
}

// With states, of which a prefix needs one at its end.
class PrefixStatesTest : public ::testing::Test {
 protected:
  BlockTable computed(const Tokens& tokens) {
    BlockTable table(kBlockSize);
    EXPECT_TRUE(table.reserve(pool_, static_cast<int>(tokens.size())));
    cache_.insert(tokens, table);
    return table;
  }
  // Caches a state after the first `num_tokens` tokens; returns its id.
  BlockId add_state(const Tokens& tokens, int num_tokens, const BlockTable& table) {
    const std::optional<BlockRef> state = states_.allocate();
    EXPECT_TRUE(state.has_value());
    cache_.insert_state(std::span(tokens).first(num_tokens), table, {}, *state);
    return state->id();
  }
  // The tokens of the blocks that a sequence of these tokens would get, and the state's id.
  std::pair<int, BlockId> match(const Tokens& tokens) {
    PrefixMatch match = cache_.match(tokens, 1000);
    const std::pair found{static_cast<int>(match.blocks.size()) * kBlockSize, match.state.id()};
    BlockTable table(kBlockSize);
    table.adopt(std::move(match.blocks));
    return found;
  }
  void TearDown() override {
    pool_.check_integrity();
    states_.check_integrity();
    cache_.check_integrity();
  }

  static constexpr std::pair<int, BlockId> kNothing{0, kNullBlock};
  const Tokens tokens_ = {1, 2, 3, 4, 5, 6, 7, 8};
  BlockPool pool_{8};
  BlockPool states_{2};
  PrefixCache cache_{pool_, kBlockSize, &states_};
};

TEST_F(PrefixStatesTest, APrefixEndsWhereThereIsAState) {
  const BlockTable table = computed(tokens_);
  EXPECT_EQ(match(tokens_), kNothing);
  EXPECT_EQ(cache_.match(tokens_, 1000).num_known_tokens, 8);
  const BlockId four = add_state(tokens_, 4, table);
  EXPECT_EQ(match(tokens_), std::pair(4, four));
  EXPECT_EQ(match({1, 2, 3, 4}), std::pair(4, four));
  EXPECT_EQ(match({1, 2, 3, 9}), kNothing);
  const BlockId eight = add_state(tokens_, 8, table);
  EXPECT_EQ(match(tokens_), std::pair(8, eight));
  EXPECT_EQ(match({1, 2, 3, 4, 5, 6, 9, 9}), std::pair(4, four));
  EXPECT_EQ(cache_.num_cached_states(), 2);
}

TEST_F(PrefixStatesTest, StatesAreEvictedByThemselvesOldestFirst) {
  const BlockTable table = computed(tokens_);
  const BlockId four = add_state(tokens_, 4, table);
  add_state(tokens_, 8, table);
  EXPECT_EQ(match({1, 2, 3, 4}), std::pair(4, four));  // a hit makes it recent again
  const BlockId six = add_state(tokens_, 6, table);    // takes the memory of the state after 8
  EXPECT_EQ(match(tokens_), std::pair(6, six));
  EXPECT_EQ(cache_.match(tokens_, 1000).num_known_tokens, 8);  // keys and values are still there
}

TEST_F(PrefixStatesTest, AStateThatIsReadIsNotEvicted) {
  const BlockTable table = computed(tokens_);
  add_state(tokens_, 4, table);
  add_state(tokens_, 8, table);
  const PrefixMatch first = cache_.match(Tokens{1, 2, 3, 4}, 4), second = cache_.match(tokens_, 8);
  EXPECT_FALSE(states_.allocate().has_value());
}

TEST_F(PrefixStatesTest, ABlockTakesItsStateAlong) {
  BlockTable table = computed(tokens_);
  add_state(tokens_, 8, table);
  table.clear();
  EXPECT_EQ(cache_.reset(), 4);
  EXPECT_EQ(cache_.num_cached_states(), 0);
  EXPECT_EQ(states_.num_evictable(), 0);
  EXPECT_EQ(states_.num_free(), 2);
}

TEST_F(PrefixStatesTest, ResetLeavesStatesThatAreReadToTheirReaders) {
  BlockTable table = computed(tokens_);
  add_state(tokens_, 4, table);
  const BlockId eight = add_state(tokens_, 8, table);
  {
    const PrefixMatch reader = cache_.match(tokens_, 8);
    EXPECT_EQ(cache_.reset(), 4);
    EXPECT_EQ(cache_.num_cached_states(), 0);
    EXPECT_EQ(states_.ref_count(eight), 1);
    EXPECT_EQ(states_.num_free(), 1);
    EXPECT_EQ(match(tokens_), kNothing);
  }
  EXPECT_EQ(states_.num_free(), 2);
  add_state(tokens_, 8, table);  // of a sequence that began before the reset
  BlockTable later = computed(tokens_);
  add_state(tokens_, 8, table);
  EXPECT_EQ(cache_.num_cached_states(), 0);
  add_state(tokens_, 8, later);
  EXPECT_EQ(match(tokens_).first, 8);
}

TEST_F(PrefixStatesTest, DropsAStateUnlessItIsRead) {
  const BlockTable table = computed(tokens_);
  const BlockId four = add_state(tokens_, 4, table);
  {
    const PrefixMatch reader = cache_.match(tokens_, 8);
    cache_.drop_state(std::span(tokens_).first(4), table, {});
  }
  EXPECT_EQ(match(tokens_), std::pair(4, four));
  cache_.drop_state(std::span(tokens_).first(4), table, {});
  EXPECT_EQ(match(tokens_), kNothing);
  EXPECT_EQ(states_.num_evictable(), 0);
}

TEST_F(PrefixStatesTest, OnePrefixHasOneState) {
  const BlockTable table = computed(tokens_), same = computed(tokens_);
  const BlockId first = add_state(tokens_, 8, table);
  EXPECT_NE(add_state(tokens_, 8, same), first);
  EXPECT_EQ(match(tokens_), std::pair(8, first));
  EXPECT_EQ(cache_.num_cached_states(), 1);
  add_state({9, 9}, 2, same);  // of a prefix that is not cached
  EXPECT_EQ(cache_.num_cached_states(), 1);
}

}  // namespace
}  // namespace specdec
