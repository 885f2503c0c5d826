// Which heads of a layer each of several ranks has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace specdec {

class Communicator;

struct HeadShare {
  int first_head = 0;
  int num_heads = 0;
  int first_kv_head = 0;
  int num_kv_heads = 0;  // ranks may hold the same one
};

// For norms over heads of several ranks. Ranks exchange the values of their heads (the sums of q
// and k before attention), and each adds up the squares of all of them in the order that one device
// has.
struct SharedHeads {
  Communicator* ranks = nullptr;
  std::vector<HeadShare> by_rank;

  int num_heads() const { return by_rank.back().first_head + by_rank.back().num_heads; }
  int num_kv_heads() const { return by_rank.back().first_kv_head + by_rank.back().num_kv_heads; }
  // Floats per row in a rank's part of the exchange: its q, then its k.
  int64_t part_width(int rank, int head_dim) const {
    return int64_t{by_rank[rank].num_heads + by_rank[rank].num_kv_heads} * head_dim;
  }
  // The first value of each rank's heads, then the number of values: [ranks + 1].
  std::vector<int64_t> bounds(int head_dim) const;
  // Row `row` of q of all heads, then of k, from everybody's parts [rows, part_width].
  void gather_row(std::span<const std::span<const std::byte>> parts, int64_t row, int head_dim,
                  float* q_and_k) const;
};

}  // namespace specdec
