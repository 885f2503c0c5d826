#include "specdec/vocabulary_texts.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace specdec {

VocabularyTexts::VocabularyTexts(std::vector<std::string> texts)
    : texts_(std::move(texts)), in_order_(texts_.size()) {
  std::iota(in_order_.begin(), in_order_.end(), 0);
  std::ranges::sort(in_order_, {}, [this](int32_t token) { return (*this)[token]; });
}

std::span<const int32_t> VocabularyTexts::spelling(std::string_view text) const {
  const auto [begin, end] = std::ranges::equal_range(
      in_order_, text, {}, [this](int32_t token) { return (*this)[token]; });
  return {begin, end};
}

}  // namespace specdec
