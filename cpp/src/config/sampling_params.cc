#include "specdec/sampling_params.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <span>
#include <string>

#include "config/option_checks.h"
#include "core/str_cat.h"
#include "specdec/error.h"

namespace specdec {
namespace {

void require_in_vocabulary(std::span<const int32_t> tokens, int vocab_size, const char* field) {
  for (const int32_t token : tokens) {
    if (token >= 0 && (vocab_size <= 0 || token < vocab_size)) continue;
    const std::string range =
        vocab_size > 0 ? str_cat("in [0, ", vocab_size - 1, "]") : std::string("0 or more");
    throw InvalidArgument(field, str_cat("token id must be ", range, ", got ", token));
  }
}

void validate_tokens(const SamplingParams& params, int vocab_size) {
  for (const auto& [token, bias] : params.logit_bias) {
    require_in_vocabulary({&token, 1}, vocab_size, "logit_bias");
    if (!std::isfinite(bias)) {
      throw InvalidArgument("logit_bias",
                            str_cat("bias of token ", token, " must be finite, got ", bias));
    }
  }
  require_in_vocabulary(params.allowed_token_ids, vocab_size, "allowed_token_ids");
  require_in_vocabulary(params.stop_token_ids, vocab_size, "stop_token_ids");
  require_in_vocabulary(params.eos_token_ids, vocab_size, "eos_token_ids");
  require_in_vocabulary(params.prediction, vocab_size, "prediction");
  if (std::ranges::find(params.logits_processors, nullptr) != params.logits_processors.end()) {
    throw InvalidArgument("logits_processors", "must not hold a null pointer");
  }
}

// At least one token must remain as the first token: with min_tokens the tokens that would stop are
// excluded.
void validate_choice(const SamplingParams& params, int vocab_size) {
  if (params.min_tokens == 0) return;
  std::set<int32_t> banned(params.stop_token_ids.begin(), params.stop_token_ids.end());
  banned.insert(params.eos_token_ids.begin(), params.eos_token_ids.end());
  if (!params.allowed_token_ids.empty()) {
    if (std::ranges::all_of(params.allowed_token_ids,
                            [&](int32_t token) { return banned.contains(token); })) {
      throw InvalidArgument("allowed_token_ids",
                            "must leave at least one token that no stop condition forbids while "
                            "min_tokens are not there");
    }
  } else if (vocab_size > 0 && static_cast<int64_t>(banned.size()) >= vocab_size) {
    throw InvalidArgument("min_tokens", "must be 0 where stop_token_ids leave no other token");
  }
}

}  // namespace

void SamplingParams::validate(int vocab_size) const {
  check_options(*this, kSamplingOptions);
  if (max_tokens > 0 && min_tokens > max_tokens) {
    throw InvalidArgument(
        "min_tokens", str_cat("must be in [0, max_tokens = ", max_tokens, "], got ", min_tokens));
  }
  validate_tokens(*this, vocab_size);
  validate_choice(*this, vocab_size);
}

}  // namespace specdec
