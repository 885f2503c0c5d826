// Rows whose queries, keys and values a CUDA backend projects, and what they should be.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "testing/device_kinds.h"
#include "testing/oracle/operations.h"
#include "testing/values.h"

namespace specdec::cuda::testing {

struct QkvShape {
  int num_heads, num_kv_heads, head_dim;
  int rotary_dim = 0;
  bool has_norms = false, norm_all_heads = false, norm_after_rope = false;
  bool has_value_norms = false, has_query_scales = false, has_bias = false, int8_kv = false;

  int num_outputs() const { return (num_heads + 2 * num_kv_heads) * head_dim; }
};

// A projection's results, copied from the device.
struct QkvResult {
  std::vector<uint16_t> q;            // [num_rows, num_heads, head_dim] at act
  std::vector<uint8_t> keys, values;  // the cache
};

class QkvWorld {
 public:
  static constexpr int kBlockSize = 16;

  QkvWorld(const QkvShape& shape, DType act, int num_rows, int num_k);

  const std::vector<float>& matrix() const {
    return matrix_;
  }  // [num_outputs, num_k], exact at act
  const std::vector<float>& x() const { return x_; }  // [num_rows, num_k], exact at act
  int64_t slot(int row) const { return slots_[row]; }

  // Projects the first `num_rows` rows with the matrix, which the caller has packed.
  QkvResult run(BackendWorld& world, const PackedLinear& weight, int num_rows) const;

  // All rows against double precision.
  void expect_matches(const QkvResult& result) const;
  // The first `num_rows` rows, bit for bit.
  void expect_same_rows(const QkvResult& some, const QkvResult& all, int num_rows) const;

  // A head in the cache, as bytes: codes and their scale, or numbers at act.
  std::vector<uint8_t> cached(const std::vector<uint8_t>& cache, int64_t slot, int head) const;

 private:
  // Bytes of one head in the cache, the scale of codes with them.
  size_t head_bytes() const { return shape_.int8_kv ? shape_.head_dim + 4 : 2 * shape_.head_dim; }
  void expect_cached(const std::vector<uint8_t>& cache, const std::vector<double>& expected,
                     const char* what) const;
  // `scale` is the value of one step of a code; 0 without codes.
  void expect_element(double result, double expected, float scale) const {
    const double tolerance =
        std::abs(expected) * specdec::testing::rounding_unit(act_) + 0.505 * scale + 2e-4;
    ASSERT_NEAR(result, expected, tolerance);
  }
  QkvArgs host_args(const BatchView& batch) const;

