// Draft models and draft heads in device steps: they draft the host's nodes, and never change an
// answer.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "testing/device_drafting.h"
#include "testing/tiny_draft_heads.h"

namespace specdec {
namespace {

using namespace testing::device_engine;
using testing::device_drafting::Case;
using testing::device_drafting::Seen;
using testing::device_drafting::World;

namespace heads = testing::tiny_draft_heads;

const std::vector<DraftMethod> kMethods = {DraftMethod::kDraftModel, DraftMethod::kEagle,
                                           DraftMethod::kEagle3, DraftMethod::kMlpSpeculator,
                                           DraftMethod::kDspark};

// Writes a target and its drafter.
void write_models(DraftMethod method, const TempDirectory& target, const TempDirectory& drafter) {
  if (method == DraftMethod::kDraftModel) {
    tiny::write_checkpoint(target, tiny::llama_tensors());
    return tiny::write_checkpoint(drafter, tiny::perturbed(tiny::llama_tensors(), 0.03f));
  }
  tiny::write_checkpoint(target, heads::target_tensors());
  if (method == DraftMethod::kEagle) return heads::write_eagle(drafter);
  if (method == DraftMethod::kEagle3) return heads::write_eagle3(drafter);
  if (method == DraftMethod::kDspark) return heads::write_dflash(drafter, /*is_dspark=*/true);
  if (method == DraftMethod::kDflash) return heads::write_dflash(drafter, /*is_dspark=*/false);
  heads::write_mlp_speculator(drafter);
}

std::vector<Asked> long_jobs(int count, SamplingParams params, int max_tokens) {
  params.max_tokens = max_tokens;
  return jobs_of(count, params);
}

// Sampled requests, which drafters cannot foresee.
SamplingParams drawn() {
  SamplingParams params = shaped();
  params.stop_token_ids = {};
  params.repetition_penalty = 1.0f;
  return params;
}

// ---- against the host's drafter, step by step

using DraftsParam = std::tuple<cuda::testing::DeviceKind, DraftMethod>;

class DeviceDrafts : public ::testing::TestWithParam<DraftsParam> {
 protected:
  DeviceDrafts() { write_models(std::get<1>(GetParam()), target_, drafter_); }

  Seen compare(const Case& test, const std::vector<Asked>& jobs) {
    const auto& [device, method] = GetParam();
    World world(device, target_.path(), drafter_of(method, drafter_.path()));
    return testing::device_drafting::compare(world, test, jobs);
  }

  TempDirectory target_;
  TempDirectory drafter_;
};

INSTANTIATE_TEST_SUITE_P(Devices, DeviceDrafts,
                         ::testing::Combine(::testing::ValuesIn(cuda::testing::device_kinds()),
                                            ::testing::ValuesIn(kMethods)),
                         [](const auto& info) {
                           return name_of(std::get<0>(info.param)) + "_" +
                                  std::string(name_of(std::get<1>(info.param)));
                         });

// The number of tokens that a step's first draft pass runs again depends on how many were accepted.
TEST_P(DeviceDrafts, ChainsAreThoseOfTheHostWhateverWasAccepted) {
  const Case test = {.shape = {.width = 1, .max_nodes = 3}, .num_passes = 3, .params = drawn()};
  const Seen seen = compare(test, long_jobs(3, drawn(), 30));
  EXPECT_GT(seen.num_none, 0);
  EXPECT_GT(seen.num_some, 0);
  EXPECT_GT(seen.num_whole, 0);
}

TEST_P(DeviceDrafts, TreesAreThoseOfTheHostWhateverWasAccepted) {
  const Case test = {.shape = {.width = 3, .max_nodes = 10}, .num_passes = 4, .params = drawn()};
  const Seen seen = compare(test, long_jobs(3, drawn(), 30));
  EXPECT_GT(seen.num_branched, 10);
  EXPECT_GT(seen.num_none, 0);
  EXPECT_GT(seen.num_some, 0);
  EXPECT_GT(seen.num_whole, 0);
}

TEST_P(DeviceDrafts, TreesUnderPenaltiesAreThoseOfTheHost) {
  const Case test = {.shape = {.width = 3, .max_nodes = 12}, .num_passes = 4, .params = shaped()};
  EXPECT_GT(compare(test, jobs_of(3, shaped())).num_branched, 5);
}

// There is room for fewer nodes than the levels have, so survival decides which stay.
TEST_P(DeviceDrafts, TreesAreCutDownAsOnTheHost) {
  for (const int num_passes : {3, 4}) {
    const Case test = {.shape = {.width = 4, .max_nodes = num_passes == 3 ? 6 : 5},
                       .num_passes = num_passes,
                       .params = greedy()};
    EXPECT_GT(compare(test, long_jobs(3, greedy(), 20)).num_branched, 5);
  }
  const Case test = {.shape = {.width = 5, .max_nodes = 6},
                     .num_passes = 1,
                     .sampling = DraftSampling::kArgmax,
                     .params = shaped()};
  EXPECT_GT(compare(test, jobs_of(3, shaped())).num_branched, 5);
}

// A draft head has no row for a text's first token, so it drafts from the second token on.
TEST_P(DeviceDrafts, ATextOfOneTokenIsDraftedFor) {
  std::vector<Asked> jobs = long_jobs(2, greedy(), 12);
  jobs[0].prompt = {5};
  const Seen seen =
      compare({.shape = {.width = 2, .max_nodes = 6}, .num_passes = 3, .params = greedy()}, jobs);
  EXPECT_GT(seen.num_branched, 2);
}

// ---- whole engines

using EngineParam = std::tuple<std::string, DraftMethod>;

class DeviceDrafterEngine : public ::testing::TestWithParam<EngineParam>, protected EngineWorld {
 protected:
  DeviceDrafterEngine() : EngineWorld(std::get<0>(GetParam())) {
    write_models(std::get<1>(GetParam()), target_, drafter_);
  }

