// Requests of equal length in a paged cache on a GPU, each with the same number of rows to add;
// blocks in random order, as after a while of serving.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "common/gpu.h"
#include "common/models.h"

namespace specdec::bench {

class GpuRequests {
 public:
  // `num_layers` layers of the model's shape, filled with random keys and values.
  GpuRequests(Gpu& gpu, const ModelShape& model, int num_layers, int num_requests, int context,
              int rows_each)
      : gpu_(gpu),
        num_requests_(num_requests),
        context_(context),
        rows_each_(rows_each),
        blocks_each_((context + rows_each + kBlockSize - 1) / kBlockSize) {
    blocks_.resize(static_cast<size_t>(num_requests) * blocks_each_);
    std::iota(blocks_.begin(), blocks_.end(), 1);  // block 0 is the null block
    std::shuffle(blocks_.begin(), blocks_.end(), std::minstd_rand(1));
    make_rows(model.vocab_size);
    PagedKvView kv = {.dtype = gpu.backend().act_dtype(),
                      .num_blocks = static_cast<int>(blocks_.size()) + 1,
                      .block_size = kBlockSize,
                      .num_kv_heads = model.num_kv_heads,
                      .head_dim = model.head_dim};
    layer_bytes_ = gpu.backend().kv_layer_bytes(kv);
    for (int layer = 0; layer < num_layers; ++layer) {
      for (void** part : {&kv.keys, &kv.values}) {
        buffers_.push_back(gpu.random(layer_bytes_, kv.dtype));
        *part = buffers_.back().data();
      }
      layers_.push_back(kv);
    }
  }

  // On the device; good until the step after the next begins.
  BatchView stage() {
    return gpu_.backend().stage({.num_requests = num_requests_,
                                 .num_rows = num_requests_ * rows_each_,
                                 .token_ids = tokens_.data(),
                                 .positions = positions_.data(),
                                 .slot_mapping = slot_mapping_.data(),
                                 .cu_rows = cu_rows_.data(),
                                 .base_lens = base_lens_.data(),
                                 .block_tables = blocks_.data(),
                                 .max_blocks_per_request = blocks_each_,
                                 .is_tree = is_tree_.data(),
                                 .num_tree_slots = nullptr});
  }
  const std::vector<PagedKvView>& layers() const { return layers_; }
  int num_rows() const { return num_requests_ * rows_each_; }

  // Bytes of the keys and values of one layer that a step reads.
  double kv_bytes() const {
    const double block = 2.0 * static_cast<double>(layer_bytes_) / layers_.front().num_blocks;
    return block / kBlockSize * num_requests_ * (context_ + rows_each_);
  }

 private:
  static constexpr int kBlockSize = 16;

  void make_rows(int vocab_size) {
    cu_rows_.push_back(0);
    for (int request = 0; request < num_requests_; ++request) {
      const int32_t* table = blocks_.data() + static_cast<size_t>(request) * blocks_each_;
      for (int row = 0; row < rows_each_; ++row) {
        const int slot = context_ + row;
        tokens_.push_back((31 * (request + slot) + 7) % vocab_size);
        positions_.push_back(slot);
        slot_mapping_.push_back(int64_t{table[slot / kBlockSize]} * kBlockSize + slot % kBlockSize);
      }
      cu_rows_.push_back(static_cast<int32_t>(positions_.size()));
    }
    base_lens_.assign(num_requests_, context_);
    is_tree_.assign(num_requests_, 0);
  }

  Gpu& gpu_;
  int num_requests_, context_, rows_each_, blocks_each_;
  std::vector<int32_t> blocks_, tokens_, positions_, cu_rows_, base_lens_;
  std::vector<int64_t> slot_mapping_;
  std::vector<uint8_t> is_tree_;
  size_t layer_bytes_ = 0;  // of keys or values
  std::vector<Buffer> buffers_;
  std::vector<PagedKvView> layers_;
};

}  // namespace specdec::bench
