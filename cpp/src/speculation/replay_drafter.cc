#include "speculation/replay_drafter.h"

#include <limits>
#include <string_view>

#include "core/fnv1a.h"
#include "specdec/error.h"

namespace specdec {

ReplayDrafter::ReplayDrafter(const DrafterConfig& config, int id, int vocab_size, ThreadPool* pool,
                             int64_t max_bytes)
    : follower_(id, pool), answers_(std::numeric_limits<int>::max(), max_bytes) {
  const auto store_of = [&](const char* option, const std::string& path) {
    return AnswerStore({.option = option,
                        .path = path,
                        .tokenizer = config.store_tokenizer,
                        .vocab_size = vocab_size,
                        .max_bytes = max_bytes});
  };
  if (!config.replay.empty()) {
    AnswerStore store = store_of("replay", config.replay);
    if (!store.exists()) {
      throw InvalidArgument(
          "replay", "there is no file " + config.replay + ": name one that \"record\" has written");
    }
    add(store.read());
  }
  if (config.record.empty()) return;
  recorder_.emplace(store_of("record", config.record));
  add(recorder_->take_others());
}

void ReplayDrafter::add(std::string_view salt, uint64_t prompt, std::span<const int32_t> answer) {
  answers_.add(
      salt, [] { return PromptAnswers(); },
      [&](PromptAnswers& answers) { answers.add(prompt, answer); });
}

void ReplayDrafter::add(const AnswerStore::Answers& answers) {
  for (const StoredAnswer& answer : answers) {
    if (answer.prompt != 0) add({}, answer.prompt, answer.tokens);
  }
}

void ReplayDrafter::draft(std::span<DraftRequest> requests) {
  for (DraftRequest& request : requests) {
    const auto [prediction, is_new] = predictions_.try_emplace(request.sequence);
    if (is_new) {
      const auto prompt = request.tokens.first(request.num_prompt_tokens);
      const PromptAnswers* answers = answers_.find(request.cache_salt);
      if (answers != nullptr) prediction->second = answers->find(fnv1a(prompt));
    }
    request.prediction = {};
    if (prediction->second != nullptr) request.prediction = *prediction->second;
  }
  follower_.draft(requests);
}

void ReplayDrafter::finish(const FinishedSequence& finished) {
  follower_.finish(finished);
  predictions_.erase(finished.sequence);
  if (recorder_.has_value()) add(recorder_->take_others());
  const auto answer = finished.tokens.subspan(finished.num_prompt_tokens);
  if (answer.empty()) return;
  const uint64_t prompt = fnv1a(finished.tokens.first(finished.num_prompt_tokens));
  add(finished.cache_salt, prompt, answer);
  if (!recorder_.has_value() || !finished.cache_salt.empty()) return;
  recorder_->add({prompt, {answer.begin(), answer.end()}});
}

int64_t ReplayDrafter::memory_bytes() const {
  return answers_.memory_bytes() + follower_.memory_bytes() +
         static_cast<int64_t>(predictions_.size() * sizeof(decltype(predictions_)::value_type));
}

}  // namespace specdec
