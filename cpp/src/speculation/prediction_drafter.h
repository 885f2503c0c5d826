// Drafts what comes next in the text that the caller predicted (SamplingParams::prediction), such
// as the file that an answer edits.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>

#include "core/thread_pool.h"
#include "speculation/drafter.h"
#include "speculation/prediction_place.h"

namespace specdec {

// Drafts a chain from the place of the answer in the prediction: its beginning at first. Once the
// answer has left the prediction, a place that rests on fewer than kLeastMatch tokens is not
// drafted from, which leaves the step to other drafters.
class PredictionDrafter final : public Drafter {
 public:
  static constexpr int kLeastMatch = 2;

  // Drafts on the threads of `pool`, which is borrowed; null: on the caller's thread.
  explicit PredictionDrafter(int id, ThreadPool* pool = nullptr) : id_(id), pool_(pool) {}

  DrafterTraits traits() const override { return {.source = DrafterTraits::Source::kPrediction}; }
  void draft(std::span<DraftRequest> requests) override;
  void finish(const FinishedSequence& finished) override { places_.erase(finished.sequence); }
  int64_t memory_bytes() const override;

 private:
  int id_;
  ThreadPool* pool_;
  std::unordered_map<uint64_t, PredictionPlace> places_;  // by sequence
};

}  // namespace specdec
