#include "speculation/replay_drafter.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "core/fnv1a.h"
#include "specdec/error.h"
#include "testing/checkpoint_files.h"
#include "testing/draft_once.h"
#include "testing/thrown.h"

namespace specdec {
namespace {

using testing::drafts_of;
using testing::request_for;
using testing::TempDirectory;
using Tokens = std::vector<int32_t>;

constexpr int kVocabSize = 100;

Tokens joined(const Tokens& prompt, const Tokens& answer) {
  Tokens tokens = prompt;
  tokens.insert(tokens.end(), answer.begin(), answer.end());
  return tokens;
}

class ReplayDrafterTest : public ::testing::Test {
 protected:
  static DrafterConfig config(const std::string& record = "", const std::string& replay = "") {
    DrafterConfig config;
    config.method = DraftMethod::kReplay;
    config.record = record;
    config.replay = replay;
    config.store_tokenizer = "abc";
    return config;
  }
  // An answer of a new sequence.
  void finish(ReplayDrafter& drafter, const Tokens& prompt, const Tokens& answer,
              std::string_view salt = {}) {
    drafter.finish({++sequence_, joined(prompt, answer), static_cast<int>(prompt.size()), salt});
  }
  // What is drafted for a new sequence whose prompt is followed by `answer`.
  Tokens draft(ReplayDrafter& drafter, const Tokens& prompt, const Tokens& answer,
               std::string_view salt = {}) {
    return draft_on(drafter, ++sequence_, prompt, answer, salt);
  }
  static Tokens draft_on(ReplayDrafter& drafter, uint64_t sequence, const Tokens& prompt,
                         const Tokens& answer, std::string_view salt = {}) {
    const Tokens tokens = joined(prompt, answer);
    DraftTree tree;
    DraftRequest request = request_for(tokens, tree, {}, sequence);
    request.num_prompt_tokens = static_cast<int>(prompt.size());
    request.cache_salt = salt;
    drafter.draft({&request, 1});
    tree.check_integrity();
    return drafts_of(tree);
  }

