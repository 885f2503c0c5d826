// Prompt lookup: drafts the tokens that followed an earlier occurrence of the last few tokens.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "specdec/speculative_config.h"
#include "speculation/drafter.h"
#include "speculation/ngram_index.h"

namespace specdec {

// Looks up the longest n-gram at the end of prompt and output, prompt_lookup_min to
// prompt_lookup_max tokens long, that occurred before. A chain drafts the tokens after its latest
// occurrence. A tree drafts the tokens after its latest kMaxOccurrences occurrences, the more
// frequent continuation first, then the more recent. Where the text after an occurrence ends, the
// draft goes on with the text from that occurrence, so that repetition is drafted as repetition.
class NgramDrafter : public Drafter {
 public:
  static constexpr int kMaxOccurrences = 32;

  NgramDrafter(const DrafterConfig& config, int id);

  DrafterTraits traits() const override { return {}; }
  void draft(std::span<DraftRequest> requests) override;
  void finish(const FinishedSequence& finished) override;
  int64_t memory_bytes() const override;

 private:
  void draft_chain(const DraftRequest& request, const std::vector<int>& ends) const;
  void draft_tree(const DraftRequest& request, const std::vector<int>& ends) const;

  int min_length_;
  int max_length_;
  int id_;
  std::unordered_map<uint64_t, NgramIndex> indexes_;  // by sequence
};

}  // namespace specdec
