// Attention over the paged cache on the device: against a double loop and the CPU backend, and bit
// for bit against itself, whatever a row is computed beside. Slots nobody wrote hold NaN.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "specdec/error.h"
#include "testing/device_kinds.h"
#include "testing/paged_world.h"

namespace specdec::cuda::testing {
namespace {

using specdec::testing::AttentionShape;
using specdec::testing::PagedWorld;
using specdec::testing::Request;
using specdec::testing::RowBytes;

// How the device is asked.
struct Launch {
  DType act = DType::kBF16;
  int num_multiprocessors = 4;
  size_t workspace_bytes = size_t{4} << 20;
};

uint16_t narrow(double value, DType act) {
  const float single = static_cast<float>(value);
  return act == DType::kBF16 ? to_bfloat16(single).bits : float_to_half(single);
}
double widen(uint16_t bits, DType act) {
  return act == DType::kBF16 ? to_float(BFloat16{bits}) : half_to_float(bits);
}

// A world's cache as the device keeps it: [block][head][offset][head_dim], codes followed by
// scales.
struct DeviceCache {
  std::vector<uint8_t> bytes;
  std::vector<double> values;  // what they stand for
};

DeviceCache device_cache(const PagedWorld& world, bool is_keys, bool has_codes, DType act) {
  const PagedKvView& kv = world.kv();
  const int64_t num_rows = int64_t{kv.num_blocks} * kv.num_kv_heads * kv.block_size;
  const int dim = kv.head_dim;
  DeviceCache cache;
  cache.values.resize(num_rows * dim);
  cache.bytes.resize(num_rows * (has_codes ? dim + 4 : 2 * dim));
  for (int64_t row = 0; row < num_rows; ++row) {
    const int64_t offset = row % kv.block_size;
    const int head = static_cast<int>(row / kv.block_size % kv.num_kv_heads);
    const int64_t slot = row / kv.block_size / kv.num_kv_heads * kv.block_size + offset;
    std::vector<double> elements;
    for (int i = 0; i < dim; ++i) {
      elements.push_back(is_keys ? world.key(slot, head, i) : world.value(slot, head, i));
    }
    if (!has_codes) {
      for (int i = 0; i < dim; ++i) {
        const uint16_t bits = narrow(elements[i], act);
        std::memcpy(&cache.bytes[(row * dim + i) * 2], &bits, 2);
        cache.values[row * dim + i] = widen(bits, act);
      }
      continue;
    }
    double largest = 0.0;
    for (double element : elements) largest = std::max(largest, std::abs(element));
    float scale = static_cast<float>(largest / 127.0);
    if (std::isnan(elements[0])) scale = std::numeric_limits<float>::quiet_NaN();
    std::memcpy(&cache.bytes[num_rows * dim + row * 4], &scale, 4);
    for (int i = 0; i < dim; ++i) {
      const double code = std::isnan(scale) ? 77 : std::nearbyint(elements[i] / scale);
      cache.bytes[row * dim + i] = static_cast<uint8_t>(static_cast<int8_t>(code));
      cache.values[row * dim + i] = widen(narrow(code * scale, act), act);
    }
  }
  return cache;
}

class AttentionTest : public CudaDeviceTest {
 protected:
  // A world whose values the CPU holds in float32 (bfloat16 for `cpu_act`).
  PagedWorld make_world(AttentionShape shape, int num_blocks, DType cpu_act = DType::kF32) {
    has_codes_ = shape.int8_kv;
    shape.int8_kv = false;
    shape_ = shape;
    cpu_ = specdec::make_backend({.device = "cpu", .num_threads = 1, .act_dtype = cpu_act});
    return PagedWorld(*cpu_, shape, num_blocks);
  }

