#include "specdec/engine_loop.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "specdec/error.h"
#include "testing/faulty_backend.h"
#include "testing/thrown.h"
#include "testing/tiny_engine.h"

namespace specdec {
namespace {

using testing::refused_field;
namespace tiny = testing::tiny_llama;
using tiny::prompt_of;
using tiny::sampled;

using Tokens = std::vector<int32_t>;

// Delays steps: every step drafts, and drafting waits while the gate is shut.
class Gate : public CustomDrafter {
 public:
  std::vector<Tokens> propose(std::span<const int32_t>, int) override {
    std::unique_lock lock(mutex_);
    is_reached_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return is_open_; });
    if (inside_) inside_();
    return {};
  }
  void wait_until_reached() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return is_reached_; });
  }
  void open() {
    {
      const std::scoped_lock lock(mutex_);
      is_open_ = true;
    }
    changed_.notify_all();
  }
  // Called in the thread that steps.
  void set_inside(std::function<void()> inside) { inside_ = std::move(inside); }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_reached_ = false;
  bool is_open_ = false;
  std::function<void()> inside_;
};

class EngineLoopTest : public tiny::EngineFixture {
 protected:
  using EngineFixture::config;
  EngineConfig config(std::shared_ptr<CustomDrafter> drafter) const {
    return testing::with_drafter(config(), testing::custom(std::move(drafter)), 2);
  }
};

struct Answer {
  Tokens tokens;
  FinishReason finish_reason = FinishReason::kNone;
  std::string error;
};
using Answers = std::map<uint64_t, Answer>;

void take(EngineLoop::Batch batch, Answers& answers) {
  for (LoopOutput& entry : batch.outputs) {
    Answer& answer = answers[entry.output.request_id];
    answer.error = entry.output.error;
    for (const CompletionOutput& part : entry.output.outputs) {
      answer.tokens.insert(answer.tokens.end(), part.new_token_ids.begin(),
                           part.new_token_ids.end());
      if (part.finish_reason != FinishReason::kNone) answer.finish_reason = part.finish_reason;
    }
  }
}

int num_finished(const Answers& answers) {
  int count = 0;
  for (const auto& [id, answer] : answers) count += answer.finish_reason != FinishReason::kNone;
  return count;
}

TEST_F(EngineLoopTest, AnswersAreThoseOfAnEngine) {
  constexpr int kNumRequests = 24;
  Engine engine(config());
  EngineLoop loop(config());
  EXPECT_EQ(loop.model_info().vocab_size, tiny::kVocab);
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 3; ++caller) {
    callers.emplace_back([&loop, caller] {
      for (int i = caller; i < kNumRequests; i += 3) {
        loop.add({{.id = static_cast<uint64_t>(i),
                   .request = {loop.model_info(), prompt_of(i), sampled(20)},
                   .context = std::make_shared<uint64_t>(i)}});
        loop.stats();
      }
    });
  }
  Answers answers;
  while (num_finished(answers) < kNumRequests) {
    auto batch = loop.take_outputs();
    ASSERT_TRUE(batch.has_value());
    for (const LoopOutput& entry : batch->outputs) {
      EXPECT_EQ(*static_cast<uint64_t*>(entry.context.get()), entry.output.request_id);
    }
    take(*std::move(batch), answers);
  }
  for (std::thread& caller : callers) caller.join();
  for (int i = 0; i < kNumRequests; ++i) {
    EXPECT_EQ(answers.at(i).tokens, engine.generate({prompt_of(i)}, sampled(20))[0][0].token_ids);
    EXPECT_EQ(answers.at(i).finish_reason, FinishReason::kLength);
  }
  EXPECT_EQ(loop.stats().num_finished_requests, kNumRequests);
}

