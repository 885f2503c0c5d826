// A fixture for attention on the device over the cache of a PagedWorld, which a CPU backend fills.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "testing/device_kinds.h"
#include "testing/oracle/operations.h"
#include "testing/paged_world.h"
#include "testing/values.h"

namespace specdec::cuda::testing {

// How attention is launched.
struct Launch {
  DType act = DType::kBF16;
  int num_multiprocessors = 4;
  int max_shared_bytes = 226 * 1024;  // if the device has as much; 0: no room for few rows' kernels
  size_t workspace_bytes = size_t{4} << 20;
};

// The keys or values of a world as the device keeps them: [block][head][offset][head_dim], codes
// followed by scales. `plain` becomes what the bytes stand for, as in reference::PlainKv.
inline std::vector<uint8_t> device_cache(const specdec::testing::PagedWorld& world, bool is_keys,
                                         bool has_codes, DType act, std::vector<double>& plain) {
  const PagedKvView& kv = world.kv();
  const int64_t num_rows = int64_t{kv.num_blocks} * kv.num_kv_heads * kv.block_size;
  const int dim = kv.head_dim;
  plain.resize(num_rows * dim);
  std::vector<uint8_t> bytes(num_rows * (has_codes ? dim + 4 : 2 * dim));
  for (int64_t row = 0; row < num_rows; ++row) {
    const int64_t offset = row % kv.block_size;
    const int head = static_cast<int>(row / kv.block_size % kv.num_kv_heads);
    const int64_t slot = row / kv.block_size / kv.num_kv_heads * kv.block_size + offset;
    double* plain_row = &plain[(slot * kv.num_kv_heads + head) * dim];
    std::vector<double> elements;
    for (int i = 0; i < dim; ++i) {
      elements.push_back(is_keys ? world.key(slot, head, i) : world.value(slot, head, i));
    }
    if (!has_codes) {
      for (int i = 0; i < dim; ++i) {
        const uint16_t bits = specdec::testing::to_bits(static_cast<float>(elements[i]), act);
        std::memcpy(&bytes[(row * dim + i) * 2], &bits, 2);
        plain_row[i] = specdec::testing::from_bits(bits, act);
      }
      continue;
    }
    double largest = 0.0;
    for (double element : elements) largest = std::max(largest, std::abs(element));
    float scale = static_cast<float>(largest / 127.0);
    if (std::isnan(elements[0])) scale = std::numeric_limits<float>::quiet_NaN();
    std::memcpy(&bytes[num_rows * dim + row * 4], &scale, 4);
    for (int i = 0; i < dim; ++i) {
      const double code = std::isnan(scale) ? 77 : std::nearbyint(elements[i] / scale);
      bytes[row * dim + i] = static_cast<uint8_t>(static_cast<int8_t>(code));
      plain_row[i] = reference::rounded(code * scale, act);
    }
  }
  return bytes;
}

class AttentionTest : public CudaDeviceTest {
 protected:
  using AttentionShape = specdec::testing::AttentionShape;
  using PagedWorld = specdec::testing::PagedWorld;
  using Request = specdec::testing::Request;
  using RowBytes = specdec::testing::RowBytes;

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
    upload_world(world, launch);
    const RowBytes results = run(upload_batch(world), launch);
    buffers_.clear();
    return results;
  }

  // The rows of a launch that reads an earlier launch's plan, after the lengths are overwritten.
  RowBytes attend_stored(PagedWorld& world, const Launch& launch) {
    upload_world(world, launch);
    AttentionParams listed = params(upload_batch(world), launch);
    Buffer work_list = upload(std::vector<uint8_t>(size_t{1} << 20, 0x5a));
    listed.work_list = {.memory = work_list.data(), .size_bytes = work_list.size_bytes()};
    kernels().attention.tree_attention(stream(), listed);
    const RowBytes first = results();
    const auto forget = [&](const auto* lengths) {
      stream().fill(const_cast<void*>(static_cast<const void*>(lengths)), 0x5a,
                    listed.batch.num_requests * sizeof(*lengths));
    };
    forget(listed.batch.base_lens);
    if (listed.batch.is_tree != nullptr) forget(listed.batch.is_tree);
    forget(listed.batch.cu_rows);  // but for the last, how many rows there are
    stream().fill(out_buffer_.data(), 0xff, out_buffer_.size_bytes());
    listed.work_list.is_made = true;
    kernels().attention.tree_attention(stream(), listed);
    const RowBytes second = results();
    buffers_.clear();
    EXPECT_EQ(first, second);
    return second;
  }

  // A copy of the world's batch; as long as buffers_.
  BatchView upload_batch(PagedWorld& world) {
    const BatchView& host = world.batch();
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
    return batch;
  }

  RowBytes attend(PagedWorld& world, const std::vector<Request*>& requests,
                  const Launch& launch = {}) {
    world.build(requests);
    world.project();
    return attend_built(world, launch);
  }

  // Puts the world's cache and queries on the device.
  void upload_world(PagedWorld& world, const Launch& launch) {
    keys_ = device_cache(world, true, has_codes_, launch.act, plain_.keys);
    values_ = device_cache(world, false, has_codes_, launch.act, plain_.values);
    key_buffer_ = upload(keys_);
    value_buffer_ = upload(values_);
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
        q_.push_back(specdec::testing::to_bits(value, launch.act));
      }
    }
    q_buffer_ = upload(q_);
    out_buffer_ = upload(std::vector<uint16_t>(q_.size(), 0xffff));
    sink_buffer_ = upload(world.sinks());
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
            .sinks = shape_.has_sinks ? sink_buffer_.as<float>() : nullptr,
            .first_position = shape_.first_position,
            .num_multiprocessors = launch.num_multiprocessors,
            .max_shared_bytes =
                std::min(launch.max_shared_bytes,
                         device().properties().max_shared_bytes_per_block - kMaxStaticSharedBytes),
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

  void expect_near_reference(PagedWorld& world, const RowBytes& rows, const Launch& launch);

  AttentionShape shape_;
  bool has_codes_ = false;
  std::unique_ptr<Backend> cpu_;
  std::vector<uint8_t> keys_, values_;  // the cache on the device
  reference::PlainKv plain_;            // what its bytes stand for
  std::vector<uint16_t> q_;
  PagedKvView kv_;
  Buffer key_buffer_, value_buffer_, q_buffer_, out_buffer_, sink_buffer_, workspace_;
  std::vector<Buffer> buffers_;
};

inline void AttentionTest::expect_near_reference(PagedWorld& world, const RowBytes& rows,
                                                 const Launch& launch) {
  TreeAttentionArgs args = world.attention_args();
  args.q = q_.data();
  const std::vector<double> expected = reference::tree_attention(args, plain_, launch.act);
  const int64_t row_size = int64_t{shape_.num_heads()} * shape_.head_dim;
  ASSERT_EQ(std::ssize(rows) * row_size, std::ssize(expected));
  const double tolerance = launch.act == DType::kBF16 ? 0.008 : 0.001;
  for (int64_t row = 0; row < std::ssize(rows); ++row) {
    for (int64_t i = 0; i < row_size; ++i) {
      const double want = expected[row * row_size + i];
      ASSERT_NEAR(reference::element(rows[row].data(), launch.act, i), want,
                  tolerance * (1.0 + std::abs(want)))
          << "row " << row << " element " << i;
    }
  }
}

}  // namespace specdec::cuda::testing
