// Grammars through the engine: answers obey them, whatever is drafted, and end where they end.
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "specdec/engine.h"
#include "specdec/error.h"
#include "testing/bad_tokens.h"
#include "testing/tiny_engine.h"
#include "testing/toy_grammar.h"

namespace specdec {
namespace {

namespace tiny = testing::tiny_llama;
using testing::Asked;
using testing::Ended;
using testing::make_toy_grammar;
using testing::tokens_of;
using testing::ToyGrammar;
using testing::with_drafter;
using tiny::prompt_of;
using Tokens = std::vector<int32_t>;

constexpr int32_t kEnd = 2;

std::shared_ptr<const Grammar> grammar() { return make_toy_grammar(tiny::kVocab, kEnd, 12, 24); }

SamplingParams constrained(int i) {
  SamplingParams params;
  params.grammar = grammar();
  params.max_tokens = 40;
  params.seed = i;
  params.temperature = i % 3 == 0 ? 0.0f : 0.9f;
  if (i % 4 == 1) params.repetition_penalty = 1.3f;
  params.logprobs = 2;
  return params;
}

std::vector<Asked> requests() {
  std::vector<Asked> asked;
  for (int i = 0; i < 8; ++i) {
    asked.push_back({.id = "r" + std::to_string(i),
                     .prompt = prompt_of(i),
                     .params = constrained(i),
                     .arrives = i / 2});
    if (i % 4 == 3) asked.back().params.grammar = nullptr;  // between the others
  }
  return asked;
}

using GrammarEngine = tiny::EngineFixture;

TEST_F(GrammarEngine, AnswersObeyTheGrammarAndEndWithIt) {
  Engine engine(config());
  const auto rules = grammar();
  for (const auto& [id, ended] : testing::run_to_end(engine, requests())) {
    if (id == "r3" || id == "r7") continue;
    const auto matcher = rules->make_matcher();
    const Tokens tokens = tokens_of(ended);
    for (const int32_t token : tokens) ASSERT_NO_THROW(matcher->advance(token)) << id;
    EXPECT_EQ(tokens.back(), kEnd);
    EXPECT_EQ(ended.completions[0].reason, FinishReason::kStop);
    EXPECT_LE(tokens.size(), 25u);
  }
}

TEST_F(GrammarEngine, DraftsNeverChangeAnAnswer) {
  Engine plain(config());
  const auto expected = testing::run_to_end(plain, requests());
  for (const DraftMethod method : {DraftMethod::kNgram, DraftMethod::kDraftModel}) {
    for (const int width : {1, 3}) {
      for (const auto policy : {DraftLengthPolicy::kFixed, DraftLengthPolicy::kAuto}) {
        Engine engine(with_drafter(config(), drafter(method), 4, width, policy));
        EXPECT_EQ(testing::run_to_end(engine, requests()), expected);
        const EngineStats stats = engine.stats();
        if (policy == DraftLengthPolicy::kFixed && method == DraftMethod::kNgram) {
          ASSERT_EQ(stats.drafters.size(), 2u);
          EXPECT_EQ(stats.drafters[1].name, "grammar");
          EXPECT_GT(stats.drafters[1].num_accepted_tokens, 0);
        }
      }
    }
  }
}

TEST_F(GrammarEngine, WhatTheGrammarForcesIsAlwaysKept) {
  Engine engine(with_drafter(config(), drafter(DraftMethod::kNgram), 4));
  testing::run_to_end(engine, {{.id = "r", .prompt = prompt_of(1), .params = constrained(0)}});
  const EngineStats stats = engine.stats();
  ASSERT_EQ(stats.drafters.size(), 2u);
  EXPECT_GE(stats.drafters[1].num_draft_tokens, 3);
  EXPECT_EQ(stats.drafters[1].num_draft_tokens, stats.drafters[1].num_accepted_tokens);
}

TEST_F(GrammarEngine, NothingMayFollowTheEnd) {
  for (const bool ignore_eos : {false, true}) {
    SamplingParams params = constrained(1);
    params.grammar = std::make_shared<ToyGrammar>(tiny::kVocab, kEnd, [](const Tokens& before) {
      return before.size() < 3 ? Tokens{5, 6} : Tokens{kEnd};
    });
    params.min_tokens = 10;
    params.ignore_eos = ignore_eos;
    Engine engine(config());
    const auto ended = testing::run_to_end(engine, {{.id = "r", .prompt = {1}, .params = params}});
    EXPECT_EQ(tokens_of(ended.at("r")).size(), 4u);
    EXPECT_EQ(ended.at("r").completions[0].reason, FinishReason::kStop);
  }
}

TEST_F(GrammarEngine, MinTokensHoldsBackAnEndThatIsNotTheOnlyChoice) {
  SamplingParams params = constrained(1);
  params.grammar = std::make_shared<ToyGrammar>(tiny::kVocab, kEnd,
                                                [](const Tokens&) { return Tokens{kEnd, 5}; });
  params.min_tokens = 9;
  Engine engine(config());
  const auto ended = testing::run_to_end(engine, {{.id = "r", .prompt = {1}, .params = params}});
  EXPECT_GT(tokens_of(ended.at("r")).size(), 9u);
}

// Texts that run into a wall after a few tokens: nothing is left, or the grammar fails.
std::vector<Asked> doomed() {
  std::vector<Asked> asked = {{.id = "good", .prompt = prompt_of(2), .params = constrained(2)}};
  for (int i = 0; i < 6; ++i) {
    asked.push_back(
        {.id = "bad" + std::to_string(i), .prompt = prompt_of(i), .params = constrained(i)});
    SamplingParams& params = asked.back().params;
    params.grammar =
        std::make_shared<ToyGrammar>(tiny::kVocab, kEnd, [i](const Tokens& before) -> Tokens {
          if (before.size() < 7) return before.size() % 2 == 0 ? Tokens{5, 6, 7} : Tokens{8};
          if (i % 2 == 0) return {9, 10};
          throw Error("too many states");
        });
    params.allowed_token_ids = {5, 6, 7, 8, 9};
    params.grammar = testing::without_sequences(tiny::kVocab, {{9}}, params.grammar);
  }
  return asked;
}

TEST_F(GrammarEngine, ATextWithoutAWayOnIsTheErrorOfItsRequestWhereItStands) {
  Engine plain(config());
  const auto expected = testing::run_to_end(plain, doomed());
  EXPECT_TRUE(expected.at("good").error.empty());
  for (int i = 0; i < 6; ++i) {
    const Ended& bad = expected.at("bad" + std::to_string(i));
    EXPECT_NE(bad.error.find(i % 2 == 0 ? "bad_words" : "too many states"), std::string::npos);
    EXPECT_EQ(tokens_of(bad).size(), 7u);
  }
  for (const DraftMethod method : {DraftMethod::kNgram, DraftMethod::kDraftModel}) {
    for (const int width : {1, 3}) {
      Engine engine(with_drafter(config(), drafter(method), 6, width));
      EXPECT_EQ(testing::run_to_end(engine, doomed()), expected);
    }
  }
}

// Two threads that wait for each other in their first masks get no further one after the other.
TEST_F(GrammarEngine, MasksOfSeveralRequestsAreMadeAtOnce) {
  for (const bool speculates : {false, true}) {
    std::mutex mutex;
    std::condition_variable both;
    std::set<std::thread::id> threads;
    SamplingParams params = constrained(0);
    params.grammar = std::make_shared<ToyGrammar>(tiny::kVocab, kEnd, [&](const Tokens& before) {
      std::unique_lock lock(mutex);
      threads.insert(std::this_thread::get_id());
      both.notify_all();
      both.wait_for(lock, std::chrono::seconds(20), [&] { return threads.size() == 2; });
      return before.size() < 3 ? Tokens{5, 6} : Tokens{kEnd};
    });
    EngineConfig config =
        speculates ? with_drafter(this->config(), drafter(DraftMethod::kNgram), 4) : this->config();
    config.num_threads = 2;
    Engine engine(config);
    const auto ended = testing::run_to_end(engine, {{.id = "a", .prompt = {1}, .params = params},
                                                    {.id = "b", .prompt = {1}, .params = params}});
    EXPECT_EQ(threads.size(), 2u);
    EXPECT_EQ(tokens_of(ended.at("a")), tokens_of(ended.at("b")));
  }
}

TEST_F(GrammarEngine, AProcessorCannotLiftWhatIsForbidden) {
  class Lift final : public LogitsProcessor {
    void apply(std::span<const int32_t>, std::span<const int32_t>,
               std::span<float> logits) override {
      logits[9] = 100.0f;
    }
  };
  SamplingParams params = constrained(0);
  params.grammar = std::make_shared<ToyGrammar>(tiny::kVocab, kEnd, [](const Tokens& before) {
    return before.size() < 4 ? Tokens{5, 6, 7} : Tokens{kEnd};
  });
  params.logits_processors = {std::make_shared<Lift>()};
  Engine engine(config());
  const auto ended = testing::run_to_end(engine, {{.id = "r", .prompt = {1}, .params = params}});
  EXPECT_EQ(ended.at("r").error, "");
  EXPECT_EQ(tokens_of(ended.at("r")).size(), 5u);
}

TEST_F(GrammarEngine, AGrammarOfAnotherVocabularyIsRefused) {
  SamplingParams params = constrained(0);
  params.grammar = make_toy_grammar(tiny::kVocab + 1, kEnd, 1, 2);
  Engine engine(config());
  EXPECT_THROW(engine.add_request(1, {1}, params), InvalidArgument);
}

TEST_F(GrammarEngine, DraftTreesSayWhatProposedEachTokenAndWhatWasKept) {
  Engine engine(with_drafter(config(), drafter(DraftMethod::kNgram), 4));
  SamplingParams params = constrained(0);
  params.record_draft_trees = true;
  engine.add_request(1, prompt_of(1), params);
  int num_recorded = 0;
  while (engine.has_unfinished_requests()) {
    for (const RequestOutput& output : engine.step()) {
      const CompletionOutput& completion = output.outputs[0];
      if (!completion.draft_step.has_value()) continue;
      const DraftStep& step = *completion.draft_step;
      ASSERT_EQ(static_cast<int>(step.tree.size()), step.num_draft_tokens);
      size_t num_kept = 0;
      for (const DraftedToken& token : step.tree) {
        EXPECT_TRUE(token.drafter == "grammar" || token.drafter == "ngram");
        ASSERT_TRUE(token.probability.has_value());
        if (!token.is_accepted) continue;
        EXPECT_EQ(completion.new_token_ids[num_kept++], token.token_id);
      }
      EXPECT_EQ(static_cast<int>(num_kept), step.num_accepted_tokens);
      ++num_recorded;
    }
  }
  EXPECT_GT(num_recorded, 0);
}

}  // namespace
}  // namespace specdec