TEST_F(EngineLoopTest, RequestsByStepAdvanceInStepsAskedFor) {
  EngineLoop loop(config());
  loop.add({{.id = 1, .request = {loop.model_info(), prompt_of(3), sampled(3)}, .by_step = true}});
  Answers answers;
  for (int i = 1; i <= 3; ++i) {
    EXPECT_EQ(loop.stats().num_steps, i - 1);
    const uint64_t step = loop.ask_for_step();
    EngineLoop::Batch batch = loop.take_outputs().value();
    EXPECT_EQ(batch.last_answered_step, step);
    take(std::move(batch), answers);
    EXPECT_EQ(static_cast<int>(answers[1].tokens.size()), i);
  }
  EXPECT_EQ(answers[1].finish_reason, FinishReason::kLength);
  // The loop answers even if nothing is left to run.
  const uint64_t step = loop.ask_for_step();
  const EngineLoop::Batch batch = loop.take_outputs().value();
  EXPECT_EQ(batch.last_answered_step, step);
  EXPECT_TRUE(batch.outputs.empty());
}

TEST_F(EngineLoopTest, AnAbortedRequestEndsWithWhatThereIs) {
  const auto gate = std::make_shared<Gate>();
  EngineLoop loop(config(gate));
  loop.add({{.id = 7, .request = {loop.model_info(), prompt_of(1), sampled(20)}},
            {.id = 8, .request = {loop.model_info(), prompt_of(2), sampled(20)}}});
  loop.abort(7);  // waits for the step that the gate holds up, or comes before the first
  loop.abort(99);
  gate->open();
  Answers answers;
  while (num_finished(answers) < 2) take(loop.take_outputs().value(), answers);
  EXPECT_EQ(answers[7].finish_reason, FinishReason::kAbort);
  EXPECT_LT(answers[7].tokens.size(), 20U);
  Engine engine(config());
  EXPECT_EQ(answers[8].tokens, engine.generate({prompt_of(2)}, sampled(20))[0][0].token_ids);
  EXPECT_EQ(loop.stats().num_aborted_requests, 1);
  EXPECT_EQ(loop.stats().num_running, 0);
}

TEST_F(EngineLoopTest, AStoppedRequestIsSilentAndItsIdFree) {
  EngineLoop loop(config());
  SamplingParams two = sampled(20);
  two.n = 2;
  const LoopRequest request{
      .id = 3, .request = {loop.model_info(), prompt_of(4), two}, .by_step = true};
  loop.add({request});
  loop.ask_for_step();
  Answers answers;
  take(loop.take_outputs().value(), answers);
  EXPECT_EQ(refused_field([&] { loop.add({request}); }), "id");
  loop.stop_completion(3, 0);
  EXPECT_EQ(refused_field([&] { loop.add({request}); }), "id");
  loop.stop_completion(3, 1);
  loop.add({request});
  EXPECT_EQ(loop.stats().num_finished_requests, 1);
  EXPECT_EQ(loop.stats().num_running + loop.stats().num_waiting, 2);
}

TEST_F(EngineLoopTest, ARequestForAnotherEngineIsRefusedAndNoneIsAdded) {
  EngineLoop loop(config());
  ModelInfo other = loop.model_info();
  ++other.max_model_len;
  EXPECT_EQ(refused_field([&] {
              loop.add({{.id = 1, .request = {loop.model_info(), prompt_of(1), sampled(5)}},
                        {.id = 2, .request = {other, prompt_of(1), sampled(5)}}});
            }),
            "request");
  EXPECT_EQ(loop.stats().num_waiting, 0);
}

