// Decoding that the device runs by itself gives what the host executor gives, bit for bit.
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
using testing::TempDirectory;

class DeviceExecutorTest : public EngineTest {
 protected:
  EngineConfig with_ngram(int tree_width) const {
    EngineConfig config = this->config();
    config.speculative.num_speculative_tokens = 4;
    config.speculative.draft_length_policy = DraftLengthPolicy::kFixed;
    config.speculative.tree_width = tree_width;
    config.speculative.drafters.resize(1);
    config.speculative.drafters[0].method = DraftMethod::kNgram;
    return config;
  }
};

INSTANTIATE_TEST_SUITE_P(Devices, DeviceExecutorTest, ::testing::ValuesIn(engine_devices()),
                         engine_test_name);

TEST_P(DeviceExecutorTest, PlainDecodingIsThatOfTheOrdinaryStep) {
  for (const SamplingParams& params : {greedy(), shaped()}) {
    std::vector<Job> jobs = jobs_of(3, params);
    int64_t num_device_steps = 0;
    const Answers answers = run(config(), jobs, &num_device_steps);
    EXPECT_GT(num_device_steps, 8);
    keep_ordinary(jobs);
    const Answers ordinary = run(config(), jobs, &num_device_steps);
    EXPECT_EQ(num_device_steps, 0);
    expect_equal(ordinary, answers);
  }
}

TEST_P(DeviceExecutorTest, DraftsOfTheDeviceNeverChangeAnAnswer) {
  for (const SamplingParams& params : {greedy(), shaped()}) {
    const std::vector<Job> jobs = jobs_of(3, params);
    const Answers plain = run(config(), jobs);
    for (const TempDirectory* model : {&target_, &draft_}) {
      for (int num_tokens : {1, 4}) {
        SCOPED_TRACE(num_tokens);
        int64_t num_device_steps = 0;
        expect_equal(plain, run(with_draft(*model, num_tokens), jobs, &num_device_steps));
        EXPECT_GT(num_device_steps, 0);
      }
    }
  }
}

TEST_P(DeviceExecutorTest, LaunchesOneByOneGiveWhatGraphsGive) {
  const std::vector<Job> jobs = jobs_of(2, shaped());
  EngineConfig eager = with_draft(draft_, 3);
  eager.enforce_eager = true;
  expect_equal(run(with_draft(draft_, 3), jobs), run(eager, jobs));
}

TEST_P(DeviceExecutorTest, AnAdaptiveDraftLengthNeverChangesAnAnswer) {
  const std::vector<Job> jobs = jobs_of(3, greedy());
  expect_equal(run(config(), jobs), run(with_draft(draft_, 4, DraftLengthPolicy::kAuto), jobs));
}

TEST_P(DeviceExecutorTest, RequestsComeAndGoWhileOthersDecode) {
  std::vector<Job> jobs = jobs_of(7, shaped(), /*gap=*/3);
  for (size_t i = 0; i < jobs.size(); ++i) {
    jobs[i].params.max_tokens = 5 + static_cast<int>(3 * i) % 10;
    jobs[i].params.n = i == 4 ? 2 : 1;
  }
  const Answers drafted = run(with_draft(draft_, 3), jobs);
  const Answers plain = run(config(), jobs);
  keep_ordinary(jobs);
  const Answers ordinary = run(config(), jobs);
  expect_equal(ordinary, plain);
  expect_equal(ordinary, drafted);
}

// The target drafts for itself: every draft is right, and every step brings as many tokens as it
// can.
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

// The draft model has not seen the prompt of a new request and catches up with each one.
TEST_P(DeviceExecutorTest, EveryRequestIsDraftedFor) {
  Engine engine(with_draft(target_, 3));
  int64_t num_drafts = 0;
  for (const Job& job : jobs_of(3, greedy())) {
    engine.add_request(0, job.prompt, job.params);
    while (engine.has_unfinished_requests()) engine.step();
    const int64_t now = engine.stats().acceptance.num_draft_tokens;
    EXPECT_GE(now, num_drafts + 8) << job.id;
    num_drafts = now;
  }
}

// Four requests decode without drafts until the draft model is far behind; when the first ends, the
// table allows drafts, and steps are under way that the host has to wait for before it can let the
// draft model catch up.
TEST_P(DeviceExecutorTest, ADraftModelFarBehindCatchesUpBetweenStepsUnderWay) {
  EngineConfig config = with_draft(target_, 3);
  config.speculative.num_speculative_tokens_per_batch_size = {
      {.first = 1, .last = 3, .num_speculative_tokens = 3},
      {.first = 4, .last = 4, .num_speculative_tokens = 0}};
  std::vector<Job> jobs = jobs_of(4, greedy());
  for (Job& job : jobs) {
    job.params.ignore_eos = true;
    job.params.max_tokens = 60;
  }
  jobs[1].params.max_tokens = 2 * kMaxUnseen;
  EngineStats stats;
  const Answers drafted = run(config, jobs, &stats);
  EXPECT_GT(stats.acceptance.num_draft_tokens, 30);
  EXPECT_GT(stats.acceptance.mean_acceptance_length(), 3.0);
  expect_equal(run(this->config(), jobs), drafted);
}

