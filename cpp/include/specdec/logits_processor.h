// A user's code that changes the logits of a request before a token is sampled from them.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace specdec {

// Called for one row at a time by the thread that steps the engine. It must depend on its arguments
// alone: with speculation it is also called after drafted tokens, and an exception there ends the
// request only if those drafts are accepted.
class LogitsProcessor {
 public:
  virtual ~LogitsProcessor() = default;

  // Its name in messages.
  virtual std::string name() const { return "LogitsProcessor"; }

  // Changes `logits` [vocab_size], the logits of the token after `output`; -inf forbids a token.
  // Masks and bias are applied before; penalties, temperature and truncation come after, as in
  // vLLM. A NaN, logits without a token above -inf, and an exception end the request with an error.
  virtual void apply(std::span<const int32_t> prompt, std::span<const int32_t> output,
                     std::span<float> logits) = 0;
};

}  // namespace specdec
