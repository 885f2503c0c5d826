// Drafts what a request's grammar leaves no choice about.
#pragma once

#include "core/thread_pool.h"
#include "speculation/drafter.h"

namespace specdec {

class GrammarDrafter final : public Drafter {
 public:
  // The pool is borrowed; null: the calling thread alone.
  explicit GrammarDrafter(int id, ThreadPool* pool = nullptr) : id_(id), pool_(pool) {}

  DrafterTraits traits() const override { return {.drafts_forced = true}; }
  void draft(std::span<DraftRequest> requests) override;

 private:
  int id_;
  ThreadPool* pool_;
};

// Takes out the drafts that the request's grammar forbids, with all that follows them. They would
// be rejected for certain, so that neither the answers of exact verification nor the distribution
// of weighing change.
void cut_forbidden(const DraftRequest& request);

}  // namespace specdec
