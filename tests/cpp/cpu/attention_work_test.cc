#include "cpu/attention_work.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "cpu/kernels/attention.h"

namespace specdec::cpu {
namespace {

// A batch of chains: (committed tokens, rows) of each.
struct Batch {
  explicit Batch(const std::vector<std::pair<int, int>>& requests, int window = 0) {
    for (const auto& [base_len, num_rows] : requests) {
      base_lens.push_back(base_len);
      cu_rows.push_back(cu_rows.back() + num_rows);
    }
    view = {.num_requests = static_cast<int>(requests.size()),
            .num_rows = cu_rows.back(),
            .cu_rows = cu_rows.data(),
            .base_lens = base_lens.data()};
    args = {.batch = &view,
            .kv = {.block_size = 16, .num_kv_heads = 3, .head_dim = 64},
            .num_heads = 9,
            .sliding_window = window};
  }
  std::vector<int32_t> cu_rows = {0}, base_lens;
  BatchView view;
  TreeAttentionArgs args;
};

int64_t num_positions(const AttentionUnit& unit, int chunk_begin, int chunk_end) {
  return std::min(unit.position_limit, chunk_end * kAttentionChunk) -
         std::max(unit.first_position, chunk_begin * kAttentionChunk);
}

TEST(AttentionWork, EveryRowHeadAndChunkIsComputedOnce) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::pair<int, int>> requests;
    for (unsigned i = 0; i <= random() % 20; ++i) {
      requests.emplace_back(random() % 3000, random() % 3 == 0 ? 1 + random() % 600 : 1);
    }
    const int window = random() % 2 == 0 ? 0 : 1 + static_cast<int>(random() % 1000);
    const Batch batch(requests, window);
    const AttentionWork work = divide_attention(batch.args, 1 + static_cast<int>(random() % 8));

    std::set<std::tuple<int, int, int>> rows;  // request, head, row
    for (const AttentionUnit& unit : work.units) {
      for (int row = unit.first_row; row < unit.first_row + unit.num_rows; ++row) {
        EXPECT_TRUE(rows.insert({unit.request, unit.kv_head, row}).second);
        const int end = requests[unit.request].first + row + 1;
        EXPECT_LE(end, unit.position_limit);
        EXPECT_LE(unit.first_position, window == 0 ? 0 : std::max(0, end - window));
      }
      EXPECT_LE(unit.num_rows, kMaxAttentionRows);
    }
    EXPECT_EQ(rows.size(), static_cast<size_t>(3 * batch.view.num_rows));

    // Portions follow each other, within and across units.
    ASSERT_EQ(work.slices.front(), 0);
    ASSERT_EQ(work.slices.back(), static_cast<int>(work.portions.size()));
    EXPECT_TRUE(std::is_sorted(work.slices.begin(), work.slices.end()));
    std::map<int, int> next_chunk, num_portions;
    for (const AttentionPortion& portion : work.portions) {
      const AttentionUnit& unit = work.units[portion.unit];
      const auto [entry, is_first] = next_chunk.try_emplace(portion.unit, unit.first_chunk());
      EXPECT_EQ(portion.chunk_begin, entry->second);
      EXPECT_LT(portion.chunk_begin, portion.chunk_end);
      entry->second = portion.chunk_end;
      ++num_portions[portion.unit];
    }
    int64_t num_partials = 0;
    for (size_t i = 0; i < work.units.size(); ++i) {
      const AttentionUnit& unit = work.units[i];
      EXPECT_EQ(next_chunk[static_cast<int>(i)], unit.chunk_limit());
      EXPECT_EQ(num_portions[static_cast<int>(i)], unit.num_portions);
      EXPECT_EQ(unit.partials, unit.num_portions > 1 ? num_partials : -1);
      if (unit.num_portions < 2) continue;
      num_partials += int64_t{unit.chunk_limit() - unit.first_chunk()} * unit.num_rows * 3;
    }
    EXPECT_EQ(work.num_partials, num_partials);
  }
}

// Three heads are no even number for two threads, and a prompt's later rows see more.
TEST(AttentionWork, ThreadsGetEqualShares) {
  for (const auto& requests : {std::vector<std::pair<int, int>>{{4095, 1}},
                               {{8000, 8}},
                               {{0, 512}},
                               {{4000, 1}, {10, 1}, {10, 1}, {10, 1}},
                               std::vector<std::pair<int, int>>(32, {700, 1})}) {
    const Batch batch(requests);
    for (int num_threads : {2, 3, 4}) {
      const AttentionWork work = divide_attention(batch.args, num_threads);
      const int per_thread = work.num_slices() / num_threads;
      std::vector<double> shares;
      for (int thread = 0; thread < num_threads; ++thread) {
        double share = 0.0;
        for (int i = work.slices[thread * per_thread]; i < work.slices[(thread + 1) * per_thread];
             ++i) {
          const AttentionPortion& portion = work.portions[i];
          const AttentionUnit& unit = work.units[portion.unit];
          share += static_cast<double>(num_positions(unit, portion.chunk_begin, portion.chunk_end) *
                                       std::max(16, 3 * unit.num_rows));
        }
        shares.push_back(share);
      }
      const auto [least, most] = std::minmax_element(shares.begin(), shares.end());
      EXPECT_GE(*least, 0.85 * *most) << requests.size() << " requests, " << num_threads;
    }
  }
}

TEST(AttentionWork, ShortContextsStayWhole) {
  const Batch batch(std::vector<std::pair<int, int>>(40, {100, 1}));
  const AttentionWork work = divide_attention(batch.args, 2);
  EXPECT_EQ(work.num_partials, 0);
  EXPECT_EQ(work.portions.size(), work.units.size());
}

}  // namespace
}  // namespace specdec::cpu
