// Models with recurrent layers through the engine on a device: drafts, chunks, cached prefixes,
// preemptions and other requests change no bit of an answer.
#include "testing/recurrent_models.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "core/str_cat.h"
#include "specdec/engine.h"
#include "testing/device_engine_world.h"
#include "testing/with_drafter.h"

namespace specdec::cuda {
namespace {

using specdec::testing::Answers;
using specdec::testing::Asked;
using specdec::testing::custom;
using specdec::testing::drafter_of;
using specdec::testing::run_alone;
using specdec::testing::run_to_end;
using specdec::testing::TempDirectory;
using specdec::testing::tokens_of;
using specdec::testing::with_drafter;
using specdec::testing::device_engine::keep_ordinary;
using specdec::testing::recurrent_models::drafter_that_knows;
using specdec::testing::recurrent_models::kAttention;
using specdec::testing::recurrent_models::kGatedDelta;
using specdec::testing::recurrent_models::kMamba2;
using specdec::testing::recurrent_models::kMamba2ByKeyHead;
using specdec::testing::recurrent_models::kShortConv;
using specdec::testing::recurrent_models::kWideMamba2;
using specdec::testing::recurrent_models::mixed_requests;
using specdec::testing::recurrent_models::RecurrentModel;
using specdec::testing::recurrent_models::write_config;

using Case = std::tuple<std::string, RecurrentModel, ModelDType>;

class DeviceRecurrentModels : public ::testing::TestWithParam<Case> {
 protected:
  DeviceRecurrentModels() { write_config(std::get<1>(GetParam()), directory_); }

  EngineConfig config() const {
    EngineConfig config;
    config.model = directory_.path();
    config.load_format = LoadFormat::kDummy;
    config.device = std::get<0>(GetParam());
    config.dtype = std::get<2>(GetParam());
    config.block_size = 16;
    config.max_model_len = 112;
    config.num_kv_blocks = 64;
    config.max_num_seqs = 4;
    config.max_num_batched_tokens = 64;
    return config;
  }

