// Code of a user's that changes the logits of a request before they are sampled from.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace specdec {

// Called by the thread that steps the engine, for one row at a time. Must be a function of its
// arguments alone: with speculation it is also called for tokens that are only drafted, and what it
// throws there ends no request unless the drafts turn out right.
class LogitsProcessor {
 public:
  virtual ~LogitsProcessor() = default;

  // What messages call it.
  virtual std::string name() const { return "LogitsProcessor"; }

  // Changes `logits` [vocab_size], those of the token after `output`; -inf forbids a token. They
  // hold masks and bias already, while penalties, temperature and truncation come after, as in
  // vLLM. A NaN, no token above -inf, and whatever is thrown end the request with an error.
  virtual void apply(std::span<const int32_t> prompt, std::span<const int32_t> output,
                     std::span<float> logits) = 0;
};

}  // namespace specdec
