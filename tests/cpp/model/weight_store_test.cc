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
using testing::float_bytes;
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

// A matrix "w" of integers: its codes, and tensors beside it by suffix.
struct IntegerMatrix {
  std::string dtype = "I8";
  std::vector<int64_t> shape = {2, 64};
  std::vector<std::pair<std::string, std::vector<int64_t>>> beside = {{".scales", {2, 2}}};
  std::string beside_dtype = "F16";

  std::string bytes(size_t padding = 0) const {
    const auto count = [](const std::vector<int64_t>& extents) { return extents[0] * extents[1]; };
    SafetensorsWriter writer;
    std::string codes(count(shape), '\0');
    for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<char>(i);
    writer.add("w", dtype, shape, codes);
    for (const auto& [suffix, extents] : beside) {
      const int64_t item_bytes = beside_dtype == "F16" ? 2 : 4;
      writer.add("w" + suffix, beside_dtype, extents,
                 std::string(count(extents) * item_bytes, suffix == ".scales" ? '\x3c' : '\0'));
    }
    return writer.bytes(padding);
  }
};

TEST(WeightStore, ReadsMatricesOfIntegersWithTheirScales) {
  TempDirectory directory;
  for (size_t padding = 0; padding < 4; ++padding) {
    directory.write("model.safetensors", IntegerMatrix{}.bytes(padding));
    WeightStore store(directory.path());
    const WeightView view = store.matrix("w", 2, 64);
    EXPECT_EQ(view.bits(), 8);
    EXPECT_EQ(view.group_size, kQuantGroup);
    EXPECT_EQ(view.rows(), 2);
    EXPECT_EQ(view.in_features(), 64);
    EXPECT_EQ(static_cast<const int8_t*>(view.values.data)[127], 127);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(view.scales) % 2, 0u);
    EXPECT_EQ(view.scales[3], 0x3c3c);
    EXPECT_EQ(view.mins, nullptr);
    EXPECT_TRUE(store.unused().empty());
    store.release("w");
  }
}

TEST(WeightStore, ReadsMatricesOfFourBitsWithMins) {
  TempDirectory directory;
  const IntegerMatrix matrix{
      .dtype = "U8", .shape = {2, 32}, .beside = {{".scales", {2, 2}}, {".mins", {2, 2}}}};
  directory.write("model.safetensors", matrix.bytes());
  WeightStore store(directory.path());
  const WeightView view = store.matrix("w", 2, 64);
  EXPECT_EQ(view.bits(), 4);
  EXPECT_EQ(view.in_features(), 64);
  ASSERT_NE(view.mins, nullptr);
  EXPECT_EQ(view.mins[3], 0);
  EXPECT_TRUE(store.unused().empty());
}

TEST(WeightStore, RowsComeWithTheirScales) {
  TempDirectory directory;
  SafetensorsWriter writer;
  writer.add("w", "U8", {3, 32},
             std::string(32, 'a') + std::string(32, 'b') + std::string(32, 'c'));
  writer.add("w.scales", "F16", {3, 2}, "001122334455");
  writer.add("w.mins", "F16", {3, 2}, "aabbccddeeff");
  directory.write("model.safetensors", writer.bytes());
  WeightStore store(directory.path());
  const size_t header = store.bytes_read();
  const WeightView view = store.matrix("w", 3, 64, {1, 2});
  const auto text = [](const void* data, size_t size) {
    return std::string(static_cast<const char*>(data), size);
  };
  EXPECT_EQ(view.rows(), 2);
  EXPECT_EQ(text(view.values.data, 64), std::string(32, 'b') + std::string(32, 'c'));
  EXPECT_EQ(text(view.scales, 8), "22334455");
  EXPECT_EQ(text(view.mins, 8), "ccddeeff");
  EXPECT_EQ(store.bytes_read(), header + 64 + 8 + 8);
  EXPECT_EQ(text(store.matrix("w", 3, 64, {2, 1}).scales, 4), "4455");  // which are held
  EXPECT_EQ(store.bytes_read(), header + 64 + 8 + 8);
  EXPECT_EQ(text(store.matrix("w", 3, 64, {0, 1}).mins, 4), "aabb");
  EXPECT_EQ(text(view.mins, 8), "ccddeeff");
}