  EngineConfig with_drafts(int num_tokens, int width = 1,
                           DraftLengthPolicy policy = DraftLengthPolicy::kFixed) const {
    const DrafterConfig drafter = drafter_of(std::get<1>(GetParam()), drafter_.path());
    return with_drafter(config(), drafter, num_tokens, width, policy);
  }

  TempDirectory drafter_;
};

INSTANTIATE_TEST_SUITE_P(Devices, DeviceDrafterEngine,
                         ::testing::Combine(::testing::ValuesIn(engine_devices()),
                                            ::testing::ValuesIn(kMethods)),
                         [](const auto& info) {
                           return std::get<0>(info.param) + "_" +
                                  std::string(name_of(std::get<1>(info.param)));
                         });

TEST_P(DeviceDrafterEngine, NeverChangesAnAnswer) {
  for (const SamplingParams& params : {greedy(), shaped()}) {
    const std::vector<Asked> jobs = long_jobs(3, params, 24);
    const Answers plain = run(config(), jobs);
    for (const int width : {1, 3}) {
      SCOPED_TRACE(width);
      EngineStats stats;
      EXPECT_EQ(plain, run(with_drafts(3, width), jobs, &stats));
      EXPECT_GT(stats.num_device_steps, 3);
      EXPECT_GT(stats.acceptance.num_accepted_tokens, 10);
    }
  }
}

TEST_P(DeviceDrafterEngine, CountsWhatTheHostCounts) {
  SamplingParams params = shaped();
  params.stop_token_ids = {};
  compare_with_host(with_drafts(4), long_jobs(1, params, 24));
  compare_with_host(with_drafts(4, 2), long_jobs(1, params, 24));
  std::vector<Asked> jobs = jobs_of(3, greedy());
  for (size_t i = 0; i < jobs.size(); ++i) {
    jobs[i].params.max_tokens = 12 + static_cast<int>(5 * i);
    jobs[i].params.num_speculative_tokens = 1 + static_cast<int>(i);
  }
  EngineConfig config = with_drafts(4, 3);
  config.speculative.max_draft_nodes = 7;
  config.max_num_batched_tokens = 128;
  compare_with_host(config, jobs);
}

TEST_P(DeviceDrafterEngine, LaunchesOneByOneGiveWhatGraphsGive) {
  const std::vector<Asked> jobs = long_jobs(2, shaped(), 24);
  for (const int width : {1, 3}) {
    EngineConfig eager = with_drafts(3, width);
    eager.enforce_eager = true;
    EXPECT_EQ(run(with_drafts(3, width), jobs), run(eager, jobs));
  }
}

TEST_P(DeviceDrafterEngine, AnAdaptiveDepthNeverChangesAnAnswer) {
  const std::vector<Asked> jobs = long_jobs(3, shaped(), 40);
  const Answers plain = run(config(), jobs);
  for (const int width : {1, 2}) {
    int64_t num_device_steps = 0;
    EXPECT_EQ(plain, run(with_drafts(4, width, DraftLengthPolicy::kAuto), jobs, &num_device_steps));
    EXPECT_GT(num_device_steps, 5);
  }
}

TEST_P(DeviceDrafterEngine, RequestsComeAndGoWhileOthersDecode) {
  std::vector<Asked> jobs = jobs_of(7, shaped(), /*gap=*/3);
  for (size_t i = 0; i < jobs.size(); ++i) {
    jobs[i].params.max_tokens = 5 + static_cast<int>(3 * i) % 10;
    jobs[i].params.n = i == 4 ? 2 : 1;
  }
  const Answers plain = run(config(), jobs);
  EXPECT_EQ(plain, run(with_drafts(3), jobs));
  EXPECT_EQ(plain, run(with_drafts(3, 3), jobs));
  keep_ordinary(jobs);
  EXPECT_EQ(plain, run(config(), jobs));
}

// Requests end at the model's last position, behind which there are no KV slots for branches.
TEST_P(DeviceDrafterEngine, TreesAtTheLongestLength) {
  const std::vector<Asked> jobs = long_jobs(2, greedy(), 200);
  EngineConfig plain = config();
  EngineConfig trees = with_drafts(4, 3);
  plain.max_model_len = trees.max_model_len = 32;
  EXPECT_EQ(run(plain, jobs), run(trees, jobs));
}

TEST_P(DeviceDrafterEngine, AnAbortedRequestLeavesTheOthersAlone) {
  const std::vector<Asked> jobs = jobs_of(3, greedy());
  const Answers plain = run(config(), jobs);
  for (const int width : {1, 2}) expect_abort_leaves_the_others(with_drafts(3, width), jobs, plain);
}

// The second request reuses blocks of the first one's prompt and answer.
TEST_P(DeviceDrafterEngine, APrefixHitIsDraftedForAlike) {
  std::vector<Asked> jobs = long_jobs(1, greedy(), 30);
  for (int i = 0; i < 40; ++i) jobs[0].prompt.push_back((i * 3 + i * i) % tiny::kVocab);
  jobs.push_back(jobs[0]);
  jobs[1].id = "again";
  jobs[1].prompt.push_back(9);
  jobs[1].arrives = 45;  // the first one is done
  for (const int width : {1, 2}) {
    EngineStats hit, miss;
    EngineConfig config = with_drafts(3, width);
    const Answers cached = run(config, jobs, &hit);
    config.enable_prefix_caching = false;
    EXPECT_EQ(run(config, jobs, &miss), cached);
    EXPECT_GT(hit.num_cached_tokens, 30);
    EXPECT_EQ(hit.acceptance.num_draft_tokens, miss.acceptance.num_draft_tokens);
    EXPECT_EQ(hit.acceptance.histogram, miss.acceptance.histogram);
    EXPECT_EQ(run(this->config(), jobs), cached);
  }
}

// The pool is too small for all sequences, so that some are preempted and come back.
TEST_P(DeviceDrafterEngine, AShortPoolChangesNoAnswer) {
  const std::vector<Asked> jobs = long_jobs(4, greedy(), 40);
  const Answers plain = run(config(), jobs);
  for (const int width : {1, 2}) {
    EngineConfig tight = with_drafts(3, width);
    tight.num_kv_blocks = 8;
    EngineStats stats;
    EXPECT_EQ(plain, run(tight, jobs, &stats));
    EXPECT_GT(stats.num_preemptions, 0);
  }
}

// Steps without drafts leave the drafter behind; it catches up when there are drafts again.
TEST_P(DeviceDrafterEngine, ADrafterFarBehindCatchesUpBetweenStepsUnderWay) {
  EngineConfig config = with_drafts(3);
  config.speculative.num_speculative_tokens_per_batch_size = {
      {.first = 1, .last = 3, .num_speculative_tokens = 3},
      {.first = 4, .last = 4, .num_speculative_tokens = 0}};
  std::vector<Asked> jobs = long_jobs(4, greedy(), 60);
  for (Asked& job : jobs) job.params.ignore_eos = true;
  jobs[1].params.max_tokens = 2 * kMaxUnseen;
  EngineStats stats;
  const Answers drafted = run(config, jobs, &stats);
  EXPECT_GT(stats.acceptance.num_draft_tokens, 30);
  EXPECT_EQ(run(this->config(), jobs), drafted);
}

// The host's verification is the reference, with the same coins.
TEST_P(DeviceDrafterEngine, WeighedDraftsAreThoseTheHostWouldKeep) {
  for (Verification verification : {Verification::kStandard, Verification::kBlock}) {
    SamplingParams params = shaped();
    params.logprobs = std::nullopt;
    std::vector<Asked> jobs = long_jobs(3, params, 20);
    EngineConfig config = with_drafts(3);
    config.speculative.verification = verification;
    int64_t num_device_steps = 0;
    const Answers answers = run(config, jobs, &num_device_steps);
    EXPECT_GT(num_device_steps, 3);
    keep_ordinary(jobs);
    EXPECT_EQ(run(config, jobs), answers);
  }
}

TEST_P(DeviceDrafterEngine, WeighedTreesAreThoseTheHostWouldKeep) {
  SamplingParams params = shaped();
  params.logprobs = std::nullopt;
  EngineConfig config = with_drafts(3, 2);
  config.speculative.verification = Verification::kStandard;
  config.speculative.drafters[0].sample_method = DraftSampleMethod::kGreedy;
  compare_with_host(config, jobs_of(3, params));
}

// The EAGLE-3 head scores none of the allowed tokens.
TEST_P(DeviceDrafterEngine, TokensThatAHeadDoesNotScoreMayBeAllOfThoseAllowed) {
  SamplingParams params = greedy();
  for (int token = 0; token < tiny::kVocab; ++token) {
    const std::vector<int> scored = heads::scored_tokens();
    if (std::ranges::find(scored, token) == scored.end()) params.allowed_token_ids.push_back(token);
  }
  const std::vector<Asked> jobs = long_jobs(2, params, 30);
  const Answers plain = run(config(), jobs);
  for (const int width : {1, 3}) EXPECT_EQ(plain, run(with_drafts(3, width), jobs));
}

TEST_P(DeviceDrafterEngine, SyntheticAcceptanceFollowsItsRates) {
  for (const int width : {1, 2}) expect_synthetic_acceptance(with_drafts(4, width));
}

// ---- heads of other settings

class DeviceDflash : public ::testing::TestWithParam<cuda::testing::DeviceKind> {};

INSTANTIATE_TEST_SUITE_P(Devices, DeviceDflash, ::testing::ValuesIn(cuda::testing::device_kinds()),
                         cuda::testing::test_name);

// Without a Markov head.
TEST_P(DeviceDflash, DraftsAreThoseOfTheHost) {
  TempDirectory target, drafter;
  write_models(DraftMethod::kDflash, target, drafter);
  for (const int width : {1, 3}) {
    World world(GetParam(), target.path(), drafter_of(DraftMethod::kDflash, drafter.path()));
    const Case test = {
        .shape = {.width = width, .max_nodes = 9}, .num_passes = 4, .params = shaped()};
    const Seen seen = testing::device_drafting::compare(world, test, long_jobs(3, shaped(), 24));
    EXPECT_GT(seen.num_none, 10);
  }
}

class DeviceEagle3 : public EngineTest {
 protected:
  DeviceEagle3() { tiny::write_checkpoint(target_, heads::target_tensors()); }
};

INSTANTIATE_TEST_SUITE_P(Devices, DeviceEagle3, ::testing::ValuesIn(engine_devices()),
                         engine_test_name);

// The draft head's first layer adds to normalised features.
TEST_P(DeviceEagle3, NormedResidualsCountWhatTheHostCounts) {
  TempDirectory head;
  heads::write_eagle3(head, R"(,"norm_before_residual":true)");
  const std::vector<Asked> jobs = long_jobs(1, drawn(), 80);
  const EngineConfig config =
      with_drafter(this->config(), drafter_of(DraftMethod::kEagle3, head.path()), 3);
  EXPECT_EQ(run(this->config(), jobs), run(config, jobs));
  compare_with_host(config, jobs);
}

}  // namespace
}  // namespace specdec
