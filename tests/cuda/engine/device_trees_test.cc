// The device drafts the trees that ModelDrafter drafts, node for node, and they never change
// an answer.
#include <gtest/gtest.h>

#include <optional>
#include <utility>
#include <vector>

#include "testing/device_drafting.h"

namespace specdec {
namespace {

using namespace testing::device_engine;
using testing::TempDirectory;
using testing::device_drafting::Case;
using testing::device_drafting::Seen;
using testing::device_drafting::World;

class DeviceTreeTest : public ::testing::TestWithParam<cuda::testing::DeviceKind> {
 protected:
  DeviceTreeTest() {
    tiny::write_checkpoint(target_, tiny::llama_tensors());
    tiny::write_checkpoint(draft_, tiny::perturbed(tiny::llama_tensors(), 0.03f));
  }

  void compare(const Case& test) {
    DrafterConfig drafter;
    drafter.method = DraftMethod::kDraftModel;
    drafter.model = draft_.path();
    World world(GetParam(), target_.path(), drafter);
    const Seen seen = testing::device_drafting::compare(world, test, jobs_of(3, test.params));
    EXPECT_GT(seen.num_branched, 5);
  }

  TempDirectory target_;
  TempDirectory draft_;
};

INSTANTIATE_TEST_SUITE_P(Devices, DeviceTreeTest,
                         ::testing::ValuesIn(cuda::testing::device_kinds()),
                         cuda::testing::test_name);

TEST_P(DeviceTreeTest, GreedyTreesAreThoseOfTheHost) {
  compare({.shape = {.width = 2, .max_nodes = 8}, .num_passes = 4, .params = greedy()});
}

TEST_P(DeviceTreeTest, TreesOfPenaltiesAndDrawsAreThoseOfTheHost) {
  SamplingParams params = shaped();
  compare({.shape = {.width = 3, .max_nodes = 12}, .num_passes = 4, .params = params});
}

// There is room for fewer nodes than the levels have, so that survival decides which are kept.
TEST_P(DeviceTreeTest, TreesAreCutDownAsOnTheHost) {
  compare({.shape = {.width = 4, .max_nodes = 5}, .num_passes = 4, .params = greedy()});
  compare({.shape = {.width = 5, .max_nodes = 6},
           .num_passes = 1,
           .sampling = DraftSampling::kArgmax,
           .params = shaped()});
}

class DeviceTreeLoopTest : public EngineTest {
 protected:
  EngineConfig with_trees(const TempDirectory& model, int num_tokens, int width,
                          DraftLengthPolicy policy = DraftLengthPolicy::kFixed) const {
    EngineConfig config = with_draft(model, num_tokens, policy);
    config.speculative.tree_width = width;
    return config;
  }
};

INSTANTIATE_TEST_SUITE_P(Devices, DeviceTreeLoopTest, ::testing::ValuesIn(engine_devices()),
                         engine_test_name);

TEST_P(DeviceTreeLoopTest, NeverChangesAnAnswer) {
  for (const SamplingParams& params : {greedy(), shaped()}) {
    const std::vector<Job> jobs = jobs_of(3, params);
    const Answers plain = run(config(), jobs);
    for (const auto& [model, width] : {std::pair(&target_, 2), std::pair(&draft_, 3)}) {
      SCOPED_TRACE(width);
      int64_t num_device_steps = 0;
      expect_equal(plain, run(with_trees(*model, 3, width), jobs, &num_device_steps));
      EXPECT_GT(num_device_steps, 2);
    }
  }
}

TEST_P(DeviceTreeLoopTest, CountsWhatTheHostCounts) {
  SamplingParams params = shaped();
  params.stop_token_ids = {};
  compare_with_host(with_trees(draft_, 4, 2), jobs_of(1, params));
  // Each request has a limit of its own.
  std::vector<Job> jobs = jobs_of(3, greedy());
  for (size_t i = 0; i < jobs.size(); ++i) {
    jobs[i].params.max_tokens = 9 + static_cast<int>(4 * i);
    jobs[i].params.num_speculative_tokens = 1 + static_cast<int>(2 * i);
  }
  EngineConfig config = with_trees(draft_, 5, 3);
  config.speculative.max_draft_nodes = 7;
  config.max_num_batched_tokens = 128;
  compare_with_host(config, jobs);
}

TEST_P(DeviceTreeLoopTest, StepsOneByOneGiveWhatGraphsGive) {
  const std::vector<Job> jobs = jobs_of(2, shaped());
  EngineConfig eager = with_trees(draft_, 3, 3);
  eager.enforce_eager = true;
  expect_equal(run(with_trees(draft_, 3, 3), jobs), run(eager, jobs));
}

TEST_P(DeviceTreeLoopTest, AnAdaptiveDepthNeverChangesAnAnswer) {
  std::vector<Job> jobs = jobs_of(3, shaped());
  for (Job& job : jobs) job.params.max_tokens = 40;
  int64_t num_device_steps = 0;
  expect_equal(run(config(), jobs),
               run(with_trees(target_, 4, 2, DraftLengthPolicy::kAuto), jobs, &num_device_steps));
  EXPECT_GT(num_device_steps, 5);
}

TEST_P(DeviceTreeLoopTest, RequestsComeAndGoWhileOthersDecode) {
  std::vector<Job> jobs = jobs_of(7, shaped(), /*gap=*/3);
  for (size_t i = 0; i < jobs.size(); ++i) {
    jobs[i].params.max_tokens = 5 + static_cast<int>(3 * i) % 10;
    jobs[i].params.n = i == 4 ? 2 : 1;
  }
  expect_equal(run(config(), jobs), run(with_trees(draft_, 3, 3), jobs));
}

// Requests end at the model's last position, past which there are no KV slots for branches.
TEST_P(DeviceTreeLoopTest, TreesAtTheLongestLength) {
  std::vector<Job> jobs = jobs_of(2, greedy());
  for (Job& job : jobs) job.params.max_tokens = 200;
  EngineConfig plain = config();
  EngineConfig trees = with_trees(target_, 4, 3);
  plain.max_model_len = trees.max_model_len = 32;
  expect_equal(run(plain, jobs), run(trees, jobs));
}

TEST_P(DeviceTreeLoopTest, AnAbortedRequestLeavesTheOthersAlone) {
  const std::vector<Job> jobs = jobs_of(3, greedy());
  expect_abort_leaves_the_others(with_trees(draft_, 3, 2), jobs, run(config(), jobs));
}

TEST_P(DeviceTreeLoopTest, AShortPoolChangesNoAnswer) {
  std::vector<Job> jobs = jobs_of(4, greedy());
  for (Job& job : jobs) job.params.max_tokens = 32;
  EngineConfig tight = with_trees(draft_, 3, 2);
  tight.num_kv_blocks = 8;
  expect_equal(run(config(), jobs), run(tight, jobs));
}

TEST_P(DeviceTreeLoopTest, WeighedTreesAreThoseTheHostWouldKeep) {
  SamplingParams params = shaped();
  params.logprobs = std::nullopt;
  EngineConfig config = with_trees(draft_, 3, 2);
  config.speculative.verification = Verification::kStandard;
  config.speculative.drafters[0].sample_method = DraftSampleMethod::kGreedy;
  compare_with_host(config, jobs_of(3, params));
}

TEST_P(DeviceTreeLoopTest, SyntheticAcceptanceFollowsItsRates) {
  expect_synthetic_acceptance(with_trees(draft_, 4, 2));
}

// The device leaves trees of more nodes than a mask has bits to the host.
TEST_P(DeviceTreeLoopTest, WhatTheDeviceDoesNotDraftTheHostDoes) {
  const std::vector<Job> jobs = jobs_of(2, greedy());
  EngineConfig deep = with_trees(draft_, 16, 4);
  deep.max_num_batched_tokens = 128;
  expect_equal(run(config(), jobs), run(deep, jobs));
}

}  // namespace
}  // namespace specdec