TEST(WeightStore, ReadsMatricesOfFloats) {
  TempDirectory directory;
  SafetensorsWriter writer;
  writer.add("w", {2, 3}, {1, 2, 3, 4, 5, 6});
  directory.write("model.safetensors", writer.bytes());
  WeightStore store(directory.path());
  const WeightView view = store.matrix("w", 2, 3);
  EXPECT_FALSE(view.is_quantized());
  EXPECT_EQ(static_cast<const float*>(view.values.data)[5], 6.0f);
  EXPECT_TRUE(has_text(checkpoint_error_of([&] { store.matrix("w", 3, 2); }).what(),
                       "expected shape [3, 2], found [2, 3]"));
}

TEST(WeightStore, OddMatricesOfIntegersAreRefused) {
  struct Case {
    IntegerMatrix matrix;
    int64_t in_features;
    const char* tensor;
    const char* message;
  };
  const std::vector<Case> cases = {
      {{.beside = {}}, 64, "w", "there is no tensor w.scales"},
      {{.beside = {{".mins", {2, 2}}}}, 64, "w", "there is no tensor w.scales"},
      {{.beside = {{".scales", {2, 1}}}}, 64, "w.scales", "expected shape [2, 2], found [2, 1]"},
      {{.beside = {{".scales", {2, 2}}, {".mins", {4, 1}}}}, 64, "w.mins", "found [4, 1]"},
      {{.beside_dtype = "F32"}, 64, "w.scales", "dtype F32, expected F16"},
      {{.shape = {2, 48}}, 48, "w", "which do not divide a row of 48"},
      {{.shape = {2, 32}}, 64, "w", "expected shape [2, 64], found [2, 32]"},
      {{.dtype = "U8"}, 64, "w", "expected shape [2, 32], found [2, 64]"},
  };
  for (const Case& odd : cases) {
    TempDirectory directory;
    directory.write("model.safetensors", odd.matrix.bytes());
    WeightStore store(directory.path());
    const CheckpointError error =
        checkpoint_error_of([&] { store.matrix("w", 2, odd.in_features); });
    EXPECT_EQ(error.tensor(), odd.tensor);
    EXPECT_TRUE(has_text(error.what(), odd.message));
  }
}

// A checkpoint with a matrix of 8-bit floats called "w", [3, 40], and its scale.
struct Fp8Tensor {
  std::string scale_name = "w_scale";
  std::string scale_dtype = "F32";
  std::vector<int64_t> scale_shape = {1};
  std::vector<float> scales = {0.5f};
  char code = 0x38;  // 1.0

  std::string bytes() const {
    SafetensorsWriter writer;
    std::string codes(3 * 40, 0x38);
    codes.back() = code;
    writer.add("w", "F8_E4M3", {3, 40}, codes);
    std::string scale_bytes = float_bytes(scales);
    if (scale_dtype == "BF16") {
      scale_bytes.clear();
      for (float scale : scales) {
        const uint16_t bits = to_bfloat16(scale).bits;
        scale_bytes += {static_cast<char>(bits), static_cast<char>(bits >> 8)};
      }
    }
    if (!scale_name.empty()) writer.add(scale_name, scale_dtype, scale_shape, scale_bytes);
    return writer.bytes();
  }
};