  // The rows' results on the device, after world.build() and project().
  RowBytes attend_built(PagedWorld& world, const Launch& launch = {}) {
    const BatchView& host = world.batch();
    upload_world(world, launch);
    BatchView batch = host;
    const auto add = [&]<class T>(const T* values, size_t count) {
      if (values == nullptr || count == 0) return static_cast<const T*>(nullptr);
      buffers_.push_back(upload(std::vector<T>(values, values + count)));
      return static_cast<const T*>(buffers_.back().data());
    };
    const size_t requests = host.num_requests, rows = host.num_rows;
    batch.token_ids = nullptr;
    batch.positions = nullptr;
    batch.slot_mapping = nullptr;
    batch.cu_rows = add(host.cu_rows, requests + 1);
    batch.base_lens = add(host.base_lens, requests);
    batch.block_tables = add(host.block_tables, requests * host.max_blocks_per_request);
    batch.is_tree = add(host.is_tree, requests);
    batch.ancestor_mask = add(host.ancestor_mask, rows * host.mask_words);
    batch.num_tree_slots = add(host.num_tree_slots, requests);
    const RowBytes results = run(batch, launch);
    buffers_.clear();
    return results;
  }

  RowBytes attend(PagedWorld& world, const std::vector<Request*>& requests,
                  const Launch& launch = {}) {
    world.build(requests);
    world.project();
    return attend_built(world, launch);
  }

  // Puts the world's cache and queries on the device.
  void upload_world(PagedWorld& world, const Launch& launch) {
    keys_ = device_cache(world, true, has_codes_, launch.act);
    values_ = device_cache(world, false, has_codes_, launch.act);
    key_buffer_ = upload(keys_.bytes);
    value_buffer_ = upload(values_.bytes);
    kv_ = world.kv();
    kv_.keys = key_buffer_.data();
    kv_.values = value_buffer_.data();
    kv_.dtype = has_codes_ ? DType::kI8 : launch.act;
    const std::vector<uint8_t>& q = world.q_bytes();
    q_.clear();
    if (cpu_->act_dtype() == DType::kBF16) {
      q_.resize(q.size() / 2);
      std::memcpy(q_.data(), q.data(), q.size());
    } else {
      for (size_t i = 0; i < q.size(); i += 4) {
        float value;
        std::memcpy(&value, &q[i], 4);
        q_.push_back(narrow(value, launch.act));
      }
    }
    q_buffer_ = upload(q_);
    out_buffer_ = upload(std::vector<uint16_t>(q_.size(), 0xffff));
  }

  AttentionParams params(const BatchView& batch, const Launch& launch) {
    if (workspace_.size_bytes() != launch.workspace_bytes) {
      workspace_ = device().allocate(launch.workspace_bytes, "test");
    }
    return {.q = q_buffer_.data(),
            .out = out_buffer_.data(),
            .act_dtype = launch.act,
            .batch = batch,
            .kv = kv_,
            .num_heads = shape_.num_heads(),
            .scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim)),
            .soft_cap = shape_.soft_cap,
            .sliding_window = shape_.sliding_window,
            .num_multiprocessors = launch.num_multiprocessors,
            .workspace = workspace_.data(),
            .workspace_bytes = launch.workspace_bytes};
  }

  RowBytes run(const BatchView& batch, const Launch& launch) {
    kernels().attention.tree_attention(stream(), params(batch, launch));
    return results();
  }

  RowBytes results() {
    const std::vector<uint8_t> out = download<uint8_t>(out_buffer_);
    const int64_t row_bytes = int64_t{shape_.num_heads()} * shape_.head_dim * 2;
    RowBytes rows;
    for (auto row = out.begin(); row != out.end(); row += row_bytes) {
      rows.emplace_back(row, row + row_bytes);
    }
    return rows;
  }

  // The same by a double loop.
  std::vector<std::vector<double>> expected(const PagedWorld& world, const Launch& launch) const;
  void expect_near_reference(const PagedWorld& world, const RowBytes& rows, const Launch& launch);

  AttentionShape shape_;
  bool has_codes_ = false;
  std::unique_ptr<Backend> cpu_;
  DeviceCache keys_, values_;
  std::vector<uint16_t> q_;
  PagedKvView kv_;
  Buffer key_buffer_, value_buffer_, q_buffer_, out_buffer_, workspace_;
  std::vector<Buffer> buffers_;
};

