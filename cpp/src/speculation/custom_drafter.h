// Checks the drafts of a CustomDrafter and merges them into the tree.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "specdec/speculative_config.h"
#include "speculation/drafter.h"

namespace specdec {

// Continuations are cut to the allowed depth, width and number of nodes; earlier continuations take
// precedence. An exception of propose() or a token outside the vocabulary is an error of that one
// request.
class CustomDrafterAdapter : public Drafter {
 public:
  CustomDrafterAdapter(std::shared_ptr<CustomDrafter> custom, int id, int vocab_size);

  // The cost of propose() is not known, so it counts as one call.
  DrafterTraits traits() const override { return {.cost = DrafterTraits::Cost::kPerCall}; }
  void draft(std::span<DraftRequest> requests) override;

 private:
  void check(std::span<const int32_t> continuation) const;
  void add(const DraftRequest& request, std::span<const int32_t> continuation, int order) const;
  bool may_branch(const DraftRequest& request, int parent, int32_t token) const;

  std::shared_ptr<CustomDrafter> custom_;
  int id_;
  int vocab_size_;
};

}  // namespace specdec
