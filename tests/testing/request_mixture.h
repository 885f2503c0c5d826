// Requests of a PagedWorld: prompts, chains and trees over long and short contexts.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "testing/paged_world.h"

namespace specdec::testing {

inline std::vector<uint64_t> tokens(int count, uint64_t first = 0) {
  std::vector<uint64_t> result(count);
  std::iota(result.begin(), result.end(), first * 1000);
  return result;
}

// Cached tokens, whose own results nobody asks for.
inline void fill(PagedWorld& world, Request& request, int count, uint64_t seed) {
  if (count == 0) return;
  request.is_tree = false;
  request.rows = Request::chain(tokens(count, seed));
  world.build({&request});
  world.project();
  request.base_len = count;
  request.rows.clear();
}

inline std::vector<TreeNode> random_tree(int num_nodes, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<TreeNode> rows;
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

inline Mixture make_mixture(PagedWorld& world, int tree_nodes = 9) {
  Mixture mixture;
  const auto add = [&](int base_len, std::vector<TreeNode> rows, bool is_tree) {
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

}  // namespace specdec::testing
