// Errors planted in a step end the request they belong to; every other request gets the answer it
// gets alone, bit for bit. An error that belongs to no request ends all requests and the engine.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "specdec/engine.h"
#include "specdec/error.h"
#include "testing/faulty_backend.h"
#include "testing/thrown.h"
#include "testing/tiny_engine.h"

namespace specdec {
namespace {

using testing::Asked;
using testing::Ended;
using testing::Faults;
using testing::with_drafter;
namespace tiny = testing::tiny_llama;

constexpr uint64_t kBadSeed = 777;
constexpr int64_t kBadPosition = 14;

// Drafts the text from its beginning, and a second branch beside it.
class RepeatingDrafter final : public CustomDrafter {
 public:
  std::vector<std::vector<int32_t>> propose(std::span<const int32_t> tokens, int max) override {
    std::vector<int32_t> repeated(tokens.begin(),
                                  tokens.begin() + std::min<int>(max, tokens.size()));
    return {repeated, {tokens.back()}, {1, 2, 3}};
  }
};

class StepFailureTest : public tiny::EngineFixture {
 protected:
  EngineConfig plain() const {
    EngineConfig config = this->config();
    config.max_num_batched_tokens = 40;
    config.num_kv_blocks = 40;
    return config;
  }

  EngineConfig with(DraftMethod method, int width = 1,
                    Verification verification = Verification::kExact) const {
    EngineConfig config = with_drafter(plain(),
                                       method == DraftMethod::kCustom
                                           ? testing::custom(std::make_shared<RepeatingDrafter>())
                                           : drafter(method),
                                       3, width);
    config.speculative.verification = verification;
    return config;
  }

  std::vector<EngineConfig> all_configs() const {
    return {plain(),
            with(DraftMethod::kCustom),
            with(DraftMethod::kCustom, 2),
            with(DraftMethod::kDraftModel),
            with(DraftMethod::kDraftModel, 2),
            with(DraftMethod::kDraftModel, 1, Verification::kStandard),
            with(DraftMethod::kDraftModel, 1, Verification::kBlock)};
  }

  // The one called "bad" has kBadSeed.
  static std::vector<Asked> requests() {
    std::vector<Asked> requests = tiny::four_requests(20, 1);
    for (int i = 0; i < 4; ++i) requests[i].arrives = i;
    requests[1].id = "bad";
    requests[1].params.seed = kBadSeed;
    requests[3].params.temperature = 0.0f;
    return requests;
  }

  static std::vector<Asked> requests_at_once() {
    std::vector<Asked> requests = StepFailureTest::requests();
    for (Asked& request : requests) request.arrives = 0;
    return requests;
  }

