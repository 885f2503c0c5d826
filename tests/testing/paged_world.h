// A paged cache of one layer with requests in it, for tests of attention: a token picks two columns
// of the projection, whose sum is its QKV row, so that the same path of tokens can be run in
// different ways.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "backend/backend.h"
#include "core/check.h"

namespace specdec::testing {

struct AttentionShape {
  int num_kv_heads = 2;
  int group_size = 3;
  int head_dim = 64;
  int block_size = 16;
  int sliding_window = 0;
  int first_position = 0;
  int rotary_dim = -1;  // -1: head_dim; 0: no rotation
  bool qk_norm = false;
  bool norm_all_heads = false;   // with qk_norm
  bool norm_after_rope = false;  // likewise
  bool v_norm = false;
  bool q_only = false;  // the projection gives no keys or values
  bool has_query_scales = false;
  float soft_cap = 0.0f;
  bool has_sinks = false;
  int max_positions = 1024;
  bool int8_kv = false;

  int num_heads() const { return num_kv_heads * group_size; }
  int row_width() const { return (num_heads() + (q_only ? 0 : 2 * num_kv_heads)) * head_dim; }
};

struct TreeNode {
  uint64_t token = 0;
  int parent = -1;  // index in the request's rows
};

struct Request {
  std::vector<int32_t> blocks;
  int base_len = 0;
  std::vector<TreeNode> rows;  // of the next step
  bool is_tree = false;
  int num_cached_rows = 0;  // of a tree: the first rows, run in earlier steps

  static std::vector<TreeNode> chain(const std::vector<uint64_t>& tokens) {
    std::vector<TreeNode> rows;
    for (uint64_t token : tokens) rows.push_back({token, static_cast<int>(rows.size()) - 1});
    return rows;
  }
  // Row indices from the root to `index`.
  std::vector<int> path_to(int index) const {
    std::vector<int> path;
    for (int i = index; i >= 0; i = rows[i].parent) path.insert(path.begin(), i);
    return path;
  }
};

// Bytes of each row's result.
using RowBytes = std::vector<std::vector<uint8_t>>;

class PagedWorld {
 public:
  PagedWorld(Backend& backend, const AttentionShape& shape, int num_blocks, uint64_t seed = 1)
      : backend_(backend), shape_(shape), random_(seed) {
    kv_ = {.dtype = shape.int8_kv ? DType::kI8 : backend.act_dtype(),
           .num_blocks = num_blocks + 1,
           .block_size = shape.block_size,
           .num_kv_heads = shape.num_kv_heads,
           .head_dim = shape.head_dim};
    const size_t size_bytes = backend.kv_layer_bytes(kv_);
    for (void** part : {&kv_.keys, &kv_.values}) {
      buffers_.push_back(backend.allocate(size_bytes, "test"));
      *part = buffers_.back().data();
      // Not a number in every dtype: reading a slot that nobody wrote spoils the result.
      std::memset(*part, 0xff, size_bytes);
    }
    free_blocks_.resize(num_blocks);
    std::iota(free_blocks_.begin(), free_blocks_.end(), 1);
    std::shuffle(free_blocks_.begin(), free_blocks_.end(), random_);
    make_rope();
    make_projection();
    make_sinks();
  }

  const PagedKvView& kv() const { return kv_; }
  const BatchView& batch() const { return batch_; }
  std::vector<uint64_t>& masks() { return masks_; }

  Request new_request(int capacity_tokens) {
    Request request;
    for (int slots = 0; slots < capacity_tokens; slots += shape_.block_size) {
      SPECDEC_CHECK(!free_blocks_.empty());
      request.blocks.push_back(free_blocks_.back());
      free_blocks_.pop_back();
    }
    return request;
  }

