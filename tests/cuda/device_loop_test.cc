// Decoding on the device without the host gives what the ordinary step gives, bit for bit.
#include <gtest/gtest.h>

#include <bit>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "core/str_cat.h"
#include "specdec/engine.h"
#include "testing/tiny_llama.h"

namespace specdec {
namespace {

using testing::TempDirectory;
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

// Bits, readable where they differ.
std::vector<std::string> texts(const std::vector<PositionLogprobs>& positions) {
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

class DeviceLoopTest : public ::testing::Test {
 protected:
  DeviceLoopTest() {
    tiny::write_checkpoint(target_, tiny::llama_tensors());
    // Another model of the same shape, close to the first: some of its drafts are right.
    tiny::Tensors tensors = tiny::llama_tensors();
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    for (auto& [name, tensor] : tensors) {
      if (tensor.shape.size() == 1) continue;
      for (float& value : tensor.values) value += 0.03f * normal(random);
    }
    tiny::write_checkpoint(draft_, tensors);
  }

  EngineConfig config() const {
    EngineConfig config;
    config.model = target_.path();
    config.dtype = "bfloat16";
    config.device = "emulated";
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

  // Answers, and how many steps ran on the device alone.
  static Answers run(const EngineConfig& config, const std::vector<Job>& jobs,
                     int64_t* num_device_steps = nullptr) {
    Engine engine(config);
    Answers answers;
    size_t next = 0;
    for (int step = 0; next < jobs.size() || engine.has_unfinished_requests(); ++step) {
      for (; next < jobs.size() && jobs[next].arrives <= step; ++next) {
        engine.add_request(jobs[next].id, jobs[next].prompt, jobs[next].params);
      }
      for (const RequestOutput& output : engine.step()) {
        EXPECT_EQ(output.error, "");
        for (const CompletionOutput& part : output.outputs) {
          Answer& answer = answers[str_cat(output.request_id, "/", part.index)];
          answer.tokens.insert(answer.tokens.end(), part.new_token_ids.begin(),
                               part.new_token_ids.end());
          answer.logprobs.insert(answer.logprobs.end(), part.new_logprobs.begin(),
                                 part.new_logprobs.end());
          if (part.finish_reason != FinishReason::kNone) answer.reason = part.finish_reason;
        }
      }
    }
    if (num_device_steps != nullptr) *num_device_steps = engine.stats().num_device_steps;
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

  TempDirectory target_;
  TempDirectory draft_;
};

// Bad words keep a request on the ordinary step; these are longer than any answer.
void keep_ordinary(std::vector<Job>& jobs) {
  for (Job& job : jobs) job.params.bad_words = {Tokens(100, 1)};
}

std::vector<Job> jobs_of(int count, const SamplingParams& params, int gap = 0) {
  std::vector<Job> jobs;
  for (int i = 0; i < count; ++i) {
    Job job{.id = str_cat("r", i), .prompt = {}, .params = params, .arrives = i * gap};
    for (int j = 0; j < 3 + 5 * i % 14; ++j) job.prompt.push_back((i * 5 + j * 3) % tiny::kVocab);
    job.params.seed = 100 + i;
    jobs.push_back(std::move(job));
  }
  return jobs;
}

SamplingParams greedy() {
  SamplingParams params;
  params.temperature = 0.0f;
  params.max_tokens = 14;
  return params;
}

SamplingParams shaped() {
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

TEST_F(DeviceLoopTest, PlainDecodingIsThatOfTheOrdinaryStep) {
  for (const SamplingParams& params : {greedy(), shaped()}) {
    std::vector<Job> jobs = jobs_of(3, params);
    int64_t num_device_steps = 0;
    const Answers answers = run(config(), jobs, &num_device_steps);
    EXPECT_GT(num_device_steps, 8);
    keep_ordinary(jobs);
    const Answers ordinary = run(config(), jobs, &num_device_steps);
    EXPECT_EQ(num_device_steps, 0);
    expect_equal(ordinary, answers);
  }
}

TEST_F(DeviceLoopTest, DraftsOfTheDeviceNeverChangeAnAnswer) {
  for (const SamplingParams& params : {greedy(), shaped()}) {
    const std::vector<Job> jobs = jobs_of(3, params);
    const Answers plain = run(config(), jobs);
    for (const TempDirectory* model : {&target_, &draft_}) {
      for (int num_tokens : {1, 4}) {
        SCOPED_TRACE(num_tokens);
        int64_t num_device_steps = 0;
        expect_equal(plain, run(with_draft(*model, num_tokens), jobs, &num_device_steps));
        EXPECT_GT(num_device_steps, 0);
      }
    }
  }
}

TEST_F(DeviceLoopTest, LaunchesOneByOneGiveWhatGraphsGive) {
  const std::vector<Job> jobs = jobs_of(2, shaped());
  EngineConfig eager = with_draft(draft_, 3);
  eager.enforce_eager = true;
  expect_equal(run(with_draft(draft_, 3), jobs), run(eager, jobs));
}

TEST_F(DeviceLoopTest, AnAdaptiveDraftLengthNeverChangesAnAnswer) {
  const std::vector<Job> jobs = jobs_of(3, greedy());
  expect_equal(run(config(), jobs), run(with_draft(draft_, 4, DraftLengthPolicy::kAuto), jobs));
}

TEST_F(DeviceLoopTest, RequestsComeAndGoWhileOthersDecode) {
  std::vector<Job> jobs = jobs_of(7, shaped(), /*gap=*/3);
  for (size_t i = 0; i < jobs.size(); ++i) {
    jobs[i].params.max_tokens = 5 + static_cast<int>(3 * i) % 10;
    jobs[i].params.n = i == 4 ? 2 : 1;
  }
  const Answers drafted = run(with_draft(draft_, 3), jobs);
  const Answers plain = run(config(), jobs);
  keep_ordinary(jobs);
  const Answers ordinary = run(config(), jobs);
  expect_equal(ordinary, plain);
  expect_equal(ordinary, drafted);
}

// With the target as its own draft every draft is right, so a step gives all it can.
TEST_F(DeviceLoopTest, RightDraftsAreAllAccepted) {
  Engine engine(with_draft(target_, 3));
  SamplingParams params = greedy();
  params.max_tokens = 41;
  engine.add_request("a", {1, 2, 3}, params);
  while (engine.has_unfinished_requests()) engine.step();
  const AcceptanceStats& acceptance = engine.stats().acceptance;
  EXPECT_EQ(acceptance.num_accepted_tokens, acceptance.num_draft_tokens);
  EXPECT_GT(acceptance.num_draft_tokens, 25);
}

// A new request's prompt is unknown to the draft model: it catches up each time.
TEST_F(DeviceLoopTest, EveryRequestIsDraftedFor) {
  Engine engine(with_draft(target_, 3));
  int64_t num_drafts = 0;
  for (const Job& job : jobs_of(3, greedy())) {
    engine.add_request(job.id, job.prompt, job.params);
    while (engine.has_unfinished_requests()) engine.step();
    const int64_t now = engine.stats().acceptance.num_draft_tokens;
    EXPECT_GE(now, num_drafts + 8) << job.id;
    num_drafts = now;
  }
}

TEST_F(DeviceLoopTest, AnAbortedRequestLeavesTheOthersAlone) {
  const std::vector<Job> jobs = jobs_of(3, greedy());
  const Answers expected = run(with_draft(draft_, 3), jobs);
  Engine engine(with_draft(draft_, 3));
  for (const Job& job : jobs) engine.add_request(job.id, job.prompt, job.params);
  std::map<std::string, Tokens> tokens;
  for (int step = 0; engine.has_unfinished_requests(); ++step) {
    if (step == 3) {
      EXPECT_TRUE(engine.abort("r1"));
    }
    for (const RequestOutput& output : engine.step()) {
      Tokens& all = tokens[output.request_id];
      const Tokens& fresh = output.outputs[0].new_token_ids;
      all.insert(all.end(), fresh.begin(), fresh.end());
    }
  }
  EXPECT_EQ(tokens["r0"], expected.at("r0/0").tokens);
  EXPECT_EQ(tokens["r2"], expected.at("r2/0").tokens);
}

// Drafts of the host, chains and trees, are verified by one launch.
TEST_F(DeviceLoopTest, DraftsOfTheHostNeverChangeAnAnswer) {
  for (const SamplingParams& params : {greedy(), shaped()}) {
    const std::vector<Job> jobs = jobs_of(3, params);
    const Answers plain = run(config(), jobs);
    EngineConfig ngram = config();
    ngram.speculative.num_speculative_tokens = 4;
    ngram.speculative.draft_length_policy = DraftLengthPolicy::kFixed;
    ngram.speculative.drafters.resize(1);
    ngram.speculative.drafters[0].method = DraftMethod::kNgram;
    EngineConfig trees = with_draft(draft_, 3);
    trees.speculative.tree_width = 3;
    for (const EngineConfig& config : {ngram, trees}) {
      int64_t num_device_steps = 0;
      expect_equal(plain, run(config, jobs, &num_device_steps));
      EXPECT_GT(num_device_steps, 3);
    }
  }
}

// The host's verification is the reference: the same coins decide.
TEST_F(DeviceLoopTest, WeighedDraftsAreThoseTheHostWouldKeep) {
  for (Verification verification : {Verification::kRejection, Verification::kBlock}) {
    SamplingParams params = shaped();
    params.logprobs = std::nullopt;
    std::vector<Job> jobs = jobs_of(3, params);
    EngineConfig config = with_draft(draft_, 3);
    config.speculative.verification = verification;
    config.speculative.drafters[0].sampling = DraftSampling::kIndependent;
    int64_t num_device_steps = 0;
    const Answers answers = run(config, jobs, &num_device_steps);
    EXPECT_GT(num_device_steps, 3);
    keep_ordinary(jobs);
    expect_equal(run(config, jobs), answers);
  }
}

// The pool is too small for all: sequences are preempted and come back.
TEST_F(DeviceLoopTest, AShortPoolChangesNoAnswer) {
  std::vector<Job> jobs = jobs_of(4, greedy());
  for (Job& job : jobs) job.params.max_tokens = 32;
  EngineConfig tight = with_draft(draft_, 3);
  tight.num_kv_blocks = 8;
  expect_equal(run(config(), jobs), run(tight, jobs));
}

TEST_F(DeviceLoopTest, SyntheticAcceptanceFollowsItsRates) {
  EngineConfig config = with_draft(draft_, 4);
  config.speculative.verification = Verification::kSynthetic;
  config.speculative.synthetic_acceptance_rates = {1.0, 1.0, 0.0, 0.0};
  Engine engine(config);
  SamplingParams params = greedy();
  params.max_tokens = 40;
  params.ignore_eos = true;
  engine.add_request("a", {1, 2, 3}, params);
  while (engine.has_unfinished_requests()) engine.step();
  const EngineStats stats = engine.stats();
  EXPECT_GT(stats.num_device_steps, 5);
  EXPECT_NEAR(stats.acceptance.mean_acceptance_length(), 3.0, 0.25);
}

}  // namespace
}  // namespace specdec
