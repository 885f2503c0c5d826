// Attention over the paged cache on the device, against double loops and the CPU backend, and each
// row bit for bit against itself beside other rows. Slots that nobody wrote hold NaN.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "testing/cuda_attention.h"
#include "testing/device_kinds.h"
#include "testing/oracle/operations.h"
#include "testing/paged_world.h"
#include "testing/request_mixture.h"

namespace specdec::cuda::testing {
namespace {

using specdec::testing::AttentionShape;
using specdec::testing::fill;
using specdec::testing::make_mixture;
using specdec::testing::Mixture;
using specdec::testing::PagedWorld;
using specdec::testing::random_tree;
using specdec::testing::Request;
using specdec::testing::RowBytes;
using specdec::testing::tokens;
using specdec::testing::TreeNode;

struct Case {
  AttentionShape shape;
  DType act = DType::kBF16;
  int tree_nodes = 9;
};

const Case kCases[] = {
    {.shape =
         {.num_kv_heads = 2, .group_size = 1, .head_dim = 32, .block_size = 32, .has_sinks = true}},
    {.shape = {.num_kv_heads = 1, .group_size = 2, .head_dim = 64}, .act = DType::kF16},
    {.shape = {.num_kv_heads = 1,
               .group_size = 3,
               .head_dim = 64,
               .sliding_window = 100,
               .has_sinks = true},
     .tree_nodes = 70},
    {.shape =
         {.num_kv_heads = 1, .group_size = 4, .head_dim = 80, .has_sinks = true, .int8_kv = true}},
    {.shape = {.num_kv_heads = 2, .group_size = 4, .head_dim = 128}, .tree_nodes = 70},
    {.shape =
         {.num_kv_heads = 1, .group_size = 7, .head_dim = 96, .block_size = 48, .has_sinks = true}},
    {.shape = {.num_kv_heads = 1, .group_size = 8, .head_dim = 128, .int8_kv = true},
     .act = DType::kF16},
    {.shape = {.num_kv_heads = 1,
               .group_size = 2,
               .head_dim = 256,
               .sliding_window = 300,
               .has_sinks = true},
     .act = DType::kF16},
    {.shape =
         {.num_kv_heads = 1, .group_size = 2, .head_dim = 256, .has_sinks = true, .int8_kv = true}},
    {.shape = {.num_kv_heads = 1, .group_size = 71, .head_dim = 64, .has_sinks = true},
     .tree_nodes = 3},
    {.shape = {.num_kv_heads = 1, .group_size = 2, .head_dim = 72}},
    {.shape = {.num_kv_heads = 2, .group_size = 2, .head_dim = 64, .int8_kv = true}},
    {.shape = {.num_kv_heads = 2, .group_size = 3, .head_dim = 64, .soft_cap = 0.5f}},
    {.shape =
         {.num_kv_heads = 1, .group_size = 9, .head_dim = 256, .soft_cap = 5.0f, .has_sinks = true},
     .act = DType::kF16},
    {.shape = {.num_kv_heads = 1, .group_size = 8, .head_dim = 512}},
    {.shape = {.num_kv_heads = 1,
               .group_size = 4,
               .head_dim = 512,
               .sliding_window = 100,
               .has_sinks = true},
     .act = DType::kF16},
    {.shape =
         {.num_kv_heads = 2, .group_size = 4, .head_dim = 512, .has_sinks = true, .int8_kv = true},
     .tree_nodes = 33},
    {.shape = {.num_kv_heads = 1, .group_size = 2, .head_dim = 264}, .act = DType::kF16},
};

TEST_P(AttentionTest, MatchesDoubleLoop) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(::testing::Message() << "head_dim " << c.shape.head_dim << " group "
                                      << c.shape.group_size << " int8 " << c.shape.int8_kv);
    PagedWorld world = make_world(c.shape, 140);
    Mixture mixture = make_mixture(world, c.tree_nodes);
    const Launch launch{.act = c.act};
    const RowBytes rows = attend(world, mixture.pointers(), launch);
    expect_near_reference(world, rows, launch);
    if (HasFatalFailure()) return;
  }
}