  // Appends tokens to the request's committed ones, `chunk` at a time.
  RowBytes prefill(Request& request, const std::vector<uint64_t>& tokens, int chunk = 512) {
    RowBytes results;
    for (size_t begin = 0; begin < tokens.size(); begin += chunk) {
      const size_t end = std::min(tokens.size(), begin + chunk);
      request.is_tree = false;
      request.rows = Request::chain({tokens.begin() + begin, tokens.begin() + end});
      for (auto& row : step({&request})) results.push_back(std::move(row));
      request.base_len += static_cast<int>(end - begin);
    }
    request.rows.clear();
    return results;
  }

  // project_qkv and attention of all requests' rows; results in the order of requests and rows.
  RowBytes step(const std::vector<Request*>& requests) {
    build(requests);
    project();
    return attend();
  }

  // The parts of a step, for tests that look in between.
  void build(const std::vector<Request*>& requests);
  void project();
  RowBytes attend();
  QkvArgs qkv_args();
  TreeAttentionArgs attention_args();
  const std::vector<float>& qkv() const { return qkv_; }      // what the projection gives
  const std::vector<float>& sinks() const { return sinks_; }  // [num_heads]
  const std::vector<uint8_t>& q_bytes() const { return q_; }
  const std::vector<uint8_t>& out_bytes() const { return out_; }

  // The element of the cache at a physical slot.
  double key(int64_t slot, int head, int i) const;
  double value(int64_t slot, int head, int i) const;

 private:
  static constexpr int kColumns = 128;  // of each of the two a token picks

  void make_rope();
  void make_projection();
  void make_sinks();
  void append_row_of(uint64_t token);
  double element(const void* base, int64_t slot, int head, int64_t index) const;

  Backend& backend_;
  AttentionShape shape_;
  std::mt19937_64 random_;
  PagedKvView kv_;
  std::vector<Buffer> buffers_;
  std::vector<int32_t> free_blocks_;
  std::vector<float> cos_, sin_, q_norm_, k_norm_, v_norm_, query_scales_, sinks_;

