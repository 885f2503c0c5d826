// Speculation through the engine with drafters of the test's own: answers never change.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "specdec/engine.h"
#include "specdec/error.h"
#include "testing/bad_tokens.h"
#include "testing/tiny_engine.h"

namespace specdec {
namespace {

namespace tiny = testing::tiny_llama;
using testing::tokens_of;
using tiny::prompts_of;

using Tokens = std::vector<int32_t>;
using Propose = std::function<std::vector<Tokens>(std::span<const int32_t>, int)>;

class FunctionDrafter final : public CustomDrafter {
 public:
  explicit FunctionDrafter(Propose propose) : propose_(std::move(propose)) {}
  std::vector<Tokens> propose(std::span<const int32_t> tokens, int max_tokens) override {
    return propose_(tokens, max_tokens);
  }

 private:
  Propose propose_;
};

class SpeculationTest : public tiny::EngineFixture {
 protected:
  EngineConfig with_drafter(Propose propose, int num_tokens, int width,
                            DraftLengthPolicy policy = DraftLengthPolicy::kFixed) const {
    return testing::with_drafter(
        config(), testing::custom(std::make_shared<FunctionDrafter>(std::move(propose))),
        num_tokens, width, policy);
  }
};

SamplingParams shaped(int max_tokens) {
  SamplingParams params;
  params.temperature = 0.9f;
  params.top_p = 0.95f;
  params.repetition_penalty = 1.2f;
  params.frequency_penalty = 0.3f;
  params.max_tokens = max_tokens;
  params.min_tokens = 3;
  params.stop_token_ids = {7, 11};
  params.grammar = testing::without_sequences(tiny::kVocab, {{3, 4}, {20}});
  params.seed = 21;
  params.logprobs = 2;
  return params;
}

bool equal(const Completion& a, const Completion& b) {
  if (a.token_ids != b.token_ids || a.finish_reason != b.finish_reason ||
      a.logprobs.size() != b.logprobs.size()) {
    return false;
  }
  for (size_t i = 0; i < a.logprobs.size(); ++i) {
    for (size_t j = 0; j < a.logprobs[i].size(); ++j) {
      if (a.logprobs[i][j].token_id != b.logprobs[i][j].token_id ||
          a.logprobs[i][j].logprob != b.logprobs[i][j].logprob) {
        return false;
      }
    }
  }
  return true;
}

// Drafts the known answers, with wrong tokens here and there.
class Oracle {
 public:
  void learn(const Tokens& prompt, const Tokens& output) {
    Tokens all = prompt;
    all.insert(all.end(), output.begin(), output.end());
    sequences_.push_back(std::move(all));
  }

  std::vector<Tokens> propose(std::span<const int32_t> tokens, int max_tokens) {
    std::vector<Tokens> drafts;
    for (const Tokens& sequence : sequences_) {
      if (sequence.size() <= tokens.size() ||
          !std::equal(tokens.begin(), tokens.end(), sequence.begin())) {
        continue;
      }
      const size_t end = std::min(sequence.size(), tokens.size() + max_tokens);
      Tokens draft(sequence.begin() + tokens.size(), sequence.begin() + end);
      Tokens spoiled = draft;
      spoiled[random_() % spoiled.size()] = static_cast<int32_t>(random_() % tiny::kVocab);
      drafts.push_back(random_() % 2 ? spoiled : draft);
      drafts.push_back(random_() % 2 ? draft : spoiled);
    }
    return drafts;
  }

 private:
  std::vector<Tokens> sequences_;
  std::mt19937 random_{5};
};

// Lifts a token that depends on the whole path; may fail on some paths.
class LiftByPath final : public LogitsProcessor {
 public:
  using Fails = std::function<bool(std::span<const int32_t> prompt, std::span<const int32_t>)>;
  explicit LiftByPath(Fails fails = {}) : fails_(std::move(fails)) {}

  std::string name() const override { return "lift"; }
  void apply(std::span<const int32_t> prompt, std::span<const int32_t> output,
             std::span<float> logits) override {
    if (fails_ && fails_(prompt, output)) throw std::runtime_error("refused");
    uint32_t hash = 17;
    for (const int32_t token : prompt) hash = hash * 31 + static_cast<uint32_t>(token);
    for (const int32_t token : output) hash = hash * 31 + static_cast<uint32_t>(token);
    logits[hash % logits.size()] += 3.0f;
  }

