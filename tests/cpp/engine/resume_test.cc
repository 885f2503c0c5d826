// Requests that go on behind tokens of another engine: the answer is the one that it gave whole.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/str_cat.h"
#include "specdec/engine.h"
#include "testing/bad_tokens.h"
#include "testing/thrown.h"
#include "testing/tiny_engine.h"
#include "testing/toy_grammar.h"

namespace specdec {
namespace {

namespace tiny = testing::tiny_llama;
using testing::Answers;
using testing::Asked;
using testing::Ended;
using testing::refused_field;
using testing::tokens_of;
using testing::with_drafter;
using tiny::prompt_of;
using tiny::sampled;
using Tokens = std::vector<int32_t>;

constexpr int kMaxTokens = 20;
constexpr int32_t kEnd = 2;

// Lifts a token that depends on all tokens, and on how many of them are the prompt's.
class LiftByPath final : public LogitsProcessor {
 public:
  std::string name() const override { return "lift"; }
  void apply(std::span<const int32_t> prompt, std::span<const int32_t> output,
             std::span<float> logits) override {
    size_t hash = prompt.size();
    for (const int32_t token : prompt) hash = hash * 31 + static_cast<size_t>(token);
    for (const int32_t token : output) hash = hash * 31 + static_cast<size_t>(token);
    logits[hash % logits.size()] += 3.0f;
  }
};

// By what looks at the tokens before.
std::vector<Asked> requests() {
  std::vector<Asked> asked;
  const auto ask = [&asked](const std::string& id) -> SamplingParams& {
    const auto number = static_cast<int>(asked.size());
    asked.push_back({.id = id, .prompt = prompt_of(3 * number), .params = sampled(kMaxTokens)});
    asked.back().params.logprobs = 2;
    return asked.back().params;
  };
  ask("greedy").temperature = 0.0f;
  ask("noise");
  ask("prompt logprobs").prompt_logprobs = 1;
  ask("repetition").repetition_penalty = 1.4f;
  ask("presence").presence_penalty = 1.0f;
  ask("frequency").frequency_penalty = 0.7f;
  ask("processor").logits_processors = {std::make_shared<LiftByPath>()};
  ask("grammar").grammar = testing::make_toy_grammar(tiny::kVocab, kEnd, 12, 24);
  SamplingParams& stopped = ask("min_tokens");
  stopped.min_tokens = kMaxTokens / 2;
  for (int32_t token = 0; token < tiny::kVocab; token += 3) stopped.stop_token_ids.push_back(token);
  std::vector<Tokens> bad_words;
  for (int32_t token = 0; token < tiny::kVocab; ++token) {
    bad_words.push_back({token, (token * 7 + 1) % tiny::kVocab});
    bad_words.push_back({token, (token * 5 + 2) % tiny::kVocab});
  }
  ask("bad words").grammar = testing::without_sequences(tiny::kVocab, bad_words);
  return asked;
}

// Requests for the rest of every answer, cut behind each of its tokens but the last, and what they
// have to get.
struct Cut {
  std::vector<Asked> requests;
  Answers expected;
  int64_t num_tokens = 0;
};

Cut cut_everywhere(const std::vector<Asked>& requests, const Answers& whole) {
  Cut cut;
  for (const Asked& asked : requests) {
    const Ended& answer = whole.at(asked.id);
    const Tokens tokens = tokens_of(answer);
    for (size_t num_given = 1; num_given < tokens.size(); ++num_given) {
      Asked& rest = cut.requests.emplace_back(asked);
      rest.id = str_cat(asked.id, " ", num_given);
      rest.arrives = static_cast<int>(num_given);
      rest.options.resumed_token_ids.assign(tokens.begin(), tokens.begin() + num_given);
      Ended& expected = cut.expected[rest.id] = answer;
      std::vector<std::string>& left = expected.completions[0].tokens;
      left.erase(left.begin(), left.begin() + num_given);
      cut.num_tokens += static_cast<int64_t>(left.size());
    }
  }
  std::ranges::stable_sort(cut.requests, {}, &Asked::arrives);
  return cut;
}

class ResumeTest : public tiny::EngineFixture {
 protected:
  ResumeTest() : requests_(requests()) {
    Engine engine(config());
    whole_ = testing::run_to_end(engine, requests_);
    cut_ = cut_everywhere(requests_, whole_);
  }

  // Returns the engine's statistics.
  EngineStats expect_the_rests(const EngineConfig& config) const {
    Engine engine(config);
    EXPECT_EQ(testing::run_to_end(engine, cut_.requests), cut_.expected);
    const EngineStats stats = engine.stats();
    EXPECT_EQ(stats.num_generation_tokens, cut_.num_tokens);
    EXPECT_EQ(stats.num_free_kv_blocks, stats.num_kv_blocks);
    return stats;
  }