// Slots before the first position hold NaN.
TEST_P(AttentionTest, NothingIsSeenBeforeTheFirstPosition) {
  for (const int first : {1, 70, 300}) {
    for (const int window : {0, 90}) {
      for (const bool int8_kv : {false, true}) {
        PagedWorld world = make_world({.num_kv_heads = 1,
                                       .group_size = 3,
                                       .head_dim = 64,
                                       .sliding_window = window,
                                       .first_position = first,
                                       .int8_kv = int8_kv},
                                      140);
        std::vector<Request> requests;
        const auto add = [&](int num_cached, std::vector<TreeNode> rows, bool is_tree) {
          Request request = world.new_request(first + num_cached + static_cast<int>(rows.size()));
          request.base_len = first;
          if (num_cached > 0) {
            request.rows = Request::chain(tokens(num_cached, requests.size() + 1));
            world.build({&request});
            world.project();
          }
          request.base_len += num_cached;
          request.rows = std::move(rows);
          request.is_tree = is_tree;
          requests.push_back(std::move(request));
        };
        add(260, Request::chain(tokens(1, 50)), false);
        add(0, Request::chain(tokens(60, 51)), false);
        add(9, random_tree(20, 3), true);
        add(0, Request::chain(tokens(1, 52)), false);
        const RowBytes together =
            attend(world, {&requests[0], &requests[1], &requests[2], &requests[3]});
        expect_near_reference(world, together, {});
        if (HasFatalFailure()) return;
        RowBytes alone;
        for (Request& request : requests) {
          for (auto& row : attend(world, {&request})) alone.push_back(std::move(row));
        }
        ASSERT_EQ(alone, together) << first << " " << window;
      }
    }
  }
}

TEST_P(AttentionTest, MatchesCpuBackend) {
  PagedWorld world =
      make_world({.group_size = 3, .head_dim = 64, .has_sinks = true}, 140, DType::kBF16);
  Mixture mixture = make_mixture(world);
  const RowBytes rows = attend(world, mixture.pointers());
  const RowBytes cpu = world.attend();
  ASSERT_EQ(rows.size(), cpu.size());
  for (size_t row = 0; row < rows.size(); ++row) {
    for (int64_t i = 0; i < std::ssize(rows[row]) / 2; ++i) {
      const double want = reference::element(cpu[row].data(), DType::kBF16, i);
      ASSERT_NEAR(reference::element(rows[row].data(), DType::kBF16, i), want,
                  0.02 * (1.0 + std::abs(want)))
          << row << " " << i;
    }
  }
}

TEST_P(AttentionTest, ChunksOfAPromptDoNotMatter) {
  struct Layer {
    int head_dim, window;
    float soft_cap;
  };
  for (const Layer& layer : {Layer{128, 0, 0.0f}, {128, 90, 0.7f}, {512, 0, 0.0f}}) {
    for (const bool int8_kv : {false, true}) {
      PagedWorld world = make_world({.num_kv_heads = 1,
                                     .group_size = 4,
                                     .head_dim = layer.head_dim,
                                     .sliding_window = layer.window,
                                     .soft_cap = layer.soft_cap,
                                     .has_sinks = int8_kv,
                                     .int8_kv = int8_kv},
                                    40);
      Request request = world.new_request(340);
      const std::vector<uint64_t> prompt = tokens(340);
      const auto run_from = [&](int begin, int count) {
        request.base_len = begin;
        request.rows = Request::chain({prompt.begin() + begin, prompt.begin() + begin + count});
        return attend(world, {&request});
      };
      const RowBytes whole = run_from(0, 340);
      for (const int chunk : {1, 3, 16, 64}) {
        const int first = chunk == 1 ? 250 : 200;
        const int limit = chunk == 1 ? 262 : 340;
        for (int begin = first; begin < limit; begin += chunk) {
          const RowBytes part = run_from(begin, std::min(chunk, limit - begin));
          for (size_t i = 0; i < part.size(); ++i) {
            ASSERT_EQ(part[i], whole[begin + i]) << "row " << begin + i << " chunk " << chunk;
          }
        }
      }
    }
  }
}

