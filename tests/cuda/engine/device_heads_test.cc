// Draft heads in steps of the device: they draft what the host drafts, node for node, and never
// change an answer.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "testing/device_drafting.h"
#include "testing/tiny_heads.h"

namespace specdec {
namespace {

using namespace testing::device_engine;
using testing::TempDirectory;
using testing::device_drafting::Case;
using testing::device_drafting::Seen;
using testing::device_drafting::World;

namespace heads = testing::tiny_heads;

const std::vector<DraftMethod> kMethods = {DraftMethod::kEagle, DraftMethod::kEagle3,
                                           DraftMethod::kMlpSpeculator};

std::string text_of(DraftMethod method) { return std::string(name_of(method)); }

void write_head(DraftMethod method, const TempDirectory& directory) {
  if (method == DraftMethod::kEagle) return heads::write_eagle(directory);
  if (method == DraftMethod::kEagle3) return heads::write_eagle3(directory);
  heads::write_mlp_speculator(directory);
}

DrafterConfig drafter_of(DraftMethod method, const TempDirectory& directory) {
  DrafterConfig drafter;
  drafter.method = method;
  drafter.model = directory.path();
  drafter.quantization = "none";
  return drafter;
}

std::vector<Job> long_jobs(int count, SamplingParams params, int max_tokens) {
  params.max_tokens = max_tokens;
  return jobs_of(count, params);
}

// Draws, which the heads cannot foresee.
SamplingParams drawn() {
  SamplingParams params = shaped();
  params.stop_token_ids = {};
  params.repetition_penalty = 1.0f;
  return params;
}

// ---- against the host's drafter, step by step

using DraftsParam = std::tuple<cuda::testing::DeviceKind, DraftMethod>;

class DeviceHeadDrafts : public ::testing::TestWithParam<DraftsParam> {
 protected:
  DeviceHeadDrafts() {
    tiny::write_checkpoint(target_, heads::target_tensors());
    write_head(method(), head_);
  }
  static DraftMethod method() { return std::get<1>(GetParam()); }

  Seen compare(const Case& test, const std::vector<Job>& jobs) {
    World world(std::get<0>(GetParam()), target_.path(), drafter_of(method(), head_));
    return testing::device_drafting::compare(world, test, jobs);
  }

  TempDirectory target_;
  TempDirectory head_;
};

INSTANTIATE_TEST_SUITE_P(Devices, DeviceHeadDrafts,
                         ::testing::Combine(::testing::ValuesIn(cuda::testing::device_kinds()),
                                            ::testing::ValuesIn(kMethods)),
                         [](const auto& info) {
                           return name_of(std::get<0>(info.param)) + "_" +
                                  text_of(std::get<1>(info.param));
                         });

// What is run again in the first pass of a step differs with how much was accepted before.
TEST_P(DeviceHeadDrafts, ChainsAreThoseOfTheHostWhateverWasAccepted) {
  const Case test = {.shape = {.width = 1, .max_nodes = 3}, .num_passes = 3, .params = drawn()};
  const Seen seen = compare(test, long_jobs(3, drawn(), 30));
  EXPECT_GT(seen.num_none, 0);
  EXPECT_GT(seen.num_some, 0);
  EXPECT_GT(seen.num_whole, 0);
}

TEST_P(DeviceHeadDrafts, TreesAreThoseOfTheHostWhateverWasAccepted) {
  const Case test = {.shape = {.width = 3, .max_nodes = 10}, .num_passes = 4, .params = drawn()};
  const Seen seen = compare(test, long_jobs(3, drawn(), 30));
  EXPECT_GT(seen.num_branched, 10);
  EXPECT_GT(seen.num_none, 0);
  EXPECT_GT(seen.num_some, 0);
  EXPECT_GT(seen.num_whole, 0);
}

TEST_P(DeviceHeadDrafts, GreedyTreesAreCutDownAsOnTheHost) {
  const Seen seen =
      compare({.shape = {.width = 4, .max_nodes = 6}, .num_passes = 3, .params = greedy()},
              long_jobs(3, greedy(), 20));
  EXPECT_GT(seen.num_branched, 5);
}

// A head has no row for the first token of a text.
TEST_P(DeviceHeadDrafts, ATextOfOneTokenIsDraftedForFromItsSecondOn) {
  std::vector<Job> jobs = long_jobs(2, greedy(), 12);
  jobs[0].prompt = {5};
  const Seen seen =
      compare({.shape = {.width = 2, .max_nodes = 6}, .num_passes = 3, .params = greedy()}, jobs);
  EXPECT_GT(seen.num_branched, 2);
}

// ---- whole engines

EngineConfig with_drafter(EngineConfig config, const DrafterConfig& drafter, int num_tokens,
                          int width, DraftLengthPolicy policy = DraftLengthPolicy::kFixed) {
  config.speculative.num_speculative_tokens = num_tokens;
  config.speculative.draft_length_policy = policy;
  config.speculative.tree_width = width;
  config.speculative.drafters = {drafter};
  return config;
}

using EngineParam = std::tuple<std::string, DraftMethod>;

class DeviceHeadEngine : public ::testing::TestWithParam<EngineParam>, protected EngineWorld {
 protected:
  DeviceHeadEngine() : EngineWorld(std::get<0>(GetParam())) {
    tiny::write_checkpoint(target_, heads::target_tensors());
    write_head(method(), head_);
  }
  static DraftMethod method() { return std::get<1>(GetParam()); }

