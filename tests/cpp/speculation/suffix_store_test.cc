#include "speculation/suffix_store.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <vector>

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

constexpr int kVocabSize = 100;

class SuffixStoreTest : public ::testing::Test {
 protected:
  SuffixStoreTest() : path_(directory_.file("answers.store")) {}

  std::string bytes() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void write_bytes(const std::string& bytes) const {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << bytes;
  }
  SuffixStore store(const std::string& tokenizer = "abc") const { return {path_, tokenizer}; }
  // What the error says that reading raises; empty: none.
  std::string refusal(const SuffixStore& store, int vocab_size = kVocabSize) const {
    try {
      store.read(vocab_size);
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(error.field(), "suffix_store");
      EXPECT_NE(std::string(error.what()).find(path_), std::string::npos) << error.what();
      return error.what();
    }
    return "";
  }

  TempDirectory directory_;
  std::string path_;
};

// The layout of the header, byte by byte.
TEST_F(SuffixStoreTest, WritesWhatItsHeaderSays) {
  store("t").write({{7, 258}, {}});
  std::string expected = "specdecs";
  expected += std::string("\1\0\0\0\1\0\0\0t\2\0\0\0\0\0\0\0", 17);
  expected += std::string("\2\0\0\0\7\0\0\0\2\1\0\0\0\0\0\0", 16);
  uint64_t hash = 14695981039346656037u;
  for (const unsigned char byte : expected) hash = (hash ^ byte) * 1099511628211u;
  for (int i = 0; i < 8; ++i) expected.push_back(static_cast<char>(hash >> (8 * i)));
  EXPECT_EQ(bytes(), expected);
}

TEST_F(SuffixStoreTest, ReadsWhatItWroteAndLeavesNoOtherFile) {
  EXPECT_TRUE(store().read(kVocabSize).empty());  // no file yet
  const SuffixStore::Outputs outputs = {{1, 2, 3}, {99}, {}, {0, 0}};
  store().write({{4}});
  store().write(outputs);
  EXPECT_EQ(store().read(kVocabSize), outputs);
  const auto files = std::filesystem::directory_iterator(directory_.path());
  EXPECT_EQ(std::distance(begin(files), end(files)), 1);
}

TEST_F(SuffixStoreTest, DamageIsRefused) {
  store().write({{1, 2, 3}, {4}});
  const std::string good = bytes();
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 4);
    write_bytes(bad);
    EXPECT_NE(refusal(store()), "") << "byte " << i;
    write_bytes(good.substr(0, i));
    EXPECT_NE(refusal(store()).find("is damaged"), std::string::npos) << "cut at " << i;
  }
  write_bytes(good + "x");
  EXPECT_NE(refusal(store()), "");
  write_bytes(good);
  EXPECT_EQ(refusal(store()), "");
}

TEST_F(SuffixStoreTest, OtherTokenizersNewerVersionsAndForeignTokensAreRefused) {
  store().write({{1, 99}});
  EXPECT_NE(refusal(store("abd")).find("another tokenizer"), std::string::npos);
  EXPECT_NE(refusal(store(), 99).find("token id 99"), std::string::npos);
  std::string newer = bytes();
  newer[8] = 2;
  write_bytes(newer);
  EXPECT_NE(refusal(store()).find("has version 2"), std::string::npos);
  std::filesystem::remove(path_);
  std::filesystem::create_directory(path_);
  EXPECT_NE(refusal(store()).find("is no file"), std::string::npos);
}

