// Bad words made of tokens, where a test has no texts.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "specdec/bad_words.h"

namespace specdec::testing {

// Two bytes per token; no first byte equals a second byte.
inline std::string code_of(int32_t token) {
  return {static_cast<char>(0x80 + token / 128), static_cast<char>(token % 128)};
}

// `grammar`, or anything, without the sequences of tokens. Of at most 16384 tokens.
inline std::shared_ptr<const Grammar> without_sequences(
    int vocab_size, const std::vector<std::vector<int32_t>>& sequences,
    std::shared_ptr<const Grammar> grammar = nullptr) {
  std::vector<std::string> texts;
  for (int32_t token = 0; token < vocab_size; ++token) texts.push_back(code_of(token));
  std::vector<std::string> words;
  for (const std::vector<int32_t>& sequence : sequences) {
    std::string& word = words.emplace_back();
    for (const int32_t token : sequence) word += code_of(token);
  }
  auto vocabulary = std::make_shared<VocabularyTexts>(std::move(texts));
  return without(std::make_shared<BadWords>(std::move(vocabulary), words), std::move(grammar));
}

}  // namespace specdec::testing
