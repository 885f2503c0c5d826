// Where the plans of a pass's attention lie in device memory (AttentionPlan). Layers that see the
// same positions share one; a model has a few such kinds of layers, as those with a sliding window
// and those without.
#pragma once

#include <array>
#include <cstdint>

#include "backend/op_args.h"
#include "core/buffer.h"
#include "cuda/gpu/device.h"
#include "cuda/kernels/attention.h"

namespace specdec::cuda {

class AttentionPlans {
 public:
  explicit AttentionPlans(Device& device);

  // From here on a batch may have other rows, though it lies where one before it lay: no plan is
  // made. A model's pass begins with the lookup of its tokens, a batch of the host's by staging it.
  void begin_pass() { num_made_ = 0; }

  // That of a call of attention: made by an earlier call of this pass, or to be made by this one.
  // Kinds of layers beyond the first few have none, and without LaunchSettings::plans nobody has.
  AttentionPlan plan_of(const TreeAttentionArgs& args);

 private:
  static constexpr int kMostPlans = 4;
  static constexpr size_t kPlanBytes = size_t{1} << 20;

  // What the items of a call and what is known of them follow from.
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
  std::array<Kind, kMostPlans> made_{};
  int num_made_ = 0;
  Buffer memory_;  // [kMostPlans] kPlanBytes each
};

}  // namespace specdec::cuda