TEST_F(EngineLoopTest, LoadCountsWhatIsQueuedAndWaitsForNoStep) {
  const auto gate = std::make_shared<Gate>();
  EngineLoop loop(config(gate));
  const auto expect = [&](int num_running, int num_waiting, int num_waiting_tokens) {
    const EngineLoad load = loop.load();
    EXPECT_EQ(load.num_running, num_running);
    EXPECT_EQ(load.num_waiting, num_waiting);
    EXPECT_EQ(load.num_waiting_tokens, num_waiting_tokens);
  };
  expect(0, 0, 0);
  loop.add({{.id = 1, .request = {loop.model_info(), Tokens(5, 1), sampled(20)}}});
  gate->wait_until_reached();  // the step after the prompt's
  expect(1, 0, 0);
  EXPECT_EQ(loop.load().num_free_kv_blocks, loop.load().num_kv_blocks - 1);
  loop.add({{.id = 2, .request = {loop.model_info(), Tokens(7, 1), sampled(2)}},
            {.id = 3, .request = {loop.model_info(), Tokens(9, 1), sampled(2)}}});
  expect(1, 2, 16);
  loop.abort(2);
  loop.abort(1);
  gate->open();
  Answers answers;
  while (num_finished(answers) < 3) take(loop.take_outputs().value(), answers);
  expect(0, 0, 0);  // as soon as the last output is there
  EXPECT_EQ(loop.load().num_free_kv_blocks, loop.load().num_kv_blocks);
  loop.close();
  expect(0, 0, 0);
}

TEST_F(EngineLoopTest, APriorityNeedsItsPolicy) {
  EngineLoop loop(config());
  EXPECT_EQ(
      refused_field([&] {
        loop.add(
            {{.id = 1, .request = {loop.model_info(), prompt_of(1), sampled(5), {.priority = 1}}}});
      }),
      "priority");
  EXPECT_EQ(loop.load().num_waiting, 0);
}

TEST_F(EngineLoopTest, ClosingAbortsWhatRunsAndLeavesNothingUntaken) {
  EngineLoop loop(config());
  for (uint64_t id = 0; id < 8; ++id) {
    loop.add(
        {{.id = id, .request = {loop.model_info(), prompt_of(1), sampled(20)}, .by_step = true}});
  }
  loop.ask_for_step();
  std::thread closing([&loop] { loop.close(); });
  loop.close();
  closing.join();
  Answers answers;
  while (auto batch = loop.take_outputs()) take(*std::move(batch), answers);
  EXPECT_EQ(num_finished(answers), 8);
  for (const auto& [id, answer] : answers) EXPECT_EQ(answer.finish_reason, FinishReason::kAbort);
  EXPECT_THROW(loop.stats(), Unavailable);
  EXPECT_THROW(loop.ask_for_step(), Unavailable);
  EXPECT_THROW(loop.add({{.id = 9, .request = {loop.model_info(), prompt_of(1), sampled(5)}}}),
               Unavailable);
  loop.abort(1);
}

TEST_F(EngineLoopTest, ADrafterMayDropTheLoop) {
  const auto gate = std::make_shared<Gate>();
  auto loop = std::make_unique<EngineLoop>(config(gate));
  std::promise<void> dropped;
  gate->set_inside([&] {
    if (loop == nullptr) return;
    EXPECT_TRUE(loop->is_loop_thread());
    loop.reset();
    dropped.set_value();
  });
  EXPECT_FALSE(loop->is_loop_thread());
  EngineLoop* borrowed = loop.get();
  borrowed->add({{.id = 1, .request = {borrowed->model_info(), prompt_of(1), sampled(20)}}});
  gate->open();
  dropped.get_future().wait();
}

// The last completion is stopped during the step in which the core ends the other one.
TEST_F(EngineLoopTest, ACompletionStoppedWhileTheOtherEndsIsTheEnd) {
  Engine engine(config());
  SamplingParams two = sampled(20);
  two.n = 2;
  Tokens prompt;
  for (int i = 0; two.stop_token_ids.empty(); ++i) {
    prompt = prompt_of(i);
    const std::vector<Completion> both = engine.generate({prompt}, two)[0];
    const int32_t second = both[0].token_ids[1];
    const Tokens others = {both[0].token_ids[0], both[1].token_ids[0], both[1].token_ids[1]};
    if (std::ranges::find(others, second) == others.end()) two.stop_token_ids = {second};
  }
  const auto gate = std::make_shared<Gate>();
  EngineLoop loop(config(gate));
  loop.add({{.id = 3, .request = {loop.model_info(), prompt, two}}});
  gate->wait_until_reached();
  loop.stop_completion(3, 1);
  gate->open();
  Answers answers;
  while (num_finished(answers) < 1) take(loop.take_outputs().value(), answers);
  EXPECT_EQ(answers[3].finish_reason, FinishReason::kStop);
  loop.add({{.id = 3, .request = {loop.model_info(), prompt, sampled(1)}}});  // the id is free
  EXPECT_EQ(loop.stats().num_aborted_requests, 0);
}

