// Errors planted in one rank of several, threads or processes. Whatever fails, and wherever, the
// engine ends with that rank's error; nobody waits for the timeout. And sums in another order.
#include "engine/ranks.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/shm_communicator.h"
#include "engine/engine_impl.h"
#include "specdec/engine.h"
#include "specdec/engine_loop.h"
#include "specdec/error.h"
#include "specdec/ranks.h"
#include "testing/answers.h"
#include "testing/checkpoint_files.h"
#include "testing/faulty_backend.h"
#include "testing/text.h"
#include "testing/thrown.h"

namespace specdec {
namespace {

using testing::Faults;
using testing::has_text;
// Timeout of ranks that wait for one another. No test should reach it: it would hang.
constexpr int kTimeoutSeconds = 3600;

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
    config.load_format = LoadFormat::kDummy;
    config.device = "cpu";
    config.num_threads = 1;
    config.num_kv_blocks = 16;
    config.tensor_parallel_size = GetParam().first;
    config.pipeline_parallel_size = GetParam().second;
    config.distributed_timeout_seconds = kTimeoutSeconds;
    return config;
  }

  // The ranks that do not lead have the faults: they are threads other than the engine's.
  Engine make_engine() {
    const std::thread::id leader = std::this_thread::get_id();
    return Engine::Impl::engine_of(std::make_unique<Engine::Impl>(
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

  // The outputs of two requests when a rank fails while they run; the engine then takes no others.
  static std::vector<RequestOutput> fail_on_the_way(Engine& engine, const std::string& cause,
                                                    const std::function<void()>& plant) {
    for (const uint64_t id : {1, 2}) engine.add_request(id, {1, 2, 3}, params(200));
    for (int step = 0; step < 3; ++step) engine.step();
    plant();
    std::vector<RequestOutput> outputs;
    while (engine.has_unfinished_requests()) outputs = engine.step();
    EXPECT_EQ(outputs.size(), 2U) << cause;
    for (const RequestOutput& output : outputs) EXPECT_TRUE(has_text(output.error, cause));
    EXPECT_THROW(engine.add_request(3, {1}, params(1)), RankFailure);
    return outputs;
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
      for (const RequestOutput& output : fail_on_the_way(engine, cause, [&] { num_left = 5; })) {
        ASSERT_NE(output.engine_failure, nullptr);
        const auto failure =
            testing::error_of<RankFailure>([&] { std::rethrow_exception(output.engine_failure); });
        EXPECT_GT(failure.rank(), 0);
        EXPECT_FALSE(failure.operation().empty());
        EXPECT_EQ(failure.what(), output.error);
      }
    }
  }
}

TEST_P(RanksTest, AnErrorOfARankThatLoadsIsTheEngines) {
  faults_.allocate = [] { throw OutOfMemory("planted in a rank"); };
  EXPECT_TRUE(
      has_text(testing::error_of<OutOfMemory>([&] { make_engine(); }).what(), "planted in a rank"));
  faults_.allocate = [] { throw CheckpointError("a file", "", "planted"); };
  EXPECT_THROW(make_engine(), CheckpointError);
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
  loop.add({{.id = 1, .request = {loop.model_info(), {1, 2, 3}, params(1)}}});
  EXPECT_EQ(loop.take_outputs()->outputs[0].output.error, "");
  is_answered = true;
  while (loop.failure() == nullptr) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_THROW(std::rethrow_exception(loop.failure()), RankFailure);
  EXPECT_THROW(loop.add({{.id = 2, .request = {loop.model_info(), {1}, params(1)}}}), RankFailure);
}

// Brings the parts of others in place of one another, as if sums were added in another order.
class RotatedParts final : public Communicator {
 public:
  explicit RotatedParts(Communicator& group)
      : Communicator(group.rank(), group.size(), group.timeout()), group_(group) {}

  std::byte* part(size_t size_bytes) override { return group_.part(size_bytes); }
  std::span<const std::span<const std::byte>> exchange(size_t size_bytes) override {
    const auto parts = group_.exchange(size_bytes);
    parts_.assign(parts.begin(), parts.end());
    std::ranges::rotate(parts_, parts_.begin() + 1);
    return parts_;
  }
  void broadcast(std::vector<std::byte>& message, int root, Patience patience) override {
    group_.broadcast(message, root, patience);
  }
  void send(int to, std::span<const std::byte> message) override { group_.send(to, message); }
  void receive(int from, std::span<std::byte> message) override { group_.receive(from, message); }
  void post(int to, std::vector<std::byte> message) override {
    group_.post(to, std::move(message));
  }
  void receive_any_size(int from, std::vector<std::byte>& message, Patience patience) override {
    group_.receive_any_size(from, message, patience);
  }
  std::unique_ptr<Communicator> subgroup(int first, int size) override {
    return group_.subgroup(first, size);
  }
  void check_ranks() override { group_.check_ranks(); }
  void abort(std::string_view cause) noexcept override { group_.abort(cause); }

 private:
  Communicator& group_;
  std::vector<std::span<const std::byte>> parts_;
};

// Checks that answers would show it if sums depended on the number of ranks.
class SumsOfRanksTest : public RanksTest {
 protected:
  std::map<std::string, testing::Ended> answers(int num_ranks, bool is_rotated) {
    std::mutex mutex;
    std::vector<std::unique_ptr<RotatedParts>> rotated;  // by weight
    faults_ = {};
    faults_.pack = [&](PackArgs& args) {
      if (!is_rotated || args.rank_runs.empty()) return;
      const std::scoped_lock lock(mutex);
      args.ranks = rotated.emplace_back(std::make_unique<RotatedParts>(*args.ranks)).get();
    };
    EngineConfig whole = config();
    whole.tensor_parallel_size = num_ranks;
    whole.dtype =
        ModelDType::kFloat32;  // bfloat16 rounds away nearly all of what the order changes
    Engine engine = testing::make_faulty_engine(whole, faults_);
    SamplingParams asked = params(24);
    asked.logprobs = 5;
    return testing::run_to_end(engine, {{.id = "a", .prompt = {1, 2, 3}, .params = asked},
                                        {.id = "b", .prompt = {9, 8, 7, 6, 5}, .params = asked}});
  }
};

// Four ranks have one subtree of the sum each. Two ranks would only swap the sides of an addition.
TEST_P(SumsOfRanksTest, AnotherOrderShowsInAnswers) {
  const auto whole = answers(1, false);
  EXPECT_EQ(answers(4, false), whole);
  EXPECT_NE(answers(4, true), whole);
}

INSTANTIATE_TEST_SUITE_P(Sizes, SumsOfRanksTest, ::testing::Values(std::pair{4, 1}));

// A rank that is a process, and fails at a pass once its leader says so.
class RankProcessTest : public RanksTest {
 protected:
  struct Shared {
    std::atomic<bool> fails = false;
  };

  void SetUp() override {
    void* memory =
        mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    shared_ = new (memory) Shared;
  }
  void TearDown() override { munmap(shared_, sizeof(Shared)); }

  // Exit code of the process; it is 0 if nothing was thrown.
  static constexpr int kThrew = 7;
  pid_t start_rank(const EngineConfig& config, int rank, const std::function<void()>& fail) {
    const pid_t process = fork();
    if (process != 0) return process;
    int code = 0;
    try {
      Faults faults;
      const auto fault = [&] {
        if (rank == 1 && shared_->fails) fail();
      };
      if (in_product_) {
        faults.linear = fault;
      } else {
        faults.forward = [fault](int) { fault(); };
      }
      const auto group =
          join_shm_group(config.rank_group->name(), rank, std::chrono::seconds(kTimeoutSeconds));
      serve_rank(
          config,
          [&](const BackendConfig& backend) -> std::unique_ptr<Backend> {
            return std::make_unique<testing::FaultyBackend>(make_backend(backend), faults);
          },
          *group);
    } catch (...) {
      code = kThrew;
    }
    _exit(code);
  }

  Shared* shared_ = nullptr;
  bool in_product_ = false;
};

TEST_P(RankProcessTest, ItsErrorReachesAllRequestsAndItEnds) {
  for (size_t number = 0; number < 2 * errors().size(); ++number) {
    const auto& [fail, cause] = errors()[number / 2];
    in_product_ = number % 2 != 0;
    shared_->fails = false;
    EngineConfig config = this->config();
    const int num_ranks = config.tensor_parallel_size * config.pipeline_parallel_size;
    config.distributed_executor_backend = DistributedExecutorBackend::kMp;
    config.rank_group = std::make_shared<RankGroup>(num_ranks);
    std::vector<pid_t> processes;
    for (int rank = 1; rank < num_ranks; ++rank) {
      processes.push_back(start_rank(config, rank, fail));
    }
    {
      Engine engine(config);
      for (const RequestOutput& output :
           fail_on_the_way(engine, cause, [&] { shared_->fails = true; })) {
        EXPECT_TRUE(has_text(output.error, "rank 1 failed in "));
      }
    }
    for (const pid_t process : processes) {  // all have ended by themselves, with an error
      int status = 0;
      ASSERT_EQ(waitpid(process, &status, 0), process);
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == kThrew) << status;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, RankProcessTest,
                         ::testing::Values(std::pair{2, 1}, std::pair{1, 2}, std::pair{4, 1}));

INSTANTIATE_TEST_SUITE_P(Sizes, RanksTest,
                         ::testing::Values(std::pair{2, 1}, std::pair{1, 2}, std::pair{2, 2}));

}  // namespace
}  // namespace specdec