std::vector<int> visible_slots(const BatchView& batch, int request, int row, int window) {
  const int base_len = batch.base_lens[request];
  const int index = row - batch.cu_rows[request];
  const int num_rows = batch.cu_rows[request + 1] - batch.cu_rows[request];
  std::vector<int> slots(base_len);
  std::iota(slots.begin(), slots.end(), 0);
  const bool is_tree = batch.is_tree[request] != 0;
  const int num_slots = !is_tree                          ? index + 1
                        : batch.num_tree_slots != nullptr ? batch.num_tree_slots[request]
                                                          : num_rows;
  for (int j = 0; j < num_slots; ++j) {
    const uint64_t word = batch.ancestor_mask[int64_t{row} * batch.mask_words + j / 64];
    if (!is_tree || (word >> (j % 64) & 1) != 0) slots.push_back(base_len + j);
  }
  if (window > 0 && static_cast<int>(slots.size()) > window) {
    slots.erase(slots.begin(), slots.end() - window);
  }
  return slots;
}

std::vector<std::vector<double>> AttentionTest::expected(const PagedWorld& world,
                                                         const Launch& launch) const {
  const BatchView& batch = world.batch();
  const int dim = shape_.head_dim, num_heads = shape_.num_heads();
  std::vector<std::vector<double>> rows;
  for (int request = 0; request < batch.num_requests; ++request) {
    const int32_t* table = batch.block_tables + int64_t{request} * batch.max_blocks_per_request;
    for (int row = batch.cu_rows[request]; row < batch.cu_rows[request + 1]; ++row) {
      const std::vector<int> slots = visible_slots(batch, request, row, shape_.sliding_window);
      std::vector<double> out(int64_t{num_heads} * dim, 0.0);
      for (int head = 0; head < num_heads; ++head) {
        const auto place = [&](int slot) {
          const int64_t block = table[slot / kv_.block_size];
          return ((block * kv_.num_kv_heads + head / shape_.group_size) * kv_.block_size +
                  slot % kv_.block_size) *
                 dim;
        };
        std::vector<double> weights;
        for (int slot : slots) {
          double dot = 0.0;
          for (int i = 0; i < dim; ++i) {
            dot += widen(q_[(int64_t{row} * num_heads + head) * dim + i], launch.act) *
                   keys_.values[place(slot) + i];
          }
          const double score = dot / std::sqrt(static_cast<double>(dim));
          const double cap = shape_.soft_cap;
          weights.push_back(cap > 0.0 ? cap * std::tanh(score / cap) : score);
        }
        const double highest = *std::max_element(weights.begin(), weights.end());
        double total = 0.0;
        for (double& weight : weights) total += weight = std::exp(weight - highest);
        for (size_t j = 0; j < slots.size(); ++j) {
          for (int i = 0; i < dim; ++i) {
            out[int64_t{head} * dim + i] +=
                weights[j] / total * values_.values[place(slots[j]) + i];
          }
        }
      }
      rows.push_back(std::move(out));
    }
  }
  return rows;
}

double element(const std::vector<uint8_t>& row, size_t i, DType act) {
  uint16_t bits;
  std::memcpy(&bits, &row[2 * i], 2);
  return widen(bits, act);
}

void AttentionTest::expect_near_reference(const PagedWorld& world, const RowBytes& rows,
                                          const Launch& launch) {
  const std::vector<std::vector<double>> reference = expected(world, launch);
  ASSERT_EQ(rows.size(), reference.size());
  const double tolerance = launch.act == DType::kBF16 ? 0.008 : 0.001;
  for (size_t row = 0; row < rows.size(); ++row) {
    for (size_t i = 0; i < reference[row].size(); ++i) {
      const double want = reference[row][i];
      ASSERT_NEAR(element(rows[row], i, launch.act), want, tolerance * (1.0 + std::abs(want)))
          << "row " << row << " element " << i;
    }
  }
}

std::vector<uint64_t> tokens(int count, uint64_t first = 0) {
  std::vector<uint64_t> result(count);
  std::iota(result.begin(), result.end(), first * 1000);
  return result;
}

// Cached tokens, whose own results nobody asks for.
void fill(PagedWorld& world, Request& request, int count, uint64_t seed) {
  if (count == 0) return;
  request.is_tree = false;
  request.rows = Request::chain(tokens(count, seed));
  world.build({&request});
  world.project();
  request.base_len = count;
  request.rows.clear();
}

