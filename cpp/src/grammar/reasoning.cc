#include "specdec/reasoning.h"

#include <algorithm>
#include <span>
#include <string_view>
#include <utility>

#include "core/str_cat.h"
#include "grammar/byte_automaton.h"
#include "specdec/error.h"

namespace specdec {
namespace {

using State = ByteAutomaton::State;

constexpr std::string_view kSpace = " \t\r\n";

void put_in(int32_t token, std::span<uint32_t> mask) {
  mask[static_cast<size_t>(token) / 32] |= 1u << (token % 32);
}

void take_out(int32_t token, std::span<uint32_t> mask) {
  mask[static_cast<size_t>(token) / 32] &= ~(1u << (token % 32));
}

// Where a text leads within the reasoning.
struct Walk {
  State state = 0;
  bool has_ended = false;
  std::string_view rest;  // the text after the end
};

Walk walk(const ByteAutomaton& ends, State state, std::string_view text) {
  for (size_t i = 0; i < text.size(); ++i) {
    state = ends.step(state, static_cast<uint8_t>(text[i]));
    if (ends.node(state).ends_text) return {0, true, text.substr(i + 1)};
  }
  return {state, false, {}};
}

// The part of `mark` that is missing after bytes that led to `state`.
std::string_view unwritten(const ByteAutomaton& ends, State state, std::string_view mark) {
  const auto depth = static_cast<size_t>(ends.node(state).depth);
  if (depth >= mark.size()) return mark;
  const Walk begun = walk(ends, 0, mark.substr(0, depth));
  return !begun.has_ended && begun.state == state ? mark.substr(depth) : mark;
}

struct Rules {
  std::shared_ptr<const Reasoning> reasoning;
  ReasoningStart start = ReasoningStart::kOptional;
  int budget = -1;
  std::shared_ptr<const Grammar> answer;  // null: any text
};

class ReasoningMatcher final : public GrammarMatcher {
 public:
  explicit ReasoningMatcher(const Rules& rules) : rules_(rules) {
    if (rules.start == ReasoningStart::kBegun) {
      begin({}, -1);
    } else if (rules.answer != nullptr) {
      answer_ = rules.answer->make_matcher();
    }
  }
  ReasoningMatcher(const ReasoningMatcher& other)
      : GrammarMatcher(other),
        rules_(other.rules_),
        part_(other.part_),
        written_(other.written_),
        state_(other.state_),
        num_tokens_(other.num_tokens_),
        rest_(other.rest_),
        answer_(other.answer_ == nullptr ? nullptr : other.answer_->clone()) {}
  ReasoningMatcher& operator=(const ReasoningMatcher&) = delete;

  void fill_mask(std::span<uint32_t> mask) override {
    switch (part_) {
      case Part::kBefore:
        fill_with_answer(mask);
        for (const std::string& mark : marks().begin) {
          if (mark.starts_with(written_)) {
            allow_beginnings_of(std::string_view(mark).substr(written_.size()), mask);
          }
        }
        break;
      case Part::kInside:
        if (rules_.answer == nullptr) {
          std::ranges::fill(mask, ~0u);
          break;
        }
        std::ranges::copy(rules_.reasoning->inside(state_), mask.begin());
        for (const int32_t token : rules_.answer->end_token_ids()) take_out(token, mask);
        break;
      case Part::kEnding:
        std::ranges::fill(mask, 0u);
        put_in(rules_.reasoning->longest_token(rest_), mask);
        break;
      case Part::kGap:
        fill_with_answer(mask);
        allow_beginnings_of(rest_, mask);
        break;
      case Part::kAnswer:
        fill_with_answer(mask);
        break;
    }
  }

  void advance(int32_t token) override {
    const std::string_view text = rules_.reasoning->texts()[token];
    switch (part_) {
      case Part::kBefore:
        advance_before(text, token);
        break;
      case Part::kInside:
        ++num_tokens_;
        think(text, token);
        break;
      case Part::kEnding:
        if (text.empty() || !rest_.starts_with(text)) refuse(token);
        rest_.remove_prefix(text.size());
        if (rest_.empty()) end({}, token);
        break;
      case Part::kGap:
        if (!text.empty() && rest_.starts_with(text)) {
          rest_.remove_prefix(text.size());
          break;
        }
        part_ = Part::kAnswer;
        answer_->advance(token);
        break;
      case Part::kAnswer:
        if (answer_ != nullptr) answer_->advance(token);
        break;
    }
  }

  std::unique_ptr<GrammarMatcher> clone() const override {
    return std::make_unique<ReasoningMatcher>(*this);
  }

  std::vector<int32_t> forced_tokens() override {
    if (part_ == Part::kEnding) {
      std::vector<int32_t> tokens;
      for (std::string_view rest = rest_; !rest.empty();) {
        tokens.push_back(rules_.reasoning->longest_token(rest));
        rest.remove_prefix(rules_.reasoning->texts()[tokens.back()].size());
      }
      return tokens;
    }
    const bool is_answer = part_ == Part::kAnswer || (part_ == Part::kGap && rest_.empty());
    return is_answer && answer_ != nullptr ? answer_->forced_tokens() : std::vector<int32_t>();
  }

 private:
  enum class Part {
    kBefore,  // nothing yet, white space, or what begins a mark; the answer may have begun as well
    kInside,
    kEnding,  // the budget is spent: rest_ is forced
    kGap,     // rest_ may follow, or the answer
    kAnswer,
  };

  const ReasoningMarks& marks() const { return rules_.reasoning->marks(); }

  void fill_with_answer(std::span<uint32_t> mask) {
    if (answer_ != nullptr) {
      answer_->fill_mask(mask);
    } else {
      std::ranges::fill(mask, rules_.answer == nullptr ? ~0u : 0u);
    }
  }

