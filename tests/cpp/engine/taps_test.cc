// States that are tapped: a block's features depend on the tokens up to its end alone, and nothing
// is done where nobody asks.
#include <gtest/gtest.h>

#include "testing/faulty_backend.h"
#include "testing/taps_world.h"
#include "testing/tiny_engine.h"

namespace specdec {
namespace {

namespace tiny = testing::tiny_llama;

class TapsTest : public tiny::EngineFixture, public ::testing::WithParamInterface<ModelDType> {
 protected:
  EngineConfig config() const {
    EngineConfig config = EngineFixture::config();
    config.dtype = GetParam();
    config.num_kv_blocks = 64;
    config.max_model_len = 128;
    return config;
  }
};

TEST_P(TapsTest, ChunksAndNeighboursDoNotMatter) {
  testing::expect_features_of_chunks_and_neighbours(config());
}
TEST_P(TapsTest, APrefixHitSharesFeatures) {
  testing::expect_features_after_a_prefix_hit(config());
}
TEST_P(TapsTest, PreemptionDoesNotMatter) { testing::expect_features_after_preemption(config()); }
TEST_P(TapsTest, AcceptedNodesBringTheirFeatures) {
  testing::expect_features_of_accepted_trees(config(), draft_.path());
}

TEST_P(TapsTest, BlocksAreAsMuchLargerAsTheirFeatures) {
  EngineConfig config = this->config();
  config.num_kv_blocks = 0;
  config.kv_cache_memory_bytes = 1 << 20;
  const int64_t element = config.dtype == ModelDType::kFloat32 ? 4 : 2;
  const int64_t kv_bytes =
      config.block_size * element * 2 * tiny::kLayers * tiny::kKvHeads * tiny::kHeadDim;
  const int64_t feature_bytes =
      config.block_size * element * testing::kTestTaps.width(tiny::kHidden);
  EXPECT_EQ(Engine(config).stats().num_kv_blocks, (1 << 20) / kv_bytes);
  EXPECT_EQ(testing::TappedEngine(config).engine().stats().num_kv_blocks,
            (1 << 20) / (kv_bytes + feature_bytes));
}

TEST_P(TapsTest, NothingIsStoredOrAllocatedWhereNobodyAsks) {
  const EngineConfig config = this->config();
  const auto count = [](const EngineConfig& config) {
    std::pair<int, int> stored_and_allocated;
    testing::Faults faults;
    faults.store_rows = [&] { ++stored_and_allocated.first; };
    faults.allocate = [&] { ++stored_and_allocated.second; };
    const auto make = [&](const BackendConfig& backend) {
      return std::make_unique<testing::FaultyBackend>(make_backend(backend), faults);
    };
    Engine engine = Engine::Impl::engine_of(std::make_unique<Engine::Impl>(config, make));
    SamplingParams params = tiny::sampled(20);
    engine.add_request(1, tiny::prompt_of(1, 10), params);
    while (engine.has_unfinished_requests()) engine.step();
    return stored_and_allocated;
  };
  const auto [stored, allocated] = count(config);
  EXPECT_EQ(stored, 0);
  const auto [stored_with_taps, allocated_with_taps] = count(testing::with_test_taps(config));
  // A pass over the prompt and 19 over a token each.
  EXPECT_EQ(stored_with_taps, 20 * testing::kTestTaps.num_taps());
  EXPECT_EQ(allocated_with_taps, allocated + 1);
}

INSTANTIATE_TEST_SUITE_P(DTypes, TapsTest,
                         ::testing::Values(ModelDType::kFloat32, ModelDType::kBFloat16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace specdec