TEST(WeightStore, ReadsMatricesOfEightBitFloatsWithTheirScales) {
  struct Case {
    Fp8Tensor tensor;
    ScaleBlock block;
    int64_t block_rows, block_cols;
  };
  const std::vector<float> four = {1, 2, 3, 4}, three = {1, 2, 3};
  const std::vector<Case> cases = {
      {{}, {}, 3, 40},
      {{.scale_shape = {}}, {}, 3, 40},
      {{.scale_shape = {1, 1}}, {128, 128}, 128, 128},
      {{.scale_shape = {1, 1}}, {}, 3, 40},
      {{.scale_dtype = "BF16"}, {}, 3, 40},
      {{.scale_shape = {3}, .scales = three}, {}, 1, 40},
      {{.scale_shape = {3, 1}, .scales = three}, {}, 1, 40},
      {{.scale_shape = {3, 1}, .scales = three}, {128, 128}, 1, 40},
      {{.scale_name = "w_scale_inv", .scale_shape = {2, 2}, .scales = four}, {2, 32}, 2, 32},
      {{.scale_shape = {2, 2}, .scales = four}, {2, 32}, 2, 32},
  };
  for (const Case& good : cases) {
    TempDirectory directory;
    directory.write("model.safetensors", good.tensor.bytes());
    WeightStore store(directory.path(), good.block);
    const WeightView view = store.matrix("w", 3, 40);
    EXPECT_TRUE(view.is_fp8() && view.is_quantized() && !view.is_integer());
    EXPECT_EQ(view.values.dtype, DType::kF8E4M3);
    EXPECT_EQ(view.in_features(), 40);
    EXPECT_EQ(view.block_rows, good.block_rows);
    EXPECT_EQ(view.block_cols, good.block_cols);
    for (size_t i = 0; i < good.tensor.scales.size(); ++i) {
      EXPECT_EQ(view.block_scales[i], good.tensor.scales[i]);
    }
    EXPECT_TRUE(store.unused().empty());
    store.release("w");
  }
}

TEST(WeightStore, RowsOfEightBitFloatsBeginWithTheirBlock) {
  TempDirectory directory;
  const Fp8Tensor tensor = {.scale_shape = {2, 2}, .scales = {1, 2, 3, 4}, .code = 0x7f};
  directory.write("model.safetensors", tensor.bytes());
  WeightStore store(directory.path(), {.rows = 2, .cols = 32});
  EXPECT_EQ(store.matrix("w", 3, 40, {1, 1}).block_scales[1], 2);  // the NaN is not among them
  EXPECT_TRUE(has_text(checkpoint_error_of([&] { store.matrix("w", 3, 40, {2, 1}); }).what(),
                       "a value is NaN"));
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

TEST(WeightStore, OddMatricesOfEightBitFloatsAreRefused) {
  struct Case {
    Fp8Tensor tensor;
    const char* name;
    const char* message;
  };
  const std::vector<Case> cases = {
      {{.scale_name = ""}, "w", "there is no tensor w_scale or w_scale_inv"},
      {{.scale_shape = {2}, .scales = {1, 2}},
       "w_scale",
       "has shape [2], expected [1], [3, 1] or, for blocks of 2 x 32, [2, 2]"},
      {{.scale_name = "w_scale_inv", .scale_shape = {1, 2}, .scales = {1, 2}},
       "w_scale_inv",
       "has shape [1, 2]"},
      {{.scale_dtype = "I32"}, "w_scale", "dtype I32 is not supported"},
      {{.scales = {NAN}}, "w_scale", "a value is NaN or infinite"},
      {{.scales = {INFINITY}}, "w_scale", "a value is NaN or infinite"},
      {{.code = 0x7f}, "w", "a value is NaN"},
      {{.code = '\xff'}, "w", "a value is NaN"},
  };
  for (const Case& odd : cases) {
    TempDirectory directory;
    directory.write("model.safetensors", odd.tensor.bytes());
    WeightStore store(directory.path(), {.rows = 2, .cols = 32});
    const CheckpointError error = checkpoint_error_of([&] { store.matrix("w", 3, 40); });
    EXPECT_EQ(error.tensor(), odd.name);
    EXPECT_TRUE(has_text(error.what(), odd.message));
  }
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
