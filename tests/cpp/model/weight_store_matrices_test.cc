// Matrices of integers and of floats, 8-bit ones too, with their scales.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "model/weight_store.h"
#include "testing/checkpoint_files.h"
#include "testing/text.h"

namespace specdec {
namespace {

using testing::checkpoint_error_of;
using testing::float_bytes;
using testing::has_text;
using testing::SafetensorsWriter;
using testing::TempDirectory;

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
    WeightStore store(directory.path(), {.block = good.block});
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
  WeightStore store(directory.path(), {.block = {.rows = 2, .cols = 32}});
  EXPECT_EQ(store.matrix("w", 3, 40, {1, 1}).block_scales[1], 2);  // the NaN is not among them
  EXPECT_TRUE(has_text(checkpoint_error_of([&] { store.matrix("w", 3, 40, {2, 1}); }).what(),
                       "a value is NaN"));
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
    WeightStore store(directory.path(), {.block = {.rows = 2, .cols = 32}});
    const CheckpointError error = checkpoint_error_of([&] { store.matrix("w", 3, 40); });
    EXPECT_EQ(error.tensor(), odd.name);
    EXPECT_TRUE(has_text(error.what(), odd.message));
  }
}

}  // namespace
}  // namespace specdec
