#include "speculation/answer_store.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "core/str_cat.h"
#include "specdec/error.h"
#include "speculation/suffix_drafter.h"
#include "testing/checkpoint_files.h"
#include "testing/draft_once.h"

namespace specdec {
namespace {

using testing::draft_once;
using testing::drafts_of;
using testing::request_for;
using testing::TempDirectory;
using Tokens = std::vector<int32_t>;
using Answers = AnswerStore::Answers;

constexpr int kVocabSize = 100;

class AnswerStoreTest : public ::testing::Test {
 protected:
  AnswerStoreTest() : path_(directory_.file("answers.store")) {}

  std::string bytes() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void write_bytes(const std::string& bytes) const {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << bytes;
  }
  AnswerStore store(const std::string& tokenizer = "abc", int vocab_size = kVocabSize,
                    int64_t max_bytes = 1 << 20) const {
    return AnswerStore({.option = "suffix_store",
                        .path = path_,
                        .tokenizer = tokenizer,
                        .vocab_size = vocab_size,
                        .max_bytes = max_bytes});
  }
  // What the error says that reading raises; empty: none.
  std::string refusal(AnswerStore store) const {
    try {
      store.read();
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(error.field(), "suffix_store");
      EXPECT_NE(std::string(error.what()).find(path_), std::string::npos) << error.what();
      return error.what();
    }
    return "";
  }
  int num_files() const {
    const auto files = std::filesystem::directory_iterator(directory_.path());
    return static_cast<int>(std::distance(begin(files), end(files)));
  }

