// Errors planted in one rank of several, which are threads. Whatever fails, and wherever, the
// engine ends with that rank's error; nobody waits for the timeout.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <fstream>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/engine_impl.h"
#include "specdec/engine.h"
#include "specdec/engine_loop.h"
#include "specdec/error.h"
#include "testing/checkpoint_files.h"
#include "testing/faulty_backend.h"
#include "testing/text.h"

namespace specdec {
namespace {

using testing::Faults;
using testing::has_text;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kSoon{15};  // the timeout is twice as long

constexpr const char* kConfig = R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16",
  "vocab_size": 97, "hidden_size": 64, "intermediate_size": 512, "num_hidden_layers": 2,
  "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 16, "rms_norm_eps": 1e-5,
  "max_position_embeddings": 256, "tie_word_embeddings": true})";

class RanksTest : public ::testing::TestWithParam<std::pair<int, int>> {
 protected:
  RanksTest() { std::ofstream(directory_.path() + "/config.json") << kConfig; }

  EngineConfig config() const {
    EngineConfig config;
    config.model = directory_.path();
    config.load_format = "dummy";
    config.device = "cpu";
    config.num_threads = 1;
    config.num_kv_blocks = 16;
    config.tensor_parallel_size = GetParam().first;
    config.pipeline_parallel_size = GetParam().second;
    config.distributed_timeout_seconds = 30;
    return config;
  }

  // The ranks that do not lead have the faults: they are threads other than the engine's.
  Engine make_engine() {
    const std::thread::id leader = std::this_thread::get_id();
    return Engine(std::make_unique<Engine::Impl>(
        config(), [this, leader](const BackendConfig& backend) -> std::unique_ptr<Backend> {
          if (std::this_thread::get_id() == leader) return make_backend(backend);
          return std::make_unique<testing::FaultyBackend>(make_backend(backend), faults_);
        }));
  }

  static SamplingParams params(int max_tokens) {
    SamplingParams params;
    params.max_tokens = max_tokens;
    params.ignore_eos = true;
    return params;
  }

  testing::TempDirectory directory_;
  Faults faults_;
};

const std::vector<std::pair<std::function<void()>, std::string>>& errors() {
  static const std::vector<std::pair<std::function<void()>, std::string>> errors = {
      {[] { throw Unavailable("planted"); }, "planted"},
      {[] { throw OutOfMemory("planted"); }, "planted; lower max_num_batched_tokens"},
      {[] { throw std::bad_alloc(); }, "out of memory; lower max_num_batched_tokens"},
      {[] { throw 5; }, "unknown error"}};
  return errors;
}

TEST_P(RanksTest, AnErrorOfARankEndsAllRequestsAndTheEngine) {
  for (const bool in_product : {false, true}) {
    for (const auto& [fail, cause] : errors()) {
      const auto begin = Clock::now();
      std::atomic<int> num_left = 1 << 30;  // until the first of the ranks fails
      const auto fault = [&num_left, fail = fail] {
        if (--num_left == 0) fail();
      };
      faults_ = {};
      if (in_product) {
        faults_.linear = fault;  // while the others wait for its part
      } else {
        faults_.forward = [fault](int) { fault(); };
      }
      Engine engine = make_engine();
      EXPECT_EQ(engine.failure(), nullptr);
      EXPECT_TRUE(engine.has_ranks());
      for (const char* id : {"a", "b"}) engine.add_request(id, {1, 2, 3}, params(200));
      for (int step = 0; step < 3; ++step) engine.step();
      num_left = 5;
      std::vector<RequestOutput> outputs;
      while (engine.has_unfinished_requests()) outputs = engine.step();
      ASSERT_EQ(outputs.size(), 2U);
      for (const RequestOutput& output : outputs) {
        EXPECT_TRUE(has_text(output.error, cause));
        ASSERT_NE(output.engine_failure, nullptr);
        try {
          std::rethrow_exception(output.engine_failure);
        } catch (const RankFailure& failure) {
          EXPECT_GT(failure.rank(), 0);
          EXPECT_FALSE(failure.operation().empty());
          EXPECT_EQ(failure.what(), output.error);
        }
      }
      EXPECT_THROW(engine.add_request("c", {1}, params(1)), RankFailure);
      EXPECT_LT(Clock::now() - begin, kSoon);
    }
  }
}

TEST_P(RanksTest, AnErrorOfARankThatLoadsIsTheEngines) {
  const auto begin = Clock::now();
  faults_.allocate = [] { throw OutOfMemory("planted in a rank"); };
  try {
    make_engine();
    ADD_FAILURE() << "an engine without a rank";
  } catch (const OutOfMemory& error) {
    EXPECT_TRUE(has_text(error.what(), "planted in a rank"));
  }
  faults_.allocate = [] { throw CheckpointError("a file", "", "planted"); };
  EXPECT_THROW(make_engine(), CheckpointError);
  EXPECT_LT(Clock::now() - begin, kSoon);
}

TEST_P(RanksTest, AnIdleLoopSeesThatARankHasFailed) {
  static thread_local bool has_run = false;  // of each rank: another may be loading still
  std::atomic<bool> is_answered = false;
  faults_.forward = [](int) { has_run = true; };
  faults_.end_step = [&] {  // which nobody waits for
    if (!has_run) return;
    while (!is_answered) std::this_thread::yield();
    throw Unavailable("planted");
  };
  EngineLoop loop([this] { return make_engine(); });
  EXPECT_EQ(loop.failure(), nullptr);
  loop.add({{.id = 1, .prompt_token_ids = {1, 2, 3}, .params = params(1)}});
  EXPECT_EQ(loop.take_outputs()->outputs[0].output.error, "");
  is_answered = true;
  const auto begin = Clock::now();
  while (loop.failure() == nullptr && Clock::now() - begin < kSoon)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  ASSERT_NE(loop.failure(), nullptr);
  EXPECT_THROW(std::rethrow_exception(loop.failure()), RankFailure);
  EXPECT_THROW(loop.add({{.id = 2, .prompt_token_ids = {1}, .params = params(1)}}), RankFailure);
}

INSTANTIATE_TEST_SUITE_P(Sizes, RanksTest,
                         ::testing::Values(std::pair{2, 1}, std::pair{1, 2}, std::pair{2, 2}));

}  // namespace
}  // namespace specdec
