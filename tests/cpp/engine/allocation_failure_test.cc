// Each allocation of a step fails once. Either the request it was for ends with an error, or all
// requests and the engine end; no request gets a wrong token and no block is lost.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "specdec/engine.h"
#include "testing/allocation_count.h"
#include "testing/bad_tokens.h"
#include "testing/tiny_engine.h"

namespace specdec {
namespace {

using testing::Answers;
using testing::Asked;
using testing::Ended;
namespace tiny = testing::tiny_llama;

class AllocationFailureTest : public tiny::EngineFixture {
 protected:
  EngineConfig plain() const {
    EngineConfig config = this->config();
    config.num_threads = 1;  // the one that fails
    config.max_num_batched_tokens = 40;
    config.num_kv_blocks = 12;
    return config;
  }

  EngineConfig with(DraftMethod method, int width = 1) const {
    return testing::with_drafter(plain(), drafter(method), 3, width);
  }

  static std::vector<Asked> requests() {
    std::vector<Asked> requests = tiny::four_requests(16, 6);
    for (Asked& request : requests) {
      request.params.grammar = testing::without_sequences(tiny::kVocab, {{3, 4}});
    }
    return requests;
  }

  // Whether an allocation failed: false when there are no more than `num_before`.
  static bool run(const EngineConfig& config, int64_t num_before, Answers& answers) {
    Engine engine(config);
    const std::vector<Asked> asked = requests();
    for (size_t i = 0; i < asked.size(); ++i) {
      engine.add_request(i, asked[i].prompt, asked[i].params);
    }
    int64_t until_failure = num_before;
    for (int step = 0; engine.has_unfinished_requests(); ++step) {
      if (step == 500) {
        ADD_FAILURE() << "requests without an end";
        break;
      }
      testing::fail_after(until_failure);
      const std::vector<RequestOutput> outputs = engine.step();
      until_failure = testing::num_until_failure();
      testing::fail_after(-1);
      for (const RequestOutput& output : outputs) {
        testing::read_output(output, answers[asked[output.request_id].id]);
      }
    }
    EXPECT_EQ(engine.stats().num_free_kv_blocks, engine.stats().num_kv_blocks);
    return until_failure < 0;
  }

  // Fails allocations at one place after the other; the first places lie close together.
  static void expect_harm_to_none(const EngineConfig& config) {
    Engine untouched(config);
    const Answers expected = testing::run_to_end(untouched, requests());
    int num_of_one = 0;
    int num_of_all = 0;
    for (int64_t num_before = 0;; num_before += 1 + num_before / 20) {
      SCOPED_TRACE(num_before);
      Answers answers;
      if (!run(config, num_before, answers)) break;
      size_t num_failed = 0;
      ASSERT_EQ(answers.size(), expected.size());
      for (const auto& [id, answer] : answers) {
        EXPECT_EQ(answer.num_ends, 1);
        num_failed += answer.error.empty() ? 0 : 1;
        if (answer.error.empty()) {
          EXPECT_EQ(answer, expected.at(id)) << id;
        }
      }
      num_of_one += num_failed == 1 ? 1 : 0;
      num_of_all += num_failed == expected.size() ? 1 : 0;
    }
    EXPECT_GT(num_of_one, 5);
    EXPECT_GT(num_of_all, 5);
  }
};

TEST_F(AllocationFailureTest, HarmsNoneOfPlainDecoding) { expect_harm_to_none(plain()); }

TEST_F(AllocationFailureTest, HarmsNoneOfADraftModel) {
  expect_harm_to_none(with(DraftMethod::kDraftModel));
  expect_harm_to_none(with(DraftMethod::kDraftModel, 2));
}

TEST_F(AllocationFailureTest, HarmsNoneOfFreeDrafters) {
  expect_harm_to_none(with(DraftMethod::kNgram));
  expect_harm_to_none(with(DraftMethod::kSuffix, 2));
}

}  // namespace
}  // namespace specdec
