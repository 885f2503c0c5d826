// Tells the other ranks of the calls of one of the leader's runners.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>

#include "runtime/model_runner.h"
#include "runtime/rank_calls.h"

namespace specdec {

class LeadingRunner final : public RunnerObserver {
 public:
  // `calls` is borrowed; `model` is as RankCalls has it.
  LeadingRunner(RankCalls& calls, int model) : calls_(calls), model_(model) {}

  void begin_forward(const BatchView& batch) override {
    if (model_ != RankCalls::kTarget || !calls_.has_earlier_stages()) return;
    if (batch.num_rows > 0) calls_.begin_forward(batch);
    ++num_begun_;
  }
  void forward(const BatchView& batch, const PassKind& kind) override {
    if (num_begun_ == 0) begin_forward(batch);
    num_begun_ = std::max(num_begun_ - 1, 0);
    if (batch.num_rows > 0) calls_.forward(model_, batch, kind);
  }
  void compute_logits(std::span<const int32_t> row_ids, int level) override {
    calls_.compute_logits(model_, row_ids, level);
  }
  void compute_markov_logits(std::span<const int32_t> token_ids) override {
    calls_.compute_markov_logits(model_, token_ids);
  }
  void move_kv(std::span<const std::pair<int64_t, int64_t>> slots) override {
    calls_.move_kv(model_, slots);
  }

 private:
  RankCalls& calls_;
  const int model_;
  int num_begun_ = 0;  // passes of which only the stages before the leader's know
};

}  // namespace specdec
