// The device drafts the trees that ModelDrafter drafts, node for node, and they never change
// an answer.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/request.h"
#include "runtime/model_drafter.h"
#include "speculation/draft_tree.h"
#include "testing/device_engine_world.h"
#include "testing/device_kinds.h"

namespace specdec {
namespace {

using namespace testing::device_engine;
using testing::TempDirectory;

constexpr int kBlockSize = 16;
constexpr int kMaxModelLen = 96;

// A target and a draft model for the device; the host drafts with a second copy of the draft model.
struct TreeWorld {
  static constexpr int kNumBlocks = 32;
  static constexpr int kMaxRows = 128;

  TreeWorld(cuda::testing::DeviceKind kind, const TempDirectory& target_model,
            const TempDirectory& draft_model)
      : backend(cuda::testing::make_backend(kind, DType::kBF16)),
        target(runner(target_model)),
        draft(runner(draft_model)) {}

  std::unique_ptr<ModelRunner> runner(const TempDirectory& model) {
    auto runner = std::make_unique<ModelRunner>(
        load_model_config(model.path()), model.path(), *backend,
        RunnerLimits{.max_model_len = kMaxModelLen, .max_rows = kMaxRows, .max_logit_rows = 16},
        Quantization::kNone);
    runner->allocate_cache(kNumBlocks, {.block_size = kBlockSize, .dtype = DType::kBF16});
    return runner;
  }

  std::unique_ptr<Backend> backend;
  std::unique_ptr<ModelRunner> target;
  std::unique_ptr<ModelRunner> draft;
  BlockPool pool{kNumBlocks};
};

// A request whose prompt the target has run, but for its last token.
struct Drafted {
  Drafted(TreeWorld& world, const Job& job, int ordinal, int max_depth, int max_nodes)
      : request(job.id, job.params),
        max_depth(max_depth),
        completion(request, 0, *job.params.seed, ordinal, job.prompt, kBlockSize, kMaxModelLen) {
    EXPECT_TRUE(
        completion.sequence.blocks.reserve(world.pool, sequence().max_num_tokens() + max_nodes));
    BatchInputs inputs;
    inputs.clear();
    inputs.add_chain(sequence().tokens().first(sequence().num_tokens() - 1), 0, sequence().blocks);
    world.target->forward(inputs);
  }

  Sequence& sequence() { return completion.sequence; }
  DeviceSeat seat() {
    const std::span<const int32_t> tokens = sequence().tokens();
    DeviceSeat seat{.is_active = true,
                    .num_tokens = sequence().num_tokens(),
                    .num_prompt_tokens = sequence().num_prompt_tokens(),
                    .max_num_tokens = sequence().max_num_tokens(),
                    .num_seen = 0,
                    .max_depth = max_depth,
                    .tokens = tokens.last(std::min<size_t>(tokens.size(), kMaxUnseen)),
                    .stop_token_ids = request.params.stop_token_ids,
                    .min_tokens = request.params.min_tokens,
                    .sampling = completion.make_row({}),
                    .blocks = sequence().blocks.ids()};
    seat.sampling.banned_token_ids = {};  // stop tokens, as long as the output is short
    seat.sampling.want_logprobs = false;
    seat.sampling.num_logprobs = 0;
    return seat;
  }

  Request request;
  int max_depth;
  CompletionState completion;
  DraftTree tree;
};

struct TreeCase {
  TreeShape shape;
  int num_passes = 0;
  DraftSampling sampling = DraftSampling::kCoupled;
  SamplingParams params;
};

class DeviceTreeTest : public ::testing::TestWithParam<cuda::testing::DeviceKind> {
 protected:
  DeviceTreeTest() {
    tiny::write_checkpoint(target_, tiny::llama_tensors());
    tiny::write_checkpoint(draft_, tiny::perturbed(tiny::llama_tensors(), 0.03f));
  }

