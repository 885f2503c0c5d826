// Errors planted in device steps, as tests/cpp/engine/step_failure_test.cc plants them in steps of
// the CPU.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "specdec/error.h"
#include "testing/answers.h"
#include "testing/device_engine_world.h"
#include "testing/faulty_backend.h"

namespace specdec {
namespace {

using namespace testing::device_engine;
using testing::Faults;

constexpr uint64_t kBadSeed = 777;

class FailingDrafter final : public CustomDrafter {
 public:
  std::vector<Tokens> propose(std::span<const int32_t> tokens, int) override {
    if (tokens[0] == tiny::kVocab - 1 && tokens.size() > 6) throw Error("planted");
    return {{tokens[0], tokens[1]}};
  }
};

class DeviceFailureTest : public EngineTest {
 protected:
  EngineConfig with_host_drafts() const {
    return with_drafter(config(), testing::custom(std::make_shared<FailingDrafter>()), 3);
  }

  static std::vector<Asked> requests() { return jobs_of(3, shaped()); }
};

INSTANTIATE_TEST_SUITE_P(Devices, DeviceFailureTest, ::testing::ValuesIn(engine_devices()),
                         engine_test_name);

// The host runs steps with prompts.
TEST_P(DeviceFailureTest, ARowThatCannotBeSampledEndsItsRequestOnly) {
  for (const EngineConfig& config : {config(), with_draft(draft_, 3)}) {
    Faults faults;
    Engine engine = testing::make_faulty_engine(config, faults);
    auto expected = testing::run_alone(engine, requests());
    faults.sample = [](const SampleRow& row) {
      if (row.seed == kBadSeed) throw InternalError("planted");
    };
    std::vector<Asked> requests = this->requests();
    requests.push_back({.id = "bad", .prompt = {1, 2}, .params = shaped(), .arrives = 5});
    requests.back().params.seed = kBadSeed;
    const int64_t before = engine.stats().num_device_steps;
    auto actual = testing::run_to_end(engine, requests);
    EXPECT_GT(engine.stats().num_device_steps, before + 3);
    EXPECT_EQ(actual.at("bad").error, "planted");
    actual.erase("bad");
    EXPECT_EQ(actual, expected);
  }
}

TEST_P(DeviceFailureTest, AFailingDrafterEndsItsRequestOnly) {
  Engine engine(with_host_drafts());
  const auto expected = testing::run_alone(engine, requests());
  std::vector<Asked> requests = this->requests();
  requests.push_back({.id = "bad", .prompt = {tiny::kVocab - 1, 2}, .params = shaped()});
  auto actual = testing::run_to_end(engine, requests);
  EXPECT_GT(engine.stats().num_device_steps, 3);
  EXPECT_EQ(actual.at("bad").error, "planted");
  EXPECT_EQ(actual.at("bad").completions[0].tokens.size(), 6u);
  actual.erase("bad");
  EXPECT_EQ(actual, expected);
}

TEST_P(DeviceFailureTest, AnErrorOfTheDeviceEndsAllRequestsAndTheEngine) {
  for (const EngineConfig& config : {config(), with_draft(draft_, 3), with_host_drafts()}) {
    for (const bool at_launch : {true, false}) {
      Faults faults;
      Engine engine = testing::make_faulty_engine(config, faults);
      int calls = 0;
      (at_launch ? faults.launch : faults.wait) = [&] {
        if (++calls == 3) throw Unavailable("planted");
      };
      const auto ended = testing::run_to_end(engine, requests());
      EXPECT_EQ(calls, 3);
      ASSERT_EQ(ended.size(), 3u);
      for (const auto& [id, answer] : ended) {
        EXPECT_NE(answer.error.find("planted; make a new engine"), std::string::npos);
        EXPECT_EQ(answer.num_ends, 1);
        EXPECT_EQ(answer.completions[0].reason, FinishReason::kError);
      }
      EXPECT_TRUE(engine.step().empty());
      EXPECT_EQ(engine.stats().num_free_kv_blocks, engine.stats().num_kv_blocks);
      EXPECT_THROW(engine.add_request(99, {1}, {}), EngineFailed);
    }
  }
}

}  // namespace
}  // namespace specdec
