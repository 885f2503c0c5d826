// An engine of every kernel set this machine runs, in every precision of the CPU: drafts change no
// bit of an answer, and logprobs are near those of float32 by the generic kernels.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include "specdec/engine.h"
#include "testing/cpu_isas.h"
#include "testing/tiny_engine.h"

namespace specdec {
namespace {

namespace tiny = testing::tiny_llama;
using testing::run_to_end;

struct Precision {
  const char* name;
  ModelDType dtype;
  const char* quantization;
  // How far a logprob may be from float32's: measured 2e-6, 0.022, 0.066 and 0.83.
  float tolerance;
};
constexpr Precision kPrecisions[] = {
    {"float32", ModelDType::kFloat32, "none", 5e-5f},
    {"bfloat16", ModelDType::kBFloat16, "none", 0.2f},
    {"int8", ModelDType::kFloat32, "int8", 0.1f},
    {"int4", ModelDType::kFloat32, "int4", 1.5f},
};

using Params = std::tuple<cpu::Isa, Precision>;

class PrecisionsTest : public tiny::EngineFixture, public ::testing::WithParamInterface<Params> {
 protected:
  static const Precision& precision() { return std::get<1>(GetParam()); }
  EngineConfig config() const {
    EngineConfig config = EngineFixture::config();
    config.cpu_isa = std::string(cpu::name_of(std::get<0>(GetParam())));
    config.dtype = precision().dtype;
    config.quantization = precision().quantization;
    return config;
  }
  // Logprobs of a prompt's tokens.
  static std::vector<float> prompt_logprobs(const EngineConfig& config) {
    Engine engine(config);
    SamplingParams params = tiny::sampled(1);
    params.prompt_logprobs = 0;
    engine.add_request(1, tiny::prompt_of(1, 40), params);
    std::vector<float> logprobs;
    while (engine.has_unfinished_requests()) {
      for (const RequestOutput& output : engine.step()) {
        for (const PositionLogprobs& position : output.new_prompt_logprobs) {
          logprobs.push_back(position[0].logprob);
        }
      }
    }
    return logprobs;
  }
};

TEST_P(PrecisionsTest, DraftsChangeNoBit) {
  const auto requests = tiny::four_requests(24, 9);
  Engine plain(config());
  const auto expected = run_to_end(plain, requests);
  ASSERT_EQ(expected.size(), requests.size());
  for (const int width : {1, 3}) {
    Engine engine(testing::with_drafter(config(), drafter(DraftMethod::kDraftModel), 4, width));
    EXPECT_EQ(run_to_end(engine, requests), expected) << width;
    const auto& acceptance = engine.stats().acceptance;
    EXPECT_GT(acceptance.num_accepted_tokens, 0);
    EXPECT_LT(acceptance.num_accepted_tokens, acceptance.num_draft_tokens);
  }
}

TEST_P(PrecisionsTest, LogprobsAreNearFloat32s) {
  EngineConfig reference = config();
  reference.cpu_isa = "generic";
  reference.dtype = ModelDType::kFloat32;
  reference.quantization = "none";
  const std::vector<float> expected = prompt_logprobs(reference);
  const std::vector<float> logprobs = prompt_logprobs(config());
  ASSERT_EQ(expected.size(), 39u);
  ASSERT_EQ(logprobs.size(), expected.size());
  float most = 0.0f;
  for (size_t i = 0; i < expected.size(); ++i) {
    most = std::max(most, std::abs(logprobs[i] - expected[i]));
  }
  EXPECT_LT(most, precision().tolerance);
  if (precision().tolerance > 1e-3f) {  // and not as near as a precision that is finer
    EXPECT_GT(most, precision().tolerance / 30);
  }
}

INSTANTIATE_TEST_SUITE_P(AllIsas, PrecisionsTest,
                         ::testing::Combine(::testing::ValuesIn(testing::supported_isas()),
                                            ::testing::ValuesIn(kPrecisions)),
                         [](const ::testing::TestParamInfo<Params>& info) {
                           return std::string(cpu::name_of(std::get<0>(info.param))) + "_" +
                                  std::get<1>(info.param).name;
                         });

}  // namespace
}  // namespace specdec