TEST_F(SuffixStoreTest, AnUnwritableFileShowsWhenTheDrafterIsMade) {
  DrafterConfig config;
  config.method = DraftMethod::kSuffix;
  config.suffix_store = directory_.file("missing/file");
  try {
    SuffixDrafter drafter(config, 0, kVocabSize);
    FAIL() << "no error";
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(error.field(), "suffix_store");
    EXPECT_NE(std::string(error.what()).find(config.suffix_store), std::string::npos);
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

TEST_F(SuffixStoreTest, OutputsWithoutASaltOutliveTheDrafter) {
  DrafterConfig config;
  config.method = DraftMethod::kSuffix;
  config.suffix_store = path_;
  {
    SuffixDrafter drafter(config, 0, kVocabSize);
    drafter.finish({1, Tokens{9, 1, 2, 3, 4}, 1});
    drafter.finish({2, Tokens{9, 11, 12, 13}, 1, "salt"});
  }
  EXPECT_EQ(SuffixStore(path_, "").read(kVocabSize), (SuffixStore::Outputs{{1, 2, 3, 4}}));
  SuffixDrafter next(config, 0, kVocabSize);
  EXPECT_EQ(drafts_of(draft_once(next, Tokens{50, 1, 2}, {}, 1)), (Tokens{3, 4}));
}

TEST_F(SuffixStoreTest, IsWrittenWhileTheDrafterLives) {
  DrafterConfig config;
  config.method = DraftMethod::kSuffix;
  config.suffix_store = path_;
  SuffixDrafter drafter(config, 0, kVocabSize);
  // The next write waits for the one before: after two of them the first is there.
  size_t num_stored = 0;
  for (uint64_t i = 0; num_stored == 0 && i < 10'000'000; ++i) {
    drafter.finish({i, Tokens{1, 2, 3}, 0});
    if (i % SuffixDrafter::kOutputsPerWrite == 0) {
      num_stored = SuffixStore(path_, "").read(kVocabSize).size();
    }
  }
  EXPECT_GE(num_stored, static_cast<size_t>(SuffixDrafter::kOutputsPerWrite));
}

TEST_F(SuffixStoreTest, SaltsShareNoOutputs) {
  DrafterConfig config;
  config.method = DraftMethod::kSuffix;
  config.suffix_max_cached_requests = 4;
  SuffixDrafter drafter(config, 0, kVocabSize);
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
  // They share the bound: what is oldest goes first, and with a salt's last output its tree.
  for (uint64_t i = 0; i < 3; ++i) drafter.finish({i, Tokens{70, 71}, 0, "c"});
  EXPECT_EQ(drafter.num_shared(), 4);
  EXPECT_EQ(draft_salted(drafter, {5, 10}, sequence++, "").num_drafts(), 0);
  EXPECT_EQ(draft_salted(drafter, {5, 20}, sequence++, "a").num_drafts(), 0);
  EXPECT_EQ(drafts_of(draft_salted(drafter, {5, 30}, sequence++, "b")), Tokens{31});
}

TEST_F(SuffixStoreTest, ManySaltsStayWithinTheMemoryLimit) {
  constexpr int64_t kLimit = 40 * SuffixOutputs::kTreeBytes;
  DrafterConfig config;
  config.method = DraftMethod::kSuffix;
  SuffixDrafter drafter(config, 0, kVocabSize, nullptr, kLimit);
  for (uint64_t i = 0; i < 200; ++i) {
    drafter.finish({i, Tokens{1, 2, 3}, 0, std::to_string(i)});
    ASSERT_LT(drafter.memory_bytes(), kLimit * 3 / 2);
  }
  EXPECT_GT(drafter.num_shared(), 10);
}

TEST_F(SuffixStoreTest, EverySaltDraftsFromTheCorpus) {
  DrafterConfig config;
  config.method = DraftMethod::kSuffix;
  config.suffix_corpus = {{1, 2, 3, 4}, {}, {20, 21}};
  SuffixDrafter drafter(config, 0, kVocabSize);
  EXPECT_EQ(drafts_of(draft_salted(drafter, {50, 1, 2}, 1, "a")), (Tokens{3, 4}));
  EXPECT_EQ(drafts_of(draft_salted(drafter, {50, 20}, 2, "")), Tokens{21});
  EXPECT_EQ(draft_salted(drafter, {50, 4}, 3, "").num_drafts(), 0);  // texts do not run together
  config.suffix_corpus = {{1, kVocabSize}};
  EXPECT_THROW(SuffixDrafter(config, 0, kVocabSize), InvalidArgument);
}

TEST_F(SuffixStoreTest, ALargeCorpusIsCut) {
  DrafterConfig config;
  config.method = DraftMethod::kSuffix;
  std::mt19937 random(2);
  config.suffix_corpus = {testing::random_tokens(random, 5000, kVocabSize), {7, 8, 7, 8}};
  constexpr int64_t kLimit = 100 << 10;
  SuffixDrafter drafter(config, 0, kVocabSize, nullptr, kLimit);
  EXPECT_LT(drafter.memory_bytes(), kLimit * 3 / 2);
  EXPECT_GT(drafter.memory_bytes(), kLimit / 2);
}

}  // namespace
}  // namespace specdec
