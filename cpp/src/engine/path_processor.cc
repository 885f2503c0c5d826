#include "engine/path_processor.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/str_cat.h"
#include "specdec/error.h"

namespace specdec {
namespace {

void check(std::span<const float> logits) {
  const auto nan = std::ranges::find_if(logits, [](float logit) { return std::isnan(logit); });
  if (nan != logits.end()) {
    throw Error(str_cat("gave NaN for token ", nan - logits.begin(), "; use -inf to forbid one"));
  }
  constexpr float kLowest = std::numeric_limits<float>::lowest();
  if (std::ranges::none_of(logits, [](float logit) { return logit >= kLowest; })) {
    throw Error("left no token to sample; keep at least one above -inf");
  }
}

}  // namespace

void PathProcessor::apply(std::span<float> logits) {
  for (size_t i = 0; i < processors_.size(); ++i) {
    try {
      processors_[i]->apply(prompt_, output_, logits);
      check(logits);
    } catch (const std::exception& error) {
      throw Error(
          str_cat("logits_processors[", i, "] (", processors_[i]->name(), "): ", error.what()));
    }
  }
}

}  // namespace specdec
