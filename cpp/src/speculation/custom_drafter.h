// Checks the drafts of a CustomDrafter and merges them into the tree.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "specdec/speculative_config.h"
#include "speculation/drafter.h"

namespace specdec {

// Continuations are cut to the depth, the width and the nodes that are allowed; earlier ones take
// precedence. An exception of propose() and tokens outside the vocabulary are the error of the one
// request that was drafted for.
class CustomDrafterAdapter : public Drafter {
 public:
  CustomDrafterAdapter(std::shared_ptr<CustomDrafter> custom, int id, int vocab_size);

  // What propose() costs is not known.
  DrafterTraits traits() const override { return {.cost = DrafterTraits::Cost::kPerCall}; }
  void draft(std::span<DraftRequest> requests) override;

 private:
  void check(std::span<const int32_t> continuation) const;
  void add(const DraftRequest& request, std::span<const int32_t> continuation, int rank) const;
  bool may_branch(const DraftRequest& request, int parent, int32_t token) const;

  std::shared_ptr<CustomDrafter> custom_;
  int id_;
  int vocab_size_;
};

}  // namespace specdec
