// States tapped on the device, in recorded passes and in device steps.
#include <gtest/gtest.h>

#include "testing/device_engine_world.h"
#include "testing/taps_world.h"

namespace specdec::cuda {
namespace {

using specdec::testing::tapped_prompt;
using specdec::testing::TappedEngine;

class DeviceTaps : public specdec::testing::device_engine::EngineTest {};

TEST_P(DeviceTaps, ChunksAndNeighboursDoNotMatter) {
  specdec::testing::expect_features_of_chunks_and_neighbours(config());
}
TEST_P(DeviceTaps, APrefixHitSharesFeatures) {
  specdec::testing::expect_features_after_a_prefix_hit(config());
}
TEST_P(DeviceTaps, PreemptionDoesNotMatter) {
  specdec::testing::expect_features_after_preemption(config());
}
TEST_P(DeviceTaps, AcceptedNodesBringTheirFeatures) {
  specdec::testing::expect_features_of_accepted_trees(config(), draft_.path());
}

TEST_P(DeviceTaps, StepsWithoutTheHostStoreFeatures) {
  TappedEngine tapped(config());
  for (int i = 0; i < 3; ++i) tapped.add(i, tapped_prompt(i, 9 + 7 * i), 50);
  tapped.run();
  EXPECT_GT(tapped.engine().stats().num_device_steps, 20);
  EXPECT_GE(tapped.check_blocks(), 10);
}

INSTANTIATE_TEST_SUITE_P(Devices, DeviceTaps,
                         ::testing::ValuesIn(specdec::testing::device_engine::engine_devices()),
                         specdec::testing::device_engine::engine_test_name);

}  // namespace
}  // namespace specdec::cuda