  std::vector<Asked> requests_;
  Answers whole_;
  Cut cut_;
};

TEST_F(ResumeTest, TheRestIsThatOfTheWholeAnswerWhereverItIsCut) { expect_the_rests(config()); }

TEST_F(ResumeTest, InChunksAndWhenPreempted) {
  EngineConfig config = this->config();
  config.num_kv_blocks = 12;
  config.max_num_batched_tokens = 24;
  EXPECT_GT(expect_the_rests(config).num_preemptions, 0);
}

TEST_F(ResumeTest, WithDrafts) {
  for (const DraftMethod method :
       {DraftMethod::kNgram, DraftMethod::kSuffix, DraftMethod::kDraftModel}) {
    for (const int width : {1, 3}) {
      const EngineStats stats = expect_the_rests(with_drafter(config(), drafter(method), 4, width));
      EXPECT_GT(stats.acceptance.num_accepted_tokens, 0);
    }
  }
}

// So the tests above could fail: tokens that are taken for the prompt's change some answers.
TEST_F(ResumeTest, TokensOfAPromptAreOthersWhereAParameterTellsThemApart) {
  for (Asked& asked : cut_.requests) {
    const Tokens given = std::exchange(asked.options.resumed_token_ids, {});
    asked.prompt.insert(asked.prompt.end(), given.begin(), given.end());
    asked.params.max_tokens -= static_cast<int>(given.size());
    asked.params.min_tokens = std::min(asked.params.min_tokens, asked.params.max_tokens);
  }
  Engine engine(config());
  const Answers others = testing::run_to_end(engine, cut_.requests);
  const auto any_differs = [&](const std::string& id) {
    return std::ranges::any_of(cut_.requests, [&](const Asked& asked) {
      return asked.id.starts_with(id) && others.at(asked.id) != cut_.expected.at(asked.id);
    });
  };
  for (const char* id : {"presence", "frequency", "processor", "grammar", "min_tokens"}) {
    EXPECT_TRUE(any_differs(id)) << id;
  }
  for (const char* id : {"greedy", "noise", "repetition"}) EXPECT_FALSE(any_differs(id)) << id;
}

TEST_F(ResumeTest, CachedTokensOfThePromptAreCountedAlone) {
  Engine engine(config());
  const Tokens prompt = prompt_of(1, 20);
  const Tokens answer = engine.generate({prompt}, sampled(30))[0][0].token_ids;
  const Tokens given(answer.begin(), answer.begin() + 25);
  engine.add_request(1, prompt, sampled(30), {.resumed_token_ids = given});
  RequestMetrics metrics;
  while (engine.has_unfinished_requests()) {
    for (const RequestOutput& output : engine.step()) metrics = output.metrics;
  }
  EXPECT_EQ(metrics.num_cached_tokens, 20);
  EXPECT_EQ(engine.stats().num_cached_tokens, 20);
}

TEST_F(ResumeTest, TokensThatNothingFollowsAreRefused) {
  Engine engine(config());
  const auto refused = [&](const SamplingParams& params, Tokens given, int prompt_length = 3) {
    return refused_field([&] {
      engine.add_request(1, prompt_of(1, prompt_length), params,
                         {.resumed_token_ids = std::move(given)});
    });
  };
  SamplingParams params = sampled(4);
  EXPECT_EQ(refused(params, {5, 6, 7, 8}), "resumed_token_ids");  // max_tokens
  EXPECT_EQ(refused(params, {5, tiny::kVocab}), "resumed_token_ids");
  EXPECT_EQ(refused(params, {-1}), "resumed_token_ids");
  const int longest = engine.model_info().max_model_len;
  EXPECT_EQ(refused(params, {5, 6}, longest - 2), "resumed_token_ids");
  params.stop_token_ids = {6};
  EXPECT_EQ(refused(params, {6, 5}), "resumed_token_ids");
  params = sampled(4);
  params.n = 2;
  EXPECT_EQ(refused(params, {5}), "resumed_token_ids");
  params.n = 1;
  params.grammar = testing::make_toy_grammar(tiny::kVocab, kEnd, 1, 9);
  EXPECT_EQ(refused(params, {5, kEnd}), "resumed_token_ids");
  EXPECT_FALSE(engine.has_unfinished_requests());
}

// A forbidden token is noticed when the next token is due, as in any answer.
TEST_F(ResumeTest, TokensThatTheGrammarForbidsEndTheRequest) {
  Engine engine(config());
  SamplingParams params = sampled(9);
  params.grammar = std::make_shared<testing::ToyGrammar>(
      tiny::kVocab, kEnd, [](const Tokens&) { return Tokens{5, kEnd}; });
  const Asked asked{.id = "r",
                    .prompt = prompt_of(1),
                    .params = params,
                    .options = {.resumed_token_ids = {5, 6}}};
  EXPECT_NE(testing::run_to_end(engine, {asked}).at("r").error, "");
}

}  // namespace
}  // namespace specdec