  QkvShape shape_;
  DType act_;
  int num_rows_, num_k_, num_positions_, num_blocks_;
  std::vector<float> matrix_, x_, bias_, q_norm_, k_norm_, v_norm_, query_scales_, cos_, sin_;
  std::vector<int32_t> positions_;
  std::vector<int64_t> slots_;
};

inline QkvWorld::QkvWorld(const QkvShape& shape, DType act, int num_rows, int num_k)
    : shape_(shape),
      act_(act),
      num_rows_(num_rows),
      num_k_(num_k),
      num_positions_(std::max(160, num_rows)),
      num_blocks_(2 + num_rows / kBlockSize) {
  using specdec::testing::random_values;
  using specdec::testing::rounded;
  matrix_ = rounded(random_values(int64_t{shape.num_outputs()} * num_k, 50), act);
  x_ = rounded(random_values(int64_t{num_rows} * num_k, 51), act);
  bias_ = random_values(shape.num_outputs(), 52);
  q_norm_ = random_values(int64_t{shape.num_heads} * shape.head_dim, 53);
  k_norm_ = random_values(int64_t{shape.num_kv_heads} * shape.head_dim, 54);
  v_norm_ = random_values(shape.head_dim, 56);
  query_scales_ = random_values(num_positions_, 55);
  // Slots in no order; the last row of several is padding.
  const int num_slots = (num_blocks_ - 1) * kBlockSize;
  const int step = num_slots % 7 == 0 ? 5 : 7;
  for (int row = 0; row < num_rows; ++row) {
    positions_.push_back(row * 11 % num_positions_);
    const bool is_padding = row == num_rows - 1 && num_rows > 1;
    slots_.push_back(is_padding ? 0 : kBlockSize + row * step % num_slots);
  }
  for (int position = 0; position < num_positions_; ++position) {
    for (int i = 0; i < shape.rotary_dim / 2; ++i) {
      const float angle = static_cast<float>(position) / static_cast<float>(1 + i);
      cos_.push_back(std::cos(angle));
      sin_.push_back(std::sin(angle));
    }
  }
}

inline QkvArgs QkvWorld::host_args(const BatchView& batch) const {
  return {.in = {},
          .bias = shape_.has_bias ? bias_.data() : nullptr,
          .q_norm = shape_.has_norms ? q_norm_.data() : nullptr,
          .k_norm = shape_.has_norms && !k_norm_.empty() ? k_norm_.data() : nullptr,
          .v_norm = shape_.has_value_norms ? v_norm_.data() : nullptr,
          .norm_all_heads = shape_.norm_all_heads,
          .norm_after_rope = shape_.norm_after_rope,
          .norm_eps = 1e-5f,
          .rope_cos = shape_.rotary_dim > 0 ? cos_.data() : nullptr,
          .rope_sin = shape_.rotary_dim > 0 ? sin_.data() : nullptr,
          .rotary_dim = shape_.rotary_dim,
          .query_scales = shape_.has_query_scales ? query_scales_.data() : nullptr,
          .num_heads = shape_.num_heads,
          .batch = &batch,
          .kv = {.dtype = DType::kF32,
                 .num_blocks = num_blocks_,
                 .block_size = kBlockSize,
                 .num_kv_heads = shape_.num_kv_heads,
                 .head_dim = shape_.head_dim}};
}

inline QkvResult QkvWorld::run(BackendWorld& world, const PackedLinear& weight,
                               int num_rows) const {
  const Buffer x = world.upload(x_), bias = world.upload(bias_), q_norm = world.upload(q_norm_),
               k_norm = world.upload(k_norm_), v_norm = world.upload(v_norm_),
               cos = world.upload(cos_), sin = world.upload(sin_),
               query_scales = world.upload(query_scales_), positions = world.upload(positions_),
               slots = world.upload(slots_);
  const BatchView batch = {.num_rows = num_rows,
                           .positions = positions.as<int32_t>(),
                           .slot_mapping = slots.as<int64_t>()};
  QkvArgs args = host_args(batch);
  args.weight = &weight;
  args.in = {.x = x.data(), .dtype = DType::kF32, .num_rows = num_rows};
  if (args.bias != nullptr) args.bias = bias.as<float>();
  if (args.q_norm != nullptr) args.q_norm = q_norm.as<float>();
  if (args.k_norm != nullptr) args.k_norm = k_norm.as<float>();
  if (args.v_norm != nullptr) args.v_norm = v_norm.as<float>();
  if (args.rope_cos != nullptr) args.rope_cos = cos.as<float>();
  if (args.rope_sin != nullptr) args.rope_sin = sin.as<float>();
  if (args.query_scales != nullptr) args.query_scales = query_scales.as<float>();
  args.kv.dtype = shape_.int8_kv ? DType::kI8 : act_;
  const size_t cache_bytes = size_t(num_blocks_) * kBlockSize * shape_.num_kv_heads * head_bytes();
  Buffer keys = world.allocate<uint8_t>(cache_bytes), values = world.allocate<uint8_t>(cache_bytes);
  Buffer q = world.allocate<uint16_t>(size_t(num_rows) * shape_.num_heads * shape_.head_dim);
  if (shape_.num_kv_heads > 0) {
    args.kv.keys = keys.data();
    args.kv.values = values.data();
  }
  args.q = q.data();
  world.backend->project_qkv(args);
  return {world.download<uint16_t>(q), world.download<uint8_t>(keys),
          world.download<uint8_t>(values)};
}

inline std::vector<uint8_t> QkvWorld::cached(const std::vector<uint8_t>& cache, int64_t slot,
                                             int head) const {
  const int64_t num_heads = std::ssize(cache) / static_cast<int64_t>(head_bytes());
  const int64_t index =
      (slot / kBlockSize * shape_.num_kv_heads + head) * kBlockSize + slot % kBlockSize;
  const int64_t num_bytes = shape_.head_dim * (shape_.int8_kv ? 1 : 2);
  const auto codes = cache.begin() + index * num_bytes;
  std::vector<uint8_t> bytes(codes, codes + num_bytes);
  if (shape_.int8_kv) {  // scales follow all codes
    const auto scale = cache.begin() + num_heads * num_bytes + index * 4;
    bytes.insert(bytes.end(), scale, scale + 4);
  }
  return bytes;
}

inline void QkvWorld::expect_cached(const std::vector<uint8_t>& cache,
                                    const std::vector<double>& expected, const char* what) const {
  const int dim = shape_.head_dim;
  for (int row = 0; row < num_rows_; ++row) {
    for (int head = 0; head < shape_.num_kv_heads; ++head) {
      SCOPED_TRACE(::testing::Message() << what << " of row " << row << ", head " << head);
      const std::vector<uint8_t> bytes = cached(cache, slots_[row], head);
      const double* index = &expected[(slots_[row] * shape_.num_kv_heads + head) * dim];
      float scale = 0.0f;
      if (shape_.int8_kv) std::memcpy(&scale, &bytes[dim], 4);
      for (int i = 0; i < dim; ++i) {
        uint16_t bits = 0;
        if (!shape_.int8_kv) std::memcpy(&bits, &bytes[2 * i], 2);
        const double value = shape_.int8_kv ? double{scale} * static_cast<int8_t>(bytes[i])
                                            : specdec::testing::from_bits(bits, act_);
        expect_element(value, index[i], scale);
        ASSERT_FALSE(::testing::Test::HasFatalFailure()) << "element " << i;
      }
    }
  }
}

inline void QkvWorld::expect_matches(const QkvResult& result) const {
  const BatchView batch = {
      .num_rows = num_rows_, .positions = positions_.data(), .slot_mapping = slots_.data()};
  const QkvArgs args = host_args(batch);
  const std::vector<double> sums =
      reference::linear(std::vector<double>(x_.begin(), x_.end()), matrix_, num_k_);
  std::vector<float> qkv(sums.begin(), sums.end());
  if (shape_.has_bias) {
    for (size_t i = 0; i < qkv.size(); ++i) qkv[i] += bias_[i % bias_.size()];
  }
  const size_t cache_size =
      size_t(num_blocks_) * kBlockSize * shape_.num_kv_heads * shape_.head_dim;
  reference::PlainKv kv = {std::vector<double>(cache_size), std::vector<double>(cache_size)};
  const std::vector<double> q = reference::split_qkv(args, qkv, kv);
  ASSERT_EQ(result.q.size(), q.size());
  for (size_t i = 0; i < q.size(); ++i) {
    expect_element(specdec::testing::from_bits(result.q[i], act_), q[i], 0.0f);
    ASSERT_FALSE(::testing::Test::HasFatalFailure()) << "element " << i << " of q";
  }
  expect_cached(result.keys, kv.keys, "key");
  expect_cached(result.values, kv.values, "value");
}

inline void QkvWorld::expect_same_rows(const QkvResult& some, const QkvResult& all,
                                       int num_rows) const {
  ASSERT_TRUE(std::equal(some.q.begin(), some.q.end(), all.q.begin())) << num_rows << " rows";
  for (int row = 0; row < num_rows; ++row) {
    for (int head = 0; head < shape_.num_kv_heads; ++head) {
      for (const auto part : {&QkvResult::keys, &QkvResult::values}) {
        ASSERT_EQ(cached(some.*part, slots_[row], head), cached(all.*part, slots_[row], head))
            << num_rows << " rows, row " << row;
      }
    }
  }
}

}  // namespace specdec::cuda::testing
