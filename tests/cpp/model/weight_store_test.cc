#include "model/weight_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "core/log.h"
#include "specdec/error.h"
#include "testing/checkpoint_files.h"
#include "testing/text.h"
#include "testing/values.h"

namespace specdec {
namespace {

using testing::checkpoint_error_of;
using testing::has_text;
using testing::safetensors_bytes;
using testing::SafetensorsWriter;
using testing::TempDirectory;

constexpr std::array<int64_t, 1> kTwo = {2};

std::string shard_of(const std::string& name, float value) {
  SafetensorsWriter writer;
  writer.add(name, {2}, {value, value});
  return writer.bytes();
}

void write_two_shards(const TempDirectory& directory, const std::string& weight_map) {
  directory.write("model-00001-of-00002.safetensors", shard_of("a", 1));
  directory.write("model-00002-of-00002.safetensors", shard_of("b", 2));
  directory.write("model.safetensors.index.json",
                  R"({"metadata":{},"weight_map":)" + weight_map + "}");
}

constexpr const char* kGoodMap =
    R"({"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"})";

TEST(WeightStore, ReadsSingleFile) {
  TempDirectory directory;
  directory.write("model.safetensors", shard_of("a", 3));
  WeightStore store(directory.path());
  EXPECT_EQ(static_cast<const float*>(store.tensor("a", kTwo).data)[1], 3.0f);
  EXPECT_TRUE(store.unused().empty());
}

TEST(WeightStore, ReadsTheOnlyFileWhateverItIsCalled) {
  TempDirectory directory;
  directory.write("medusa_lm_head.safetensors", shard_of("a", 3));
  WeightStore store(directory.path());
  EXPECT_EQ(static_cast<const float*>(store.tensor("a", kTwo).data)[1], 3.0f);
  directory.write("other.safetensors", shard_of("a", 4));
  EXPECT_TRUE(has_text(checkpoint_error_of([&] { WeightStore two(directory.path()); }).what(),
                       "no weights"));
  directory.write("model.safetensors", shard_of("a", 5));
  WeightStore named(directory.path());
  EXPECT_EQ(static_cast<const float*>(named.tensor("a", kTwo).data)[0], 5.0f);
}

// Uniform in +-sqrt(3 / fan_in) has the variance 1 / fan_in, its fourth moment is 9/5 of that
// squared.
TEST(WeightStore, RandomTensorsAreUniformAndDecidedByTheirName) {
  constexpr std::array<int64_t, 2> kShape = {300, 50};
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    ModelConfig config;
    config.checkpoint_dtype = dtype;
    const auto values_of = [&](const std::string& name) {
      WeightStore store = WeightStore::random(config);
      const TensorView view = store.tensor(name, kShape);
      EXPECT_EQ(view.dtype, dtype);
      EXPECT_TRUE(std::ranges::equal(view.shape, kShape));
      std::vector<float> values(view.num_elements());
      to_floats(view.data, dtype, values.size(), values.data());
      store.release(name);
      return values;
    };
    const std::vector<float> values = values_of("a");
    double squares = 0, fourths = 0, product = 0;
    const std::vector<float> others = values_of("b");
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_LE(std::abs(values[i]), std::sqrt(3.0 / 50) * 1.01);
      squares += values[i] * values[i] * 50;
      fourths += std::pow(values[i], 4) * 50 * 50;
      product += values[i] * others[i] * 50;
    }
    const double count = static_cast<double>(values.size());
    EXPECT_NEAR(squares / count, 1.0, 0.03);
    EXPECT_NEAR(fourths / count, 1.8, 0.1);
    EXPECT_NEAR(product / count, 0.0, 0.04);
    EXPECT_EQ(values_of("a"), values);
  }
}

TEST(WeightStore, RandomRowsAreThoseOfTheTensor) {
  constexpr int64_t kRows = 7, kColumns = 5;  // eight values are drawn at once
  ModelConfig config;
  config.checkpoint_dtype = DType::kF32;
  WeightStore whole = WeightStore::random(config);
  const WeightView tensor = whole.matrix("a", kRows, kColumns);
  for (int64_t row = 0; row < kRows; ++row) {
    WeightStore store = WeightStore::random(config);
    const WeightView rows = store.matrix("a", kRows, kColumns, {row, kRows - row});
    EXPECT_EQ(std::memcmp(rows.values.data,
                          static_cast<const float*>(tensor.values.data) + row * kColumns,
                          rows.values.size_bytes()),
              0);
  }
}

// Any part of a made-up tensor can be made by itself.
TEST(WeightStore, PartsOfRandomTensorsAreTheirElements) {
  constexpr int64_t kCount = 40;
  const RandomSource whole = random_source("a", 20);
  std::vector<float> values(kCount);
  fill_random(whole, DType::kF32, kCount, values.data());
  for (const int64_t first : {1, 7, 8, 13}) {
    RandomSource part = whole;
    part.first = first;
    std::vector<float> found(kCount - first);
    fill_random(part, DType::kF32, kCount - first, found.data());
    EXPECT_TRUE(std::equal(found.begin(), found.end(), values.begin() + first)) << first;
  }
}

