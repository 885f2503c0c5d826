#include "sched/sequence.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "core/step_rules.h"

namespace specdec {

Sequence::Sequence(uint64_t ordinal, std::vector<int32_t> prompt, const SamplingParams& params,
                   int block_size, int max_model_len)
    : ordinal(ordinal),
      params(params),
      blocks(block_size),
      tokens_(std::move(prompt)),
      num_prompt_tokens_(static_cast<int>(tokens_.size())),
      max_model_len_(max_model_len) {
  SPECDEC_CHECK(!tokens_.empty());
  SPECDEC_CHECK_LT(num_prompt_tokens_, max_model_len_);  // room for one token of output
}

FinishReason Sequence::append(int32_t token) {
  SPECDEC_CHECK(!is_finished());
  tokens_.push_back(token);
  const auto contains = [token](const std::vector<int32_t>& ids) {
    return std::ranges::find(ids, token) != ids.end();
  };
  // A grammar gives no end token before min_tokens, unless nothing else is left.
  const bool may_stop = num_output_tokens() >= params.min_tokens;
  if ((may_stop || params.grammar != nullptr) && !params.ignore_eos &&
      contains(params.eos_token_ids)) {
    state = Finished{FinishReason::kStop, std::nullopt};
    return FinishReason::kStop;
  }
  if (may_stop) {
    if (contains(params.stop_token_ids)) {
      state = Finished{FinishReason::kStop, token};
      return FinishReason::kStop;
    }
  }
  if (num_tokens() >= max_num_tokens()) {
    state = Finished{FinishReason::kLength, std::nullopt};
    return FinishReason::kLength;
  }
  return FinishReason::kNone;
}

std::span<const int32_t> Sequence::prompt() const { return tokens().first(num_prompt_tokens_); }

std::span<const int32_t> Sequence::output() const { return tokens().subspan(num_prompt_tokens_); }

int Sequence::max_num_tokens() const {
  if (params.max_tokens == 0) return max_model_len_;
  // Compared this way because num_prompt_tokens_ + max_tokens may overflow.
  return params.max_tokens < max_model_len_ - num_prompt_tokens_
             ? num_prompt_tokens_ + params.max_tokens
             : max_model_len_;
}

int Sequence::max_draft_depth(int limit) const {
  const int wanted = std::min(limit, params.num_speculative_tokens.value_or(limit));
  return draft_depth_limit(wanted, num_tokens(), max_num_tokens());
}

}  // namespace specdec
