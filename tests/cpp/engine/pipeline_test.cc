// Stages of a pipeline that work on different steps at a time: the answers of many requests are
// those of one stage, whatever comes and goes meanwhile.
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "specdec/engine.h"
#include "testing/checkpoint_files.h"

namespace specdec {
namespace {

constexpr const char* kConfig = R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float32",
  "vocab_size": 61, "hidden_size": 64, "intermediate_size": 512, "num_hidden_layers": 4,
  "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 16, "rms_norm_eps": 1e-5,
  "max_position_embeddings": 256, "tie_word_embeddings": true})";

struct Answer {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  FinishReason reason = FinishReason::kNone;
  bool operator==(const Answer&) const = default;
};

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
    config.load_format = "dummy";
    config.device = "cpu";
    config.num_threads = 1;
    config.block_size = 16;
    config.max_model_len = 192;
    config.num_kv_blocks = 12;  // of which all requests together want more
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
      DrafterConfig drafter;
      drafter.method = *given.drafter;
      if (drafter.method == DraftMethod::kDraftModel) drafter.model = directory_.path();
      config.speculative.drafters = {drafter};
      config.speculative.num_speculative_tokens = 4;
      config.speculative.draft_length_policy = DraftLengthPolicy::kFixed;
      config.speculative.tree_width = given.tree_width;
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
      prompts_.push_back(std::move(prompt));
      params_.push_back(std::move(params));
    }
  }

  void add(Engine& engine, size_t i) const { engine.add_request(i, prompts_[i], params_[i]); }

  static void take(std::map<uint64_t, Answer>& answers, const RequestOutput& output) {
    EXPECT_EQ(output.error, "");
    for (const CompletionOutput& part : output.outputs) {
      Answer& answer = answers[output.request_id];
      for (const int32_t token : part.new_token_ids) answer.tokens.push_back(token);
      for (const PositionLogprobs& position : part.new_logprobs) {
        answer.logprobs.push_back(position.front().logprob);
      }
      answer.reason = part.finish_reason;
    }
  }

  // The answers of one stage, without drafts, each request alone.
  std::map<uint64_t, Answer> expected() const {
    Engine engine(config(1, 1));
    std::map<uint64_t, Answer> answers;
    for (size_t i = 0; i < prompts_.size(); ++i) {
      add(engine, i);
      while (engine.has_unfinished_requests()) {
        for (const RequestOutput& output : engine.step()) take(answers, output);
      }
    }
    return answers;
  }

  testing::TempDirectory directory_;
  std::vector<std::vector<int32_t>> prompts_;
  std::vector<SamplingParams> params_;
};

TEST_P(PipelineTest, ManyRequestsGetTheAnswersOfOneStage) {
  make_requests(14);
  const auto expected = this->expected();
  Engine engine = pipeline();
  std::map<uint64_t, Answer> answers;
  size_t num_added = 0;
  for (int step = 0; num_added < prompts_.size() || engine.has_unfinished_requests(); ++step) {
    for (; num_added < prompts_.size() && num_added < 6 + static_cast<size_t>(step); ++num_added) {
      add(engine, num_added);
    }
    for (const RequestOutput& output : engine.step()) take(answers, output);
  }
  EXPECT_EQ(answers, expected);
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
    std::map<uint64_t, Answer> answers;
    for (size_t i = 0; i < prompts_.size(); ++i) add(engine, i);
    for (int step = 0; step < 3 + round; ++step) {
      for (const RequestOutput& output : engine.step()) take(answers, output);
    }
    // Every other one, whether it waits, is under way or has ended; in the last round all.
    for (size_t i = 0; i < prompts_.size(); ++i) {
      if (round == 5 || i % 2 == 0) {
        engine.abort(i);
        answers.erase(i);
      }
    }
    while (engine.has_unfinished_requests()) {
      for (const RequestOutput& output : engine.step()) take(answers, output);
    }
    for (const auto& [id, answer] : answers) EXPECT_EQ(answer, expected.at(id)) << id;
    EXPECT_EQ(answers.size(), round == 5 ? 0U : prompts_.size() / 2);
    EXPECT_EQ(engine.stats().num_running, 0);
  }
  EXPECT_EQ(engine.failure(), nullptr);
}

// Chunks of a long prompt follow each other through the stages.
TEST_P(PipelineTest, ALongPromptKeepsAllStagesBusy) {
  make_requests(1);
  prompts_[0].resize(150, 5);
  const auto expected = this->expected();
  Engine engine = pipeline();
  add(engine, 0);
  std::map<uint64_t, Answer> answers;
  while (engine.has_unfinished_requests()) {
    for (const RequestOutput& output : engine.step()) take(answers, output);
  }
  EXPECT_EQ(answers, expected);
  EXPECT_GE(engine.stats().num_overlapped_steps, 150 / 24);
}

TEST_P(PipelineTest, AnEngineMayEndWithStepsUnderWay) {
  make_requests(6);
  for (int num_steps = 0; num_steps < 4; ++num_steps) {
    Engine engine = pipeline();
    for (size_t i = 0; i < prompts_.size(); ++i) add(engine, i);
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