TEST_P(AttentionTest, TreeRowsEqualTheirPathsRunAsChains) {
  for (const AttentionShape& shape :
       {AttentionShape{.num_kv_heads = 2, .group_size = 4, .head_dim = 64},
        AttentionShape{.num_kv_heads = 1,
                       .group_size = 2,
                       .head_dim = 128,
                       .sliding_window = 40,
                       .has_sinks = true},
        AttentionShape{.num_kv_heads = 1,
                       .group_size = 8,
                       .head_dim = 128,
                       .has_sinks = true,
                       .int8_kv = true},
        AttentionShape{.num_kv_heads = 1, .group_size = 8, .head_dim = 512}}) {
    for (const int base_len : {7, 250, 512}) {
      PagedWorld world = make_world(shape, 80);
      Request tree = world.new_request(base_len + 70);
      fill(world, tree, base_len, 1);
      tree.rows = random_tree(70, base_len);
      tree.is_tree = true;
      const RowBytes rows = attend(world, {&tree});
      Request chain = world.new_request(base_len + 70);
      fill(world, chain, base_len, 1);
      for (const int leaf : {0, 5, 33, 64, 69}) {
        std::vector<uint64_t> path_tokens;
        const std::vector<int> path = tree.path_to(leaf);
        for (int node : path) path_tokens.push_back(tree.rows[node].token);
        chain.rows = Request::chain(path_tokens);
        const RowBytes chained = attend(world, {&chain});
        for (size_t i = 0; i < path.size(); ++i) ASSERT_EQ(chained[i], rows[path[i]]) << path[i];
      }
    }
  }
}

TEST_P(AttentionTest, TreesMayGrow) {
  PagedWorld world = make_world({.num_kv_heads = 1, .group_size = 3, .head_dim = 64}, 60);
  Request tree = world.new_request(230 + 66);
  fill(world, tree, 230, 1);
  tree.is_tree = true;
  const std::vector<TreeNode> nodes = random_tree(66, 9);
  RowBytes grown;
  for (const int limit : {1, 9, 40, 66}) {
    tree.rows.assign(nodes.begin(), nodes.begin() + limit);
    for (auto& row : attend(world, {&tree})) grown.push_back(std::move(row));
    tree.num_cached_rows = limit;
  }
  tree.num_cached_rows = 0;
  EXPECT_EQ(attend(world, {&tree}), grown);
}

TEST_P(AttentionTest, NeighboursDoNotMatter) {
  PagedWorld world =
      make_world({.num_kv_heads = 2, .group_size = 2, .head_dim = 64, .has_sinks = true}, 140);
  Mixture mixture = make_mixture(world);
  RowBytes alone;
  for (Request* request : mixture.pointers()) {
    for (auto& row : attend(world, {request})) alone.push_back(std::move(row));
  }
  EXPECT_EQ(attend(world, mixture.pointers()), alone);
}

TEST_P(AttentionTest, NeitherTheGridNorTheWorkspaceMatters) {
  for (const int window : {0, 200}) {
    PagedWorld world = make_world({.num_kv_heads = 2,
                                   .group_size = 2,
                                   .head_dim = 64,
                                   .sliding_window = window,
                                   .has_sinks = window == 0},
                                  140);
    Mixture mixture = make_mixture(world);
    const RowBytes rows = attend(world, mixture.pointers());
    for (const int num_multiprocessors : {1, 3, 100}) {
      for (const size_t workspace_bytes : {4096, 100'000, 200'000, 1'000'000}) {
        const Launch launch = {.num_multiprocessors = num_multiprocessors,
                               .workspace_bytes = workspace_bytes};
        EXPECT_EQ(attend_built(world, launch), rows)
            << num_multiprocessors << " " << workspace_bytes;
      }
    }
  }
}

// With less shared memory heads of 512 are computed 16 pairs at a time, where there are more. Each
// has many partial results, which a block loads in several turns.
TEST_P(AttentionTest, SharedMemoryDoesNotMatter) {
  for (const bool int8_kv : {false, true}) {
    PagedWorld world = make_world(
        {.num_kv_heads = 1, .group_size = 8, .head_dim = 512, .rotary_dim = 0, .int8_kv = int8_kv},
        160);
    Request request = world.new_request(2400);
    fill(world, request, 2300, 1);
    request.rows = Request::chain(tokens(5, 2));
    const Launch launch = {.num_multiprocessors = 40};
    const RowBytes rows = attend(world, {&request}, launch);
    expect_near_reference(world, rows, launch);
    EXPECT_EQ(attend_built(world, {.num_multiprocessors = 40,
                                   .max_shared_bytes = attention_shared_bytes(512)}),
              rows);
  }
}

