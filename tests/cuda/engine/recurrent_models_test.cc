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
using specdec::testing::run_alone;
using specdec::testing::run_to_end;
using specdec::testing::with_drafter;
using specdec::testing::recurrent_models::drafter_that_knows;
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

  specdec::testing::TempDirectory directory_;
};

TEST_P(DeviceRecurrentModels, NeitherDraftsNorNeighboursNorChunksNorPreemptionsChangeABit) {
  const std::vector<Asked> requests = mixed_requests(/*count=*/6, /*least_tokens=*/14);
  Answers answers;
  {
    EngineConfig alone = config();
    alone.enable_prefix_caching = false;
    Engine engine(alone);
    answers = run_alone(engine, requests);
  }
  int64_t num_accepted = 0, num_preemptions = 0;
  for (const auto& [num_rows, num_blocks, width] : {std::tuple{13, 7, 3}, {64, 64, 1}}) {
    SCOPED_TRACE(str_cat(num_rows, " rows, ", num_blocks, " blocks, width ", width));
    EngineConfig drafting =
        with_drafter(config(), custom(drafter_that_knows(answers, requests)), 5, width);
    drafting.max_num_batched_tokens = num_rows;
    drafting.num_kv_blocks = num_blocks;
    Engine engine(drafting);
    EXPECT_EQ(run_to_end(engine, requests), answers);
    const EngineStats stats = engine.stats();
    EXPECT_EQ(stats.num_device_steps, 0);
    num_accepted += stats.acceptance.num_accepted_tokens;
    num_preemptions += stats.num_preemptions;
  }
  EXPECT_GT(num_accepted, 60);
  EXPECT_GT(num_preemptions, 0);
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

INSTANTIATE_TEST_SUITE_P(
    Devices, DeviceRecurrentModels,
    ::testing::Combine(::testing::ValuesIn(specdec::testing::device_engine::engine_devices()),
                       ::testing::Values(kShortConv, kGatedDelta, kMamba2),
                       ::testing::Values(ModelDType::kBFloat16, ModelDType::kFloat16)),
    case_name);

INSTANTIATE_TEST_SUITE_P(
    Devices, DeviceRecurrentRanks,
    ::testing::Combine(::testing::ValuesIn(specdec::testing::device_engine::engine_devices()),
                       ::testing::Values(kWideMamba2, kMamba2ByKeyHead),
                       ::testing::Values(ModelDType::kBFloat16)),
    case_name);

}  // namespace
}  // namespace specdec::cuda