 private:
  Fails fails_;
};

TEST_F(SpeculationTest, AnswersAreThoseWithoutWhateverIsDrafted) {
  const std::vector<Tokens> prompts = prompts_of(16);
  const auto expected = Engine(config()).generate(prompts, shaped(30));
  for (const auto& [num_tokens, width] : {std::pair{1, 1}, {3, 1}, {16, 1}, {3, 2}, {6, 4}}) {
    Oracle oracle;
    for (size_t i = 0; i < prompts.size(); ++i) oracle.learn(prompts[i], expected[i][0].token_ids);
    EngineConfig config = with_drafter(
        [&](std::span<const int32_t> tokens, int max) { return oracle.propose(tokens, max); },
        num_tokens, width);
    config.num_kv_blocks = 14;
    config.max_num_batched_tokens = 70;
    Engine engine(config);
    const auto completions = engine.generate(prompts, shaped(30));
    for (size_t i = 0; i < prompts.size(); ++i) {
      EXPECT_TRUE(equal(completions[i][0], expected[i][0])) << num_tokens << ' ' << width;
    }
    const EngineStats stats = engine.stats();
    EXPECT_GT(stats.acceptance.num_accepted_tokens, 0);
    EXPECT_LT(stats.acceptance.num_accepted_tokens, stats.acceptance.num_draft_tokens);
    EXPECT_EQ(stats.num_free_kv_blocks, 14);
  }
}

// A processor does the same on a drafted path as on the committed one, and its error counts only
// where the path is taken.
TEST_F(SpeculationTest, LogitsProcessorsFollowEveryDraftedPath) {
  const std::vector<Tokens> prompts = prompts_of(8);
  SamplingParams params = shaped(20);
  params.logits_processors = {std::make_shared<LiftByPath>(), std::make_shared<LiftByPath>()};
  const auto expected = Engine(config()).generate(prompts, params);
  EXPECT_FALSE(equal(expected[0][0], Engine(config()).generate(prompts, shaped(20))[0][0]));
  int num_refused = 0;
  params.logits_processors[1] = std::make_shared<LiftByPath>(
      [&](std::span<const int32_t> prompt, std::span<const int32_t> output) {
        for (size_t i = 0; i < prompts.size(); ++i) {
          if (!std::ranges::equal(prompts[i], prompt)) continue;
          const Tokens& answer = expected[i][0].token_ids;
          if (output.size() < answer.size() &&
              std::equal(output.begin(), output.end(), answer.begin())) {
            return false;
          }
        }
        return ++num_refused > 0;
      });
  for (const auto& [num_tokens, width] : {std::pair{3, 1}, {6, 4}}) {
    Oracle oracle;
    for (size_t i = 0; i < prompts.size(); ++i) oracle.learn(prompts[i], expected[i][0].token_ids);
    const EngineConfig config = with_drafter(
        [&](std::span<const int32_t> tokens, int max) { return oracle.propose(tokens, max); },
        num_tokens, width);
    const auto completions = Engine(config).generate(prompts, params);
    for (size_t i = 0; i < prompts.size(); ++i) {
      EXPECT_TRUE(equal(completions[i][0], expected[i][0])) << num_tokens << ' ' << width;
    }
  }
  EXPECT_GT(num_refused, 0);
}

// With and without drafts, the tokens before the error are reported and then the error, only to its
// own request.
TEST_F(SpeculationTest, AFailingLogitsProcessorEndsItsRequestWhereItFails) {
  const std::vector<Tokens> prompts = prompts_of(2);
  const auto expected = Engine(config()).generate(prompts, shaped(20));
  SamplingParams failing = shaped(20);
  failing.logits_processors = {
      std::make_shared<LiftByPath>([](std::span<const int32_t>, std::span<const int32_t> output) {
        return output.size() == 5;
      })};
  Tokens reported[2];
  for (const bool drafts : {false, true}) {
    Oracle oracle;
    if (drafts) oracle.learn(prompts[0], reported[0]);
    Engine engine(drafts ? with_drafter([&](std::span<const int32_t> tokens,
                                            int max) { return oracle.propose(tokens, max); },
                                        4, 2)
                         : config());
    const testing::Answers answers =
        testing::run_to_end(engine, {{.id = "bad", .prompt = prompts[0], .params = failing},
                                     {.id = "good", .prompt = prompts[1], .params = shaped(20)}});
    reported[drafts] = tokens_of(answers.at("bad"));
    EXPECT_EQ(answers.at("bad").error, "logits_processors[0] (lift): refused");
    EXPECT_EQ(answers.at("good").error, "");
    EXPECT_EQ(tokens_of(answers.at("good")), expected[1][0].token_ids);
  }
  EXPECT_EQ(reported[0].size(), 5u);
  EXPECT_EQ(reported[0], reported[1]);
}

TEST_F(SpeculationTest, AnswersAreThoseWithoutHoweverMuchIsDrafted) {
  const std::vector<Tokens> prompts = prompts_of(16);
  const auto expected = Engine(config()).generate(prompts, shaped(30));
  Oracle oracle;
  for (size_t i = 0; i < prompts.size(); ++i) oracle.learn(prompts[i], expected[i][0].token_ids);
  for (const int width : {1, 3}) {
    EngineConfig config = with_drafter(
        [&](std::span<const int32_t> tokens, int max) { return oracle.propose(tokens, max); }, 8,
        width, DraftLengthPolicy::kAuto);
    config.num_kv_blocks = 14;
    config.max_num_batched_tokens = 70;
    Engine engine(config);
    for (int run = 0; run < 3; ++run) {
      const auto completions = engine.generate(prompts, shaped(30));
      for (size_t i = 0; i < prompts.size(); ++i) {
        EXPECT_TRUE(equal(completions[i][0], expected[i][0])) << width << ' ' << i;
      }
    }
    const EngineStats stats = engine.stats();
    EXPECT_GT(stats.draft_policy.num_decisions, 0);
    EXPECT_EQ(stats.draft_policy.num_verified_tokens, stats.acceptance.num_draft_tokens);
    EXPECT_EQ(stats.num_free_kv_blocks, 14);
  }
}

TEST_F(SpeculationTest, PassesTimedAtLoadLeaveNoTrace) {
  const std::vector<Tokens> prompts = prompts_of(4);
  const auto expected = Engine(config()).generate(prompts, shaped(20));
  EngineConfig config = testing::with_drafter(this->config(), drafter(DraftMethod::kDraftModel), 4,
                                              1, DraftLengthPolicy::kAuto);
  for (const int num_blocks : {2, 14}) {  // fewer than passes of many rows take, and enough
    config.num_kv_blocks = num_blocks;
    config.max_model_len = std::min(num_blocks * 16, 128);
    Engine engine(config);
    const EngineStats before = engine.stats();
    EXPECT_EQ(before.num_free_kv_blocks, num_blocks);
    EXPECT_EQ(before.num_cached_kv_blocks, 0);
    EXPECT_EQ(before.num_steps, 0);
    EXPECT_EQ(before.step_tokens.sum, 0);
    EXPECT_EQ(before.forward_seconds + before.draft_seconds + before.sample_seconds, 0);
    EXPECT_EQ(before.draft_policy.num_decisions, 0);
    for (size_t i = 0; i < prompts.size() && num_blocks == 14; ++i) {
      EXPECT_TRUE(equal(engine.generate({prompts[i]}, shaped(20))[0][0], expected[i][0])) << i;
    }
  }
}

TEST_F(SpeculationTest, RightDraftsAreAllAccepted) {
  const Tokens prompt{1, 2, 3};
  SamplingParams params = shaped(25);
  params.stop_token_ids.clear();
  const Tokens answer = Engine(config()).generate({prompt}, params)[0][0].token_ids;
  ASSERT_EQ(answer.size(), 25u);
  Engine engine(with_drafter(
      [&](std::span<const int32_t> tokens, int max) -> std::vector<Tokens> {
        const size_t begin = tokens.size() - prompt.size();
        return {
            Tokens(answer.begin() + begin, answer.begin() + std::min(begin + max, answer.size()))};
      },
      3, 1));
  EXPECT_EQ(engine.generate({prompt}, params)[0][0].token_ids, answer);
  const AcceptanceStats acceptance = engine.stats().acceptance;
  EXPECT_EQ(acceptance.num_steps, 6);  // 24 tokens after the prompt's own, four a step
  EXPECT_EQ(acceptance.mean_acceptance_length(), 4.0);
}

TEST_F(SpeculationTest, NothingIsDraftedPastTheEnd) {
  int longest = 0;
  Engine engine(with_drafter(
      [&](std::span<const int32_t> tokens, int max) -> std::vector<Tokens> {
        longest = std::max(longest, static_cast<int>(tokens.size()) + max);
        return {Tokens(max, 1)};
      },
      8, 1));
  engine.generate({{1, 2, 3}}, shaped(10));
  // Three prompt tokens and ten generated ones; the last of these is never a draft.
  EXPECT_EQ(longest, 12);
}

TEST_F(SpeculationTest, AFailingDrafterEndsItsRequestAndNoOther) {
  Engine plain(config());
  Engine engine(with_drafter(
      [](std::span<const int32_t> tokens, int) -> std::vector<Tokens> {
        if (tokens[0] == 9) throw Error("no idea");
        if (tokens[0] == 8) return {{tiny::kVocab}};
        return {};
      },
      3, 1));
  const SamplingParams params = shaped(8);
  const testing::Answers answers =
      testing::run_to_end(engine, {{.id = "throws", .prompt = {9, 1}, .params = params},
                                   {.id = "out of vocabulary", .prompt = {8, 1}, .params = params},
                                   {.id = "fine", .prompt = {7, 1}, .params = params}});
  EXPECT_NE(answers.at("throws").error.find("no idea"), std::string::npos);
  EXPECT_NE(answers.at("out of vocabulary").error.find("token ids"), std::string::npos);
  EXPECT_EQ(answers.at("fine").error, "");
  EXPECT_EQ(tokens_of(answers.at("fine")), plain.generate({{7, 1}}, params)[0][0].token_ids);
  EXPECT_EQ(engine.stats().num_free_kv_blocks, engine.stats().num_kv_blocks);
}

TEST_F(SpeculationTest, ARequestCannotAskForMoreThanTheEngineDrafts) {
  Engine engine(config());
  SamplingParams params = shaped(4);
  params.num_speculative_tokens = 0;
  EXPECT_NO_THROW(engine.generate({{1, 2}}, params));
  params.num_speculative_tokens = 1;
  EXPECT_THROW(engine.generate({{1, 2}}, params), InvalidArgument);
}

}  // namespace
}  // namespace specdec