// A later launch reads the work list that an earlier one wrote. It gets no lengths and must compute
// the same bits, whatever the grid, for chains and trees, in one split or many.
TEST_P(AttentionTest, IsListedOnceForAPass) {
  for (Case c : kCases) {
    if (c.shape.soft_cap != 0.0f) continue;  // every launch works out its own items
    SCOPED_TRACE(::testing::Message() << "head_dim " << c.shape.head_dim << " group "
                                      << c.shape.group_size << " int8 " << c.shape.int8_kv);
    PagedWorld world = make_world(c.shape, 140);
    Mixture mixture = make_mixture(world, std::min(c.tree_nodes, 9));
    const Launch launch{.act = c.act};
    const RowBytes want = attend(world, mixture.pointers(), launch);
    ASSERT_LE(world.batch().num_rows, kFewAttentionRows);
    for (const int num_multiprocessors : {1, 100}) {
      SCOPED_TRACE(num_multiprocessors);
      EXPECT_EQ(attend_stored(world, {.act = c.act, .num_multiprocessors = num_multiprocessors}),
                want);
    }
  }
}

// A list without room for all items is not written, and launches that would read it work out their
// own items.
TEST_P(AttentionTest, ALaunchWithoutRoomForAPlanHasNone) {
  PagedWorld world = make_world({.num_kv_heads = 2, .group_size = 2, .head_dim = 64}, 140);
  Mixture mixture = make_mixture(world);
  const RowBytes want = attend(world, mixture.pointers());
  const BatchView batch = upload_batch(world);
  Buffer memory = upload(std::vector<uint8_t>(1024, 0x5a));
  for (const bool is_made : {false, true}) {
    AttentionParams listed = params(batch, {});
    listed.work_list = {.memory = memory.data(), .size_bytes = 1024, .is_made = is_made};
    kernels().attention.tree_attention(stream(), listed);
    EXPECT_EQ(results(), want) << is_made;
  }
  EXPECT_EQ(download<uint8_t>(memory), std::vector<uint8_t>(1024, 0x5a));
}

TEST_P(AttentionTest, LongContextsHaveLongSplits) {
  constexpr int kBaseLen = 16384 + 1024 + 500;
  PagedWorld world = make_world({.num_kv_heads = 1,
                                 .group_size = 2,
                                 .head_dim = 32,
                                 .block_size = 256,
                                 .rotary_dim = 0,
                                 .has_sinks = true},
                                80);
  Request request = world.new_request(kBaseLen + 8);
  for (int begin = 0; begin < kBaseLen; begin += 4096) {
    request.base_len = begin;
    request.rows = Request::chain(tokens(std::min(4096, kBaseLen - begin), begin));
    world.build({&request});
    world.project();
  }
  request.base_len = kBaseLen;
  request.rows = random_tree(3, 1);
  request.is_tree = true;
  const RowBytes rows = attend(world, {&request});
  expect_near_reference(world, rows, {});
  EXPECT_EQ(attend_built(world, {.workspace_bytes = 4096}), rows);
  // Items of one, a few and many splits, short and long.
  for (const int num_multiprocessors : {2, 3, 9, 100}) {
    EXPECT_EQ(attend_built(world, {.num_multiprocessors = num_multiprocessors}), rows)
        << num_multiprocessors;
  }
}

