#include "specdec/llguidance.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>

#include "core/check.h"
#include "core/str_cat.h"
#include "grammar/llguidance_abi.h"
#include "specdec/error.h"

namespace specdec {
namespace {

using llguidance::Functions;
using llguidance::LoadedTokenizer;

constexpr int kMaxForcedTokens = 128;
// Texts whose tokens are kept. A grammar has a few hundred: forced text after each token before it.
constexpr size_t kMaxKeptTexts = 1 << 16;

// Classes of tokens within JSON strings, by greatest length. Where every token of a class may
// follow, the mask gets the class at once, and only the other tokens are tried one by one.
// llguidance has lengths of 10 and 30 by default; more lengths make masks of strings with a
// maxLength several times faster.
constexpr std::array<const char*, 7> kTokenSlices = {R"([^"\\\x00-\x1F\x7F]{1,3})",
                                                     R"([^"\\\x00-\x1F\x7F]{1,6})",
                                                     R"([^"\\\x00-\x1F\x7F]{1,10})",
                                                     R"([^"\\\x00-\x1F\x7F]{1,16})",
                                                     R"([^"\\\x00-\x1F\x7F]{1,30})",
                                                     R"([^"\\\x00-\x1F\x7F]+)",
                                                     nullptr};

// llguidance's messages go on with the state of the parser after a blank line.
std::string first_paragraph(const char* message) {
  if (message == nullptr) return "unknown error of llguidance";
  const std::string_view text = message;
  return std::string(text.substr(0, std::min(text.find("\n\n"), text.find("\n<state>"))));
}

// GrammarVocabulary::tokenize behind a cache.
class CachedTokenize {
 public:
  explicit CachedTokenize(std::function<std::vector<int32_t>(std::string_view)> tokenize)
      : tokenize_(std::move(tokenize)) {}

  // As llguidance calls it.
  static size_t call(const void* self, const uint8_t* bytes, size_t num_bytes, uint32_t* tokens,
                     size_t capacity) noexcept {
    auto* tokenize = static_cast<CachedTokenize*>(const_cast<void*>(self));
    return tokenize->run({reinterpret_cast<const char*>(bytes), num_bytes}, tokens, capacity);
  }

  // The error that tokenize() threw on this thread since the last call; empty where nothing failed.
  // The library calls tokenize() on the thread that called the library.
  std::string take_error() {
    if (num_errors_.load(std::memory_order_relaxed) == 0) return {};
    const std::lock_guard lock(mutex_);
    const auto taken = errors_.extract(std::this_thread::get_id());
    num_errors_.store(errors_.size(), std::memory_order_relaxed);
    return taken.empty() ? std::string() : std::move(taken.mapped());
  }

 private:
  size_t run(std::string_view text, uint32_t* tokens, size_t capacity) noexcept {
    try {
      const std::vector<int32_t> found = find(std::string(text));
      std::copy_n(found.begin(), std::min(found.size(), capacity), tokens);
      return found.size();
    } catch (const std::exception& error) {
      const std::lock_guard lock(mutex_);
      errors_[std::this_thread::get_id()] = error.what();
      num_errors_.store(errors_.size(), std::memory_order_relaxed);
      return 0;
    }
  }

  std::vector<int32_t> find(const std::string& text) {
    {
      const std::lock_guard lock(mutex_);
      if (const auto kept = kept_.find(text); kept != kept_.end()) return kept->second;
    }
    // Unlocked: the function may wait for a thread that compiles another grammar.
    std::vector<int32_t> tokens = tokenize_(text);
    const std::lock_guard lock(mutex_);
    if (kept_.size() >= kMaxKeptTexts) kept_.clear();
    kept_.emplace(text, tokens);
    return tokens;
  }

  std::function<std::vector<int32_t>(std::string_view)> tokenize_;
  std::mutex mutex_;
  std::unordered_map<std::string, std::vector<int32_t>> kept_;
  std::unordered_map<std::thread::id, std::string> errors_;
  std::atomic<size_t> num_errors_{0};  // read without the lock
};

}  // namespace