TEST(WeightStore, MatricesThatAreMadeElsewhereAreTheirSource) {
  WeightStore store = WeightStore::random({}, /*fills_matrices=*/false);
  const WeightView matrix = store.matrix("a", 3, 20);
  EXPECT_EQ(matrix.values.data, nullptr);
  EXPECT_EQ(matrix.random, random_source("a", 20));
  const TensorView filled = WeightStore::random({}).matrix("a", 3, 20).values;
  EXPECT_EQ(filled.dtype, matrix.values.dtype);
  EXPECT_EQ(filled.shape, matrix.values.shape);
}

TEST(WeightStore, ARandomHeadIsThereUnlessItIsTied) {
  ModelConfig config;
  EXPECT_TRUE(WeightStore::random(config).contains("lm_head.weight"));
  EXPECT_FALSE(WeightStore::random(config).contains("model.embed_tokens.weight"));
  config.tie_word_embeddings = true;
  EXPECT_FALSE(WeightStore::random(config).contains("lm_head.weight"));
}

TEST(WeightStore, FindsTensorsInTheirShards) {
  TempDirectory directory;
  write_two_shards(directory, kGoodMap);
  WeightStore store(directory.path());
  EXPECT_EQ(*static_cast<const float*>(store.tensor("a", kTwo).data), 1.0f);
  EXPECT_EQ(store.unused(), (std::vector<std::string>{"b"}));
  EXPECT_EQ(*static_cast<const float*>(store.tensor("b", kTwo).data), 2.0f);
}

TEST(WeightStore, AlignsTensorsAtOddOffsets) {
  TempDirectory directory;
  for (size_t padding = 0; padding < 8; ++padding) {
    SafetensorsWriter writer;
    writer.add("byte", "U8", {1}, "x");
    writer.add("w", {2}, {1.5f, -2.5f});
    directory.write("model.safetensors", writer.bytes(padding));
    WeightStore store(directory.path());
    const TensorView view = store.tensor("w", kTwo);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(view.data) % alignof(float), 0u);
    EXPECT_EQ(static_cast<const float*>(view.data)[0], 1.5f);
    EXPECT_EQ(static_cast<const float*>(view.data)[1], -2.5f);
    store.release("w");
  }
}

TEST(WeightStore, RefusesUnexpectedShapeNamingBoth) {
  TempDirectory directory;
  directory.write("model.safetensors", shard_of("a", 3));
  WeightStore store(directory.path());
  constexpr std::array<int64_t, 2> kExpected = {4, 1};
  const CheckpointError error = checkpoint_error_of([&] { store.tensor("a", kExpected); });
  EXPECT_EQ(error.tensor(), "a");
  EXPECT_EQ(error.file(), directory.file("model.safetensors"));
  EXPECT_TRUE(has_text(error.what(), "expected shape [4, 1], found [2]"));
}

TEST(WeightStore, RefusesWeightsOfOtherTypes) {
  for (const char* dtype : {"I8", "F8_E5M2"}) {
    TempDirectory directory;
    SafetensorsWriter writer;
    writer.add("a", dtype, {2}, "xx");
    directory.write("model.safetensors", writer.bytes());
    WeightStore store(directory.path());
    EXPECT_TRUE(has_text(checkpoint_error_of([&] { store.tensor("a", kTwo); }).what(), dtype));
  }
}

// A tensor longer than what is read at once, with one odd value at its end.
TEST(WeightStore, ValuesThatAreNoNumbersAreRefused) {
  constexpr int64_t kCount = 100'000;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const char* name = dtype == DType::kF32 ? "F32" : dtype == DType::kBF16 ? "BF16" : "F16";
    const float largest = dtype == DType::kF16 ? 65504.0f : 3.3895e38f;
    for (const float odd : {NAN, -NAN, INFINITY, -INFINITY, largest, -largest, 0.0f}) {
      std::string bytes(kCount * size_of(dtype), '\0');
      if (dtype == DType::kF32) {
        std::memcpy(&bytes[bytes.size() - 4], &odd, 4);
      } else {
        const uint16_t bits = testing::to_bits(odd, dtype);
        std::memcpy(&bytes[bytes.size() - 2], &bits, 2);
      }
      TempDirectory directory;
      SafetensorsWriter writer;
      writer.add("w", name, {kCount}, bytes);
      directory.write("model.safetensors", writer.bytes());
      WeightStore store(directory.path());
      const auto read = [&] { store.tensor("w", std::array{kCount}); };
      if (std::isfinite(odd)) {
        EXPECT_NO_THROW(read()) << name << " " << odd;
      } else {
        EXPECT_EQ(checkpoint_error_of(read).tensor(), "w") << name << " " << odd;
      }
    }
  }
}