// One captured launch serves all lengths and numbers of requests.
TEST_P(AttentionTest, CapturedOnceForAllLengths) {
  PagedWorld world = make_world({.num_kv_heads = 1, .group_size = 2, .head_dim = 64}, 140);
  Mixture mixture = make_mixture(world);
  const RowBytes want = attend(world, mixture.pointers());
  constexpr int kMostRequests = 9, kMostRows = 64;
  const BatchView& host = world.batch();
  ASSERT_LT(host.num_rows, kMostRows);
  q_.resize(int64_t{kMostRows} * shape_.num_heads() * shape_.head_dim, 0x7fc0);
  q_buffer_ = upload(q_);
  out_buffer_ = upload(std::vector<uint16_t>(q_.size(), 0xffff));
  Buffer cu_rows = allocate<int32_t>(kMostRequests + 1);
  Buffer base_lens = allocate<int32_t>(kMostRequests);
  Buffer tables = allocate<int32_t>(kMostRequests * host.max_blocks_per_request);
  Buffer is_tree = allocate<uint8_t>(kMostRequests);
  Buffer masks = allocate<uint64_t>(kMostRows * host.mask_words);
  BatchView batch = {.num_requests = kMostRequests,
                     .num_rows = kMostRows,
                     .cu_rows = cu_rows.as<int32_t>(),
                     .base_lens = base_lens.as<int32_t>(),
                     .block_tables = tables.as<int32_t>(),
                     .max_blocks_per_request = host.max_blocks_per_request,
                     .is_tree = is_tree.as<uint8_t>(),
                     .ancestor_mask = masks.as<uint64_t>(),
                     .mask_words = host.mask_words};
  const AttentionParams captured = params(batch, {});
  stream().begin_capture();
  kernels().attention.tree_attention(stream(), captured);
  const auto graph = stream().end_capture();
  // None, one, then all requests.
  for (const int num_requests : {0, 1, host.num_requests}) {
    std::vector<int32_t> ends(host.cu_rows, host.cu_rows + num_requests + 1);
    ends.resize(kMostRequests + 1, ends.back());
    const auto put = [&](Buffer& to, const void* from, size_t size_bytes) {
      stream().copy_to_device(to.data(), from, size_bytes);
    };
    put(cu_rows, ends.data(), ends.size() * sizeof(int32_t));
    put(base_lens, host.base_lens, host.num_requests * sizeof(int32_t));
    put(tables, host.block_tables,
        host.num_requests * host.max_blocks_per_request * sizeof(int32_t));
    put(is_tree, host.is_tree, host.num_requests);
    put(masks, host.ancestor_mask, host.num_rows * host.mask_words * sizeof(uint64_t));
    stream().launch(*graph);
    const RowBytes rows = results();
    for (int row = 0; row < kMostRows; ++row) {
      const std::vector<uint8_t> zeros(rows[row].size(), 0);
      ASSERT_EQ(rows[row], row < ends.back() ? want[row] : zeros) << row;
    }
  }
}

TEST_P(AttentionTest, TakesMoreRequestsThanSharedMemoryHasRoomFor) {
  PagedWorld world = make_world({.num_kv_heads = 1, .group_size = 2, .head_dim = 64}, 140);
  Mixture mixture = make_mixture(world);
  const RowBytes want = attend(world, mixture.pointers());
  const BatchView& host = world.batch();
  const size_t stride = host.max_blocks_per_request;
  // More requests than a block has shared memory for (two numbers each); only a few have rows.
  const int num_requests = device().properties().max_shared_bytes_per_block / 8;
  const std::vector<int> with_rows = {0, 1023, 1024, 5000, num_requests - 2, num_requests - 1};
  ASSERT_EQ(with_rows.size(), mixture.requests.size());
  std::vector<int32_t> cu_rows = {0};
  std::vector<int32_t> base_lens, tables;
  std::vector<uint8_t> is_tree;
  for (int request = 0, next = 0; request < num_requests; ++request) {
    const bool has_rows = with_rows[next] == request;
    const int32_t* table = host.block_tables + next * stride;
    cu_rows.push_back(host.cu_rows[has_rows ? next + 1 : next]);
    base_lens.push_back(has_rows ? host.base_lens[next] : 0);
    is_tree.push_back(has_rows ? host.is_tree[next] : 0);
    tables.insert(tables.end(), table, table + stride);
    if (has_rows && request != with_rows.back()) ++next;
  }
  const std::vector<uint64_t> masks(host.ancestor_mask,
                                    host.ancestor_mask + host.num_rows * host.mask_words);
  const Buffer buffers[] = {upload(cu_rows), upload(base_lens), upload(tables), upload(is_tree),
                            upload(masks)};
  out_buffer_ = upload(std::vector<uint16_t>(q_.size(), 0xffff));
  const BatchView batch = {.num_requests = num_requests,
                           .num_rows = host.num_rows,
                           .cu_rows = buffers[0].as<int32_t>(),
                           .base_lens = buffers[1].as<int32_t>(),
                           .block_tables = buffers[2].as<int32_t>(),
                           .max_blocks_per_request = host.max_blocks_per_request,
                           .is_tree = buffers[3].as<uint8_t>(),
                           .ancestor_mask = buffers[4].as<uint64_t>(),
                           .mask_words = host.mask_words};
  EXPECT_EQ(run(batch, {.num_multiprocessors = 1}), want);
}

INSTANTIATE_TEST_SUITE_P(Devices, AttentionTest, ::testing::ValuesIn(device_kinds()), test_name);

}  // namespace
}  // namespace specdec::cuda::testing
