// A fixture for attention of the CPU backend, with requests of every kind.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "cpu/cpu_backend.h"
#include "testing/cpu_isas.h"
#include "testing/oracle/operations.h"
#include "testing/paged_world.h"

namespace specdec::testing::cpu_attention {

inline std::vector<uint64_t> random_tokens(std::mt19937_64& random, int count) {
  std::vector<uint64_t> tokens(count);
  for (uint64_t& token : tokens) token = random() % 100000;
  return tokens;
}

// A root and nodes whose parents are drawn from the rows before them.
inline std::vector<TreeNode> random_tree(std::mt19937_64& random, int num_rows) {
  std::vector<TreeNode> rows = {{random() % 100000, -1}};
  while (static_cast<int>(rows.size()) < num_rows) {
    rows.push_back({random() % 100000, static_cast<int>(random() % rows.size())});
  }
  return rows;
}

// A request with `base_len` committed tokens and rows of the given kind to run next.
enum class Kind { kDecode, kChunk, kTree };
inline Request make_request(PagedWorld& world, std::mt19937_64& random, Kind kind, int base_len,
                            int num_rows) {
  Request request = world.new_request(base_len + num_rows);
  world.prefill(request, random_tokens(random, base_len));
  request.is_tree = kind == Kind::kTree;
  request.rows = kind == Kind::kTree ? random_tree(random, num_rows)
                                     : Request::chain(random_tokens(random, num_rows));
  return request;
}

inline reference::PlainKv read_cache(const PagedWorld& world) {
  const PagedKvView& kv = world.kv();
  reference::PlainKv plain;
  for (int64_t slot = 0; slot < int64_t{kv.num_blocks} * kv.block_size; ++slot) {
    for (int head = 0; head < kv.num_kv_heads; ++head) {
      for (int i = 0; i < kv.head_dim; ++i) {
        plain.keys.push_back(world.key(slot, head, i));
        plain.values.push_back(world.value(slot, head, i));
      }
    }
  }
  return plain;
}

// Kernels, activations, and whether the cache holds int8.
using Parameters = std::tuple<cpu::Isa, DType, bool>;

inline std::string name_of_parameters(const ::testing::TestParamInfo<Parameters>& info) {
  const auto& [isa, dtype, int8_kv] = info.param;
  return std::string(cpu::name_of(isa)) + "_" + std::string(name_of(dtype)) +
         (int8_kv ? "_int8" : "");
}

class CpuAttention : public ::testing::TestWithParam<Parameters> {
 protected:
  cpu::CpuBackend make_backend(int num_threads) {
    return cpu::CpuBackend(std::get<0>(GetParam()), num_threads, dtype());
  }
  static DType dtype() { return std::get<1>(GetParam()); }
  static bool int8_kv() { return std::get<2>(GetParam()); }

  static AttentionShape with_kv(AttentionShape shape) {
    shape.int8_kv = int8_kv();
    return shape;
  }
  struct World : PagedWorld {
    World(Backend& backend, const AttentionShape& shape, int num_blocks, uint64_t seed = 1)
        : PagedWorld(backend, with_kv(shape), num_blocks, seed) {}
  };

  // Largest error of the last attend() in units of what rounding explains: of the result, and of
  // weights, keys and values to the dtype of activations.
  double error_against_reference(PagedWorld& world) {
    reference::PlainKv kv = read_cache(world);
    const TreeAttentionArgs args = world.attention_args();
    const std::vector<double> expected = reference::tree_attention(args, kv, dtype());
    for (double& value : kv.values) value = std::abs(value);
    const std::vector<double> magnitude = reference::tree_attention(args, kv, dtype());
    const bool is_bf16 = dtype() == DType::kBF16;
    const double of_result = is_bf16 ? 0x1p-8 : 4e-6;
    const double of_weights = !is_bf16 ? 0.0 : int8_kv() ? 0x1p-7 : 0x1p-8;
    double worst = 0.0;
    for (size_t i = 0; i < expected.size(); ++i) {
      const double actual =
          reference::element(world.out_bytes().data(), dtype(), static_cast<int64_t>(i));
      const double error = std::abs(actual - expected[i]) /
                           (of_result * std::abs(expected[i]) + of_weights * magnitude[i] + 1e-5);
      worst = std::isnan(error) ? INFINITY : std::max(worst, error);
    }
    return worst;
  }
};

}  // namespace specdec::testing::cpu_attention