// The library with a tokenizer made for it. Grammars and matchers keep it.
class llguidance::LoadedTokenizer {
 public:
  LoadedTokenizer(const std::string& library, GrammarVocabulary vocabulary)
      : functions(library),
        vocab_size(vocabulary.vocab_size),
        end_token_ids(std::move(vocabulary.end_token_ids)),
        tokenize(std::move(vocabulary.tokenize)) {
    if (end_token_ids.empty()) {
      throw InvalidArgument("vocabulary", "has no end token; a grammar needs one to end the text");
    }
    const std::vector<uint32_t> more(end_token_ids.begin() + 1, end_token_ids.end());
    TokenizerInit init{};
    init.struct_size = sizeof(init);
    init.vocab_size = static_cast<uint32_t>(vocab_size);
    init.end_token = static_cast<uint32_t>(end_token_ids.front());
    init.tokenizer_json = vocabulary.tokenizer_json.c_str();
    init.tokenize_assumes_string = true;
    init.tokenize = &CachedTokenize::call;
    init.user_data = &tokenize;
    init.slices = kTokenSlices.data();
    init.more_end_tokens = more.data();
    init.num_more_end_tokens = static_cast<uint32_t>(more.size());
    std::array<char, 1024> error{};
    handle = functions.new_tokenizer(&init, error.data(), error.size());
    if (handle == nullptr) throw InvalidArgument("vocabulary", first_paragraph(error.data()));
  }
  ~LoadedTokenizer() { functions.free_tokenizer(handle); }
  LoadedTokenizer(const LoadedTokenizer&) = delete;
  LoadedTokenizer& operator=(const LoadedTokenizer&) = delete;

  const Functions functions;
  const int vocab_size;
  const std::vector<int32_t> end_token_ids;
  mutable CachedTokenize tokenize;
  Tokenizer* handle = nullptr;
};

namespace {

// The matcher of the library, which does not take end tokens once it has stopped.
class LlMatcher final : public GrammarMatcher {
 public:
  LlMatcher(std::shared_ptr<const LoadedTokenizer> tokenizer, llguidance::Matcher* matcher)
      : tokenizer_(std::move(tokenizer)), matcher_(matcher) {}
  ~LlMatcher() override { tokenizer_->functions.free_matcher(matcher_); }
  LlMatcher(const LlMatcher&) = delete;
  LlMatcher& operator=(const LlMatcher&) = delete;

  void fill_mask(std::span<uint32_t> mask) override {
    if (has_ended()) {
      std::ranges::fill(mask, 0u);
      for (const int32_t token : tokenizer_->end_token_ids) {
        mask[static_cast<size_t>(token) / 32] |= 1u << (token % 32);
      }
      return;
    }
    const size_t size_bytes = tokenizer_->functions.mask_byte_size(matcher_);
    SPECDEC_CHECK_EQ(size_bytes, mask.size_bytes());
    check(tokenizer_->functions.compute_mask_into(matcher_, mask.data(), size_bytes));
  }

  void advance(int32_t token) override {
    const Functions& functions = tokenizer_->functions;
    if (std::ranges::find(tokenizer_->end_token_ids, token) != tokenizer_->end_token_ids.end()) {
      if (!has_ended() && !functions.is_accepting(matcher_)) {
        throw Error("structured_outputs: the text ends before the grammar does");
      }
      has_end_token_ = true;
    } else if (has_ended()) {
      throw Error("structured_outputs: the text goes on after the grammar has ended");
    } else {
      check(functions.consume_token(matcher_, static_cast<uint32_t>(token)));
    }
  }

  // Used instead of the library's rollback, which sometimes leaves the lexer ahead of the text.
  std::unique_ptr<GrammarMatcher> clone() const override {
    auto copy =
        std::make_unique<LlMatcher>(tokenizer_, tokenizer_->functions.clone_matcher(matcher_));
    copy->has_end_token_ = has_end_token_;
    copy->tokenize_error_ = tokenize_error_;
    return copy;
  }

