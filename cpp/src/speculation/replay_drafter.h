// Drafts the answers that the same prompt got before: rollouts of reinforcement learning resemble
// those of the epoch before (RhymeRL, SPEC-RL, 2025).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "specdec/speculative_config.h"
#include "speculation/answer_recorder.h"
#include "speculation/drafter.h"
#include "speculation/prediction_drafter.h"
#include "speculation/prompt_answers.h"
#include "speculation/salted_texts.h"

namespace specdec {

// Answers that a prompt has when a sequence begins are a prediction for that sequence
// (PredictionDrafter), the newest first. They come from this drafter's own finished sequences, from
// the file `replay`, which is only read, and from the file `record`, to which own answers are
// added. Answers of requests with a cache_salt serve requests of that salt alone and are not
// written. Prompts that got an answer least recently are forgotten beyond kMaxBytes.
class ReplayDrafter final : public Drafter {
 public:
  static constexpr int64_t kMaxBytes = int64_t{1} << 30;

  // Drafts on the threads of `pool`, which is borrowed; null: on the caller's thread. Throws
  // InvalidArgument that names "replay" or "record" for a file that cannot be read or written.
  ReplayDrafter(const DrafterConfig& config, int id, int vocab_size, ThreadPool* pool = nullptr,
                int64_t max_bytes = kMaxBytes);

  DrafterTraits traits() const override { return {}; }
  void draft(std::span<DraftRequest> requests) override;
  void finish(const FinishedSequence& finished) override;
  int64_t memory_bytes() const override;

 private:
  void add(std::string_view salt, uint64_t prompt, std::span<const int32_t> answer);
  void add(const AnswerStore::Answers& answers);

  PredictionDrafter follower_;
  SaltedTexts<PromptAnswers> answers_;
  std::optional<AnswerRecorder> recorder_;
  std::unordered_map<uint64_t, std::shared_ptr<const PromptAnswers::Tokens>>
      predictions_;  // by sequence; null: its prompt had no answers
};

}  // namespace specdec
