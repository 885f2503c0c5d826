// Decoding by the device itself gives the host executor's results, bit for bit.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "specdec/error.h"
#include "testing/device_engine_world.h"
#include "testing/toy_grammar.h"

namespace specdec {
namespace {

using namespace testing::device_engine;

class DeviceExecutorTest : public EngineTest {
 protected:
  EngineConfig with_ngram(int width) const {
    return with_drafter(config(), drafter_of(DraftMethod::kNgram), 4, width);
  }
};

INSTANTIATE_TEST_SUITE_P(Devices, DeviceExecutorTest, ::testing::ValuesIn(engine_devices()),
                         engine_test_name);

TEST_P(DeviceExecutorTest, PlainDecodingIsThatOfTheOrdinaryStep) {
  for (const SamplingParams& params : {greedy(), shaped()}) {
    std::vector<Asked> jobs = jobs_of(3, params);
    int64_t num_device_steps = 0;
    const Answers answers = run(config(), jobs, &num_device_steps);
    EXPECT_GT(num_device_steps, 8);
    keep_ordinary(jobs);
    const Answers ordinary = run(config(), jobs, &num_device_steps);
    EXPECT_EQ(num_device_steps, 0);
    EXPECT_EQ(ordinary, answers);
  }
}

TEST_P(DeviceExecutorTest, DraftsOfTheDeviceNeverChangeAnAnswer) {
  for (const SamplingParams& params : {greedy(), shaped()}) {
    const std::vector<Asked> jobs = jobs_of(3, params);
    const Answers plain = run(config(), jobs);
    for (const TempDirectory* model : {&target_, &draft_}) {
      for (int num_tokens : {1, 4}) {
        SCOPED_TRACE(num_tokens);
        int64_t num_device_steps = 0;
        EXPECT_EQ(plain, run(with_draft(*model, num_tokens), jobs, &num_device_steps));
        EXPECT_GT(num_device_steps, 0);
      }
    }
  }
}

// The target drafts for itself, so every draft is right and every step accepts all.
TEST_P(DeviceExecutorTest, RightDraftsAreAllAccepted) {
  Engine engine(with_draft(target_, 3));
  SamplingParams params = greedy();
  params.max_tokens = 41;
  engine.add_request(1, {1, 2, 3}, params);
  while (engine.has_unfinished_requests()) engine.step();
  const AcceptanceStats& acceptance = engine.stats().acceptance;
  EXPECT_EQ(acceptance.num_accepted_tokens, acceptance.num_draft_tokens);
  EXPECT_GT(acceptance.num_draft_tokens, 25);
}

TEST_P(DeviceExecutorTest, NoDraftPassRunsWhereNoRequestWantsDrafts) {
  for (const int num_wanted : {0, 2}) {
    Engine engine(with_draft(target_, 3));
    SamplingParams params = greedy();
    params.ignore_eos = true;
    params.max_tokens = 20;
    params.num_speculative_tokens = num_wanted;
    engine.add_request(1, {1, 2, 3}, params);
    while (engine.stats().num_device_steps < 2) engine.step();
    const EngineStats before = engine.stats();
    while (engine.has_unfinished_requests()) engine.step();
    const EngineStats after = engine.stats();
    ASSERT_EQ(after.num_steps - before.num_steps,
              after.num_device_steps - before.num_device_steps);  // none of the host's
    EXPECT_EQ(after.draft_seconds > before.draft_seconds, num_wanted > 0);
  }
}

// The draft model has not seen a new request's prompt, and catches up for each request.
TEST_P(DeviceExecutorTest, EveryRequestIsDraftedFor) {
  Engine engine(with_draft(target_, 3));
  int64_t num_drafts = 0;
  for (const Asked& job : jobs_of(3, greedy())) {
    engine.add_request(0, job.prompt, job.params);
    while (engine.has_unfinished_requests()) engine.step();
    const int64_t now = engine.stats().acceptance.num_draft_tokens;
    EXPECT_GE(now, num_drafts + 8) << job.id;
    num_drafts = now;
  }
}

// Four requests decode without drafts until the draft model is far behind. When the first one ends,
// the table allows drafts; the host must wait for the steps under way before the draft model can
// catch up.
TEST_P(DeviceExecutorTest, ADraftModelFarBehindCatchesUpBetweenStepsUnderWay) {
  EngineConfig config = with_draft(target_, 3);
  config.speculative.num_speculative_tokens_per_batch_size = {
      {.first = 1, .last = 3, .num_speculative_tokens = 3},
      {.first = 4, .last = 4, .num_speculative_tokens = 0}};
  std::vector<Asked> jobs = jobs_of(4, greedy());
  for (Asked& job : jobs) {
    job.params.ignore_eos = true;
    job.params.max_tokens = 60;
  }
  jobs[1].params.max_tokens = 2 * kMaxUnseen;
  EngineStats stats;
  const Answers drafted = run(config, jobs, &stats);
  EXPECT_GT(stats.acceptance.num_draft_tokens, 30);
  EXPECT_GT(stats.acceptance.mean_acceptance_length(), 3.0);
  EXPECT_EQ(run(this->config(), jobs), drafted);
}

TEST_P(DeviceExecutorTest, GrammarsAllowWhatTheyAllowInTheOrdinaryStep) {
  std::vector<Asked> jobs = jobs_of(4, greedy(), /*gap=*/2);
  jobs[1].params = jobs[2].params = shaped();
  for (const int i : {0, 2, 3}) {  // and one without between them
    jobs[i].params.grammar = testing::make_toy_grammar(tiny::kVocab, 2, 12, 24);
  }
  std::vector<Asked> ordinary_jobs = jobs;
  keep_ordinary(ordinary_jobs);
  const Answers ordinary = run(config(), ordinary_jobs);
  for (const EngineConfig& config :
       {config(), with_ngram(1), with_ngram(3), with_draft(draft_, 3)}) {
    EngineStats stats;
    EXPECT_EQ(ordinary, run(config, jobs, &stats));
    const bool host_drafts = config.speculative.drafters.empty() ||
                             config.speculative.drafters[0].method == DraftMethod::kNgram;
    EXPECT_EQ(stats.num_device_steps > 3, host_drafts);
  }
}

// The device weighs drafts under masks, as the host does.
TEST_P(DeviceExecutorTest, DraftsAreWeighedUnderGrammars) {
  SamplingParams params;
  params.max_tokens = 24;
  std::vector<Asked> jobs = jobs_of(4, params);
  for (Asked& job : jobs) {
    job.params.grammar = testing::make_toy_grammar(tiny::kVocab, 2, 12, 24);
  }
  EngineConfig config = with_ngram(3);
  config.speculative.verification = Verification::kStandard;
  compare_with_host(config, jobs);
}

TEST_P(DeviceExecutorTest, AGrammarThatFailsEndsItsRequestAlone) {
  std::vector<Asked> jobs = jobs_of(2, greedy());
  jobs[1].prompt = {1, 2, 3};
  const Answers expected = run(config(), {jobs[0]});
  jobs[1].params.grammar =
      std::make_shared<testing::ToyGrammar>(tiny::kVocab, 2, [](const Tokens& before) -> Tokens {
        if (before.size() < 7) return {5, 6, 7};
        throw Error("too many states");
      });
  Engine engine(with_ngram(1));
  const Answers answers = testing::run_to_end(engine, jobs);
  EXPECT_NE(answers.at("r1").error.find("too many states"), std::string::npos);
  EXPECT_EQ(answers.at("r1").completions[0].tokens.size(), 7u);
  EXPECT_EQ(answers.at("r0"), expected.at("r0"));
  EXPECT_GT(engine.stats().num_device_steps, 3);
}

// Trees of more nodes than a mask has bits are left to the host.
TEST_P(DeviceExecutorTest, WhatTheDeviceDoesNotDraftTheHostDoes) {
  const std::vector<Asked> jobs = jobs_of(2, greedy());
  EngineConfig deep =
      with_drafter(config(), drafter_of(DraftMethod::kDraftModel, draft_.path()), 16, 4);
  deep.max_num_batched_tokens = 128;
  EXPECT_EQ(run(config(), jobs), run(deep, jobs));
}

// One launch verifies the host's drafts, chains and trees.
TEST_P(DeviceExecutorTest, DraftsOfTheHostNeverChangeAnAnswer) {
  for (const SamplingParams& params : {greedy(), shaped()}) {
    const std::vector<Asked> jobs = jobs_of(3, params);
    const Answers plain = run(config(), jobs);
    for (const EngineConfig& config : {with_ngram(1), with_ngram(3)}) {
      int64_t num_device_steps = 0;
      EXPECT_EQ(plain, run(config, jobs, &num_device_steps));
      EXPECT_GT(num_device_steps, 3);
    }
  }
}

}  // namespace
}  // namespace specdec
