// Stages of a pipeline that work on different steps at a time: the answers of many requests are
// those of one stage, whatever comes and goes meanwhile.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "core/str_cat.h"
#include "specdec/engine.h"
#include "testing/answers.h"
#include "testing/checkpoint_files.h"
#include "testing/with_drafter.h"

namespace specdec {
namespace {

using testing::Answers;
using testing::Asked;

constexpr const char* kConfig = R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float32",
  "vocab_size": 61, "hidden_size": 64, "intermediate_size": 512, "num_hidden_layers": 4,
  "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 16, "rms_norm_eps": 1e-5,
  "max_position_embeddings": 256, "tie_word_embeddings": true})";

struct PipelineCase {
  std::string name;
  int num_stages = 2;
  int stage_size = 1;
  std::optional<DraftMethod> drafter;  // kDraftModel: the target itself
  int tree_width = 1;
};

void PrintTo(const PipelineCase& pipeline, std::ostream* stream) { *stream << pipeline.name; }

class PipelineTest : public ::testing::TestWithParam<PipelineCase> {
 protected:
  PipelineTest() { std::ofstream(directory_.path() + "/config.json") << kConfig; }

  EngineConfig config(int num_stages, int stage_size) const {
    EngineConfig config;
    config.model = directory_.path();
    config.load_format = LoadFormat::kDummy;
    config.device = "cpu";
    config.num_threads = 1;
    config.block_size = 16;
    config.max_model_len = 192;
    config.num_kv_blocks = 12;  // all requests together need more
    config.max_num_seqs = 8;
    config.max_num_batched_tokens = 24;
    config.pipeline_parallel_size = num_stages;
    config.tensor_parallel_size = stage_size;
    config.distributed_timeout_seconds = 3600;  // a test that waits for it does not end
    return config;
  }

  Engine pipeline() const {
    const PipelineCase& given = GetParam();
    EngineConfig config = this->config(given.num_stages, given.stage_size);
    if (given.drafter.has_value()) {
      const bool is_model = given.drafter == DraftMethod::kDraftModel;
      config = testing::with_drafter(
          config, testing::drafter_of(*given.drafter, is_model ? directory_.path() : ""), 4,
          given.tree_width);
    }
    return Engine(config);
  }

  // Short and long, some with a common beginning, greedy and sampled.
  void make_requests(int count) {
    std::mt19937 random(11);
    for (int i = 0; i < count; ++i) {
      std::vector<int32_t> prompt;
      const int length = i % 4 == 0 ? 60 + i : 3 + i;
      for (int k = 0; k < length; ++k) {
        prompt.push_back(i % 2 == 0 ? k % 7 + 1 : static_cast<int32_t>(random() % 61));
      }
      SamplingParams params;
      params.max_tokens = 10 + i % 5 * 6;
      params.ignore_eos = true;
      params.seed = static_cast<uint64_t>(i);
      params.temperature = i % 3 == 0 ? 0.0f : 0.9f;
      params.logprobs = 1;
      requests_.push_back({.id = str_cat(i),
                           .prompt = std::move(prompt),
                           .params = std::move(params),
                           .arrives = std::max(0, i - 5)});
    }
  }

  void add_all(Engine& engine) const {
    for (size_t i = 0; i < requests_.size(); ++i) {
      engine.add_request(i, requests_[i].prompt, requests_[i].params);
    }
  }

  // The answers of one stage, without drafts, each request alone.
  Answers expected() const {
    Engine engine(config(1, 1));
    return testing::run_alone(engine, requests_);
  }

  testing::TempDirectory directory_;
  std::vector<Asked> requests_;
};

TEST_P(PipelineTest, ManyRequestsGetTheAnswersOfOneStage) {
  make_requests(14);
  const auto expected = this->expected();
  Engine engine = pipeline();
  EXPECT_EQ(testing::run_to_end(engine, requests_), expected);
  const EngineStats stats = engine.stats();
  // Most steps begin while others are under way.
  EXPECT_GT(stats.num_overlapped_steps, stats.num_steps / 2);
  EXPECT_GT(stats.num_preemptions, 0);
  if (GetParam().drafter.has_value()) {
    EXPECT_GT(stats.acceptance.num_draft_tokens, 0);
  }
}

TEST_P(PipelineTest, RequestsThatEndMeanwhileHarmNoOther) {
  make_requests(10);
  const auto expected = this->expected();
  Engine engine = pipeline();
  for (int round = 0; round < 6; ++round) {
    testing::Numbered answers;
    add_all(engine);
    for (int step = 0; step < 3 + round; ++step) testing::step_once(engine, answers);
    // Every other one, whether it waits, is under way or has ended; in the last round all.
    for (size_t i = 0; i < requests_.size(); ++i) {
      if (round == 5 || i % 2 == 0) {
        engine.abort(i);
        answers.erase(i);
      }
    }
    while (engine.has_unfinished_requests()) testing::step_once(engine, answers);
    for (const auto& [id, answer] : answers) EXPECT_EQ(answer, expected.at(str_cat(id)));
    EXPECT_EQ(answers.size(), round == 5 ? 0U : requests_.size() / 2);
    EXPECT_EQ(engine.stats().num_running, 0);
  }
  EXPECT_EQ(engine.failure(), nullptr);
}

// Chunks of a long prompt follow each other through the stages.
TEST_P(PipelineTest, ALongPromptKeepsAllStagesBusy) {
  make_requests(1);
  requests_[0].prompt.resize(150, 5);
  const auto expected = this->expected();
  Engine engine = pipeline();
  EXPECT_EQ(testing::run_to_end(engine, requests_), expected);
  EXPECT_GE(engine.stats().num_overlapped_steps, 150 / 24);
}

TEST_P(PipelineTest, AnEngineMayEndWithStepsUnderWay) {
  make_requests(6);
  for (int num_steps = 0; num_steps < 4; ++num_steps) {
    Engine engine = pipeline();
    add_all(engine);
    for (int step = 0; step < num_steps; ++step) engine.step();
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cases, PipelineTest,
    ::testing::Values(PipelineCase{"Two", 2, 1, std::nullopt},
                      PipelineCase{"Four", 4, 1, std::nullopt},
                      PipelineCase{"TwoOfTwo", 2, 2, std::nullopt},
                      PipelineCase{"TwoNgram", 2, 1, DraftMethod::kNgram},
                      PipelineCase{"ThreeDraftModel", 3, 1, DraftMethod::kDraftModel},
                      PipelineCase{"TwoOfTwoDraftTree", 2, 2, DraftMethod::kDraftModel, 2}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace specdec
