// The answers that prompts got, to be found by the prompt.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

namespace specdec {

// Prompts are known by the hash of their token ids (fnv1a). A prompt keeps its newest answers, at
// most kMostAnswers with kMostTokens together, each once. Those of one prompt are joined to one
// text, the newest first. evict_oldest() forgets the prompt that got an answer least recently.
class PromptAnswers {
 public:
  static constexpr int kMostAnswers = 16;
  static constexpr size_t kMostTokens = 1 << 16;
  using Tokens = std::vector<int32_t>;

  void add(uint64_t prompt, std::span<const int32_t> answer);
  void evict_oldest();
  // The joined answers; null: the prompt has none.
  std::shared_ptr<const Tokens> find(uint64_t prompt) const;

  int num_texts() const { return static_cast<int>(prompts_.size()); }
  int64_t used_bytes() const { return used_bytes_; }
  int64_t memory_bytes() const { return used_bytes_; }

 private:
  struct Prompt {
    uint64_t hash = 0;
    std::shared_ptr<const Tokens> joined;
    std::deque<int> lengths;  // of the answers, newest first
  };
  static int64_t bytes_of(const Prompt& prompt);

  std::list<Prompt> prompts_;  // that got an answer least recently first
  std::unordered_map<uint64_t, std::list<Prompt>::iterator> by_hash_;
  int64_t used_bytes_ = 0;
};

}  // namespace specdec