TEST_F(EngineLoopTest, TheLoopRunsAFewStepsAheadOfItsReader) {
  EngineLoop loop(config());
  loop.add({{.id = 1, .request = {loop.model_info(), prompt_of(1), sampled(20)}}});
  int64_t num_steps = 0;
  for (int looks = 0; looks < 100; ++looks) {
    num_steps = loop.stats().num_steps;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_GT(num_steps, 0);
  EXPECT_LT(num_steps, 10);
  Answers answers;
  while (num_finished(answers) < 1) take(loop.take_outputs().value(), answers);
  EXPECT_EQ(answers[1].tokens.size(), 20U);
}

TEST_F(EngineLoopTest, OneIdTwiceInACallIsRefused) {
  EngineLoop loop(config());
  const LoopRequest request{.id = 1, .request = {loop.model_info(), prompt_of(1), sampled(5)}};
  EXPECT_EQ(refused_field([&] { loop.add({request, request}); }), "id");
  EXPECT_EQ(loop.stats().num_waiting, 0);
}

TEST_F(EngineLoopTest, AFailedEngineEndsAllRequestsOnceAndTakesNoMore) {
  testing::Faults faults;
  EngineLoop loop([&] { return testing::make_faulty_engine(config(), faults); });
  const auto add = [&loop](uint64_t id) {
    loop.add(
        {{.id = id, .request = {loop.model_info(), prompt_of(1), sampled(9)}, .by_step = true}});
  };
  for (uint64_t id = 0; id < 4; ++id) add(id);
  loop.ask_for_step();
  Answers answers;
  take(loop.take_outputs().value(), answers);
  EXPECT_EQ(num_finished(answers), 0);
  faults.forward = [](int) { throw Unavailable("the device is gone"); };
  loop.ask_for_step();
  EngineLoop::Batch batch = loop.take_outputs().value();
  EXPECT_EQ(batch.outputs.size(), 4U);
  for (const LoopOutput& entry : batch.outputs) {
    EXPECT_THROW(std::rethrow_exception(entry.output.engine_failure), EngineFailed);
    EXPECT_NE(entry.output.error.find("the device is gone"), std::string::npos);
  }
  EXPECT_THROW(add(9), EngineFailed);
  EXPECT_EQ(loop.stats().num_running, 0);
}

// The system reuses thread ids: the id of an ended loop's thread must not make a caller look like
// the loop's own thread.
TEST_F(EngineLoopTest, AClosedLoopMayBeDroppedInTheThreadOfAnother) {
  auto closed = std::make_unique<EngineLoop>(config());
  closed->close();
  for (int i = 0; i < 4; ++i) {
    const auto gate = std::make_shared<Gate>();
    std::promise<void> looked;
    bool is_first = true;
    gate->set_inside([&] {
      if (!std::exchange(is_first, false)) return;
      EXPECT_FALSE(closed->is_loop_thread());
      if (i == 3) closed.reset();
      looked.set_value();
    });
    gate->open();
    EngineLoop loop(config(gate));
    loop.add({{.id = 1, .request = {loop.model_info(), prompt_of(1), sampled(5)}}});
    looked.get_future().wait();
  }
}

TEST_F(EngineLoopTest, ACheckpointThatDoesNotLoadIsTheConstructorsError) {
  EngineConfig missing = config();
  missing.model += "/nowhere";
  EXPECT_THROW(EngineLoop loop(missing), Error);
}

}  // namespace
}  // namespace specdec