std::vector<specdec::testing::TreeNode> random_tree(int num_nodes, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<specdec::testing::TreeNode> rows;
  for (int i = 0; i < num_nodes; ++i) {
    const int reach = std::min(i, 6);  // deep and bushy
    const int parent = i == 0 ? -1 : i - 1 - static_cast<int>(random() % reach);
    rows.push_back({.token = random() % 5000, .parent = parent});
  }
  return rows;
}

// Requests of every kind.
struct Mixture {
  std::vector<Request> requests;
  std::vector<Request*> pointers() {
    std::vector<Request*> result;
    for (Request& request : requests) result.push_back(&request);
    return result;
  }
};

Mixture make_mixture(PagedWorld& world, int tree_nodes = 9) {
  Mixture mixture;
  const auto add = [&](int base_len, std::vector<specdec::testing::TreeNode> rows, bool is_tree) {
    Request request = world.new_request(base_len + static_cast<int>(rows.size()));
    fill(world, request, base_len, mixture.requests.size() + 1);
    request.rows = std::move(rows);
    request.is_tree = is_tree;
    mixture.requests.push_back(std::move(request));
  };
  add(300, Request::chain(tokens(5, 50)), false);
  add(250, random_tree(tree_nodes, 3), true);
  add(0, Request::chain(tokens(27, 60)), false);
  add(600, Request::chain(tokens(1, 70)), false);
  add(0, random_tree(4, 5), true);
  add(511, random_tree(3, 6), true);
  return mixture;
}

struct Case {
  AttentionShape shape;
  DType act = DType::kBF16;
  int tree_nodes = 9;
};

