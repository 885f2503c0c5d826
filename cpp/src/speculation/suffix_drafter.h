// Suffix decoding: drafts the tokens that followed the last tokens earlier, in this sequence or in
// the outputs of finished ones.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>

#include "specdec/speculative_config.h"
#include "speculation/drafter.h"
#include "speculation/suffix_tree.h"

namespace specdec {

// Each sequence has a tree of its prompt and output. The outputs of finished sequences share one
// tree, from which the oldest are evicted beyond suffix_max_cached_requests or the memory limit.
// The draft with the higher score is taken; between equal scores, the draft of the sequence's own
// tree.
class SuffixDrafter : public Drafter {
 public:
  static constexpr int64_t kMaxSharedBytes = int64_t{256} << 20;

  // Drafts on the threads of `pool`, which is borrowed; null: on the caller's thread.
  SuffixDrafter(const DrafterConfig& config, int id, ThreadPool* pool = nullptr,
                int64_t max_shared_bytes = kMaxSharedBytes);

  DrafterTraits traits() const override { return {}; }
  void draft(std::span<DraftRequest> requests) override;
  void finish(uint64_t sequence, std::span<const int32_t> tokens, int num_prompt_tokens) override;
  int64_t memory_bytes() const override;

  int num_shared() const { return shared_.num_closed(); }

 private:
  void share(std::span<const int32_t> output);

  int max_tree_depth_;
  int max_shared_;
  int64_t max_shared_bytes_;
  double max_spec_factor_;
  double min_token_prob_;
  int id_;
  ThreadPool* pool_;
  std::unordered_map<uint64_t, SuffixTree> own_;  // by sequence
  SuffixTree shared_;
};

}  // namespace specdec
