// Runs chains of tokens through a decoder with a KV cache of its own, one request after the other
// or side by side.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "model/decoder.h"

namespace specdec::testing {

// One step's rows: for each request, the tokens that follow the `base_lens` it has in the cache.
class ChainBatch {
 public:
  struct Request {
    int first_block = 1;  // its blocks are first_block, first_block + 1, ...
    int base_len = 0;
    std::span<const int32_t> tokens;
  };

  ChainBatch(std::span<const Request> requests, int block_size, int blocks_per_request) {
    for (const Request& request : requests) {
      cu_rows_.push_back(static_cast<int32_t>(token_ids_.size()));
      base_lens_.push_back(request.base_len);
      for (size_t i = 0; i < request.tokens.size(); ++i) {
        const int position = request.base_len + static_cast<int>(i);
        token_ids_.push_back(request.tokens[i]);
        positions_.push_back(position);
        slots_.push_back(int64_t{request.first_block} * block_size + position);
      }
      for (int i = 0; i < blocks_per_request; ++i) blocks_.push_back(request.first_block + i);
    }
    cu_rows_.push_back(static_cast<int32_t>(token_ids_.size()));
    is_tree_.assign(requests.size(), 0);
    const size_t num_requests = requests.size();
    no_pending_.assign(num_requests + 1, 0);
    no_records_.assign(token_ids_.size(), -1);
    for (size_t i = 0; i < num_requests; ++i) {
      const auto rows = static_cast<int32_t>(requests[i].tokens.size());
      for (int32_t row = 0; row < rows; ++row) parents_.push_back(row - 1);
      // The state after all rows of a request stays in its slot.
      const int32_t slot = (requests[i].first_block - 1) / blocks_per_request;
      slots_in_.push_back(requests[i].base_len > 0 ? slot : -1);
      cu_stores_.push_back(static_cast<int32_t>(stores_.size()));
      if (rows > 0) stores_.push_back({.num_tokens = rows, .slot = slot});
    }
    cu_stores_.push_back(static_cast<int32_t>(stores_.size()));
    view_ = {.num_requests = static_cast<int>(requests.size()),
             .num_rows = static_cast<int>(token_ids_.size()),
             .token_ids = token_ids_.data(),
             .positions = positions_.data(),
             .slot_mapping = slots_.data(),
             .cu_rows = cu_rows_.data(),
             .base_lens = base_lens_.data(),
             .block_tables = blocks_.data(),
             .max_blocks_per_request = blocks_per_request,
             .is_tree = is_tree_.data(),
             .recurrent = {.slots_in = slots_in_.data(),
                           .cu_pending = no_pending_.data(),
                           .cu_stores = cu_stores_.data(),
                           .stores = stores_.data(),
                           .parents = parents_.data(),
                           .records = no_records_.data()}};
  }
  ChainBatch(const ChainBatch&) = delete;
  ChainBatch& operator=(const ChainBatch&) = delete;

  const BatchView& view() const { return view_; }

 private:
  std::vector<int32_t> token_ids_, positions_, cu_rows_, base_lens_, blocks_;
  std::vector<int64_t> slots_;
  std::vector<uint8_t> is_tree_;
  std::vector<int32_t> slots_in_, no_pending_, cu_stores_, parents_, no_records_;
  std::vector<StateStore> stores_;
  BatchView view_;
};

// A decoder and its cache.
class ChainRunner {
 public:
  static constexpr int kBlockSize = 16;

  // Room for num_requests requests of max_model_len tokens. `given`: parts that are not loaded.
  ChainRunner(const std::string& directory, Backend& backend, int max_model_len, int max_rows,
              int num_requests = 1, ModelParts given = {})
      : decoder_(load_model_config(directory), directory, backend, max_model_len, max_rows,
                 Quantization::kAuto, std::move(given)),
        max_rows_(max_rows),
        blocks_per_request_((max_model_len + kBlockSize - 1) / kBlockSize) {
    for (const LayerSpec& layer : decoder_.config().layers) {
      PagedKvView view{.dtype = backend.act_dtype(),
                       .num_blocks = 1 + num_requests * blocks_per_request_,
                       .block_size = kBlockSize,
                       .num_kv_heads = layer.heads.num_kv_heads,
                       .head_dim = layer.heads.head_dim};
      states_.push_back(make_state(layer.state, backend, num_requests));
      if (layer.is_recurrent()) {
        layers_.emplace_back();
        continue;
      }
      const size_t bytes = backend.kv_layer_bytes(view);
      storage_.push_back(backend.allocate(bytes, "keys"));
      view.keys = storage_.back().data();
      storage_.push_back(backend.allocate(bytes, "values"));
      view.values = storage_.back().data();
      layers_.push_back(view);
    }
  }

  Decoder& decoder() { return decoder_; }
  int first_block(int request) const { return 1 + request * blocks_per_request_; }

  // One step; logits [num_rows, vocab] of all its rows.
  std::vector<float> step(std::span<const ChainBatch::Request> requests) {
    const ChainBatch batch(requests, kBlockSize, blocks_per_request_);
    decoder_.forward({batch.view(), layers_, states_});
    std::vector<int32_t> rows(batch.view().num_rows);
    for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<int32_t>(i);
    std::vector<float> logits(rows.size() * decoder_.config().vocab_size);
    decoder_.compute_logits(rows.data(), static_cast<int>(rows.size()), logits.data());
    return logits;
  }

  // A whole sequence from its start in steps of at most `chunk` tokens.
  std::vector<float> run(std::span<const int32_t> tokens, int chunk) {
    std::vector<float> logits;
    const size_t step_size = static_cast<size_t>(std::min(chunk, max_rows_));
    for (size_t begin = 0; begin < tokens.size(); begin += step_size) {
      const ChainBatch::Request request{
          .first_block = first_block(0),
          .base_len = static_cast<int>(begin),
          .tokens = tokens.subspan(begin, std::min(step_size, tokens.size() - begin))};
      const std::vector<float> part = step({&request, 1});
      logits.insert(logits.end(), part.begin(), part.end());
    }
    return logits;
  }

 private:
  LayerStateView make_state(const StateShape& shape, Backend& backend, int num_slots) {
    LayerStateView state = {.shape = shape};
    if (shape.empty()) return state;
    const auto allocate = [&](int64_t size) {
      const auto bytes = static_cast<size_t>(num_slots * size) * sizeof(float);
      return storage_.emplace_back(backend.allocate(bytes, "states")).as<float>();
    };
    state.tails = allocate(shape.tail_size());
    if (shape.num_heads > 0) state.matrices = allocate(shape.matrix_size());
    return state;
  }

  Decoder decoder_;
  int max_rows_;
  int blocks_per_request_;
  std::vector<Buffer> storage_;
  std::vector<PagedKvView> layers_;
  std::vector<LayerStateView> states_;
};

}  // namespace specdec::testing
