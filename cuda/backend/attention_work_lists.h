// Device memory for attention's work lists (AttentionWorkList). Layers of a pass that see the same
// positions share a list; a model has a few such kinds of layers, for example those with a sliding
// window and those without.
#pragma once

#include <array>
#include <cstdint>

#include "backend/op_args.h"
#include "core/buffer.h"
#include "cuda/gpu/device.h"
#include "cuda/kernels/attention.h"

namespace specdec::cuda {

class AttentionWorkLists {
 public:
  explicit AttentionWorkLists(Device& device);

  // A new pass begins: its batch may have other rows at the same addresses, so no earlier list is
  // valid. Called when a model looks up its tokens, and when a batch of the host is staged.
  void begin_pass() { num_made_ = 0; }

  // The list for a call of attention: written by an earlier call of this pass (is_made), or to be
  // written by this one. Empty for kinds of layers beyond the first kMostLists, and without
  // LaunchSettings::work_lists.
  AttentionWorkList list_of(const TreeAttentionArgs& args);

 private:
  static constexpr int kMostLists = 4;
  static constexpr size_t kListBytes = size_t{1} << 20;

  // Everything that the items of a call follow from. Two calls of a pass share a list if these are
  // equal.
  struct Kind {
    const int32_t* cu_rows;
    const int32_t* base_lens;
    const uint8_t* is_tree;
    const int32_t* num_tree_slots;
    const uint64_t* ancestor_mask;
    int mask_words;
    int num_requests;
    int num_rows;
    int num_heads;
    int num_kv_heads;
    int head_dim;
    DType kv_dtype;
    float soft_cap;
    int sliding_window;
    int first_position;

    bool operator==(const Kind&) const = default;
  };

  const Device& device_;
  std::array<Kind, kMostLists> made_{};
  int num_made_ = 0;
  Buffer memory_;  // [kMostLists] kListBytes each
};

}  // namespace specdec::cuda