  BatchView batch_;
  std::vector<int32_t> token_ids_, positions_, cu_rows_, base_lens_, block_tables_, num_tree_slots_;
  std::vector<int64_t> slot_mapping_;
  std::vector<uint8_t> is_tree_;
  std::vector<uint64_t> masks_;
  std::vector<float> projection_;  // [row_width, 2 * kColumns], exact at the dtype
  std::unique_ptr<PackedLinear> weight_;
  std::vector<float> x_, qkv_;
  std::vector<uint8_t> q_, out_;
};

inline void PagedWorld::make_rope() {
  if (shape_.rotary_dim < 0) shape_.rotary_dim = shape_.head_dim;
  const int half = shape_.rotary_dim / 2;
  for (int position = 0; position < shape_.max_positions; ++position) {
    for (int i = 0; i < half; ++i) {
      const double angle = position * std::pow(10000.0, -static_cast<double>(i) / half);
      cos_.push_back(static_cast<float>(std::cos(angle)));
      sin_.push_back(static_cast<float>(std::sin(angle)));
    }
    query_scales_.push_back(0.5f + 0.01f * static_cast<float>(position));
  }
  std::uniform_real_distribution<float> weight(0.5f, 1.5f);
  for (int i = 0; i < shape_.head_dim; ++i) {
    q_norm_.push_back(weight(random_));
    k_norm_.push_back(weight(random_));
  }
  const int num_weights = shape_.norm_all_heads ? shape_.num_heads() * shape_.head_dim : 0;
  while (static_cast<int>(q_norm_.size()) < num_weights) {
    q_norm_.push_back(weight(random_));
    k_norm_.push_back(weight(random_));
  }
  for (int i = 0; i < shape_.head_dim; ++i) v_norm_.push_back(weight(random_));
}

inline void PagedWorld::make_projection() {
  std::mt19937_64 random(7);
  std::normal_distribution<float> normal(0.0f, 0.7f);
  projection_.resize(int64_t{shape_.row_width()} * 2 * kColumns);
  for (float& value : projection_) {
    value = normal(random);
    if (backend_.act_dtype() == DType::kBF16) value = to_float(to_bfloat16(value));
  }
  const WeightView view = {
      .values = {projection_.data(), DType::kF32, {shape_.row_width(), 2 * kColumns}}};
  weight_ = backend_.pack_linear({.parts = {&view, 1}});
}

// Of the order of the scores of a few positions or of many, and far above and below all scores.
inline void PagedWorld::make_sinks() {
  constexpr float kSinks[] = {4.0f, 1000.0f, -1000.0f, 2.0f, 7.0f};
  for (int head = 0; head < shape_.num_heads(); ++head) sinks_.push_back(kSinks[head % 5]);
}

inline void PagedWorld::append_row_of(uint64_t token) {
  const uint64_t hash = (token + 1) * 0x9E3779B97F4A7C15u;
  const int first = static_cast<int>(hash >> 57);
  const int second = kColumns + static_cast<int>((hash >> 50) % kColumns);
  for (int i = 0; i < 2 * kColumns; ++i) x_.push_back(i == first || i == second ? 1.0f : 0.0f);
  for (int64_t i = 0; i < shape_.row_width(); ++i) {
    qkv_.push_back(projection_[i * 2 * kColumns + first] + projection_[i * 2 * kColumns + second]);
  }
}

inline void PagedWorld::build(const std::vector<Request*>& requests) {
  token_ids_.clear(), positions_.clear(), base_lens_.clear(), slot_mapping_.clear();
  is_tree_.clear(), x_.clear(), qkv_.clear(), num_tree_slots_.clear();
  bool has_grown_tree = false;
  cu_rows_.assign(1, 0);
  size_t max_blocks = 0, max_rows = 0;
  for (const Request* request : requests) {
    max_blocks = std::max(max_blocks, request->blocks.size());
    if (request->is_tree) max_rows = std::max(max_rows, request->rows.size());
  }
  const int mask_words = std::max(1, static_cast<int>(max_rows + 63) / 64);
  masks_.clear();
  block_tables_.assign(requests.size() * max_blocks, 0);
  for (size_t r = 0; r < requests.size(); ++r) {
    const Request& request = *requests[r];
    std::copy(request.blocks.begin(), request.blocks.end(),
              block_tables_.begin() + static_cast<int64_t>(r * max_blocks));
    for (size_t i = request.num_cached_rows; i < request.rows.size(); ++i) {
      const int index = static_cast<int>(i);
      const int slot = request.base_len + index;
      int depth = index;
      masks_.resize(masks_.size() + mask_words, 0);
      if (request.is_tree) {
        const std::vector<int> path = request.path_to(index);
        depth = static_cast<int>(path.size()) - 1;
        for (int ancestor : path) {
          masks_[masks_.size() - mask_words + ancestor / 64] |= uint64_t{1} << (ancestor % 64);
        }
      }
      token_ids_.push_back(0);
      positions_.push_back(request.base_len + depth);
      slot_mapping_.push_back(static_cast<int64_t>(request.blocks.at(slot / shape_.block_size)) *
                                  shape_.block_size +
                              slot % shape_.block_size);
      append_row_of(request.rows[i].token);
    }
    cu_rows_.push_back(static_cast<int32_t>(positions_.size()));
    base_lens_.push_back(request.base_len);
    is_tree_.push_back(request.is_tree);
    num_tree_slots_.push_back(static_cast<int32_t>(request.rows.size()));
    has_grown_tree = has_grown_tree || request.num_cached_rows > 0;
  }
  batch_ = {.num_requests = static_cast<int>(requests.size()),
            .num_rows = static_cast<int>(positions_.size()),
            .token_ids = token_ids_.data(),
            .positions = positions_.data(),
            .slot_mapping = slot_mapping_.data(),
            .cu_rows = cu_rows_.data(),
            .base_lens = base_lens_.data(),
            .block_tables = block_tables_.data(),
            .max_blocks_per_request = static_cast<int>(max_blocks),
            .is_tree = is_tree_.data(),
            .ancestor_mask = masks_.data(),
            .num_tree_slots = has_grown_tree ? num_tree_slots_.data() : nullptr,
            .mask_words = mask_words};
  const size_t row_bytes = size_of(backend_.act_dtype()) * shape_.num_heads() * shape_.head_dim;
  q_.assign(batch_.num_rows * row_bytes, 0xff);
  out_.assign(batch_.num_rows * row_bytes, 0xff);
}

inline QkvArgs PagedWorld::qkv_args() {
  return {.weight = weight_.get(),
          .in = {.x = x_.data(), .dtype = DType::kF32, .num_rows = batch_.num_rows},
          .q_norm = shape_.qk_norm ? q_norm_.data() : nullptr,
          .k_norm = shape_.qk_norm ? k_norm_.data() : nullptr,
          .v_norm = shape_.v_norm ? v_norm_.data() : nullptr,
          .norm_all_heads = shape_.norm_all_heads,
          .norm_after_rope = shape_.norm_after_rope,
          .rope_cos = shape_.rotary_dim > 0 ? cos_.data() : nullptr,
          .rope_sin = shape_.rotary_dim > 0 ? sin_.data() : nullptr,
          .rotary_dim = shape_.rotary_dim,
          .query_scales = shape_.has_query_scales ? query_scales_.data() : nullptr,
          .num_heads = shape_.num_heads(),
          .batch = &batch_,
          .kv = shape_.q_only ? PagedKvView{.head_dim = shape_.head_dim} : kv_,
          .q = q_.data()};
}

inline TreeAttentionArgs PagedWorld::attention_args() {
  return {.q = q_.data(),
          .batch = &batch_,
          .kv = kv_,
          .num_heads = shape_.num_heads(),
          .scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim)),
          .soft_cap = shape_.soft_cap,
          .sliding_window = shape_.sliding_window,
          .sinks = shape_.has_sinks ? sinks_.data() : nullptr,
          .first_position = shape_.first_position,
          .out = out_.data()};
}