  // Runs all requests to their end in steps of the device, and compares the trees of each step with
  // those that the host drafts for the same tokens.
  void compare(const TreeCase& test) {
    TreeWorld world(GetParam(), target_, draft_);
    std::vector<std::unique_ptr<Drafted>> requests;
    for (const Job& job : jobs_of(3, test.params)) {
      const auto index = static_cast<int>(requests.size());
      // The second request may not draft as deep.
      const int max_depth = index == 1 ? std::max(1, test.num_passes - 2) : test.num_passes;
      requests.push_back(
          std::make_unique<Drafted>(world, job, index, max_depth, test.shape.max_nodes));
    }
    auto device =
        world.backend->make_device_step({.num_seats = 4,
                                         .max_rows = TreeWorld::kMaxRows,
                                         .block_size = kBlockSize,
                                         .max_blocks_per_request = kMaxModelLen / kBlockSize + 4,
                                         .tree = test.shape,
                                         .sampling = test.sampling,
                                         .target = world.target.get(),
                                         .draft = world.draft.get()});
    ASSERT_NE(device, nullptr);
    std::vector<DeviceSeat> seats;
    for (const auto& request : requests) seats.push_back(request->seat());
    device->set_seats(seats);

    const auto runner = world.runner(draft_);
    ModelDrafter drafter(*runner, world.pool,
                         {.sampling = test.sampling,
                          .max_rows = TreeWorld::kMaxRows,
                          .max_model_len = kMaxModelLen,
                          .vocab_size = tiny::kVocab});
    const auto goes_on = [](const auto& request) { return !request->sequence().is_finished(); };
    int num_branched = 0;
    for (int step = 0; std::ranges::any_of(requests, goes_on); ++step) {
      draft_on_host(drafter, test, requests);
      device->launch({.num_seats = 3,
                      .num_passes = test.num_passes,
                      .max_unseen = step == 0 ? kMaxUnseen : 2});
      const StepOutcome outcome = device->wait();
      for (size_t i = 0; i < requests.size(); ++i) {
        SCOPED_TRACE(str_cat("step ", step, ", request ", i));
        num_branched += check(*requests[i], outcome.sequences[i]) ? 1 : 0;
      }
      if (::testing::Test::HasFailure()) return;
    }
    EXPECT_GT(num_branched, 5);
  }

  static void draft_on_host(ModelDrafter& drafter, const TreeCase& test,
                            std::vector<std::unique_ptr<Drafted>>& requests) {
    std::vector<DraftRequest> asks;
    for (const auto& request : requests) {
      Sequence& sequence = request->sequence();
      request->tree.reset(sequence.tokens().back());
      const int max_depth = sequence.max_draft_depth(request->max_depth);
      if (sequence.is_finished() || max_depth < 1) continue;
      request->completion.begin_step();
      asks.push_back({.sequence = sequence.ordinal,
                      .tokens = sequence.tokens(),
                      .max_depth = max_depth,
                      .max_nodes = test.shape.num_nodes(max_depth),
                      .num_slots = test.shape.num_nodes(max_depth),
                      .tree_width = test.shape.width,
                      .num_remaining = sequence.max_num_tokens() - sequence.num_tokens(),
                      .blocks = &sequence.blocks,
                      .rows = &request->completion,
                      .tree = &request->tree,
                      .error = {}});
    }
    if (!asks.empty()) drafter.draft(asks);
  }

  // Compares and commits what the step brought. True where the tree is more than a chain.
  static bool check(Drafted& request, const SequenceOutcome& slot) {
    const DraftTree& tree = request.tree;
    const auto tokens = tree.tokens().subspan(1);
    const auto parents = tree.parents().subspan(1);
    EXPECT_EQ(slot.drafts, Tokens(tokens.begin(), tokens.end()));
    EXPECT_EQ(slot.parents, Tokens(parents.begin(), parents.end()));
    int node = DraftTree::kRoot;
    for (int i = 0; i < static_cast<int>(slot.accepted.size()); ++i) {
      EXPECT_EQ(tree.parents()[slot.accepted[i]], node);
      node = slot.accepted[i];
      if (i < static_cast<int>(slot.tokens.size())) {
        EXPECT_EQ(tree.tokens()[node], slot.tokens[i]);
      }
    }
    EXPECT_EQ(slot.tokens.empty(), request.sequence().is_finished());  // each step brings some
    for (const int32_t token : slot.tokens) {
      EXPECT_FALSE(request.sequence().is_finished());
      request.sequence().append(token);
      request.completion.committed(token);
    }
    return !tree.is_chain();
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

  // Compares answers and statistics with those of steps whose drafting and verification the host
  // does, which are the reference.
  static void compare_with_host(const EngineConfig& config, std::vector<Job> jobs) {
    EngineStats on_device;
    const Answers answers = run(config, jobs, &on_device);
    EXPECT_GT(on_device.num_device_steps, 3);
    keep_ordinary(jobs);
    EngineStats on_host;
    expect_equal(run(config, jobs, &on_host), answers);
    EXPECT_EQ(on_host.num_device_steps, 0);
    const AcceptanceStats& device = on_device.acceptance;
    const AcceptanceStats& host = on_host.acceptance;
    EXPECT_EQ(device.num_steps, host.num_steps);
    EXPECT_EQ(device.num_draft_tokens, host.num_draft_tokens);
    EXPECT_EQ(device.num_accepted_tokens, host.num_accepted_tokens);
    EXPECT_EQ(device.proposed_per_position, host.proposed_per_position);
    EXPECT_EQ(device.accepted_per_position, host.accepted_per_position);
    EXPECT_EQ(device.histogram, host.histogram);
    EXPECT_GT(device.num_draft_tokens, 20);
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
  config.speculative.verification = Verification::kRejection;
  config.speculative.drafters[0].sampling = DraftSampling::kArgmax;
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
