// One request in a paged KV cache: some tokens in it, some rows to add; its blocks in random order
// and the cache several times as large, as it is beside other requests.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "backend/backend.h"
#include "common/models.h"

namespace specdec::bench {

class PagedRequest {
 public:
  PagedRequest(const ModelShape& model, Backend& backend, int base_len, int max_rows)
      : base_len_(base_len) {
    const int num_blocks = (base_len + max_rows + kBlockSize - 1) / kBlockSize;
    const int pool_blocks = 4 * num_blocks;
    blocks_.resize(pool_blocks);
    std::iota(blocks_.begin(), blocks_.end(), 1);
    std::shuffle(blocks_.begin(), blocks_.end(), std::minstd_rand(1));
    for (int row = 0; row < max_rows; ++row) {
      const int slot = base_len + row;
      positions_.push_back(slot);
      slot_mapping_.push_back(int64_t{blocks_[slot / kBlockSize]} * kBlockSize + slot % kBlockSize);
    }
    for (int layer = 0; layer < model.num_layers; ++layer) {
      PagedKvView kv = {.dtype = backend.act_dtype(),
                        .num_blocks = pool_blocks + 1,
                        .block_size = kBlockSize,
                        .num_kv_heads = model.num_kv_heads,
                        .head_dim = model.head_dim};
      for (void** part : {&kv.keys, &kv.values}) {
        buffers_.push_back(backend.allocate(backend.kv_layer_bytes(kv), "a bench"));
        fill(buffers_.back(), kv.dtype);
        *part = buffers_.back().data();
      }
      layers_.push_back(kv);
    }
  }
  PagedRequest(const PagedRequest&) = delete;
  PagedRequest& operator=(const PagedRequest&) = delete;

  // The next `num_rows` tokens as a batch; valid until the next call.
  const BatchView& batch(int num_rows) {
    cu_rows_ = {0, num_rows};
    view_ = {.num_requests = 1,
             .num_rows = num_rows,
             .positions = positions_.data(),
             .slot_mapping = slot_mapping_.data(),
             .cu_rows = cu_rows_.data(),
             .base_lens = &base_len_,
             .block_tables = blocks_.data(),
             .max_blocks_per_request = static_cast<int>(blocks_.size())};
    return view_;
  }
  const std::vector<PagedKvView>& layers() const { return layers_; }
  int base_len() const { return base_len_; }

  // Random numbers between -1 and 1.
  static void fill(Buffer& buffer, DType dtype) {
    std::minstd_rand random(7);
    const size_t count = buffer.size_bytes() / size_of(dtype);
    for (size_t i = 0; i < count; ++i) {
      const float value = static_cast<float>(random() % 2000) / 1000.0f - 1.0f;
      if (dtype == DType::kF32) {
        buffer.as<float>()[i] = value;
      } else {
        buffer.as<BFloat16>()[i] = to_bfloat16(value);
      }
    }
  }

 private:
  static constexpr int kBlockSize = 16;

  int32_t base_len_;
  std::vector<int32_t> blocks_, positions_, cu_rows_;
  std::vector<int64_t> slot_mapping_;
  std::vector<Buffer> buffers_;
  std::vector<PagedKvView> layers_;
  BatchView view_;
};

}  // namespace specdec::bench
