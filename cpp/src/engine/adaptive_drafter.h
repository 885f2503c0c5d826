// Drafters that draft as much as is measured to pay.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "speculation/composite_drafter.h"
#include "speculation/draft_policy.h"

namespace specdec {

// Asks its drafters as a DraftPolicy decides, times them, and prunes what they drafted. Free
// drafters are always asked, and for more than there are slots: what becomes of a draft is learned
// from the text also where it is not verified.
class AdaptiveDrafter final : public CompositeDrafter, private DraftGate {
 public:
  // What beside the drafter itself is needed of it.
  struct Part {
    std::unique_ptr<Drafter> drafter;
    double relative_cost = 0;  // of a model's pass beside the target's, until it is measured
  };
  // `max_nodes` of what free drafters draft, however many slots there are.
  AdaptiveDrafter(std::vector<Part> parts, bool merge, int max_nodes);

  const char* name() const override { return "adaptive"; }

  // Draft slots to reserve for a request that may have `limit`.
  int num_slots(uint64_t sequence, int limit) const { return policy_.num_slots(sequence, limit); }
  // To be called before draft() in every step, with drafts or without.
  void begin_step(int num_decoding, int num_prompt_rows) {
    policy_.begin_step(num_decoding, num_prompt_rows);
  }
  // Of a request, max_nodes counts the slots it has and max_depth does not know of them.
  void draft(std::span<DraftRequest> requests) override;
  // Steps that run on the device (DraftPolicy::plan_levels), after begin_step().
  int plan_levels(std::span<const DraftPolicy::Ask> asks, const TreeShape& shape) {
    return policy_.plan_levels(0, asks, shape);
  }
  void record_levels(const DraftPolicy::Levels& levels) { policy_.record_levels(0, levels); }
  void record_passes(int num_passes, int num_rows, double seconds) {
    for (int i = 0; i < num_passes; ++i) policy_.record_pass(0, num_rows, seconds / num_passes);
  }
  void record_tokens(uint64_t sequence, std::span<const int32_t> tokens) {
    policy_.record_tokens(sequence, tokens);
  }
  // The rest of the step, from the target's pass on, took so long.
  void end_step(double seconds) { policy_.end_step(seconds); }
  void finish(uint64_t sequence, std::span<const int32_t> tokens, int num_prompt_tokens) override;

  const DraftPolicyStats& stats() const { return policy_.stats(); }

 private:
  AdaptiveDrafter(std::vector<Part>& parts, std::vector<const Drafter*> pointers,
                  std::vector<DrafterTraits> traits, bool merge, int max_nodes);

  struct Limits {
    int max_depth = 0;
    int max_nodes = 0;
  };
  Limits limits_of(int drafter, const DraftRequest& request) const;
  std::vector<DraftRequest*> select(const Drafter& drafter,
                                    std::span<DraftRequest> requests) override;
  void run(Drafter& drafter, std::span<DraftRequest> batch) override;
  void choose(int drafter, std::span<DraftGate::Node> nodes) override;
  int index_of(const Drafter& drafter) const;

  std::vector<const Drafter*> parts_;  // in the order given
  std::vector<DrafterTraits> traits_;
  DraftPolicy policy_;
  int max_nodes_;

  // Of the step under way, kept for their memory.
  std::vector<DraftPolicy::Ask> asks_;
  std::vector<DraftPolicy::Draft> drafts_;
};

}  // namespace specdec
