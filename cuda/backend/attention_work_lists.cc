#include "cuda/backend/attention_work_lists.h"

#include <algorithm>

namespace specdec::cuda {

AttentionWorkLists::AttentionWorkLists(Device& device)
    : device_(device),
      memory_(device.allocate(kMostLists * kListBytes, "work lists of attention")) {}

AttentionWorkList AttentionWorkLists::list_of(const TreeAttentionArgs& args) {
  if (!device_.launch_settings().work_lists) return {};
  const BatchView& batch = *args.batch;
  const Kind kind = {.cu_rows = batch.cu_rows,
                     .base_lens = batch.base_lens,
                     .is_tree = batch.is_tree,
                     .num_tree_slots = batch.num_tree_slots,
                     .ancestor_mask = batch.ancestor_mask,
                     .mask_words = batch.mask_words,
                     .num_requests = batch.num_requests,
                     .num_rows = batch.num_rows,
                     .num_heads = args.num_heads,
                     .num_kv_heads = args.kv.num_kv_heads,
                     .head_dim = args.kv.head_dim,
                     .kv_dtype = args.kv.dtype,
                     .soft_cap = args.soft_cap,
                     .sliding_window = args.sliding_window,
                     .first_position = args.first_position};
  const auto end = made_.begin() + num_made_;
  const auto found = std::find(made_.begin(), end, kind);
  const bool is_made = found != end;
  if (!is_made) {
    if (num_made_ == kMostLists) return {};
    made_[num_made_++] = kind;
  }
  return {.memory = memory_.as<char>() + (found - made_.begin()) * kListBytes,
          .size_bytes = kListBytes,
          .is_made = is_made};
}

}  // namespace specdec::cuda