TEST_P(DeviceExecutorTest, GrammarsAllowWhatTheyAllowInTheOrdinaryStep) {
  std::vector<Job> jobs = jobs_of(4, greedy(), /*gap=*/2);
  jobs[1].params = jobs[2].params = shaped();
  for (const int i : {0, 2, 3}) {  // and one without between them
    jobs[i].params.grammar = testing::make_toy_grammar(tiny::kVocab, 2, 12, 24);
  }
  std::vector<Job> ordinary_jobs = jobs;
  keep_ordinary(ordinary_jobs);
  const Answers ordinary = run(config(), ordinary_jobs);
  for (const EngineConfig& config :
       {config(), with_ngram(1), with_ngram(3), with_draft(draft_, 3)}) {
    EngineStats stats;
    expect_equal(ordinary, run(config, jobs, &stats));
    const bool host_drafts = config.speculative.drafters.empty() ||
                             config.speculative.drafters[0].method == DraftMethod::kNgram;
    EXPECT_EQ(stats.num_device_steps > 3, host_drafts);
  }
}

// Where the host weighs drafts under masks, so does the device.
TEST_P(DeviceExecutorTest, DraftsAreWeighedUnderGrammars) {
  SamplingParams params;
  params.max_tokens = 24;
  std::vector<Job> jobs = jobs_of(4, params);
  for (Job& job : jobs) {
    job.params.grammar = testing::make_toy_grammar(tiny::kVocab, 2, 12, 24);
  }
  EngineConfig config = with_ngram(3);
  config.speculative.verification = Verification::kStandard;
  compare_with_host(config, jobs);
}

TEST_P(DeviceExecutorTest, AGrammarThatFailsEndsItsRequestAlone) {
  SamplingParams params = greedy();
  const Answers expected = run(config(), jobs_of(1, params));
  Engine engine(with_ngram(1));
  engine.add_request(0, jobs_of(1, params)[0].prompt, params);
  params.grammar =
      std::make_shared<testing::ToyGrammar>(tiny::kVocab, 2, [](const Tokens& before) -> Tokens {
        if (before.size() < 7) return {5, 6, 7};
        throw Error("too many states");
      });
  engine.add_request(1, {1, 2, 3}, params);
  std::map<uint64_t, Tokens> tokens;
  std::string error;
  while (engine.has_unfinished_requests()) {
    for (const RequestOutput& output : engine.step()) {
      error += output.error;
      if (output.outputs.empty()) continue;
      const Tokens& fresh = output.outputs[0].new_token_ids;
      tokens[output.request_id].insert(tokens[output.request_id].end(), fresh.begin(), fresh.end());
    }
  }
  EXPECT_NE(error.find("too many states"), std::string::npos);
  EXPECT_EQ(tokens[1].size(), 7u);
  EXPECT_EQ(tokens[0], expected.at("r0/0").tokens);
  EXPECT_GT(engine.stats().num_device_steps, 3);
}

TEST_P(DeviceExecutorTest, AnAbortedRequestLeavesTheOthersAlone) {
  const std::vector<Job> jobs = jobs_of(3, greedy());
  expect_abort_leaves_the_others(with_draft(draft_, 3), jobs, run(with_draft(draft_, 3), jobs));
}

// Drafts of the host, chains and trees, are verified by one launch.
TEST_P(DeviceExecutorTest, DraftsOfTheHostNeverChangeAnAnswer) {
  for (const SamplingParams& params : {greedy(), shaped()}) {
    const std::vector<Job> jobs = jobs_of(3, params);
    const Answers plain = run(config(), jobs);
    for (const EngineConfig& config : {with_ngram(1), with_ngram(3)}) {
      int64_t num_device_steps = 0;
      expect_equal(plain, run(config, jobs, &num_device_steps));
      EXPECT_GT(num_device_steps, 3);
    }
  }
}

// The host's verification is the reference: the same coins decide.
TEST_P(DeviceExecutorTest, WeighedDraftsAreThoseTheHostWouldKeep) {
  for (Verification verification : {Verification::kStandard, Verification::kBlock}) {
    SamplingParams params = shaped();
    params.logprobs = std::nullopt;
    std::vector<Job> jobs = jobs_of(3, params);
    EngineConfig config = with_draft(draft_, 3);
    config.speculative.verification = verification;
    int64_t num_device_steps = 0;
    const Answers answers = run(config, jobs, &num_device_steps);
    EXPECT_GT(num_device_steps, 3);
    keep_ordinary(jobs);
    expect_equal(run(config, jobs), answers);
  }
}

// The pool is too small for all sequences, so that some are preempted and come back.
TEST_P(DeviceExecutorTest, AShortPoolChangesNoAnswer) {
  std::vector<Job> jobs = jobs_of(4, greedy());
  for (Job& job : jobs) job.params.max_tokens = 32;
  EngineConfig tight = with_draft(draft_, 3);
  tight.num_kv_blocks = 8;
  expect_equal(run(config(), jobs), run(tight, jobs));
}

TEST_P(DeviceExecutorTest, SyntheticAcceptanceFollowsItsRates) {
  expect_synthetic_acceptance(with_draft(draft_, 4));
}

}  // namespace
}  // namespace specdec
