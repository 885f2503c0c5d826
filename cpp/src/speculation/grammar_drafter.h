// Drafts the tokens that a request's grammar forces.
#pragma once

#include "core/thread_pool.h"
#include "speculation/drafter.h"

namespace specdec {

class GrammarDrafter final : public Drafter {
 public:
  // The pool is borrowed; null: the calling thread alone.
  explicit GrammarDrafter(int id, ThreadPool* pool = nullptr) : id_(id), pool_(pool) {}

  DrafterTraits traits() const override { return {.source = DrafterTraits::Source::kGrammar}; }
  void draft(std::span<DraftRequest> requests) override;

 private:
  int id_;
  ThreadPool* pool_;
};

// Removes the drafts that the request's grammar forbids, with everything below them. Verification
// would certainly reject them, so neither the answers of exact verification nor the distribution of
// rejection verification change.
void cut_forbidden(const DraftRequest& request);

}  // namespace specdec
