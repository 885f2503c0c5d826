// Runs whole engines on the emulated device or a GPU and compares their answers.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/str_cat.h"
#include "cuda/factory.h"
#include "specdec/engine.h"
#include "specdec/logits_processor.h"
#include "testing/answers.h"
#include "testing/tiny_llama.h"
#include "testing/with_drafter.h"

namespace specdec::testing::device_engine {

namespace tiny = testing::tiny_llama;
using testing::Answers;
using testing::Asked;
using testing::drafter_of;
using testing::TempDirectory;
using testing::with_drafter;

using Tokens = std::vector<int32_t>;

class SameLogits final : public LogitsProcessor {
 public:
  void apply(std::span<const int32_t>, std::span<const int32_t>, std::span<float>) override {}
};

// The host runs requests with logits processors; this one changes nothing.
inline void keep_ordinary(std::vector<Asked>& jobs) {
  for (Asked& job : jobs) job.params.logits_processors = {std::make_shared<SameLogits>()};
}

// The values of `EngineConfig::device` that this build and this machine serve.
inline std::vector<std::string> engine_devices() {
  std::vector<std::string> devices;
#ifdef SPECDEC_CUDA_EMULATION
  devices.push_back("emulated");
#endif
  if (!cuda::list_cuda_devices().empty()) devices.push_back("cuda");
  return devices;
}
inline std::string engine_test_name(const ::testing::TestParamInfo<std::string>& info) {
  return info.param == "cuda" ? "Gpu" : "Emulated";
}

// A target and a draft model, and engines that run them on `device`.
class EngineWorld {
 protected:
  explicit EngineWorld(const std::string& device) : device_(device) {
    tiny::write_checkpoint(target_, tiny::llama_tensors());
    tiny::write_checkpoint(draft_, tiny::perturbed(tiny::llama_tensors(), 0.03f));
  }

  EngineConfig config() const {
    EngineConfig config;
    config.model = target_.path();
    config.dtype = ModelDType::kBFloat16;
    config.device = device_;
    config.max_model_len = 96;
    config.max_num_seqs = 4;
    config.max_num_batched_tokens = 64;
    config.num_kv_blocks = 64;
    return config;
  }

  EngineConfig with_draft(const TempDirectory& model, int num_tokens) const {
    return with_drafter(config(), drafter_of(DraftMethod::kDraftModel, model.path()), num_tokens);
  }

  // The answers, and the statistics of the engine that gave them.
  static Answers run(const EngineConfig& config, const std::vector<Asked>& jobs,
                     EngineStats* stats) {
    Engine engine(config);
    Answers answers = run_to_end(engine, jobs);
    for (const auto& [id, answer] : answers) EXPECT_EQ(answer.error, "") << id;
    *stats = engine.stats();
    return answers;
  }

  // The same with the number of steps that ran on the device alone.
  static Answers run(const EngineConfig& config, const std::vector<Asked>& jobs,
                     int64_t* num_device_steps = nullptr) {
    EngineStats stats;
    Answers answers = run(config, jobs, &stats);
    if (num_device_steps != nullptr) *num_device_steps = stats.num_device_steps;
    return answers;
  }

  // Compares answers and statistics with those of steps whose drafting and verification the host
  // does, which are the reference.
  static void compare_with_host(const EngineConfig& config, std::vector<Asked> jobs) {
    EngineStats on_device;
    const Answers answers = run(config, jobs, &on_device);
    EXPECT_GT(on_device.num_device_steps, 3);
    keep_ordinary(jobs);
    EngineStats on_host;
    EXPECT_EQ(run(config, jobs, &on_host), answers);
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

  // Steps of the device accept exactly two levels of every draft, whatever was drafted.
  static void expect_synthetic_acceptance(EngineConfig config) {
    config.speculative.verification = Verification::kSynthetic;
    config.speculative.synthetic_acceptance_rates = {1.0, 1.0, 0.0, 0.0};
    Engine engine(config);
    SamplingParams params;
    params.temperature = 0.0f;
    params.max_tokens = 40;
    params.ignore_eos = true;
    engine.add_request(1, {1, 2, 3}, params);
    while (engine.has_unfinished_requests()) engine.step();
    const EngineStats stats = engine.stats();
    EXPECT_GT(stats.num_device_steps, 5);
    EXPECT_NEAR(stats.acceptance.mean_acceptance_length(), 3.0, 0.25);
  }

  // Aborts the second of three requests on the way.
  static void expect_abort_leaves_the_others(const EngineConfig& config,
                                             const std::vector<Asked>& jobs,
                                             const Answers& expected) {
    Engine engine(config);
    for (size_t i = 0; i < jobs.size(); ++i) engine.add_request(i, jobs[i].prompt, jobs[i].params);
    testing::Numbered answers;
    for (int step = 0; step < 3; ++step) step_once(engine, answers);
    EXPECT_TRUE(engine.abort(1));
    while (engine.has_unfinished_requests()) step_once(engine, answers);
    for (const int i : {0, 2}) EXPECT_EQ(answers[i], expected.at(jobs[i].id)) << i;
  }

  TempDirectory target_;
  TempDirectory draft_;

 private:
  std::string device_;
};

// Param: INSTANTIATE_TEST_SUITE_P(Devices, XTest, ValuesIn(engine_devices()), engine_test_name).
class EngineTest : public ::testing::TestWithParam<std::string>, protected EngineWorld {
 protected:
  EngineTest() : EngineWorld(GetParam()) {}
};

inline std::vector<Asked> jobs_of(int count, const SamplingParams& params, int gap = 0) {
  std::vector<Asked> jobs;
  for (int i = 0; i < count; ++i) {
    Asked job{.id = str_cat("r", i), .prompt = {}, .params = params, .arrives = i * gap};
    for (int j = 0; j < 3 + 5 * i % 14; ++j) job.prompt.push_back((i * 5 + j * 3) % tiny::kVocab);
    job.params.seed = 100 + i;
    jobs.push_back(std::move(job));
  }
  return jobs;
}

inline SamplingParams greedy() {
  SamplingParams params;
  params.temperature = 0.0f;
  params.max_tokens = 14;
  return params;
}

inline SamplingParams shaped() {
  SamplingParams params;
  params.temperature = 0.9f;
  params.top_p = 0.95f;
  params.top_k = 20;
  params.repetition_penalty = 1.2f;
  params.frequency_penalty = 0.3f;
  params.logit_bias = {{5, 1.5f}, {6, -2.0f}};
  params.min_tokens = 4;
  params.stop_token_ids = {7, 11};
  params.max_tokens = 14;
  params.logprobs = 3;
  return params;
}

}  // namespace specdec::testing::device_engine