  // The tokens that `text` begins with.
  void allow_beginnings_of(std::string_view text, std::span<uint32_t> mask) const {
    for (size_t length = 1; length <= text.size(); ++length) {
      for (const int32_t token : rules_.reasoning->texts().spelling(text.substr(0, length))) {
        put_in(token, mask);
      }
    }
  }

  void advance_before(std::string_view text, int32_t token) {
    if (written_.empty()) text.remove_prefix(std::min(text.find_first_not_of(kSpace), text.size()));
    written_ += text;
    bool may_begin = written_.empty();
    for (const std::string& mark : marks().begin) {
      if (written_.starts_with(mark)) {
        begin(text.substr(text.size() - (written_.size() - mark.size())), token);
        return;
      }
      may_begin |= mark.starts_with(written_);
    }
    if (answer_ != nullptr) {
      try {
        answer_->advance(token);
      } catch (const Error&) {
        if (!may_begin) throw;
        answer_ = nullptr;  // only a mark can follow
      }
    } else if (rules_.answer != nullptr && !may_begin) {
      refuse(token);
    }
    if (!may_begin) part_ = Part::kAnswer;
  }

  // `rest` is what the token says after the mark.
  void begin(std::string_view rest, int32_t token) {
    part_ = Part::kInside;
    answer_ = nullptr;
    think(rest, token);
  }

  void think(std::string_view text, int32_t token) {
    const Walk next = walk(rules_.reasoning->ends(), state_, text);
    state_ = next.state;
    if (next.has_ended) {
      end(next.rest, token);
    } else if (num_tokens_ == rules_.budget) {
      part_ = Part::kEnding;
      rest_ = unwritten(rules_.reasoning->ends(), state_, marks().end.front());
    }
  }

  void end(std::string_view rest, int32_t token) {
    if (rules_.answer == nullptr) {
      part_ = Part::kAnswer;
      return;
    }
    if (!marks().gap.starts_with(rest)) refuse(token);
    part_ = Part::kGap;
    rest_ = std::string_view(marks().gap).substr(rest.size());
    answer_ = rules_.answer->make_matcher();
  }

  [[noreturn]] static void refuse(int32_t token) {
    throw Error(str_cat("token ", token, " may not follow in the reasoning"));
  }

  const Rules& rules_;
  Part part_ = Part::kBefore;
  std::string written_;    // kBefore: what may become a mark, without the white space before
  State state_ = 0;        // kInside: of the ends
  int num_tokens_ = 0;     // between the marks
  std::string_view rest_;  // kEnding, kGap
  std::unique_ptr<GrammarMatcher> answer_;  // null: it has not begun, cannot, or is any text
};

class ReasoningGrammar final : public Grammar {
 public:
  explicit ReasoningGrammar(Rules rules) : rules_(std::move(rules)) {}

  std::unique_ptr<GrammarMatcher> make_matcher() const override {
    return std::make_unique<ReasoningMatcher>(rules_);
  }
  int vocab_size() const override { return rules_.reasoning->texts().size(); }
  std::span<const int32_t> end_token_ids() const override {
    return rules_.answer == nullptr ? std::span<const int32_t>() : rules_.answer->end_token_ids();
  }

 private:
  const Rules rules_;
};

}  // namespace

Reasoning::Reasoning(std::shared_ptr<const VocabularyTexts> texts, ReasoningMarks marks)
    : texts_(std::move(texts)), marks_(std::move(marks)) {
  if (marks_.end.empty()) throw InvalidArgument("reasoning", "must have a text that ends it");
  for (const std::vector<std::string>& some : {marks_.begin, marks_.end}) {
    if (std::ranges::any_of(some, &std::string::empty)) {
      throw InvalidArgument("reasoning", "must not have an empty mark");
    }
  }
  const std::string& end = marks_.end.front();
  for (size_t i = 0; i < end.size(); ++i) {
    if (longest_token(std::string_view(end).substr(i)) < 0) {
      throw InvalidArgument("reasoning",
                            str_cat("ends with '", end, "', which the vocabulary cannot spell"));
    }
  }
  ends_ = std::make_shared<const ByteAutomaton>(marks_.end);
  const auto num_words = (static_cast<size_t>(texts_->size()) + 31) / 32;
  for (State state = 0; state < ends_->num_states(); ++state) {
    std::vector<uint32_t>& mask = inside_.emplace_back(num_words, 0u);
    for (int32_t token = 0; token < texts_->size(); ++token) {
      const Walk next = walk(*ends_, state, (*texts_)[token]);
      if (!next.has_ended || marks_.gap.starts_with(next.rest)) put_in(token, mask);
    }
  }
}

int32_t Reasoning::longest_token(std::string_view text) const {
  for (size_t length = text.size(); length > 0; --length) {
    const std::span<const int32_t> tokens = texts_->spelling(text.substr(0, length));
    if (!tokens.empty()) return tokens.front();
  }
  return -1;
}

std::shared_ptr<const Grammar> after_reasoning(std::shared_ptr<const Reasoning> reasoning,
                                               ReasoningStart start, int budget,
                                               std::shared_ptr<const Grammar> answer) {
  if (answer != nullptr && answer->vocab_size() != reasoning->texts().size()) {
    throw InvalidArgument(
        "reasoning", str_cat("is for a vocabulary of ", reasoning->texts().size(),
                             " tokens, the answer's grammar for one of ", answer->vocab_size()));
  }
  return std::make_shared<ReasoningGrammar>(
      Rules{std::move(reasoning), start, budget, std::move(answer)});
}

}  // namespace specdec