  TempDirectory directory_;
  std::string path_;
};

std::string little_endian(uint64_t value, int num_bytes) {
  std::string bytes;
  for (int i = 0; i < num_bytes; ++i) bytes.push_back(static_cast<char>(value >> (8 * i)));
  return bytes;
}

uint64_t fnv1a_of(const std::string& bytes) {
  uint64_t hash = 14695981039346656037u;
  for (const unsigned char byte : bytes) hash = (hash ^ byte) * 1099511628211u;
  return hash;
}

// The layout of answer_store.h, byte by byte; answers may be added in one call or in two.
TEST_F(AnswerStoreTest, WritesWhatItsHeaderSays) {
  const std::string content = "t" + little_endian(0x1122334455667788, 8) + little_endian(2, 4) +
                              little_endian(7, 4) + little_endian(258, 4) + little_endian(9, 8) +
                              little_endian(0, 4);
  std::string expected = "specdecs" + little_endian(2, 4) + little_endian(1, 4) +
                         little_endian(0, 8) + little_endian(48 + content.size(), 8) +
                         little_endian(fnv1a_of(content), 8);
  expected += little_endian(fnv1a_of(expected), 8) + content;
  const Answers answers = {{0x1122334455667788, {7, 258}}, {9, {}}};
  store("t").append(answers);
  EXPECT_EQ(bytes(), expected);
  std::filesystem::remove(path_);
  AnswerStore in_two = store("t");
  for (const StoredAnswer& answer : answers) in_two.append({answer});
  EXPECT_EQ(bytes(), expected);
}

TEST_F(AnswerStoreTest, ReadsWhatWasAddedOnceAndLeavesNoOtherFile) {
  EXPECT_FALSE(store().exists());
  EXPECT_TRUE(store().read().empty());  // no file yet
  EXPECT_EQ(num_files(), 0);
  const Answers answers = {{1, {1, 2, 3}}, {2, {99}}, {1, {}}, {0, {0, 0}}};
  store().append(answers);
  AnswerStore reader = store();
  EXPECT_EQ(reader.read(), answers);
  EXPECT_TRUE(reader.read().empty());
  EXPECT_EQ(num_files(), 1);
}

TEST_F(AnswerStoreTest, WritersOfAFileKeepAndFindEachOthersAnswers) {
  AnswerStore a = store();
  AnswerStore b = store();
  EXPECT_TRUE(a.append({{1, {1}}}).empty());
  EXPECT_EQ(b.append({{2, {2}}}), (Answers{{1, {1}}}));
  EXPECT_EQ(a.append({{3, {3}}}), (Answers{{2, {2}}}));
  EXPECT_TRUE(a.append({}).empty());
  EXPECT_EQ(b.read(), (Answers{{3, {3}}}));
  EXPECT_EQ(store().read(), (Answers{{1, {1}}, {2, {2}}, {3, {3}}}));
  // Somebody deletes the file: it begins anew.
  std::filesystem::remove(path_);
  EXPECT_TRUE(a.append({{4, {4}}}).empty());
  EXPECT_EQ(b.append({{5, {5}}}), (Answers{{4, {4}}}));
  EXPECT_EQ(store().read(), (Answers{{4, {4}}, {5, {5}}}));
}

TEST_F(AnswerStoreTest, AtItsBoundTheFileKeepsTheNewest) {
  constexpr int64_t kMaxBytes = 2000;
  AnswerStore a = store("abc", kVocabSize, kMaxBytes);
  AnswerStore b = store("abc", kVocabSize, kMaxBytes);
  std::vector<uint64_t> found;  // by b, of what a wrote
  uint64_t num_written = 0;
  for (int round = 0; round < 40; ++round) {
    Answers three;
    for (int i = 0; i < 3; ++i) three.push_back({++num_written, {1, 2, 3, 4, 5}});
    EXPECT_TRUE(a.append(three).empty());
    ASSERT_LE(static_cast<int64_t>(bytes().size()), kMaxBytes);
    if (round % 4 != 0) continue;
    for (const StoredAnswer& answer : b.read()) found.push_back(answer.prompt);
  }
  const Answers left = store().read();
  EXPECT_EQ(left.back().prompt, num_written);
  EXPECT_GE(static_cast<int64_t>(left.size()) * 32, kMaxBytes / 2 - 100);
  // Nothing is missed while it is in the file, and nothing comes twice: 12 answers are added
  // between two readings, and at least 29 are kept.
  for (const StoredAnswer& answer : b.read()) found.push_back(answer.prompt);
  std::vector<uint64_t> all(num_written);
  std::iota(all.begin(), all.end(), 1);
  EXPECT_EQ(found, all);
  EXPECT_EQ(num_files(), 1);
  // One that is larger than the bound is not kept.
  a.append({{7, Tokens(1000, 1)}});
  EXPECT_TRUE(store().read().empty());
}

// Four processes add 100 answers each, as replicas do.
TEST_F(AnswerStoreTest, NoProcessLosesAnothersAnswers) {
  for (const int64_t max_bytes : {1 << 20, 3000}) {
    std::filesystem::remove(path_);
    std::vector<pid_t> children;
    for (uint64_t writer = 1; writer <= 4; ++writer) {
      const pid_t child = ::fork();
      ASSERT_GE(child, 0);
      if (child == 0) {
        AnswerStore mine = store("abc", kVocabSize, max_bytes);
        for (int i = 0; i < 100; ++i) mine.append({{writer, {static_cast<int32_t>(i)}}});
        ::_exit(0);
      }
      children.push_back(child);
    }
    for (const pid_t child : children) {
      int status = 1;
      ASSERT_EQ(::waitpid(child, &status, 0), child);
      EXPECT_EQ(status, 0);
    }
    std::map<uint64_t, Tokens> by_writer;
    for (const StoredAnswer& answer : store().read()) {
      by_writer[answer.prompt].push_back(answer.tokens[0]);
    }
    size_t num_kept = 0;
    for (const auto& [writer, tokens] : by_writer) {
      num_kept += tokens.size();
      // In order and without gaps up to the last one.
      for (size_t i = 0; i < tokens.size(); ++i) {
        EXPECT_EQ(tokens[i], static_cast<int32_t>(100 - tokens.size() + i));
      }
    }
    if (max_bytes > 3000) {
      EXPECT_EQ(num_kept, 400u);
    } else {
      EXPECT_GE(num_kept, 90u);  // 16 bytes each
    }
  }
}

TEST_F(AnswerStoreTest, WhatACrashLeftBehindTheEndIsOverwritten) {
  store().append({{1, {1, 2}}});
  write_bytes(bytes() + "half an answer");
  EXPECT_EQ(store().append({{2, {3}}}), (Answers{{1, {1, 2}}}));
  EXPECT_EQ(store().read(), (Answers{{1, {1, 2}}, {2, {3}}}));
}

TEST_F(AnswerStoreTest, DamageIsRefused) {
  store().append({{5, {1, 2, 3}}, {6, {4}}});
  const std::string good = bytes();
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 4);
    write_bytes(bad);
    EXPECT_NE(refusal(store()), "") << "byte " << i;
    EXPECT_THROW(store().append({{1, {1}}}), InvalidArgument);
    EXPECT_EQ(bytes(), bad);
    if (i == 0) continue;  // an empty file is a new one
    write_bytes(good.substr(0, i));
    EXPECT_NE(refusal(store()).find("is damaged"), std::string::npos) << "cut at " << i;
  }
  // What is added is checked, too.
  write_bytes(good);
  AnswerStore reader = store();
  EXPECT_EQ(reader.read().size(), 2u);
  store().append({{7, {1, 2, 3}}});
  std::string bad = bytes();
  bad.back() = 1;
  write_bytes(bad);
  EXPECT_NE(refusal(reader).find("is damaged"), std::string::npos);
}

TEST_F(AnswerStoreTest, OtherTokenizersVersionsAndForeignTokensAreRefused) {
  store().append({{0, {1, 99}}});
  EXPECT_NE(refusal(store("abd")).find("another tokenizer"), std::string::npos);
  EXPECT_NE(refusal(store("abc", 99)).find("token id 99"), std::string::npos);
  EXPECT_NE(refusal(store("abc", kVocabSize, 60)).find("at most 60"), std::string::npos);
  for (const char version : {1, 3}) {
    std::string other = bytes();
    other[8] = version;
    write_bytes(other);
    EXPECT_NE(refusal(store()).find(str_cat("has version ", int{version})), std::string::npos);
  }
  std::filesystem::remove(path_);
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  EXPECT_NE(refusal(store()).find("is no file"), std::string::npos);
  EXPECT_THROW(store().append({}), InvalidArgument);
  std::filesystem::remove(path_);
  std::filesystem::create_directory(path_);
  EXPECT_NE(refusal(store()).find("is no file"), std::string::npos);
  EXPECT_THROW(store().append({}), InvalidArgument);
}