const Case kCases[] = {
    {.shape = {.num_kv_heads = 2, .group_size = 1, .head_dim = 32, .block_size = 32}},
    {.shape = {.num_kv_heads = 1, .group_size = 2, .head_dim = 64}, .act = DType::kF16},
    {.shape = {.num_kv_heads = 1, .group_size = 3, .head_dim = 64, .sliding_window = 100},
     .tree_nodes = 70},
    {.shape = {.num_kv_heads = 1, .group_size = 4, .head_dim = 80, .int8_kv = true}},
    {.shape = {.num_kv_heads = 2, .group_size = 4, .head_dim = 128}, .tree_nodes = 70},
    {.shape = {.num_kv_heads = 1, .group_size = 7, .head_dim = 96, .block_size = 48}},
    {.shape = {.num_kv_heads = 1, .group_size = 8, .head_dim = 128, .int8_kv = true},
     .act = DType::kF16},
    {.shape = {.num_kv_heads = 1, .group_size = 2, .head_dim = 256, .sliding_window = 300},
     .act = DType::kF16},
    {.shape = {.num_kv_heads = 1, .group_size = 2, .head_dim = 256, .int8_kv = true}},
    {.shape = {.num_kv_heads = 1, .group_size = 71, .head_dim = 64}, .tree_nodes = 3},
    {.shape = {.num_kv_heads = 1, .group_size = 2, .head_dim = 72}},
    {.shape = {.num_kv_heads = 2, .group_size = 2, .head_dim = 64, .int8_kv = true}},
    {.shape = {.num_kv_heads = 2, .group_size = 3, .head_dim = 64, .soft_cap = 0.5f}},
    {.shape = {.num_kv_heads = 1, .group_size = 9, .head_dim = 256, .soft_cap = 5.0f},
     .act = DType::kF16},
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

TEST_P(AttentionTest, MatchesCpuBackend) {
  PagedWorld world = make_world({.group_size = 3, .head_dim = 64}, 140, DType::kBF16);
  Mixture mixture = make_mixture(world);
  const RowBytes rows = attend(world, mixture.pointers());
  const RowBytes cpu = world.attend();
  ASSERT_EQ(rows.size(), cpu.size());
  for (size_t row = 0; row < rows.size(); ++row) {
    for (size_t i = 0; i < rows[row].size() / 2; ++i) {
      const double want = element(cpu[row], i, DType::kBF16);
      ASSERT_NEAR(element(rows[row], i, DType::kBF16), want, 0.02 * (1.0 + std::abs(want)))
          << row << " " << i;
    }
  }
}

TEST_P(AttentionTest, ChunksOfAPromptDoNotMatter) {
  for (const bool int8_kv : {false, true}) {
    for (const int window : {0, 90}) {
      PagedWorld world = make_world({.num_kv_heads = 1,
                                     .group_size = 4,
                                     .head_dim = 128,
                                     .sliding_window = window,
                                     .soft_cap = window > 0 ? 0.7f : 0.0f,
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
        AttentionShape{.num_kv_heads = 1, .group_size = 2, .head_dim = 128, .sliding_window = 40},
        AttentionShape{.num_kv_heads = 1, .group_size = 8, .head_dim = 128, .int8_kv = true}}) {
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
  const std::vector<specdec::testing::TreeNode> nodes = random_tree(66, 9);
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
  PagedWorld world = make_world({.num_kv_heads = 2, .group_size = 2, .head_dim = 64}, 140);
  Mixture mixture = make_mixture(world);
  RowBytes alone;
  for (Request* request : mixture.pointers()) {
    for (auto& row : attend(world, {request})) alone.push_back(std::move(row));
  }
  EXPECT_EQ(attend(world, mixture.pointers()), alone);
}

TEST_P(AttentionTest, NeitherTheGridNorTheWorkspaceMatters) {
  for (const int window : {0, 200}) {
    PagedWorld world = make_world(
        {.num_kv_heads = 2, .group_size = 2, .head_dim = 64, .sliding_window = window}, 140);
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

TEST_P(AttentionTest, LongContextsHaveLongSplits) {
  constexpr int kBaseLen = 16384 + 1024 + 500;
  PagedWorld world = make_world(
      {.num_kv_heads = 1, .group_size = 2, .head_dim = 32, .block_size = 256, .rotary_dim = 0}, 80);
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
}

// One captured launch serves every length, and requests that are not there.
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
  // The first requests only, then all.
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
  // A block would have to hold two numbers for each; only a few have rows.
  const int num_requests = device().properties().max_shared_bytes_per_block / 8;
  const std::vector<int> places = {0, 1023, 1024, 5000, num_requests - 2, num_requests - 1};
  ASSERT_EQ(places.size(), mixture.requests.size());
  std::vector<int32_t> cu_rows = {0};
  std::vector<int32_t> base_lens, tables;
  std::vector<uint8_t> is_tree;
  for (int request = 0, next = 0; request < num_requests; ++request) {
    const bool has_rows = places[next] == request;
    const int32_t* table = host.block_tables + next * stride;
    cu_rows.push_back(host.cu_rows[has_rows ? next + 1 : next]);
    base_lens.push_back(has_rows ? host.base_lens[next] : 0);
    is_tree.push_back(has_rows ? host.is_tree[next] : 0);
    tables.insert(tables.end(), table, table + stride);
    if (has_rows && request != places.back()) ++next;
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

TEST_P(AttentionTest, BackendTakesStagedBatches) {
  PagedWorld world = make_world({.num_kv_heads = 2, .group_size = 2, .head_dim = 64}, 140);
  Mixture mixture = make_mixture(world);
  const RowBytes want = attend(world, mixture.pointers());
  const auto backend = make_backend(GetParam(), DType::kBF16);
  std::vector<Buffer> copies;
  const auto move = [&](const auto& values) {
    const size_t size_bytes = values.size() * sizeof(values[0]);
    copies.push_back(backend->allocate(size_bytes, "test"));
    backend->stream().copy_to_device(copies.back().data(), values.data(), size_bytes);
    backend->stream().synchronize();
    return copies.back().data();
  };
  backend->begin_step();
  const BatchView batch = backend->stage(world.batch());
  TreeAttentionArgs args = world.attention_args();
  args.batch = &batch;
  args.q = move(q_);
  args.kv.dtype = DType::kBF16;
  EXPECT_EQ(backend->kv_layer_bytes(args.kv), keys_.bytes.size());
  args.kv.keys = move(keys_.bytes);
  args.kv.values = move(values_.bytes);
  // The staged batch may be padded.
  ASSERT_GE(batch.num_rows, world.batch().num_rows);
  args.out = move(std::vector<uint8_t>(batch.num_rows * want[0].size(), 0xff));
  backend->tree_attention(args);
  for (const std::vector<uint8_t>& row : want) {
    std::vector<uint8_t> got(row.size());
    backend->stream().copy_to_host(got.data(), args.out, got.size());
    backend->stream().synchronize();
    ASSERT_EQ(got, row);
    args.out = static_cast<char*>(args.out) + row.size();
  }
}

class KvCopyTest : public ::testing::TestWithParam<DeviceKind> {};

TEST_P(KvCopyTest, MovesSlotsInEveryLayer) {
  const auto backend = make_backend(GetParam(), DType::kBF16);
  for (const DType dtype : {DType::kBF16, DType::kI8}) {
    PagedKvView shape = {
        .dtype = dtype, .num_blocks = 5, .block_size = 16, .num_kv_heads = 2, .head_dim = 48};
    const size_t size_bytes = backend->kv_layer_bytes(shape);
    const size_t row_bytes = shape.head_dim * size_of(dtype);
    EXPECT_EQ(size_bytes, 5 * 16 * 2 * (row_bytes + (dtype == DType::kI8 ? 4 : 0)));
    std::vector<Buffer> buffers;
    std::vector<std::vector<uint8_t>> contents;
    std::vector<PagedKvView> layers(3, shape);
    std::mt19937 random(1);
    for (PagedKvView& layer : layers) {
      for (void** part : {&layer.keys, &layer.values}) {
        std::vector<uint8_t> bytes(size_bytes);
        for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
        buffers.push_back(backend->allocate(size_bytes, "test"));
        *part = buffers.back().data();
        backend->stream().copy_to_device(*part, bytes.data(), size_bytes);
        backend->stream().synchronize();
        contents.push_back(std::move(bytes));
      }
    }
    // Two requests, the first with more pairs than are read at once.
    std::vector<std::pair<int64_t, int64_t>> pairs;
    for (int64_t i = 0; i < 12; ++i) pairs.emplace_back(17 + 2 * i, 17 + i);
    pairs.emplace_back(66, 65);
    pairs.emplace_back(70, 66);
    backend->begin_step();
    backend->copy_kv({.layers = layers, .slots = pairs});
    const int64_t num_rows = 5 * 16 * 2;
    for (size_t i = 0; i < buffers.size(); ++i) {
      std::vector<uint8_t>& want = contents[i];
      for (const auto& [from, to] : pairs) {
        for (int head = 0; head < 2; ++head) {
          const int64_t source = (from / 16 * 2 + head) * 16 + from % 16;
          const int64_t target = (to / 16 * 2 + head) * 16 + to % 16;
          std::memcpy(&want[target * row_bytes], &want[source * row_bytes], row_bytes);
          if (dtype == DType::kI8) {
            std::memcpy(&want[num_rows * row_bytes + target * 4],
                        &want[num_rows * row_bytes + source * 4], 4);
          }
        }
      }
      std::vector<uint8_t> got(size_bytes);
      backend->stream().copy_to_host(got.data(), buffers[i].data(), size_bytes);
      backend->stream().synchronize();
      EXPECT_EQ(got, want) << i;
    }
  }
}

TEST_P(KvCopyTest, HeadsThatNoKernelTakesAreRefused) {
  const auto backend = make_backend(GetParam(), DType::kF16);
  PagedKvView shape = {
      .dtype = DType::kF16, .num_blocks = 5, .block_size = 16, .num_kv_heads = 2, .head_dim = 264};
  EXPECT_THROW(backend->kv_layer_bytes(shape), InvalidArgument);
  shape.head_dim = 72;
  EXPECT_GT(backend->kv_layer_bytes(shape), 0u);
  shape.dtype = DType::kI8;
  EXPECT_THROW(backend->kv_layer_bytes(shape), InvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Devices, AttentionTest, ::testing::ValuesIn(device_kinds()), test_name);
INSTANTIATE_TEST_SUITE_P(Devices, KvCopyTest, ::testing::ValuesIn(device_kinds()), test_name);

}  // namespace
}  // namespace specdec::cuda::testing
