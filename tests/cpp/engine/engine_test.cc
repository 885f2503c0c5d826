#include "specdec/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/str_cat.h"
#include "specdec/error.h"
#include "testing/bad_tokens.h"
#include "testing/thrown.h"
#include "testing/tiny_engine.h"

namespace specdec {
namespace {

using testing::drain;
using testing::refused_field;
using testing::tokens_of;
namespace tiny = testing::tiny_llama;
using tiny::prompts_of;
using tiny::sampled;

using Tokens = std::vector<int32_t>;

class EngineTest : public tiny::EngineFixture {
 protected:
  Engine make_engine(const std::function<void(EngineConfig&)>& change = {}) const {
    EngineConfig config = this->config();
    if (change) change(config);
    return Engine(config);
  }
};

TEST_F(EngineTest, RequestsTogetherGetWhatEachGetsAlone) {
  const std::vector<Tokens> prompts = prompts_of(24);
  Engine alone = make_engine([](EngineConfig& config) { config.enable_prefix_caching = false; });
  Engine together = make_engine([](EngineConfig& config) {
    config.max_num_batched_tokens = 48;
    config.num_kv_blocks = 12;
  });
  const auto batched = together.generate(prompts, sampled(20));
  for (size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_EQ(batched[i][0].token_ids, alone.generate({prompts[i]}, sampled(20))[0][0].token_ids);
  }
  EXPECT_GT(together.stats().num_preemptions, 0);
  EXPECT_EQ(together.stats().num_free_kv_blocks, 12);
}

TEST_F(EngineTest, AbortEndsOneRequestAndNoOther) {
  Engine engine = make_engine();
  engine.add_request(1, {1, 2, 3}, sampled(12));
  engine.add_request(2, {4, 5, 6}, sampled(12));
  engine.step();
  EXPECT_TRUE(engine.abort(1));
  EXPECT_FALSE(engine.abort(1));
  EXPECT_FALSE(engine.abort(99));
  const auto rest = drain(engine);
  EXPECT_FALSE(rest.contains(1));
  EXPECT_EQ(tokens_of(rest.at(2)).size(), 11u);
  EXPECT_EQ(engine.stats().num_aborted_requests, 1);
  EXPECT_EQ(engine.stats().num_free_kv_blocks, engine.stats().num_kv_blocks);
}

TEST_F(EngineTest, CompletionIUsesSeedPlusI) {
  Engine engine = make_engine();
  SamplingParams params = sampled(10);
  params.n = 3;
  const auto completions = engine.generate({{1, 2, 3}}, params)[0];
  ASSERT_EQ(completions.size(), 3u);
  for (int i = 0; i < 3; ++i) {
    SamplingParams single = sampled(10);
    single.seed = 5 + i;
    EXPECT_EQ(completions[i].token_ids, engine.generate({{1, 2, 3}}, single)[0][0].token_ids);
  }
  EXPECT_NE(completions[0].token_ids, completions[1].token_ids);
}

TEST_F(EngineTest, AStoppedCompletionLeavesItsSiblings) {
  Engine engine = make_engine();
  SamplingParams params = sampled(8);
  params.n = 2;
  engine.add_request(1, {1, 2, 3}, params);
  engine.step();
  EXPECT_TRUE(engine.stop_completion(1, 0));
  EXPECT_FALSE(engine.stop_completion(1, 0));
  EXPECT_FALSE(engine.stop_completion(1, 2));
  const auto rest = drain(engine);
  EXPECT_TRUE(rest.at(1).completions[0].tokens.empty());
  EXPECT_FALSE(rest.at(1).completions[1].tokens.empty());
  EXPECT_EQ(engine.stats().num_finished_requests, 1);
}

TEST_F(EngineTest, PromptLogprobsCoverEveryPositionOnceUnderPreemption) {
  Engine roomy = make_engine();
  Engine tight = make_engine([](EngineConfig& config) {
    config.num_kv_blocks = 4;
    config.max_num_batched_tokens = 8;
  });
  SamplingParams params = sampled(30);
  params.prompt_logprobs = 2;
  const std::vector<Tokens> prompts = prompts_of(6);
  const auto collect = [&](Engine& engine) {
    for (size_t i = 0; i < prompts.size(); ++i) {
      engine.add_request(i, prompts[i], params);
    }
    return drain(engine);
  };
  const auto expected = collect(roomy);
  EXPECT_EQ(collect(tight), expected);
  EXPECT_GT(tight.stats().num_preemptions, 0);
  for (size_t i = 0; i < prompts.size(); ++i) {
    const std::vector<std::string>& logprobs = expected.at(i).prompt_logprobs;
    EXPECT_EQ(logprobs.size(), prompts[i].size() - 1);
    for (const std::string& position : logprobs) EXPECT_EQ(std::ranges::count(position, ' '), 3);
  }
}

TEST_F(EngineTest, StopTokensEndARequestAndMinTokensDelayThem) {
  Engine engine = make_engine();
  SamplingParams params = sampled(12);
  const Tokens free = engine.generate({{1, 2, 3}}, params)[0][0].token_ids;
  params.stop_token_ids = {free[4]};
  const Completion stopped = engine.generate({{1, 2, 3}}, params)[0][0];
  EXPECT_EQ(stopped.finish_reason, FinishReason::kStop);
  EXPECT_EQ(stopped.token_ids.back(), free[4]);
  EXPECT_LE(stopped.token_ids.size(), 5u);
  params.min_tokens = 10;
  const Tokens delayed = engine.generate({{1, 2, 3}}, params)[0][0].token_ids;
  ASSERT_GE(delayed.size(), 10u);
  EXPECT_EQ(std::count(delayed.begin(), delayed.begin() + 10, free[4]), 0);
}

TEST_F(EngineTest, BadWordsAreNeverCompleted) {
  Engine engine = make_engine();
  SamplingParams params = sampled(40);
  const Tokens free = engine.generate({{1, 2, 3}}, params)[0][0].token_ids;
  params.grammar = testing::without_sequences(tiny::kVocab, {{free[2], free[3]}, {free[6]}});
  const Tokens tokens = engine.generate({{1, 2, 3}}, params)[0][0].token_ids;
  EXPECT_EQ(std::vector<int32_t>(tokens.begin(), tokens.begin() + 3),
            std::vector<int32_t>(free.begin(), free.begin() + 3));
  EXPECT_EQ(std::count(tokens.begin(), tokens.end(), free[6]), 0);
  for (size_t i = 1; i < tokens.size(); ++i) {
    EXPECT_FALSE(tokens[i - 1] == free[2] && tokens[i] == free[3]);
  }
}

TEST_F(EngineTest, ATokenAllowedOftenIsAllowedOnce) {
  Engine engine = make_engine();
  SamplingParams params = sampled(12);
  params.allowed_token_ids = {4, 9, 30};
  const Tokens expected = engine.generate({{1, 2, 3}}, params)[0][0].token_ids;
  params.allowed_token_ids = Tokens(tiny::kVocab, 9);
  params.allowed_token_ids.insert(params.allowed_token_ids.end(), {30, 4, 30});
  EXPECT_EQ(engine.generate({{1, 2, 3}}, params)[0][0].token_ids, expected);
}

TEST_F(EngineTest, RequestsWithoutASeedFollowTheEnginesAndTheirOrder) {
  SamplingParams params = sampled(10);
  params.seed.reset();
  Engine first = make_engine();
  Engine second = make_engine();
  Engine other = make_engine([](EngineConfig& config) { config.seed = 1; });
  const auto a = first.generate({{1, 2}, {1, 2}}, params);
  EXPECT_NE(a[0][0].token_ids, a[1][0].token_ids);
  EXPECT_EQ(a[0][0].token_ids, second.generate({{1, 2}}, params)[0][0].token_ids);
  EXPECT_NE(a[0][0].token_ids, other.generate({{1, 2}}, params)[0][0].token_ids);
}

TEST_F(EngineTest, BadRequestsAreRefusedWhole) {
  Engine engine = make_engine();
  const SamplingParams good = sampled(4);
  engine.add_request(1, {1}, good);
  EXPECT_EQ(refused_field([&] { engine.add_request(2, {}, good); }), "prompt");
  EXPECT_EQ(refused_field([&] { engine.add_request(2, Tokens(128, 1), good); }), "prompt");
  EXPECT_EQ(refused_field([&] { engine.add_request(2, {tiny::kVocab}, good); }), "prompt");
  EXPECT_EQ(refused_field([&] { engine.add_request(1, {1}, good); }), "id");
  EXPECT_EQ(refused_field([&] { engine.generate({{1}}, good); }), "prompts");
  EXPECT_EQ(drain(engine).size(), 1u);
  EXPECT_EQ(refused_field([&] { engine.generate({{1}, {}}, good); }), "prompt");
  EXPECT_FALSE(engine.has_unfinished_requests());
}

TEST_F(EngineTest, AfterAResetRequestsFindOnlyWhatWasComputedAfterIt) {
  Engine engine = make_engine();
  const Tokens prompt(40, 3);
  const Tokens expected = engine.generate({prompt}, sampled(40))[0][0].token_ids;
  EXPECT_EQ(engine.stats().num_cached_kv_blocks, 4);
  EXPECT_EQ(engine.reset_prefix_cache(), 4);
  EXPECT_EQ(engine.stats().num_cached_kv_blocks, 0);

  std::map<uint64_t, Tokens> answers;
  std::map<uint64_t, int> num_cached;  // of requests that have ended
  const auto step = [&] {
    for (const RequestOutput& output : engine.step()) {
      const Tokens& tokens = output.outputs[0].new_token_ids;
      Tokens& answer = answers[output.request_id];
      answer.insert(answer.end(), tokens.begin(), tokens.end());
      if (output.finished) num_cached[output.request_id] = output.metrics.num_cached_tokens;
    }
  };
  engine.add_request(1, prompt, sampled(40));
  while (engine.stats().num_cached_kv_blocks < 2) step();
  EXPECT_EQ(engine.reset_prefix_cache(), 2);  // of the request that runs
  for (const uint64_t id : {2, 3}) {
    engine.add_request(id, prompt, sampled(2));
    while (!num_cached.contains(id)) step();
  }
  EXPECT_FALSE(num_cached.contains(1));  // it still runs
  EXPECT_EQ(num_cached[2], 0);
  EXPECT_EQ(num_cached[3], 32);
  while (engine.has_unfinished_requests()) step();
  EXPECT_EQ(answers[1], expected);
  EXPECT_EQ(engine.reset_prefix_cache(), 2);  // the first request has cached nothing more
}

TEST_F(EngineTest, CachedBlocksAreSharedWithinASaltAndNotBeyond) {
  Engine engine = make_engine();
  const Tokens prompt(40, 3);
  uint64_t count = 0;
  const auto num_cached = [&](const std::string& salt) {
    engine.add_request(count++, prompt, sampled(2), {.cache_salt = salt});
    int num_cached_tokens = 0;
    while (engine.has_unfinished_requests()) {
      for (const RequestOutput& output : engine.step()) {
        num_cached_tokens = output.metrics.num_cached_tokens;
      }
    }
    return num_cached_tokens;
  };
  for (const char* salt : {"", "a", "b"}) {
    EXPECT_EQ(num_cached(salt), 0) << salt;
    EXPECT_EQ(num_cached(salt), 32) << salt;
  }
  EXPECT_EQ(engine.stats().num_cached_kv_blocks, 6);
  EXPECT_EQ(engine.reset_prefix_cache(), 6);
  EXPECT_EQ(num_cached("a"), 0);
}

TEST_F(EngineTest, PrioritiesNeedTheirPolicyAndChangeOrderNotAnswers) {
  Engine in_turn = make_engine();
  for (const int64_t priority : {-1, 3}) {
    EXPECT_EQ(
        refused_field([&] { in_turn.add_request(2, {1}, sampled(2), {.priority = priority}); }),
        "priority");
  }
  in_turn.add_request(2, {1}, sampled(2), {.priority = 0});
  Engine engine = make_engine([](EngineConfig& config) {
    config.scheduling_policy = SchedulingPolicy::kPriority;
    config.max_num_seqs = 2;  // the two completions of request 2
  });
  SamplingParams two = sampled(6);
  two.n = 2;
  engine.add_request(1, tiny::prompt_of(1), two, {.priority = 2});
  engine.add_request(2, tiny::prompt_of(2), two, {.priority = 1});
  std::vector<uint64_t> finished;
  while (engine.has_unfinished_requests()) {
    for (const RequestOutput& output : engine.step()) {
      if (output.finished) finished.push_back(output.request_id);
      EXPECT_EQ(output.request_id == 1 && finished.empty(), false) << "before the end of the other";
    }
  }
  EXPECT_EQ(finished, (std::vector<uint64_t>{2, 1}));
}

TEST_F(EngineTest, LoadCountsRequestsThatRunAndThatWait) {
  Engine engine = make_engine([](EngineConfig& config) { config.max_num_seqs = 2; });
  const int num_blocks = engine.load().num_kv_blocks;
  EXPECT_EQ(engine.load().num_free_kv_blocks, num_blocks);
  SamplingParams two = sampled(4);
  two.n = 2;
  engine.add_request(1, Tokens(20, 3), two);
  engine.add_request(2, Tokens(7, 1), sampled(4));
  engine.add_request(3, Tokens(9, 2), sampled(4));
  const auto expect = [&](int num_running, int num_waiting, int num_waiting_tokens) {
    const EngineLoad load = engine.load();
    EXPECT_EQ(load.num_running, num_running);
    EXPECT_EQ(load.num_waiting, num_waiting);
    EXPECT_EQ(load.num_waiting_tokens, num_waiting_tokens);
    EXPECT_EQ(load.num_kv_blocks, num_blocks);
  };
  expect(0, 3, 36);
  engine.step();
  expect(2, 1, 9);  // a's second completion waits for the first's prompt, so b came in
  EXPECT_EQ(engine.load().num_free_kv_blocks, num_blocks - 3);
  engine.abort(3);
  expect(2, 0, 0);
  engine.abort(1);
  expect(1, 0, 0);
  drain(engine);
  expect(0, 0, 0);
  EXPECT_EQ(engine.load().num_free_kv_blocks, num_blocks);
}

TEST(StepTokensTest, BucketsAreVllms) {
  StepTokens tokens;
  for (const int num_tokens : {1, 1, 2, 8, 9, 16, 17, 512, 16384, 16385, 100000}) {
    tokens.record(num_tokens);
  }
  const std::array<int64_t, 14> expected = {2, 2, 2, 1, 0, 0, 0, 1, 0, 0, 0, 0, 1, 2};
  EXPECT_EQ(tokens.counts, expected);
  EXPECT_EQ(tokens.sum, 1 + 1 + 2 + 8 + 9 + 16 + 17 + 512 + 16384 + 16385 + 100000);
}

TEST_F(EngineTest, StepsAreCountedByTheirTokens) {
  Engine engine = make_engine();
  engine.generate({Tokens(20, 3)}, sampled(5));  // 20 rows, then 4 steps of one
  const EngineStats stats = engine.stats();
  EXPECT_EQ(stats.step_tokens.counts[0], 4);
  EXPECT_EQ(stats.step_tokens.counts[3], 1);
  EXPECT_EQ(stats.step_tokens.sum, 24);
  EXPECT_EQ(stats.num_steps, 5);
}

TEST_F(EngineTest, EnginesRunSideBySide) {
  Engine a = make_engine();
  Engine b = make_engine();
  a.add_request(1, {1, 2, 3}, sampled(10));
  b.add_request(1, {1, 2, 3}, sampled(10));
  Tokens from_a;
  Tokens from_b;
  while (a.has_unfinished_requests()) {
    for (const auto& output : a.step()) from_a.push_back(output.outputs[0].new_token_ids[0]);
    for (const auto& output : b.step()) from_b.push_back(output.outputs[0].new_token_ids[0]);
  }
  EXPECT_EQ(from_a, from_b);
}

}  // namespace
}  // namespace specdec
