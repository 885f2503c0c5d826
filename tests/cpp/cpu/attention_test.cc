#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <utility>
#include <vector>

#include "testing/cpu_attention.h"
#include "testing/few_shapes.h"

namespace specdec {
namespace {

using namespace testing::cpu_attention;
using testing::AttentionShape;
using testing::few_shapes;
using testing::PagedWorld;
using testing::Request;
using testing::RowBytes;
using testing::TreeNode;

TEST_P(CpuAttention, MixedBatchesMatchReference) {
  cpu::CpuBackend backend = make_backend(2);
  std::mt19937_64 random(7);
  for (int head_dim : {8, 20, 48, 64, 80, 96, 128, 256}) {
    for (int group_size : {1, 3, 4, 7, 8}) {
      if (few_shapes() && (head_dim % 32 != 0) == (group_size % 3 != 0)) continue;
      if (few_shapes() && (head_dim % 64 == 48 || head_dim % 64 == 32)) continue;
      const AttentionShape shape = {.num_kv_heads = 1 + static_cast<int>(random() % 2),
                                    .group_size = group_size,
                                    .head_dim = head_dim,
                                    .block_size = random() % 2 == 0 ? 16 : 32,
                                    .has_sinks = group_size >= 7};
      World world(backend, shape, 50, random());
      const int longest = head_dim == 64 && group_size == 3 ? 250 : 60;
      Request decode = make_request(world, random, Kind::kDecode, 1 + random() % longest, 1);
      Request chunk = make_request(world, random, Kind::kChunk, random() % 40, 1 + random() % 30);
      Request tree =
          make_request(world, random, Kind::kTree, random() % longest, 1 + random() % 12);
      world.step({&decode, &chunk, &tree});
      EXPECT_LE(error_against_reference(world), 1.0) << head_dim << " x " << group_size;
    }
  }
}

TEST_P(CpuAttention, LongContextsAndWideTreesMatchReference) {
  cpu::CpuBackend backend = make_backend(2);
  std::mt19937_64 random(8);
  for (int context : {1, 15, 16, 17, 63, 64, 65, 500, 700}) {
    if (few_shapes() && context != 65 && context != 500) continue;
    const AttentionShape shape = {
        .num_kv_heads = 1, .group_size = 3, .head_dim = 48, .has_sinks = context >= 500};
    World world(backend, shape, 60, random());
    Request tree = make_request(world, random, Kind::kTree, context, 100);
    world.step({&tree});
    EXPECT_LE(error_against_reference(world), 1.0) << context;
  }
}

TEST_P(CpuAttention, SlidingWindowsAndCappedScoresMatchReference) {
  cpu::CpuBackend backend = make_backend(1);
  std::mt19937_64 random(9);
  for (int window : {0, 1, 3, 16, 33, 100}) {
    if (few_shapes() && window % 2 == 1 && window != 33) continue;
    const float soft_cap = window % 2 == 0 ? 0.3f : 0.0f;
    const AttentionShape shape = {
        .sliding_window = window, .soft_cap = soft_cap, .has_sinks = window > 3};
    World world(backend, shape, 40, random());
    Request decode = make_request(world, random, Kind::kDecode, 130, 1);
    Request chunk = make_request(world, random, Kind::kChunk, 70, 50);
    Request tree = make_request(world, random, Kind::kTree, 37, 20);
    world.step({&decode, &chunk, &tree});
    EXPECT_LE(error_against_reference(world), 1.0) << window;
  }
}

// Slots before the first position hold no numbers.
TEST_P(CpuAttention, NothingIsSeenBeforeTheFirstPosition) {
  cpu::CpuBackend backend = make_backend(2);
  std::mt19937_64 random(21);
  for (const int first : {1, 20, 300}) {
    for (const int window : {0, 7, 90}) {
      if (few_shapes() && (first == 20 || window == 90)) continue;
      World world(
          backend,
          {.group_size = 3, .head_dim = 48, .sliding_window = window, .first_position = first}, 400,
          random());
      const auto new_request = [&](int num_cached, const std::vector<uint64_t>& history) {
        Request request = world.new_request(first + num_cached + 60);
        request.base_len = first;
        world.prefill(request, history);
        return request;
      };
      const std::vector<uint64_t> history = random_tokens(random, 40);
      Request decode = new_request(40, history);
      decode.rows = Request::chain(random_tokens(random, 1));
      Request chunk = new_request(0, {});
      chunk.rows = Request::chain(random_tokens(random, 50));
      Request tree = new_request(40, history);
      tree.rows = random_tree(random, 20);
      tree.is_tree = true;
      const RowBytes together = world.step({&decode, &chunk, &tree});
      ASSERT_LE(error_against_reference(world), 1.0) << first << " " << window;

      RowBytes alone = world.step({&decode});
      Request chunked = new_request(0, {});
      std::vector<uint64_t> tokens;
      for (const TreeNode& row : chunk.rows) tokens.push_back(row.token);
      for (auto& row : world.prefill(chunked, tokens, 7)) alone.push_back(std::move(row));
      for (auto& row : world.step({&tree})) alone.push_back(std::move(row));
      ASSERT_EQ(alone, together) << first << " " << window;
    }
  }
}

TEST_P(CpuAttention, WrongMaskBitIsSeenByTheComparison) {
  cpu::CpuBackend backend = make_backend(1);
  std::mt19937_64 random(10);
  World world(backend, {}, 20);
  Request tree = make_request(world, random, Kind::kTree, 100, 9);
  world.build({&tree});
  world.project();
  const RowBytes right = world.attend();
  ASSERT_LE(error_against_reference(world), 1.0);
  for (int bit = 0; bit < 8; ++bit) {
    world.masks()[8] ^= uint64_t{1} << bit;
    const RowBytes wrong = world.attend();
    world.masks()[8] ^= uint64_t{1} << bit;
    EXPECT_NE(wrong[8], right[8]) << bit;
    EXPECT_EQ(wrong[7], right[7]) << bit;
    EXPECT_GT(error_against_reference(world), 1.0) << bit;
  }
}

TEST_P(CpuAttention, ChunkingChangesNoBit) {
  cpu::CpuBackend backend = make_backend(2);
  std::mt19937_64 random(11);
  const int length = few_shapes() ? 270 : 700;
  for (int window : {0, 50}) {
    const float soft_cap = window > 0 ? 0.7f : 0.0f;
    const AttentionShape shape = {
        .sliding_window = window, .soft_cap = soft_cap, .has_sinks = window == 0};
    World world(backend, shape, 250);
    const std::vector<uint64_t> tokens = random_tokens(random, length);
    Request whole = world.new_request(length);
    const RowBytes expected = world.prefill(whole, tokens, length);
    for (int chunk : {1, 7, 512}) {
      Request chunked = world.new_request(length);
      EXPECT_EQ(world.prefill(chunked, tokens, chunk), expected) << chunk << ", " << window;
    }
  }
}

TEST_P(CpuAttention, BatchMatesBlocksThreadsAndBlockSizeChangeNoBit) {
  std::mt19937_64 random(12);
  for (int group_size : {1, 4, 7}) {
    if (few_shapes() && group_size == 4) continue;
    const int num_cached = few_shapes() ? 70 : 150;
    const std::vector<uint64_t> history = random_tokens(random, num_cached);
    const std::vector<TreeNode> rows = random_tree(random, 11);
    const auto run = [&](int num_threads, int block_size, bool with_mates, uint64_t seed) {
      cpu::CpuBackend backend = make_backend(num_threads);
      const AttentionShape shape = {
          .group_size = group_size, .block_size = block_size, .has_sinks = group_size == 7};
      World world(backend, shape, 60, seed);
      Request mate = make_request(world, random, Kind::kDecode, 33, 1);
      Request other = make_request(world, random, Kind::kTree, 20, 14);
      Request request = world.new_request(num_cached + 11);
      world.prefill(request, history);
      request.rows = rows;
      request.is_tree = true;
      if (!with_mates) return world.step({&request});
      RowBytes results = world.step({&mate, &request, &other});
      return RowBytes(results.begin() + 1, results.begin() + 12);
    };
    const RowBytes expected = run(1, 16, false, 1);
    EXPECT_EQ(run(1, 16, false, 2), expected);
    EXPECT_EQ(run(1, 16, true, 3), expected);
    EXPECT_EQ(run(2, 16, true, 4), expected);
    EXPECT_EQ(run(3, 32, true, 5), expected);
  }
}

TEST_P(CpuAttention, TreeRowsEqualTheirPathsRunAsChains) {
  cpu::CpuBackend backend = make_backend(2);
  std::mt19937_64 random(13);
  for (int window : {0, 4, 40}) {
    for (int num_rows : {5, 40, 90}) {
      if (few_shapes() && (num_rows == 90 || window == 4)) continue;
      const float soft_cap = window == 40 ? 0.7f : 0.0f;
      const AttentionShape shape = {
          .sliding_window = window, .soft_cap = soft_cap, .has_sinks = window == 40};
      World world(backend, shape, 400, random());
      const std::vector<uint64_t> history = random_tokens(random, 30 + random() % 60);
      const int capacity = static_cast<int>(history.size()) + num_rows;
      Request tree = world.new_request(capacity);
      world.prefill(tree, history);
      tree.rows = random_tree(random, num_rows);
      tree.is_tree = true;
      const RowBytes results = world.step({&tree});
      Request chain = world.new_request(capacity);
      world.prefill(chain, history);
      for (int leaf = num_rows - 1; leaf >= 0; leaf -= 1 + num_rows / 12) {
        const std::vector<int> path = tree.path_to(leaf);
        std::vector<uint64_t> tokens;
        for (int row : path) tokens.push_back(tree.rows[row].token);
        chain.rows = Request::chain(tokens);
        const RowBytes chain_results = world.step({&chain});
        for (size_t depth = 0; depth < path.size(); ++depth) {
          ASSERT_EQ(results[path[depth]], chain_results[depth]) << "row " << path[depth];
        }
      }
    }
  }
}

// A tree whose nodes stand in order of depth.
std::vector<TreeNode> tree_by_levels(std::mt19937_64& random, const std::vector<int>& widths) {
  std::vector<TreeNode> rows = {{random() % 100000, -1}};
  int level_begin = 0;
  for (const int width : widths) {
    const int level_end = static_cast<int>(rows.size());
    for (int i = 0; i < width; ++i) {
      const int parent = level_begin + static_cast<int>(random() % (level_end - level_begin));
      rows.push_back({random() % 100000, parent});
    }
    level_begin = level_end;
  }
  return rows;
}

// Runs the request's tree in passes that end at the given numbers of rows.
RowBytes run_in_passes(PagedWorld& world, Request request, const std::vector<int>& ends,
                       std::vector<Request*> mates = {}) {
  const std::vector<TreeNode> rows = request.rows;
  request.is_tree = true;
  RowBytes results;
  for (const int end : ends) {
    request.rows.assign(rows.begin(), rows.begin() + end);
    std::vector<Request*> batch = mates;
    batch.push_back(&request);
    const RowBytes pass = world.step(batch);
    results.insert(results.end(), pass.end() - (end - request.num_cached_rows), pass.end());
    request.num_cached_rows = end;
  }
  return results;
}

TEST_P(CpuAttention, ATreeGrownLevelByLevelEqualsTheTreeAtOnceAndItsPaths) {
  cpu::CpuBackend backend = make_backend(2);
  std::mt19937_64 random(16);
  for (int window : {0, 3, 40}) {
    if (few_shapes() && window == 3) continue;
    for (const std::vector<int>& widths : {std::vector{1, 1, 1, 1}, {3, 2, 5, 1}, {40, 50, 60}}) {
      const AttentionShape shape = {.group_size = 3, .head_dim = 64, .sliding_window = window};
      World world(backend, shape, 400, random());
      const std::vector<uint64_t> history = random_tokens(random, 20 + random() % 60);
      const std::vector<TreeNode> rows = tree_by_levels(random, widths);
      const int num_rows = static_cast<int>(rows.size());
      const auto new_request = [&] {
        Request request = world.new_request(static_cast<int>(history.size()) + num_rows);
        world.prefill(request, history);
        request.rows = rows;
        return request;
      };
      const RowBytes at_once = run_in_passes(world, new_request(), {num_rows});

      std::vector<int> ends = {1};
      for (const int width : widths) ends.push_back(ends.back() + width);
      Request decode = make_request(world, random, Kind::kDecode, 33, 1);
      Request other = make_request(world, random, Kind::kTree, 20, 7);
      EXPECT_EQ(run_in_passes(world, new_request(), ends, {&decode, &other}), at_once);
      EXPECT_LE(error_against_reference(world), 1.0);

      const Request whole = new_request();
      Request chain = new_request();
      for (int leaf = num_rows - 1; leaf >= num_rows - 5; leaf -= 2) {
        const std::vector<int> path = whole.path_to(leaf);
        std::vector<uint64_t> tokens;
        for (int row : path) tokens.push_back(rows[row].token);
        chain.rows = Request::chain(tokens);
        const RowBytes chain_results = world.step({&chain});
        for (size_t depth = 0; depth < path.size(); ++depth) {
          ASSERT_EQ(at_once[path[depth]], chain_results[depth]) << "row " << path[depth];
        }
      }
    }
  }
}

TEST_P(CpuAttention, ATreeMayGrowByAnyRows) {
  cpu::CpuBackend backend = make_backend(2);
  std::mt19937_64 random(17);
  for (int num_rows : {2, 12, 64, 65, 150}) {
    if (few_shapes() && (num_rows == 64 || num_rows == 150)) continue;
    World world(backend, {.group_size = 4, .head_dim = 48}, 100, random());
    const std::vector<uint64_t> history = random_tokens(random, random() % 100);
    Request first = world.new_request(250), second = world.new_request(250);
    world.prefill(first, history);
    world.prefill(second, history);
    first.rows = second.rows = random_tree(random, num_rows);
    std::vector<int> ends;
    for (int end = 1; end < num_rows; end += 1 + random() % 20) ends.push_back(end);
    ends.push_back(num_rows);
    EXPECT_EQ(run_in_passes(world, first, ends), run_in_passes(world, second, {num_rows}));
  }
}

TEST_P(CpuAttention, AWrongBitOfAnEarlierPassIsSeenByTheComparison) {
  cpu::CpuBackend backend = make_backend(1);
  std::mt19937_64 random(18);
  World world(backend, {}, 20);
  Request tree = make_request(world, random, Kind::kTree, 50, 9);
  world.step({&tree});
  tree.num_cached_rows = 7;
  world.build({&tree});
  world.project();
  const RowBytes right = world.attend();
  ASSERT_LE(error_against_reference(world), 1.0);
  for (int bit = 0; bit < 7; ++bit) {
    world.masks()[1] ^= uint64_t{1} << bit;
    const RowBytes wrong = world.attend();
    world.masks()[1] ^= uint64_t{1} << bit;
    EXPECT_NE(wrong[1], right[1]) << bit;
    EXPECT_EQ(wrong[0], right[0]) << bit;
  }
}

TEST_P(CpuAttention, CompactedPathContinuesLikeAChain) {
  cpu::CpuBackend backend = make_backend(2);
  std::mt19937_64 random(14);
  for (int round = 0; round < 5; ++round) {
    World world(backend, {.num_kv_heads = 3, .group_size = 2}, 60, random());
    const std::vector<uint64_t> history = random_tokens(random, 40 + round * 5);
    Request tree = world.new_request(100);
    world.prefill(tree, history);
    tree.rows = random_tree(random, 25);
    tree.is_tree = true;
    world.step({&tree});
    const std::vector<int> path = tree.path_to(24);
    const auto slot = [&](int index) { return int64_t{tree.blocks[index / 16]} * 16 + index % 16; };
    std::vector<std::pair<int64_t, int64_t>> moves;
    std::vector<uint64_t> tokens;
    for (size_t depth = 0; depth < path.size(); ++depth) {
      moves.emplace_back(slot(tree.base_len + path[depth]),
                         slot(tree.base_len + static_cast<int>(depth)));
      tokens.push_back(tree.rows[path[depth]].token);
    }
    const PagedKvView layer = world.kv();
    backend.copy_kv({.layers = {&layer, 1}, .slots = moves});

    Request chain = world.new_request(100);
    world.prefill(chain, history);
    world.prefill(chain, tokens);
    tree.base_len = chain.base_len;
    tree.is_tree = false;
    tree.rows = chain.rows = Request::chain(random_tokens(random, 3));
    const RowBytes results = world.step({&tree, &chain});
    for (int row = 0; row < 3; ++row) EXPECT_EQ(results[row], results[3 + row]);
  }
}

TEST_P(CpuAttention, CopyMovesEveryLayerAndNothingElse) {
  cpu::CpuBackend backend = make_backend(2);
  std::mt19937_64 random(15);
  World first(backend, {}, 4), second(backend, {}, 4);
  Request a = first.new_request(40), b = second.new_request(40);
  first.prefill(a, random_tokens(random, 40));
  second.prefill(b, random_tokens(random, 40));
  const reference::PlainKv before[2] = {read_cache(first), read_cache(second)};
  const std::vector<std::pair<int64_t, int64_t>> moves = {{21, 20}, {40, 21}, {40, 40}};
  const PagedKvView layers[2] = {first.kv(), second.kv()};
  backend.copy_kv({.layers = layers, .slots = moves});
  const reference::PlainKv after[2] = {read_cache(first), read_cache(second)};
  const int64_t row = int64_t{layers[0].num_kv_heads} * layers[0].head_dim;
  const auto bits = [](double value) { return std::bit_cast<uint64_t>(value); };
  for (int layer = 0; layer < 2; ++layer) {
    for (size_t i = 0; i < before[layer].keys.size(); ++i) {
      const int64_t slot = static_cast<int64_t>(i) / row;
      const size_t source = i + (slot == 20 ? row : slot == 21 ? 19 * row : 0);
      ASSERT_EQ(bits(after[layer].keys[i]), bits(before[layer].keys[source])) << slot;
      ASSERT_EQ(bits(after[layer].values[i]), bits(before[layer].values[source])) << slot;
    }
  }
}

TEST_P(CpuAttention, ContextsAboutAChunkOfPositionsMatchReferenceAndChains) {
  std::mt19937_64 random(19);
  constexpr int kLong = 1300;
  for (int context : {247, 255, 256, 257, 511, 512, 513, kLong}) {
    if (few_shapes() && context != 255 && context != 257) continue;
    const std::vector<uint64_t> history = random_tokens(random, context);
    const std::vector<TreeNode> rows = random_tree(random, 20);
    const AttentionShape shape = {.num_kv_heads = 3,
                                  .group_size = 2,
                                  .head_dim = 32,
                                  .sliding_window = context == kLong ? 700 : 0,
                                  .has_sinks = context > 256,
                                  .max_positions = 1400};
    RowBytes of_tree;
    for (int num_threads : {1, 3}) {
      cpu::CpuBackend backend = make_backend(num_threads);
      World world(backend, shape, 600, random());
      Request tree = world.new_request(context + 20);
      world.prefill(tree, history);
      tree.rows = rows;
      tree.is_tree = true;
      const RowBytes results = world.step({&tree});
      if (num_threads == 1) {
        EXPECT_LE(error_against_reference(world), 1.0) << context;
        of_tree = results;
      }
      EXPECT_EQ(results, of_tree) << context;

      Request chain = world.new_request(context + 20);
      world.prefill(chain, history);
      for (int leaf : {19, 13, 7}) {
        const std::vector<int> path = tree.path_to(leaf);
        std::vector<uint64_t> tokens;
        for (int row : path) tokens.push_back(rows[row].token);
        chain.rows = Request::chain(tokens);
        const RowBytes of_chain = world.step({&chain});
        EXPECT_EQ(of_chain.back(), results[leaf]) << context;
        // The same rows one at a time.
        Request single = chain;
        for (size_t depth = 0; depth < path.size(); ++depth) {
          single.rows = Request::chain({tokens[depth]});
          EXPECT_EQ(world.step({&single})[0], of_chain[depth]) << context;
          ++single.base_len;
        }
      }
    }
  }
}

class CpuInt8Attention : public CpuAttention {};

TEST_P(CpuInt8Attention, ScalesCountWhereTokensAreSeen) {
  cpu::CpuBackend backend = make_backend(1);
  std::mt19937_64 random(20);
  World world(backend, {.num_kv_heads = 1}, 4);
  Request request = make_request(world, random, Kind::kDecode, 5, 1);
  world.step({&request});
  ASSERT_LE(error_against_reference(world), 1.0);
  const RowBytes right = world.attend();
  // Scales of a group of 16 tokens stand before its codes.
  const size_t group = request.blocks[0];
  const size_t group_bytes = 64 + 16 * size_t{64};
  for (void* part : {world.kv().keys, world.kv().values}) {
    float* scales = reinterpret_cast<float*>(static_cast<char*>(part) + group * group_bytes);
    for (int token = 0; token < 6; ++token) {
      const float scale = scales[token];
      scales[token] = 1.5f * scale;
      EXPECT_NE(world.attend(), right) << token;
      EXPECT_LE(error_against_reference(world), 1.0) << token;
      scales[token] = scale;
    }
    scales[6] = 1e30f;  // not written yet: nobody looks
    EXPECT_EQ(world.attend(), right);
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, CpuAttention,
                         ::testing::Combine(::testing::ValuesIn(testing::supported_isas()),
                                            ::testing::Values(DType::kF32, DType::kBF16),
                                            ::testing::Bool()),
                         name_of_parameters);
INSTANTIATE_TEST_SUITE_P(Kernels, CpuInt8Attention,
                         ::testing::Combine(::testing::ValuesIn(testing::supported_isas()),
                                            ::testing::Values(DType::kF32, DType::kBF16),
                                            ::testing::Values(true)),
                         name_of_parameters);

}  // namespace
}  // namespace specdec