TEST(WeightStore, MatricesOfZerosAreToldOf) {
  TempDirectory directory;
  SafetensorsWriter writer;
  writer.add("vector", {4}, {0, 0, 0, 0});
  writer.add("part", {2, 2}, {0, 0, 0, -1});
  writer.add("zeros", {2, 2}, {0, -0.0f, 0, 0});
  directory.write("model.safetensors", writer.bytes());
  std::vector<std::string> warnings;
  set_log_sink([&](LogLevel, const std::string& message) { warnings.push_back(message); });
  WeightStore store(directory.path());
  store.tensor("vector", std::array<int64_t, 1>{4});
  for (const char* name : {"part", "zeros"}) store.matrix(name, 2, 2);
  set_log_sink({});
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_TRUE(has_text(warnings.front().c_str(), "zeros holds zeros only"));
}

TEST(WeightStore, MissingShardIsNamed) {
  TempDirectory directory;
  write_two_shards(directory, kGoodMap);
  std::filesystem::remove(directory.file("model-00002-of-00002.safetensors"));
  const CheckpointError error = checkpoint_error_of([&] { WeightStore store(directory.path()); });
  EXPECT_EQ(error.file(), directory.file("model-00002-of-00002.safetensors"));
  EXPECT_EQ(error.tensor(), "b");
}

TEST(WeightStore, TruncatedShardIsNamed) {
  TempDirectory directory;
  write_two_shards(directory, kGoodMap);
  const std::string shard = shard_of("b", 2);
  directory.write("model-00002-of-00002.safetensors", shard.substr(0, shard.size() - 3));
  const CheckpointError error = checkpoint_error_of([&] { WeightStore store(directory.path()); });
  EXPECT_EQ(error.file(), directory.file("model-00002-of-00002.safetensors"));
  EXPECT_EQ(error.tensor(), "b");
}

TEST(WeightStore, IndexNamingATensorItsShardLacksIsRefused) {
  TempDirectory directory;
  write_two_shards(directory, R"({"a":"model-00001-of-00002.safetensors",)"
                              R"("b":"model-00001-of-00002.safetensors"})");
  const CheckpointError error = checkpoint_error_of([&] { WeightStore store(directory.path()); });
  EXPECT_EQ(error.file(), directory.file("model-00001-of-00002.safetensors"));
  EXPECT_EQ(error.tensor(), "b");
}

TEST(WeightStore, TensorMissingFromIndexIsRefusedWhenAskedFor) {
  TempDirectory directory;
  write_two_shards(directory, R"({"a":"model-00001-of-00002.safetensors"})");
  WeightStore store(directory.path());
  EXPECT_FALSE(store.contains("b"));
  const CheckpointError error = checkpoint_error_of([&] { store.tensor("b", kTwo); });
  EXPECT_EQ(error.file(), directory.file("model.safetensors.index.json"));
  EXPECT_EQ(error.tensor(), "b");
}

TEST(WeightStore, IndexMayNotLeaveTheDirectory) {
  TempDirectory directory;
  write_two_shards(directory, R"({"a":"../model-00001-of-00002.safetensors"})");
  EXPECT_TRUE(has_text(checkpoint_error_of([&] { WeightStore store(directory.path()); }).what(),
                       "no file below"));
}

TEST(WeightStore, IndexWithoutMapIsRefused) {
  TempDirectory directory;
  write_two_shards(directory, "[]");
  EXPECT_TRUE(has_text(checkpoint_error_of([&] { WeightStore store(directory.path()); }).what(),
                       "weight_map"));
}

TEST(WeightStore, TorchFilesAloneSayHowToLoadThem) {
  TempDirectory directory;
  directory.write("pytorch_model.bin", "x");
  EXPECT_TRUE(has_text(checkpoint_error_of([&] { WeightStore store(directory.path()); }).what(),
                       "Python package"));
  EXPECT_TRUE(
      has_text(checkpoint_error_of([&] { WeightStore store(directory.path()); }).what(), "torch"));
}

TEST(WeightStore, DirectoryWithoutWeightsSaysWhatIsExpected) {
  TempDirectory directory;
  EXPECT_TRUE(has_text(checkpoint_error_of([&] { WeightStore store(directory.path()); }).what(),
                       "expected model.safetensors or model.safetensors.index.json"));
}

TEST(WeightStore, MissingDirectoryAndFileInItsPlaceAreTold) {
  TempDirectory directory;
  directory.write("model.gguf", "x");
  EXPECT_TRUE(
      has_text(checkpoint_error_of([&] { WeightStore store(directory.file("none")); }).what(),
               "no such directory"));
  EXPECT_TRUE(
      has_text(checkpoint_error_of([&] { WeightStore store(directory.file("model.gguf")); }).what(),
               "not a directory"));
}

}  // namespace
}  // namespace specdec