  // Expects that "bad" ends with the error after what it gets alone up to there, and all others as
  // they do alone.
  static void expect_only_bad_fails(const EngineConfig& config,
                                    const std::function<void(const SampleRow&)>& planted,
                                    const std::vector<Asked>& requests) {
    Faults faults;
    Engine engine = testing::make_faulty_engine(config, faults);
    auto expected = testing::run_alone(engine, requests);
    faults.sample = planted;
    auto actual = testing::run_to_end(engine, requests);
    faults = {};
    const Ended bad = actual.at("bad");
    EXPECT_NE(bad.error.find("planted"), std::string::npos) << bad.error;
    EXPECT_EQ(bad.num_ends, 1);
    for (size_t i = 0; i < bad.completions.size(); ++i) {
      EXPECT_EQ(bad.completions[i].reason, FinishReason::kError);
      // Without its drafts a step of rejection sampling has another token.
      if (config.speculative.verification != Verification::kExact) continue;
      std::vector<std::string> begun = expected.at("bad").completions[i].tokens;
      begun.resize(std::min(begun.size(), bad.completions[i].tokens.size()));
      EXPECT_EQ(bad.completions[i].tokens, begun);
    }
    expected["bad"] = actual["bad"];
    EXPECT_EQ(actual, expected);
    EXPECT_EQ(engine.stats().num_free_kv_blocks, engine.stats().num_kv_blocks);
    // The engine works as before.
    for (auto& [id, answer] : testing::run_to_end(engine, requests)) {
      EXPECT_EQ(answer.error, "");
      if (id != "bad") {
        EXPECT_EQ(answer, expected.at(id)) << id;
      }
    }
  }
};

std::function<void(const SampleRow&)> fail_rows(std::function<bool(const SampleRow&)> is_bad) {
  return [is_bad = std::move(is_bad)](const SampleRow& row) {
    if (is_bad(row)) throw InternalError("planted");
  };
}

bool is_bad_row(const SampleRow& row) {
  return row.seed == kBadSeed && row.position >= kBadPosition;
}

TEST_F(StepFailureTest, ARowThatCannotBeSampledEndsItsRequestOnly) {
  for (const EngineConfig& config : all_configs()) {
    expect_only_bad_fails(config, fail_rows([](const SampleRow& row) {
                            return is_bad_row(row) && row.num_candidates == 0;
                          }),
                          requests());
  }
}

TEST_F(StepFailureTest, ARowThatCannotBeDraftedEndsItsRequestOnly) {
  for (const EngineConfig& config : all_configs()) {
    if (!config.speculative.enabled() ||
        config.speculative.drafters[0].method != DraftMethod::kDraftModel) {
      continue;
    }
    expect_only_bad_fails(config, fail_rows([](const SampleRow& row) {
                            return is_bad_row(row) && row.num_candidates > 0;
                          }),
                          requests());
  }
}

TEST_F(StepFailureTest, ABadPromptLogprobEndsItsRequestOnly) {
  std::vector<Asked> requests = this->requests();
  requests[1].params.prompt_logprobs = 5;
  expect_only_bad_fails(plain(), fail_rows([](const SampleRow& row) {
                          return row.forced_token >= 0 && row.num_logprobs == 5;
                        }),
                        requests);
}

// The second completion of three fails: the whole request ends.
TEST_F(StepFailureTest, OneOfSeveralCompletionsEndsItsRequest) {
  std::vector<Asked> requests = this->requests();
  requests[1].params.n = 3;
  requests[1].params.seed = kBadSeed - 1;
  expect_only_bad_fails(plain(), fail_rows(is_bad_row), requests);
}

TEST_F(StepFailureTest, WhatFailsOnlyTogetherEndsNone) {
  Faults faults;
  Engine engine = testing::make_faulty_engine(plain(), faults);
  std::vector<Asked> requests = this->requests();
  requests[0].params.prompt_logprobs.reset();  // rows enough to fail alone
  const auto expected = testing::run_alone(engine, requests);
  int num_rows = 0;
  int num_thrown = 0;
  faults.forward = [&](int) { num_rows = 0; };
  faults.sample = [&](const SampleRow&) {
    // The second row since the pass: of a batch, and later of none.
    if (++num_rows == 2) {
      ++num_thrown;
      throw InternalError("planted");
    }
  };
  EXPECT_EQ(testing::run_to_end(engine, requests), expected);
  EXPECT_GT(num_thrown, 10);
}

TEST_F(StepFailureTest, AllOfAStepMayFail) {
  Faults faults;
  Engine engine = testing::make_faulty_engine(plain(), faults);
  faults.sample = [](const SampleRow&) { throw OutOfMemory("planted"); };
  for (const auto& [id, ended] : testing::run_to_end(engine, requests())) {
    EXPECT_NE(ended.error.find("planted; lower max_num_batched_tokens"), std::string::npos);
    EXPECT_EQ(ended.num_ends, 1);
  }
  faults = {};
  for (const auto& [id, ended] : testing::run_to_end(engine, requests())) {
    EXPECT_EQ(ended.error, "");
  }
}

void expect_failed(Engine& engine, const std::string& cause) {
  EXPECT_FALSE(engine.has_unfinished_requests());
  EXPECT_TRUE(engine.step().empty());
  EXPECT_FALSE(engine.abort(0));
  const EngineStats stats = engine.stats();
  EXPECT_EQ(stats.num_running, 0);
  EXPECT_EQ(stats.num_waiting, 0);
  EXPECT_EQ(stats.num_free_kv_blocks, stats.num_kv_blocks);
  const std::string message =
      testing::error_of<EngineFailed>([&] { engine.add_request(99, {1, 2}, {}); }).what();
  EXPECT_NE(message.find(cause), std::string::npos) << message;
  EXPECT_NE(message.find("make a new engine"), std::string::npos);
  EXPECT_THROW(engine.generate({{1, 2}}, {}), EngineFailed);
}

TEST_F(StepFailureTest, AnErrorOfNoRequestEndsAllAndTheEngine) {
  const std::vector<std::pair<std::function<void()>, std::string>> errors = {
      {[] { throw Unavailable("planted: the device is gone"); }, "planted: the device is gone"},
      {[] { throw OutOfMemory("planted"); }, "planted; lower max_num_batched_tokens"},
      {[] { throw std::bad_alloc(); }, "out of memory; lower max_num_batched_tokens"},
      {[] { throw 5; }, "unknown error"}};
  for (const EngineConfig& config : all_configs()) {
    for (const auto& [fail, cause] : errors) {
      Faults faults;
      Engine engine = testing::make_faulty_engine(config, faults);
      const std::vector<Asked> requests = requests_at_once();
      int passes = 0;
      faults.forward = [&](int) {
        if (++passes == 6) fail();
      };
      const auto ended = testing::run_to_end(engine, requests);
      ASSERT_EQ(ended.size(), requests.size());
      for (const auto& [id, answer] : ended) {
        EXPECT_NE(answer.error.find(cause), std::string::npos) << answer.error;
        EXPECT_EQ(answer.num_ends, 1);
        for (const Ended::Part& part : answer.completions) {
          EXPECT_EQ(part.reason, FinishReason::kError);
        }
      }
      expect_failed(engine, cause);
    }
  }
}

TEST_F(StepFailureTest, AnErrorWhileTheCacheMovesEndsTheEngine) {
  Faults faults;
  Engine engine = testing::make_faulty_engine(with(DraftMethod::kDraftModel, 3), faults);
  faults.copy_kv = [] { throw Unavailable("planted"); };
  const auto ended = testing::run_to_end(engine, requests_at_once());
  for (const auto& [id, answer] : ended) EXPECT_NE(answer.error.find("planted"), std::string::npos);
  expect_failed(engine, "planted");
}

TEST_F(StepFailureTest, GenerateThrowsWhatEndedARequest) {
  Faults faults;
  Engine engine = testing::make_faulty_engine(plain(), faults);
  SamplingParams params;
  params.seed = kBadSeed;
  const std::vector<std::vector<int32_t>> prompts = {{1, 2, 3}, {4, 5}};
  const auto expected = engine.generate(prompts, params);
  faults.sample = fail_rows(is_bad_row);
  EXPECT_STREQ(testing::error_of<Error>([&] { engine.generate(prompts, params); }).what(),
               "planted");
  EXPECT_EQ(engine.failure(), nullptr);
  EXPECT_FALSE(engine.has_unfinished_requests());
  faults = {};
  const auto again = engine.generate(prompts, params);
  for (size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_EQ(again[i][0].token_ids, expected[i][0].token_ids);
  }
  faults.forward = [](int) { throw Unavailable("planted"); };
  EXPECT_THROW(engine.generate(prompts, params), EngineFailed);
  expect_failed(engine, "planted");
}

}  // namespace
}  // namespace specdec