DrafterConfig suffix_config(const std::string& store = "") {
  DrafterConfig config;
  config.method = DraftMethod::kSuffix;
  config.suffix_store = store;
  config.store_tokenizer = "abc";
  return config;
}

TEST_F(AnswerStoreTest, AnUnwritableFileShowsWhenTheDrafterIsMade) {
  const std::string path = directory_.file("missing/file");
  try {
    SuffixDrafter drafter(suffix_config(path), 0, kVocabSize);
    FAIL() << "no error";
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(error.field(), "suffix_store");
    EXPECT_NE(std::string(error.what()).find(path), std::string::npos);
  }
}

DraftTree draft_salted(SuffixDrafter& drafter, const Tokens& tokens, uint64_t sequence,
                       std::string_view salt) {
  DraftTree tree;
  DraftRequest request = request_for(tokens, tree, {}, sequence);
  request.cache_salt = salt;
  drafter.draft({&request, 1});
  return tree;
}

TEST_F(AnswerStoreTest, OutputsWithoutASaltOutliveTheDrafter) {
  {
    SuffixDrafter drafter(suffix_config(path_), 0, kVocabSize);
    drafter.finish({1, Tokens{9, 1, 2, 3, 4}, 1});
    drafter.finish({2, Tokens{9, 11, 12, 13}, 1, "salt"});
  }
  EXPECT_EQ(store().read(), (Answers{{0, {1, 2, 3, 4}}}));
  SuffixDrafter next(suffix_config(path_), 0, kVocabSize);
  EXPECT_EQ(drafts_of(draft_once(next, Tokens{50, 1, 2}, {}, 1)), (Tokens{3, 4}));
}

TEST_F(AnswerStoreTest, DraftersOfAFileDraftFromEachOthersOutputs) {
  SuffixDrafter writer(suffix_config(path_), 0, kVocabSize);
  SuffixDrafter reader(suffix_config(path_), 0, kVocabSize);
  // Both write by threads of their own; outputs are found once they have been written and read.
  uint64_t sequence = 0;
  const auto finds = [&] {
    return draft_once(reader, Tokens{50, 1, 2}, {}, ++sequence).num_drafts() > 0;
  };
  for (int i = 0; !finds() && i < 10'000'000; ++i) {
    writer.finish({++sequence, Tokens{1, 2, 3}, 0});
    reader.finish({++sequence, Tokens{60, 61}, 0});
  }
  EXPECT_TRUE(finds());
}

TEST_F(AnswerStoreTest, SaltsShareNoOutputs) {
  SuffixDrafter drafter(suffix_config(), 0, kVocabSize);
  const std::vector<std::string> salts = {"", "a", "b"};
  for (size_t i = 0; i < salts.size(); ++i) {
    const auto first = static_cast<int32_t>(10 * i + 10);
    drafter.finish({i, Tokens{first, first + 1, first + 2}, 0, salts[i]});
  }
  uint64_t sequence = 100;
  for (size_t i = 0; i < salts.size(); ++i) {
    for (size_t reader = 0; reader < salts.size(); ++reader) {
      const auto first = static_cast<int32_t>(10 * i + 10);
      const DraftTree tree = draft_salted(drafter, {5, first}, sequence++, salts[reader]);
      EXPECT_EQ(drafts_of(tree), i == reader ? Tokens{first + 1} : Tokens{}) << i << reader;
    }
  }
}

TEST_F(AnswerStoreTest, EverySaltDraftsFromTheCorpus) {
  DrafterConfig config = suffix_config();
  config.suffix_corpus = {{1, 2, 3, 4}, {}, {20, 21}};
  SuffixDrafter drafter(config, 0, kVocabSize);
  EXPECT_EQ(drafts_of(draft_salted(drafter, {50, 1, 2}, 1, "a")), (Tokens{3, 4}));
  EXPECT_EQ(drafts_of(draft_salted(drafter, {50, 20}, 2, "")), Tokens{21});
  EXPECT_EQ(draft_salted(drafter, {50, 4}, 3, "").num_drafts(), 0);  // texts do not run together
  config.suffix_corpus = {{1, kVocabSize}};
  EXPECT_THROW(SuffixDrafter(config, 0, kVocabSize), InvalidArgument);
}

TEST_F(AnswerStoreTest, ALargeCorpusIsCut) {
  DrafterConfig config = suffix_config();
  std::mt19937 random(2);
  config.suffix_corpus = {testing::random_tokens(random, 5000, kVocabSize), {7, 8, 7, 8}};
  constexpr int64_t kLimit = 100 << 10;
  SuffixDrafter drafter(config, 0, kVocabSize, nullptr, kLimit);
  EXPECT_LT(drafter.memory_bytes(), kLimit * 3 / 2);
  EXPECT_GT(drafter.memory_bytes(), kLimit / 2);
}

}  // namespace
}  // namespace specdec