inline void PagedWorld::project() { backend_.project_qkv(qkv_args()); }

inline RowBytes PagedWorld::attend() {
  backend_.tree_attention(attention_args());
  const size_t row_bytes = out_.size() / std::max(1, batch_.num_rows);
  RowBytes results;
  for (int row = 0; row < batch_.num_rows; ++row) {
    const auto begin = out_.begin() + static_cast<int64_t>(row * row_bytes);
    results.emplace_back(begin, begin + static_cast<int64_t>(row_bytes));
  }
  return results;
}

// The group of 16 tokens that holds a slot: [16] scales first in an int8 cache. Elements stand in
// words of as many as make 4 bytes of activations.
inline double PagedWorld::element(const void* base, int64_t slot, int head, int64_t index) const {
  const int64_t group = int64_t{head} * kv_.num_blocks * (kv_.block_size / 16) + slot / 16;
  const int64_t count = int64_t{16} * kv_.head_dim;
  if (kv_.dtype == DType::kF32) return static_cast<const float*>(base)[group * count + index];
  if (kv_.dtype == DType::kBF16) {
    return to_float(static_cast<const BFloat16*>(base)[group * count + index]);
  }
  const char* start = static_cast<const char*>(base) + group * (64 + count);
  float scale = 0.0f;
  std::memcpy(&scale, start + slot % 16 * sizeof(float), sizeof(float));
  return static_cast<double>(scale) * static_cast<signed char>(start[64 + index]);
}

inline double PagedWorld::key(int64_t slot, int head, int i) const {
  const int per_word = backend_.act_dtype() == DType::kBF16 ? 2 : 1;
  return element(kv_.keys, slot, head, (i / per_word * 16 + slot % 16) * per_word + i % per_word);
}

inline double PagedWorld::value(int64_t slot, int head, int i) const {
  const int per_word = backend_.act_dtype() == DType::kBF16 ? 2 : 1;
  const int64_t token = slot % 16;
  return element(kv_.values, slot, head,
                 (token / per_word * kv_.head_dim + i) * per_word + token % per_word);
}

}  // namespace specdec::testing
