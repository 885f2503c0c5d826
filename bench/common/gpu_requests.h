// Requests of equal length in a paged cache on a GPU, to which steps of some rows each are added;
// blocks in random order, as after a while of serving.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "common/gpu.h"
#include "common/models.h"
#include "model/config.h"

namespace specdec::bench {

class GpuRequests {
 public:
  GpuRequests(Gpu& gpu, const ModelConfig& model, int num_requests, int context, int max_rows_each)
      : GpuRequests(gpu, model.vocab_size, model.layers, num_requests, context, max_rows_each) {}
  GpuRequests(Gpu& gpu, const ModelShape& model, int num_layers, int num_requests, int context,
              int max_rows_each)
      : GpuRequests(
            gpu, model.vocab_size,
            std::vector<LayerSpec>(
                num_layers, {.heads = {model.num_heads, model.num_kv_heads, model.head_dim}}),
            num_requests, context, max_rows_each) {}
  // Random keys and values for the layers, and room for max_rows_each more.
  GpuRequests(Gpu& gpu, int vocab_size, const std::vector<LayerSpec>& layers, int num_requests,
              int context, int max_rows_each)
      : gpu_(gpu),
        vocab_size_(vocab_size),
        num_requests_(num_requests),
        context_(context),
        blocks_each_((context + max_rows_each + kBlockSize - 1) / kBlockSize) {
    blocks_.resize(static_cast<size_t>(num_requests) * blocks_each_);
    std::iota(blocks_.begin(), blocks_.end(), 1);  // block 0 is the null block
    std::shuffle(blocks_.begin(), blocks_.end(), std::minstd_rand(1));
    base_lens_.assign(num_requests, context);
    is_tree_.assign(num_requests, 0);
    for (const LayerSpec& layer : layers) {
      if (layer.kv_source >= 0) {
        layers_.push_back(layers_[layer.kv_source]);
        continue;
      }
      PagedKvView kv = {.dtype = gpu.backend().act_dtype(),
                        .num_blocks = static_cast<int>(blocks_.size()) + 1,
                        .block_size = kBlockSize,
                        .num_kv_heads = layer.heads.num_kv_heads,
                        .head_dim = layer.heads.head_dim};
      const size_t part_bytes = gpu.backend().kv_layer_bytes(kv);
      block_bytes_ = 2.0 * static_cast<double>(part_bytes) / kv.num_blocks;
      for (void** part : {&kv.keys, &kv.values}) {
        buffers_.push_back(gpu.random(part_bytes, kv.dtype));
        *part = buffers_.back().data();
      }
      layers_.push_back(kv);
    }
  }

  // A batch of the next `rows_each` tokens of every request, on the device; good until the step
  // after the next begins.
  BatchView stage(int rows_each) {
    make_rows(rows_each);
    return gpu_.backend().stage({.num_requests = num_requests_,
                                 .num_rows = num_requests_ * rows_each,
                                 .token_ids = tokens_.data(),
                                 .positions = positions_.data(),
                                 .slot_mapping = slot_mapping_.data(),
                                 .cu_rows = cu_rows_.data(),
                                 .base_lens = base_lens_.data(),
                                 .block_tables = blocks_.data(),
                                 .max_blocks_per_request = blocks_each_,
                                 .is_tree = is_tree_.data()});
  }
  const std::vector<PagedKvView>& layers() const { return layers_; }

  // Bytes of the keys and values that such a batch reads of the last layer that has its own.
  double layer_bytes(int rows_each) const {
    return block_bytes_ / kBlockSize * num_requests_ * (context_ + rows_each);
  }

 private:
  static constexpr int kBlockSize = 16;

  void make_rows(int rows_each) {
    tokens_.clear();
    positions_.clear();
    slot_mapping_.clear();
    cu_rows_.assign(1, 0);
    for (int request = 0; request < num_requests_; ++request) {
      const int32_t* table = blocks_.data() + static_cast<size_t>(request) * blocks_each_;
      for (int slot = context_; slot < context_ + rows_each; ++slot) {
        tokens_.push_back((31 * (request + slot) + 7) % vocab_size_);
        positions_.push_back(slot);
        slot_mapping_.push_back(int64_t{table[slot / kBlockSize]} * kBlockSize + slot % kBlockSize);
      }
      cu_rows_.push_back(static_cast<int32_t>(positions_.size()));
    }
  }

  Gpu& gpu_;
  int vocab_size_, num_requests_, context_, blocks_each_;
  double block_bytes_ = 0;  // keys and values of a block in the last layer that has its own
  std::vector<int32_t> blocks_, tokens_, positions_, cu_rows_, base_lens_;
  std::vector<int64_t> slot_mapping_;
  std::vector<uint8_t> is_tree_;
  std::vector<Buffer> buffers_;
  std::vector<PagedKvView> layers_;
};

}  // namespace specdec::bench
