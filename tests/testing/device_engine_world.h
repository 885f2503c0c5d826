// Runs whole engines on the emulated device or a GPU and compares their answers.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/str_cat.h"
#include "cuda/factory.h"
#include "specdec/engine.h"
#include "specdec/logits_processor.h"
#include "testing/tiny_llama.h"

namespace specdec::testing::device_engine {

namespace tiny = testing::tiny_llama;

using Tokens = std::vector<int32_t>;

struct Answer {
  Tokens tokens;
  std::vector<PositionLogprobs> logprobs;
  FinishReason reason = FinishReason::kNone;
};
using Answers = std::map<std::string, Answer>;  // "request/completion"

struct Job {
  std::string id;
  Tokens prompt;
  SamplingParams params;
  int arrives = 0;  // before which step
};

class SameLogits final : public LogitsProcessor {
 public:
  void apply(std::span<const int32_t>, std::span<const int32_t>, std::span<float>) override {}
};

// The host runs requests with logits processors; this one changes nothing.
inline void keep_ordinary(std::vector<Job>& jobs) {
  for (Job& job : jobs) job.params.logits_processors = {std::make_shared<SameLogits>()};
}

// The bits of logprobs, in a form that is readable where they differ.
inline std::vector<std::string> texts(const std::vector<PositionLogprobs>& positions) {
  std::vector<std::string> texts;
  for (const PositionLogprobs& position : positions) {
    std::string& text = texts.emplace_back();
    for (const Logprob& entry : position) {
      text += str_cat(entry.token_id, ":", std::bit_cast<uint32_t>(entry.logprob), ":", entry.rank,
                      " ");
    }
  }
  return texts;
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
    config.dtype = "bfloat16";
    config.device = device_;
    config.max_model_len = 96;
    config.max_num_seqs = 4;
    config.max_num_batched_tokens = 64;
    config.num_kv_blocks = 64;
    return config;
  }

  EngineConfig with_draft(const TempDirectory& model, int num_tokens,
                          DraftLengthPolicy policy = DraftLengthPolicy::kFixed) const {
    EngineConfig config = this->config();
    config.speculative.num_speculative_tokens = num_tokens;
    config.speculative.draft_length_policy = policy;
    DrafterConfig drafter;
    drafter.method = DraftMethod::kDraftModel;
    drafter.model = model.path();
    drafter.quantization = "none";
    config.speculative.drafters = {drafter};
    return config;
  }

  // The answers, and the statistics of the engine that gave them.
  static Answers run(const EngineConfig& config, const std::vector<Job>& jobs, EngineStats* stats) {
    Engine engine(config);
    Answers answers;
    size_t next = 0;
    for (int step = 0; next < jobs.size() || engine.has_unfinished_requests(); ++step) {
      for (; next < jobs.size() && jobs[next].arrives <= step; ++next) {
        engine.add_request(next, jobs[next].prompt, jobs[next].params);
      }
      for (const RequestOutput& output : engine.step()) {
        EXPECT_EQ(output.error, "");
        for (const CompletionOutput& part : output.outputs) {
          Answer& answer = answers[str_cat(jobs[output.request_id].id, "/", part.index)];
          answer.tokens.insert(answer.tokens.end(), part.new_token_ids.begin(),
                               part.new_token_ids.end());
          answer.logprobs.insert(answer.logprobs.end(), part.new_logprobs.begin(),
                                 part.new_logprobs.end());
          if (part.finish_reason != FinishReason::kNone) answer.reason = part.finish_reason;
        }
      }
    }
    *stats = engine.stats();
    return answers;
  }

  // The same with the number of steps that ran on the device alone.
  static Answers run(const EngineConfig& config, const std::vector<Job>& jobs,
                     int64_t* num_device_steps = nullptr) {
    EngineStats stats;
    Answers answers = run(config, jobs, &stats);
    if (num_device_steps != nullptr) *num_device_steps = stats.num_device_steps;
    return answers;
  }

  static void expect_equal(const Answers& expected, const Answers& actual) {
    ASSERT_EQ(expected.size(), actual.size());
    for (const auto& [id, answer] : expected) {
      SCOPED_TRACE(id);
      const Answer& other = actual.at(id);
      EXPECT_EQ(answer.tokens, other.tokens);
      EXPECT_EQ(answer.reason, other.reason);
      EXPECT_EQ(texts(answer.logprobs), texts(other.logprobs));
    }
  }

  // Compares answers and statistics with those of steps whose drafting and verification the host
  // does, which are the reference.
  static void compare_with_host(const EngineConfig& config, std::vector<Job> jobs) {
    EngineStats on_device;
    const Answers answers = run(config, jobs, &on_device);
    EXPECT_GT(on_device.num_device_steps, 3);
    keep_ordinary(jobs);
    EngineStats on_host;
    expect_equal(run(config, jobs, &on_host), answers);
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
                                             const std::vector<Job>& jobs,
                                             const Answers& expected) {
    Engine engine(config);
    for (size_t i = 0; i < jobs.size(); ++i) engine.add_request(i, jobs[i].prompt, jobs[i].params);
    std::map<uint64_t, Tokens> tokens;
    for (int step = 0; engine.has_unfinished_requests(); ++step) {
      if (step == 3) {
        EXPECT_TRUE(engine.abort(1));
      }
      for (const RequestOutput& output : engine.step()) {
        Tokens& all = tokens[output.request_id];
        const Tokens& fresh = output.outputs[0].new_token_ids;
        all.insert(all.end(), fresh.begin(), fresh.end());
      }
    }
    EXPECT_EQ(tokens[0], expected.at("r0/0").tokens);
    EXPECT_EQ(tokens[2], expected.at("r2/0").tokens);
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

inline std::vector<Job> jobs_of(int count, const SamplingParams& params, int gap = 0) {
  std::vector<Job> jobs;
  for (int i = 0; i < count; ++i) {
    Job job{.id = str_cat("r", i), .prompt = {}, .params = params, .arrives = i * gap};
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