  EngineConfig with_head(int num_tokens, int width = 1,
                         DraftLengthPolicy policy = DraftLengthPolicy::kFixed) const {
    return with_drafter(config(), drafter_of(method(), head_), num_tokens, width, policy);
  }

  TempDirectory head_;
};

INSTANTIATE_TEST_SUITE_P(Devices, DeviceHeadEngine,
                         ::testing::Combine(::testing::ValuesIn(engine_devices()),
                                            ::testing::ValuesIn(kMethods)),
                         [](const auto& info) {
                           return std::get<0>(info.param) + "_" + text_of(std::get<1>(info.param));
                         });

TEST_P(DeviceHeadEngine, NeverChangesAnAnswer) {
  for (const SamplingParams& params : {greedy(), shaped()}) {
    const std::vector<Job> jobs = long_jobs(3, params, 24);
    const Answers plain = run(config(), jobs);
    for (const int width : {1, 3}) {
      SCOPED_TRACE(width);
      EngineStats stats;
      expect_equal(plain, run(with_head(3, width), jobs, &stats));
      EXPECT_GT(stats.num_device_steps, 3);
      EXPECT_GT(stats.acceptance.num_accepted_tokens, 10);
    }
  }
}

TEST_P(DeviceHeadEngine, CountsWhatTheHostCounts) {
  SamplingParams params = shaped();
  params.stop_token_ids = {};
  compare_with_host(with_head(4), long_jobs(1, params, 24));
  compare_with_host(with_head(4, 2), long_jobs(1, params, 24));
  std::vector<Job> jobs = jobs_of(3, greedy());
  for (size_t i = 0; i < jobs.size(); ++i) {
    jobs[i].params.max_tokens = 12 + static_cast<int>(5 * i);
    jobs[i].params.num_speculative_tokens = 1 + static_cast<int>(i);
  }
  EngineConfig config = with_head(4, 3);
  config.speculative.max_draft_nodes = 7;
  config.max_num_batched_tokens = 128;
  compare_with_host(config, jobs);
}

TEST_P(DeviceHeadEngine, LaunchesOneByOneGiveWhatGraphsGive) {
  const std::vector<Job> jobs = long_jobs(2, shaped(), 24);
  EngineConfig eager = with_head(3, 2);
  eager.enforce_eager = true;
  expect_equal(run(with_head(3, 2), jobs), run(eager, jobs));
}

TEST_P(DeviceHeadEngine, AnAdaptiveDepthNeverChangesAnAnswer) {
  const std::vector<Job> jobs = long_jobs(3, shaped(), 40);
  int64_t num_device_steps = 0;
  expect_equal(run(config(), jobs),
               run(with_head(4, 2, DraftLengthPolicy::kAuto), jobs, &num_device_steps));
  EXPECT_GT(num_device_steps, 5);
}

TEST_P(DeviceHeadEngine, RequestsComeAndGoWhileOthersDecode) {
  std::vector<Job> jobs = jobs_of(7, shaped(), /*gap=*/3);
  for (size_t i = 0; i < jobs.size(); ++i) {
    jobs[i].params.max_tokens = 5 + static_cast<int>(3 * i) % 10;
    jobs[i].params.n = i == 4 ? 2 : 1;
  }
  const Answers plain = run(config(), jobs);
  expect_equal(plain, run(with_head(3), jobs));
  expect_equal(plain, run(with_head(3, 3), jobs));
}

// The second request's blocks come from the first one's prompt and answer.
TEST_P(DeviceHeadEngine, APrefixHitIsDraftedForAlike) {
  std::vector<Job> jobs = long_jobs(1, greedy(), 30);
  for (int i = 0; i < 40; ++i) jobs[0].prompt.push_back((i * 3 + i * i) % tiny::kVocab);
  jobs.push_back(jobs[0]);
  jobs[1].id = "again";
  jobs[1].prompt.push_back(9);
  jobs[1].arrives = 45;  // the first one is done
  for (const int width : {1, 2}) {
    EngineStats hit, miss;
    EngineConfig config = with_head(3, width);
    const Answers cached = run(config, jobs, &hit);
    config.enable_prefix_caching = false;
    expect_equal(run(config, jobs, &miss), cached);
    EXPECT_GT(hit.num_cached_tokens, 30);
    EXPECT_EQ(hit.acceptance.num_draft_tokens, miss.acceptance.num_draft_tokens);
    EXPECT_EQ(hit.acceptance.histogram, miss.acceptance.histogram);
    expect_equal(run(this->config(), jobs), cached);
  }
}

// The pool is too small for all sequences, so that some are preempted and come back.
TEST_P(DeviceHeadEngine, AShortPoolChangesNoAnswer) {
  const std::vector<Job> jobs = long_jobs(4, greedy(), 40);
  const Answers plain = run(config(), jobs);
  for (const int width : {1, 2}) {
    EngineConfig tight = with_head(3, width);
    tight.num_kv_blocks = 8;
    EngineStats stats;
    expect_equal(plain, run(tight, jobs, &stats));
    EXPECT_GT(stats.num_preemptions, 0);
  }
}

// Steps without drafts leave the head behind; it catches up when there are drafts again.
TEST_P(DeviceHeadEngine, AHeadFarBehindCatchesUpBetweenStepsUnderWay) {
  EngineConfig config = with_head(3);
  config.speculative.num_speculative_tokens_per_batch_size = {
      {.first = 1, .last = 3, .num_speculative_tokens = 3},
      {.first = 4, .last = 4, .num_speculative_tokens = 0}};
  std::vector<Job> jobs = long_jobs(4, greedy(), 60);
  for (Job& job : jobs) job.params.ignore_eos = true;
  jobs[1].params.max_tokens = 2 * kMaxUnseen;
  EngineStats stats;
  const Answers drafted = run(config, jobs, &stats);
  EXPECT_GT(stats.acceptance.num_draft_tokens, 30);
  expect_equal(run(this->config(), jobs), drafted);
}

// The host's verification is the reference: the same coins decide.
TEST_P(DeviceHeadEngine, WeighedDraftsAreThoseTheHostWouldKeep) {
  for (Verification verification : {Verification::kStandard, Verification::kBlock}) {
    SamplingParams params = shaped();
    params.logprobs = std::nullopt;
    std::vector<Job> jobs = long_jobs(3, params, 20);
    EngineConfig config = with_head(3);
    config.speculative.verification = verification;
    int64_t num_device_steps = 0;
    const Answers answers = run(config, jobs, &num_device_steps);
    EXPECT_GT(num_device_steps, 3);
    keep_ordinary(jobs);
    expect_equal(run(config, jobs), answers);
  }
}

// The EAGLE-3 head scores none of the tokens that are allowed.
TEST_P(DeviceHeadEngine, TokensThatAHeadDoesNotScoreMayBeAllOfThoseAllowed) {
  SamplingParams params = greedy();
  for (int token = 0; token < tiny::kVocab; ++token) {
    const std::vector<int> scored = heads::scored_tokens();
    if (std::ranges::find(scored, token) == scored.end()) params.allowed_token_ids.push_back(token);
  }
  const std::vector<Job> jobs = long_jobs(2, params, 30);
  const Answers plain = run(config(), jobs);
  for (const int width : {1, 3}) expect_equal(plain, run(with_head(3, width), jobs));
}

TEST_P(DeviceHeadEngine, SyntheticAcceptanceFollowsItsRates) {
  expect_synthetic_acceptance(with_head(4));
}

// ---- heads of other settings

class DeviceEagle3 : public EngineTest {
 protected:
  DeviceEagle3() { tiny::write_checkpoint(target_, heads::target_tensors()); }
};

INSTANTIATE_TEST_SUITE_P(Devices, DeviceEagle3, ::testing::ValuesIn(engine_devices()),
                         engine_test_name);

// The first layer adds to the normalised features.
TEST_P(DeviceEagle3, NormedResidualsCountWhatTheHostCounts) {
  TempDirectory head;
  heads::write_eagle3(head, R"(,"norm_before_residual":true)");
  const std::vector<Job> jobs = long_jobs(1, drawn(), 80);
  const EngineConfig config =
      with_drafter(this->config(), drafter_of(DraftMethod::kEagle3, head), 3, 1);
  expect_equal(run(this->config(), jobs), run(config, jobs));
  compare_with_host(config, jobs);
}

}  // namespace
}  // namespace specdec
