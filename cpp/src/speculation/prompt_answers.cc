#include "speculation/prompt_answers.h"

#include <algorithm>

#include "core/check.h"

namespace specdec {

int64_t PromptAnswers::bytes_of(const Prompt& prompt) {
  // With nodes of a list and of a hash table, a vector and a deque.
  constexpr int64_t kPromptBytes = 1024;
  return kPromptBytes + static_cast<int64_t>(prompt.joined->size() * sizeof(int32_t) +
                                             prompt.lengths.size() * sizeof(int));
}

void PromptAnswers::add(uint64_t hash, std::span<const int32_t> answer) {
  if (answer.empty()) return;
  const auto known = by_hash_.find(hash);
  Prompt prompt{.hash = hash, .joined = std::make_shared<Tokens>(), .lengths = {}};
  if (known != by_hash_.end()) {
    used_bytes_ -= bytes_of(*known->second);
    prompt.joined = known->second->joined;
    prompt.lengths = std::move(known->second->lengths);
    prompts_.erase(known->second);
  }
  // A new text, as drafts may come from the one before.
  Tokens joined(answer.begin(), answer.end());
  std::deque<int> lengths = {static_cast<int>(answer.size())};
  auto rest = std::span(*prompt.joined);
  for (const int length : prompt.lengths) {
    const auto older = rest.first(length);
    rest = rest.subspan(length);
    if (std::ranges::equal(older, answer)) continue;
    const bool has_room = static_cast<int>(lengths.size()) < kMostAnswers &&
                          joined.size() + older.size() <= kMostTokens;
    if (!has_room) break;
    joined.insert(joined.end(), older.begin(), older.end());
    lengths.push_back(length);
  }
  prompt.joined = std::make_shared<const Tokens>(std::move(joined));
  prompt.lengths = std::move(lengths);
  used_bytes_ += bytes_of(prompt);
  by_hash_[hash] = prompts_.insert(prompts_.end(), std::move(prompt));
}

void PromptAnswers::evict_oldest() {
  SPECDEC_CHECK(!prompts_.empty());
  used_bytes_ -= bytes_of(prompts_.front());
  by_hash_.erase(prompts_.front().hash);
  prompts_.pop_front();
}

std::shared_ptr<const PromptAnswers::Tokens> PromptAnswers::find(uint64_t hash) const {
  const auto known = by_hash_.find(hash);
  return known == by_hash_.end() ? nullptr : known->second->joined;
}

}  // namespace specdec
