// Device steps on several ranks: every rank runs them with its share of the models, and answers are
// those of one rank.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "core/str_cat.h"
#include "specdec/error.h"
#include "testing/device_engine_world.h"
#include "testing/faulty_backend.h"
#include "testing/text.h"
#include "testing/toy_grammar.h"

namespace specdec {
namespace {

using namespace testing::device_engine;

// A config.json for dummy weights.
std::string model_config(int num_layers) {
  return str_cat(R"({"architectures":["LlamaForCausalLM"],"model_type":"llama","vocab_size":37,)",
                 R"("hidden_size":64,"intermediate_size":512,"num_attention_heads":16,)",
                 R"("num_key_value_heads":4,"head_dim":16,"rms_norm_eps":1e-5,)",
                 R"("max_position_embeddings":128,"tie_word_embeddings":true,)",
                 R"("num_hidden_layers":)", num_layers, "}");
}

class DeviceRanks : public EngineTest {
 protected:
  DeviceRanks() { target_.write("config.json", model_config(2)); }
  void SetUp() override {
    if (GetParam() == "cuda" && cuda::list_cuda_devices().size() < 2) GTEST_SKIP() << "one GPU";
  }

  EngineConfig config() const {
    EngineConfig config = EngineTest::config();
    config.load_format = LoadFormat::kDummy;
    return config;
  }
  // Drafts by the target itself with rounded weights, which are right most of the time.
  EngineConfig with_itself(int num_tokens) const {
    EngineConfig config = with_draft(target_, num_tokens);
    config.load_format = LoadFormat::kDummy;
    config.speculative.drafters[0].quantization = "int4";
    return config;
  }
  static EngineConfig on_two(EngineConfig config) {
    config.tensor_parallel_size = 2;
    return config;
  }
  static EngineConfig drafting_on(EngineConfig config, int num_ranks) {
    config.tensor_parallel_size = 2;
    config.speculative.drafters[0].draft_tensor_parallel_size = num_ranks;
    return config;
  }
  void expect_device_steps(const Answers& expected, const EngineConfig& config,
                           const std::vector<Asked>& jobs) {
    int64_t num_device_steps = 0;
    EXPECT_EQ(expected, run(config, jobs, &num_device_steps));
    EXPECT_GT(num_device_steps, 3);
  }
};

INSTANTIATE_TEST_SUITE_P(Devices, DeviceRanks, ::testing::ValuesIn(engine_devices()),
                         engine_test_name);

TEST_P(DeviceRanks, PlainDecodingIsThatOfOneRank) {
  for (const SamplingParams& params : {greedy(), shaped()}) {
    const std::vector<Asked> jobs = jobs_of(3, params, /*gap=*/2);
    expect_device_steps(run(config(), jobs), on_two(config()), jobs);
  }
}

TEST_P(DeviceRanks, EveryRankDraftsOrHasAShareOfTheDraftModel) {
  for (const SamplingParams& params : {greedy(), shaped()}) {
    const std::vector<Asked> jobs = jobs_of(3, params);
    const Answers plain = run(config(), jobs);
    for (const int num_ranks : {1, 2}) {
      SCOPED_TRACE(num_ranks);
      expect_device_steps(plain, drafting_on(with_itself(3), num_ranks), jobs);
    }
  }
}

TEST_P(DeviceRanks, TreesGrowAlikeOnAllRanks) {
  const std::vector<Asked> jobs = jobs_of(2, shaped());
  EngineConfig trees = with_itself(6);
  trees.speculative.tree_width = 2;
  const Answers plain = run(config(), jobs);
  for (const int num_ranks : {1, 2}) {
    expect_device_steps(plain, drafting_on(trees, num_ranks), jobs);
  }
}

TEST_P(DeviceRanks, DraftsAndMasksOfTheHostReachAllRanks) {
  std::vector<Asked> jobs = jobs_of(3, greedy());
  for (Asked& job : jobs) {
    job.prompt = {1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3};
    job.params.max_tokens = 20;
  }
  jobs[1].params.grammar = testing::make_toy_grammar(tiny::kVocab, 2, 12, 24);
  const Answers plain = run(config(), jobs);
  for (const int width : {1, 2}) {
    expect_device_steps(
        plain, on_two(with_drafter(config(), drafter_of(DraftMethod::kNgram), 4, width)), jobs);
  }
}

TEST_P(DeviceRanks, HeadsDraftOnEveryRankOrAreShared) {
  const TempDirectory head;
  head.write("config.json",
             R"({"architectures":["LlamaForCausalLMEagle3"],"model_type":"llama","vocab_size":37,)"
             R"("draft_vocab_size":37,"hidden_size":64,"intermediate_size":512,)"
             R"("num_attention_heads":16,"num_key_value_heads":4,"head_dim":16,)"
             R"("rms_norm_eps":1e-5,"max_position_embeddings":128,"num_hidden_layers":1,)"
             R"("eagle_aux_hidden_state_layer_ids":[0,1,2]})");
  const std::vector<Asked> jobs = jobs_of(2, greedy());
  const EngineConfig config =
      with_drafter(this->config(), drafter_of(DraftMethod::kEagle3, head.path()), 4);
  const Answers plain = run(this->config(), jobs);
  for (const int num_ranks : {1, 2}) {
    expect_device_steps(plain, drafting_on(config, num_ranks), jobs);
  }
}

TEST_P(DeviceRanks, AFailureInAStepFailsTheRequestsOfAllRanks) {
  EngineConfig config = on_two(this->config());
  // Also covers making the engine, when a GPU makes contexts and loads kernels.
  config.distributed_timeout_seconds = 10;
  std::atomic<int> num_launched = 0;
  testing::Faults faults;
  // Fails the other rank's launches: that rank makes its device steps and backend on a thread of
  // its own.
  const auto leader = std::this_thread::get_id();
  faults.launch = [&] {
    if (std::this_thread::get_id() == leader || ++num_launched < 3) return;
    throw InternalError("no step today");
  };
  Engine engine = testing::make_faulty_engine(config, faults);
  SamplingParams params = greedy();
  params.max_tokens = 40;
  const std::string error =
      testing::run_to_end(engine, {{.id = "a", .prompt = {1, 2, 3}, .params = params}})
          .at("a")
          .error;
  EXPECT_TRUE(testing::has_text(error, "rank 1")) << error;
  EXPECT_TRUE(testing::has_text(error, "no step today")) << error;
  EXPECT_GE(num_launched, 3);
}

}  // namespace
}  // namespace specdec
