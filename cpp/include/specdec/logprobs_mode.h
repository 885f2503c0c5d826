// How logprobs are reported: from the logits as given or after all of the row's processors, and as
// log-softmax or as the logit itself.
#pragma once

#include <array>
#include <cstdint>

#include "specdec/options.h"

namespace specdec {

enum class LogprobsMode : uint8_t { kRaw, kProcessed, kRawLogits, kProcessedLogits };
template <>
inline constexpr auto kEnumNames<LogprobsMode> =
    std::to_array<EnumName<LogprobsMode>>({{LogprobsMode::kRaw, "raw_logprobs"},
                                           {LogprobsMode::kProcessed, "processed_logprobs"},
                                           {LogprobsMode::kRawLogits, "raw_logits"},
                                           {LogprobsMode::kProcessedLogits, "processed_logits"}});

inline bool is_raw(LogprobsMode mode) {
  return mode == LogprobsMode::kRaw || mode == LogprobsMode::kRawLogits;
}
inline bool holds_logits(LogprobsMode mode) {
  return mode == LogprobsMode::kRawLogits || mode == LogprobsMode::kProcessedLogits;
}

}  // namespace specdec
