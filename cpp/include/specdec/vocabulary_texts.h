// What the tokens of a vocabulary spell.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace specdec {

// The bytes that each token of a vocabulary adds to a text; empty for a token that adds none.
class VocabularyTexts {
 public:
  // One text a token id, for all ids of the model.
  explicit VocabularyTexts(std::vector<std::string> texts);

  int size() const { return static_cast<int>(texts_.size()); }
  std::string_view operator[](int32_t token) const { return texts_[static_cast<size_t>(token)]; }
  // Token ids in the order of their texts.
  std::span<const int32_t> in_order() const { return in_order_; }
  // The tokens whose text is this one.
  std::span<const int32_t> spelling(std::string_view text) const;

 private:
  std::vector<std::string> texts_;
  std::vector<int32_t> in_order_;
};

}  // namespace specdec