  TempDirectory directory_;
};

// Steps of the host, one request after another, without drafts and cached prefixes.
Answers run_by_host(EngineConfig config, std::vector<Asked> requests) {
  keep_ordinary(requests);
  config.enable_prefix_caching = false;
  Engine engine(config);
  Answers answers = run_alone(engine, requests);
  EXPECT_EQ(engine.stats().num_device_steps, 0);
  return answers;
}

TEST_P(DeviceRecurrentModels, NeitherDraftsNorNeighboursNorChunksNorPreemptionsChangeABit) {
  const std::vector<Asked> requests = mixed_requests(/*count=*/6, /*least_tokens=*/14);
  const Answers answers = run_by_host(config(), requests);
  int64_t num_accepted = 0, num_preemptions = 0, num_device_steps = 0, num_cached = 0;
  const auto expect_same = [&](EngineConfig config, int num_rows, int num_blocks) {
    SCOPED_TRACE(str_cat(num_rows, " rows, ", num_blocks, " blocks"));
    config.max_num_batched_tokens = num_rows;
    config.num_kv_blocks = num_blocks;
    Engine engine(config);
    EXPECT_EQ(run_to_end(engine, requests), answers);
    const EngineStats stats = engine.stats();
    num_accepted += stats.acceptance.num_accepted_tokens;
    num_preemptions += stats.num_preemptions;
    num_device_steps += stats.num_device_steps;
    num_cached += stats.num_cached_tokens;
    return stats;
  };
  const DrafterConfig known = custom(drafter_that_knows(answers, requests));
  expect_same(with_drafter(config(), known, 5, /*width=*/3), 13, 7);
  expect_same(with_drafter(config(), known, 5), 64, 64);
  EXPECT_GT(num_accepted, 60);
  EXPECT_GT(num_preemptions, 0);
  EXPECT_GT(num_device_steps, 10);
  EXPECT_GT(num_cached, 10);
  EXPECT_GT(expect_same(config(), 64, 8).num_overlapped_steps, 10);
}

// A draft model drafts on the device, so that several steps are under way.
TEST_P(DeviceRecurrentModels, DraftsOfTheDeviceChangeNoBit) {
  const std::vector<Asked> requests = mixed_requests(/*count=*/3, /*least_tokens=*/20);
  const Answers answers = run_by_host(config(), requests);
  TempDirectory draft;
  write_config(kAttention, draft);
  int64_t num_accepted = 0;
  for (const int width : {1, 3}) {
    DrafterConfig drafter = drafter_of(DraftMethod::kDraftModel, draft.path());
    Engine engine(with_drafter(config(), drafter, 4, width));
    EXPECT_EQ(run_to_end(engine, requests), answers);
    const EngineStats stats = engine.stats();
    EXPECT_GT(stats.num_device_steps, 8);
    EXPECT_GT(stats.num_overlapped_steps, 5);
    num_accepted += stats.acceptance.num_accepted_tokens;
  }
  EXPECT_GT(num_accepted, 3);
}

// Steps of the device keep the state that a conversation's next turn continues.
TEST_P(DeviceRecurrentModels, TheNextTurnContinuesTheLatestState) {
  for (const bool drafts : {false, true}) {
    SCOPED_TRACE(drafts);
    std::vector<Asked> requests = {{.id = "first", .prompt = {3, 1, 4, 1, 5}, .params = {}}};
    requests[0].params.temperature = 0.0f;
    requests[0].params.max_tokens = 50;
    requests[0].params.ignore_eos = true;
    const Answers first = run_by_host(config(), requests);
    EngineConfig caching = config();
    if (drafts) {
      caching = with_drafter(
          caching, custom(drafter_that_knows(first, requests, /*is_always_right=*/true)), 5);
    }
    Engine engine(caching);
    EXPECT_EQ(run_to_end(engine, requests), first);
    EXPECT_GT(engine.stats().num_device_steps, 5);
    std::vector<Asked> turn = requests;
    for (const int32_t token : tokens_of(first.at("first"))) turn[0].prompt.push_back(token);
    turn[0].prompt.push_back(7);
    EXPECT_EQ(run_to_end(engine, turn), run_by_host(config(), turn));
    EXPECT_EQ(engine.stats().num_cached_tokens, 48);  // of 54 that have been computed
  }
}

class DeviceRecurrentRanks : public DeviceRecurrentModels {
 protected:
  void SetUp() override {
    if (config().device == "cuda" && list_cuda_devices().size() < 2) GTEST_SKIP() << "one GPU";
  }
};

TEST_P(DeviceRecurrentRanks, RanksThatShareTheLayersChangeNoBit) {
  const std::vector<Asked> requests = mixed_requests(/*count=*/2, /*least_tokens=*/8);
  Answers answers;
  {
    Engine engine(config());
    answers = run_alone(engine, requests);
  }
  EngineConfig shared =
      with_drafter(config(), custom(drafter_that_knows(answers, requests)), 3, /*width=*/2);
  shared.tensor_parallel_size = 2;
  Engine engine(shared);
  EXPECT_EQ(run_to_end(engine, requests), answers);
  EXPECT_GT(engine.stats().acceptance.num_accepted_tokens, 4);
}

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  const auto& [device, model, dtype] = info.param;
  return str_cat(device == "cuda" ? "Gpu" : "Emulated", model.name,
                 dtype == ModelDType::kFloat16 ? "Half" : "BFloat16");
}

std::vector<Case> cases() {
  std::vector<Case> cases;
  for (const std::string& device : specdec::testing::device_engine::engine_devices()) {
    for (const RecurrentModel& model : {kShortConv, kGatedDelta, kMamba2}) {
      cases.emplace_back(device, model, ModelDType::kBFloat16);
    }
    cases.emplace_back(device, kGatedDelta, ModelDType::kFloat16);
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Devices, DeviceRecurrentModels, ::testing::ValuesIn(cases()), case_name);

INSTANTIATE_TEST_SUITE_P(
    Devices, DeviceRecurrentRanks,
    ::testing::Combine(::testing::ValuesIn(specdec::testing::device_engine::engine_devices()),
                       ::testing::Values(kWideMamba2, kMamba2ByKeyHead),
                       ::testing::Values(ModelDType::kBFloat16)),
    case_name);

}  // namespace
}  // namespace specdec::cuda
