// Gated norms of heads that ranks share: bit for bit those of one rank.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <random>
#include <vector>

#include "backend/op_args.h"
#include "backend/recurrent_args.h"
#include "backend/shared_heads.h"
#include "testing/on_ranks.h"
#include "testing/recurrent_world.h"

namespace specdec::testing {

struct NormInputs {
  int width = 0;
  std::vector<float> x;       // [rows, width]
  std::vector<float> gates;   // [rows, width + kGap]
  std::vector<float> weight;  // [width]

  static constexpr int kGap = 5;
  int num_rows() const { return static_cast<int>(x.size()) / width; }

  static NormInputs made_up(int num_rows, int width) {
    std::mt19937 random(7);
    return {.width = width,
            .x = random_values(random, num_rows * width, 3.0f),
            .gates = random_values(random, num_rows * (width + kGap), 2.0f),
            .weight = random_values(random, width)};
  }

  // Values [first, first + count) of every row.
  NormInputs cut(int first, int count) const {
    NormInputs own;
    own.width = count;
    for (int row = 0; row < num_rows(); ++row) {
      const auto begin = x.begin() + row * width + first;
      own.x.insert(own.x.end(), begin, begin + count);
      const auto gate = gates.begin() + row * (width + kGap) + first;
      own.gates.insert(own.gates.end(), gate, gate + count);
      own.gates.insert(own.gates.end(), kGap, -3.0f);
    }
    own.weight.assign(weight.begin() + first, weight.begin() + first + count);
    return own;
  }
};

// Computes out [rows, width] as bytes on a backend of its own. What it lacks in `args` is in
// `inputs`.
using RunNorm =
    std::function<std::vector<uint8_t>(const NormInputs& inputs, const GatedNormArgs& args)>;

inline void expect_ranks_share_norms(const RunNorm& run, int element_size) {
  struct Case {
    int num_groups, head_dim;
    std::vector<int> heads;  // of each rank
  };
  // Ranks have parts of a group, whole groups, or the end of one and the beginning of the next.
  for (const Case& c : {Case{1, 20, {3, 3}},
                        {1, 7, {1, 2, 3}},
                        {1, 300, {4, 4, 4, 4}},
                        {2, 16, {2, 2, 2, 2}},
                        {2, 24, {3, 2, 3}},
                        {4, 33, {3, 1, 4}}}) {
    SharedHeads shared;
    int num_heads = 0;
    for (const int count : c.heads) {
      shared.by_rank.push_back({.first_head = num_heads, .num_heads = count});
      num_heads += count;
    }
    const NormInputs whole = NormInputs::made_up(/*num_rows=*/5, num_heads * c.head_dim);
    const GatedNormArgs args = {.eps = 1e-3f,
                                .gates_first = true,
                                .num_rows = whole.num_rows(),
                                .num_groups = c.num_groups,
                                .dim = whole.width / c.num_groups};
    const std::vector<uint8_t> expected = run(whole, args);
    on_ranks(static_cast<int>(c.heads.size()), [&](Communicator& ranks) {
      SharedHeads heads = shared;
      heads.ranks = &ranks;
      const HeadShare& share = heads.by_rank[static_cast<size_t>(ranks.rank())];
      const int first = share.first_head * c.head_dim, width = share.num_heads * c.head_dim;
      std::vector<uint8_t> bits;
      for (int row = 0; row < whole.num_rows(); ++row) {
        const auto begin = expected.begin() + (row * whole.width + first) * element_size;
        bits.insert(bits.end(), begin, begin + width * element_size);
      }
      const NormInputs own = whole.cut(first, width);
      GatedNormArgs own_args = args;
      own_args.shared_heads = &heads;
      EXPECT_EQ(run(own, own_args), bits) << c.num_groups << " groups, rank " << ranks.rank();
      // The comparison notices a norm over this rank's heads alone.
      own_args.shared_heads = nullptr;
      own_args.num_groups = 1;
      own_args.dim = width;
      const bool has_groups = width % args.dim == 0 && first % args.dim == 0;
      if (!has_groups) {
        EXPECT_NE(run(own, own_args), bits);
      }
    });
  }
}

}  // namespace specdec::testing