  TempDirectory directory_;
  uint64_t sequence_ = 0;
};

TEST_F(ReplayDrafterTest, DraftsWhatTheSamePromptGotBefore) {
  ReplayDrafter drafter(config(), 0, kVocabSize);
  const Tokens prompt = {1, 2, 3};
  EXPECT_TRUE(draft(drafter, prompt, {}).empty());
  finish(drafter, prompt, {10, 11, 12, 13, 14});
  EXPECT_EQ(draft(drafter, prompt, {}), (Tokens{10, 11, 12, 13}));
  EXPECT_EQ(draft(drafter, prompt, {10, 11, 12}), (Tokens{13, 14}));
  EXPECT_TRUE(draft(drafter, {1, 2}, {}).empty());
  EXPECT_TRUE(draft(drafter, {1, 2, 3, 10}, {}).empty());
}

// As with n > 1: the answers of a prompt differ, and each is found by its own beginning.
TEST_F(ReplayDrafterTest, FindsTheOneOfSeveralAnswersThatIsRepeated) {
  ReplayDrafter drafter(config(), 0, kVocabSize);
  const Tokens prompt = {1};
  const std::vector<Tokens> answers = {{10, 11, 12, 13}, {20, 21, 22, 23}, {20, 31, 32, 33}};
  for (const Tokens& answer : answers) finish(drafter, prompt, answer);
  for (const Tokens& answer : answers) {
    const Tokens begin(answer.begin(), answer.begin() + 2);
    const Tokens drafts = draft(drafter, prompt, begin);
    ASSERT_GE(drafts.size(), 2u);
    EXPECT_EQ(Tokens(drafts.begin(), drafts.begin() + 2), (Tokens{answer[2], answer[3]}));
  }
  EXPECT_EQ(draft(drafter, prompt, {})[0], 20);  // the newest
}

TEST_F(ReplayDrafterTest, ASequenceKeepsTheAnswersOfItsBeginning) {
  ReplayDrafter drafter(config(), 0, kVocabSize);
  finish(drafter, {1}, {10, 11, 12});
  EXPECT_EQ(draft_on(drafter, 1000, {1}, {}), (Tokens{10, 11, 12}));
  finish(drafter, {1}, {40, 41, 42});
  EXPECT_EQ(draft_on(drafter, 1000, {1}, {10}), (Tokens{11, 12}));
  EXPECT_EQ(draft(drafter, {1}, {})[0], 40);
}

TEST_F(ReplayDrafterTest, SaltsShareNoAnswersAndOnlyThoseWithoutAreWritten) {
  const std::string path = directory_.file("answers");
  {
    ReplayDrafter drafter(config(path), 0, kVocabSize);
    finish(drafter, {1}, {10, 11}, "a");
    finish(drafter, {1}, {20, 21}, "");
    EXPECT_EQ(draft(drafter, {1}, {}, "a"), (Tokens{10, 11}));
    EXPECT_EQ(draft(drafter, {1}, {}, ""), (Tokens{20, 21}));
    EXPECT_TRUE(draft(drafter, {1}, {}, "b").empty());
  }
  AnswerStore store(
      {.option = "record", .path = path, .tokenizer = "abc", .vocab_size = kVocabSize});
  EXPECT_EQ(store.read(), (AnswerStore::Answers{{fnv1a(Tokens{1}), {20, 21}}}));
}

TEST_F(ReplayDrafterTest, ARecordIsReplayedByTheNextEngineAndGoesOn) {
  const std::string first = directory_.file("first");
  const std::string second = directory_.file("second");
  {
    ReplayDrafter drafter(config(first), 0, kVocabSize);
    finish(drafter, {1}, {10, 11});
    finish(drafter, {2}, {20, 21});
  }
  {
    ReplayDrafter drafter(config(second, first), 0, kVocabSize);
    EXPECT_EQ(draft(drafter, {1}, {}), (Tokens{10, 11}));
    EXPECT_EQ(draft(drafter, {2}, {}), (Tokens{20, 21}));
    finish(drafter, {1}, {30, 31});
  }
  ReplayDrafter replaying(config("", second), 0, kVocabSize);
  EXPECT_EQ(draft(replaying, {1}, {}), (Tokens{30, 31}));
  EXPECT_TRUE(draft(replaying, {2}, {}).empty());  // only in the first file
  ReplayDrafter going_on(config(second), 0, kVocabSize);
  EXPECT_EQ(draft(going_on, {1}, {}), (Tokens{30, 31}));
}

TEST_F(ReplayDrafterTest, ForgetsThePromptsThatHadNoAnswerForLongest) {
  constexpr int64_t kBytes = int64_t{64} << 10;
  ReplayDrafter drafter(config(), 0, kVocabSize, nullptr, kBytes);
  for (int32_t i = 0; i < 90; ++i) {
    finish(drafter, {i}, Tokens(300, i));
    ASSERT_LT(drafter.memory_bytes(), kBytes);
  }
  EXPECT_TRUE(draft(drafter, {0}, {}).empty());
  EXPECT_FALSE(draft(drafter, {89}, {}).empty());
}

TEST_F(ReplayDrafterTest, BadFilesAreRefusedByTheNameOfTheirOption) {
  const auto refused = [](const DrafterConfig& config, std::string_view path) {
    const auto error =
        testing::error_of<InvalidArgument>([&] { ReplayDrafter(config, 0, kVocabSize); });
    EXPECT_NE(std::string_view(error.what()).find(path), std::string_view::npos) << error.what();
    return error.field();
  };
  const std::string missing = directory_.file("missing");
  EXPECT_EQ(refused(config("", missing), missing), "replay");
  EXPECT_EQ(refused(config(missing + "/file"), missing), "record");
  directory_.write("bad", "specdecs and nothing else that is in such files, but long enough");
  const std::string bad = directory_.file("bad");
  EXPECT_EQ(refused(config(bad), bad), "record");
  EXPECT_EQ(refused(config("", bad), bad), "replay");
}

}  // namespace
}  // namespace specdec
