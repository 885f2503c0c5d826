// Several drafters for every request.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "speculation/drafter.h"

namespace specdec {

// Without merging, a request gets the drafts of the first drafter that has any: free ones are asked
// first, otherwise in the order given. With merging all add to one tree, in the order given, while
// there is room for nodes.
class CompositeDrafter : public Drafter {
 public:
  CompositeDrafter(std::vector<std::unique_ptr<Drafter>> drafters, bool merge);

  const char* name() const override { return "composite"; }
  bool is_free() const override;  // all of them are
  void draft(std::span<DraftRequest> requests) override;
  void finish(uint64_t sequence, std::span<const int32_t> tokens, int num_prompt_tokens) override;
  int64_t memory_bytes() const override;

 protected:
  // Which requests a drafter is asked for, given what those before it drafted.
  virtual std::vector<DraftRequest*> select(const Drafter& drafter,
                                            std::span<DraftRequest> requests);
  virtual void run(Drafter& drafter, std::span<DraftRequest> batch) { drafter.draft(batch); }
  bool merges() const { return merge_; }

 private:
  std::vector<std::unique_ptr<Drafter>> drafters_;  // in the order they are asked
  bool merge_;
};

}  // namespace specdec
