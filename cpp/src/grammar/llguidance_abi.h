// The part of llguidance's C interface that is used, as its header (parser/llguidance.h) lays it
// out. The functions are looked up in a library that is opened at run time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace specdec::llguidance {

struct Tokenizer;
struct Matcher;

// LlgTokenizerInitV2.
struct TokenizerInit {
  size_t struct_size;
  uint32_t vocab_size;
  uint32_t end_token;
  const uint32_t* token_lengths;
  const uint8_t* token_bytes;
  const char* tokenizer_json;  // instead of the two before
  bool tokenize_assumes_string;
  size_t (*tokenize)(const void* user_data, const uint8_t* bytes, size_t num_bytes,
                     uint32_t* tokens, size_t capacity);
  bool use_greedy_tokenizer;
  const void* user_data;
  const char* const* slices;
  const uint32_t* more_end_tokens;
  uint32_t num_more_end_tokens;
};

// LlgParserLimits and LlgConstraintInit.
struct ParserLimits {
  size_t max_items_in_row;
  uint64_t initial_lexer_fuel;
  uint64_t step_lexer_fuel;
  size_t step_max_items;
  size_t max_lexer_states;
  size_t max_grammar_size;
  bool precompute_large_lexemes;
  bool verbose_errors;
};
struct ConstraintInit {
  const Tokenizer* tokenizer;
  uint32_t log_buffer_level;
  uint32_t log_stderr_level;
  bool ff_tokens_ok;
  bool backtrack_ok;
  ParserLimits limits;
  // Room for what later versions may add: set_defaults writes their whole struct.
  char reserved[256];
};

class Functions {
 public:
  // The library stays open. Throws InvalidArgument("library").
  explicit Functions(const std::string& library);

  const char* (*get_version)();
  Tokenizer* (*new_tokenizer)(const TokenizerInit*, char* error, size_t error_size);
  void (*free_tokenizer)(Tokenizer*);
  void (*set_defaults)(ConstraintInit*, const Tokenizer*);
  Matcher* (*new_matcher)(const ConstraintInit*, const char* kind, const char* text);
  Matcher* (*clone_matcher)(const Matcher*);
  void (*free_matcher)(Matcher*);
  const char* (*get_error)(Matcher*);
  size_t (*mask_byte_size)(const Matcher*);
  int32_t (*compute_mask_into)(Matcher*, uint32_t* mask, size_t num_bytes);
  int32_t (*consume_token)(Matcher*, uint32_t token);
  bool (*is_accepting)(Matcher*);
  bool (*is_stopped)(const Matcher*);
  int32_t (*compute_ff_tokens)(Matcher*, uint32_t* tokens, size_t capacity);
};

}  // namespace specdec::llguidance
