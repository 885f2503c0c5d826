// Grammars compiled by llguidance (https://github.com/guidance-ai/llguidance), a library that is
// found at run time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "specdec/grammar.h"

namespace specdec {

// The tokenizer data that llguidance needs.
struct GrammarVocabulary {
  // The model's, which may be more than the tokenizer's: the others are never allowed.
  int vocab_size = 0;
  // The text of tokenizer.json.
  std::string tokenizer_json;
  std::vector<int32_t> end_token_ids;
  // Token ids of a text (UTF-8) without special tokens around it; must depend on the text alone.
  // Any thread may call it, but rarely, since results are cached. An exception ends the request.
  std::function<std::vector<int32_t>(std::string_view)> tokenize;
};

namespace llguidance {
class LoadedTokenizer;
}

class LlGuidance {
 public:
  // `library` is a file that exports llguidance's C functions (llg_*), of version 1.7 or later in
  // its first major version: libllguidance.so, or the extension module of its Python package
  // inside a Python process. Throws InvalidArgument naming "library" or "vocabulary".
  LlGuidance(const std::string& library, GrammarVocabulary vocabulary);
  ~LlGuidance();
  LlGuidance(const LlGuidance&) = delete;
  LlGuidance& operator=(const LlGuidance&) = delete;

  // `kind` is "json" (a JSON schema), "regex", "lark" or "llguidance" (its own JSON), `text` the
  // grammar. Time and memory are bounded. Any thread may call it, and the grammar may outlive this
  // object. Throws InvalidArgument("structured_outputs") with the library's message.
  std::shared_ptr<const Grammar> compile(const std::string& kind, const std::string& text) const;

 private:
  std::shared_ptr<const llguidance::LoadedTokenizer> tokenizer_;
};

}  // namespace specdec