  std::vector<int32_t> forced_tokens() override {
    if (has_ended()) return {tokenizer_->end_token_ids.front()};
    std::array<uint32_t, kMaxForcedTokens> tokens{};
    const int32_t count =
        tokenizer_->functions.compute_ff_tokens(matcher_, tokens.data(), tokens.size());
    check(std::min(count, 0));
    return {tokens.begin(), tokens.begin() + std::min(count, kMaxForcedTokens)};
  }

 private:
  // Only end tokens may follow. A matcher with an error also reports that it stopped.
  bool has_ended() const {
    if (has_end_token_) return true;
    if (!tokenizer_->functions.is_stopped(matcher_)) return false;
    if (tokenizer_->functions.get_error(matcher_) != nullptr) fail();
    return true;
  }
  // Called after each library call that may tokenize. A matcher that went on without the tokens it
  // asked for must not be used any further.
  void check(int32_t status) {
    std::string error = tokenizer_->tokenize.take_error();
    if (!error.empty()) tokenize_error_ = std::move(error);
    if (status != 0 || !tokenize_error_.empty()) fail();
  }
  [[noreturn]] void fail() const {
    throw Error(str_cat("structured_outputs: ",
                        tokenize_error_.empty()
                            ? first_paragraph(tokenizer_->functions.get_error(matcher_))
                            : tokenize_error_));
  }

  std::shared_ptr<const LoadedTokenizer> tokenizer_;
  llguidance::Matcher* matcher_;
  bool has_end_token_ = false;  // it has gone past one
  std::string tokenize_error_;
};

class LlGrammar final : public Grammar {
 public:
  LlGrammar(std::shared_ptr<const LoadedTokenizer> tokenizer, llguidance::Matcher* matcher)
      : tokenizer_(std::move(tokenizer)), matcher_(matcher) {}
  ~LlGrammar() override { tokenizer_->functions.free_matcher(matcher_); }
  LlGrammar(const LlGrammar&) = delete;
  LlGrammar& operator=(const LlGrammar&) = delete;

  std::unique_ptr<GrammarMatcher> make_matcher() const override {
    const std::lock_guard lock(mutex_);
    return std::make_unique<LlMatcher>(tokenizer_, tokenizer_->functions.clone_matcher(matcher_));
  }
  int vocab_size() const override { return tokenizer_->vocab_size; }
  std::span<const int32_t> end_token_ids() const override { return tokenizer_->end_token_ids; }

 private:
  std::shared_ptr<const LoadedTokenizer> tokenizer_;
  llguidance::Matcher* matcher_;  // at the beginning of the text
  mutable std::mutex mutex_;
};

}  // namespace

LlGuidance::LlGuidance(const std::string& library, GrammarVocabulary vocabulary)
    : tokenizer_(std::make_shared<const LoadedTokenizer>(library, std::move(vocabulary))) {}

LlGuidance::~LlGuidance() = default;

std::shared_ptr<const Grammar> LlGuidance::compile(const std::string& kind,
                                                   const std::string& text) const {
  if (text.find('\0') != std::string::npos) {
    throw InvalidArgument("structured_outputs", "must not hold a character 0");
  }
  const Functions& functions = tokenizer_->functions;
  llguidance::ConstraintInit init{};
  functions.set_defaults(&init, tokenizer_->handle);
  init.log_buffer_level = 0;
  init.log_stderr_level = 0;
  init.limits.verbose_errors = false;
  llguidance::Matcher* matcher = functions.new_matcher(&init, kind.c_str(), text.c_str());
  auto grammar = std::make_shared<LlGrammar>(tokenizer_, matcher);
  if (const std::string error = tokenizer_->tokenize.take_error(); !error.empty()) {
    throw InvalidArgument("structured_outputs", error);
  }
  if (const char* error = functions.get_error(matcher)) {
    throw InvalidArgument("structured_outputs", first_paragraph(error));
  }
  // A grammar that allows no token at all shows in its first mask.
  std::vector<uint32_t> mask((static_cast<size_t>(tokenizer_->vocab_size) + 31) / 32);
  try {
    grammar->make_matcher()->fill_mask(mask);
  } catch (const Error& error) {
    throw InvalidArgument("structured_outputs", str_cat("allows no text: ", error.what()));
  }
  return grammar;
}

}  // namespace specdec
