#include "model/safetensors.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "core/log.h"
#include "model/weight_store.h"
#include "specdec/error.h"
#include "testing/checkpoint_files.h"
#include "testing/text.h"

namespace specdec {
namespace {

using testing::checkpoint_error_of;
using testing::float_bytes;
using testing::has_text;
using testing::safetensors_bytes;
using testing::SafetensorsWriter;
using testing::TempDirectory;

std::string text_of(const Buffer& buffer) { return {buffer.as<char>(), buffer.size_bytes()}; }

TEST(Safetensors, ReadsTensorsOfEveryShape) {
  TempDirectory directory;
  SafetensorsWriter writer;
  writer.add("matrix", {2, 3}, {1, 2, 3, 4, 5, 6});
  writer.add("scalar", {}, {7});
  writer.add("empty", {0, 4}, std::vector<float>{});
  writer.add("bytes", "U8", {3}, "abc");
  directory.write("a.safetensors", writer.bytes());
  const SafetensorsFile file(directory.file("a.safetensors"));
  EXPECT_EQ(file.entries().size(), 4u);
  const SafetensorsEntry& matrix = file.entries().at("matrix");
  EXPECT_EQ(matrix.dtype, DType::kF32);
  EXPECT_EQ(matrix.shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(text_of(file.read("matrix")), float_bytes({1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(text_of(file.read("scalar")), float_bytes({7}));
  EXPECT_EQ(text_of(file.read("empty")), "");
  EXPECT_EQ(text_of(file.read("bytes")), "abc");
}

TEST(Safetensors, RowsAreReadByThemselves) {
  TempDirectory directory;
  SafetensorsWriter writer;
  writer.add("before", {1}, {0});
  writer.add("matrix", {3, 2}, {1, 2, 3, 4, 5, 6});
  writer.add("stack", {2, 2, 1}, {7, 8, 9, 10});
  directory.write("a.safetensors", writer.bytes());
  const SafetensorsFile file(directory.file("a.safetensors"));
  const size_t header = file.bytes_read();
  EXPECT_EQ(header, file.entries().at("before").begin);
  EXPECT_EQ(text_of(file.read("matrix", {1, 1})), float_bytes({3, 4}));
  EXPECT_EQ(text_of(file.read("matrix", {3, 0})), "");
  EXPECT_EQ(text_of(file.read("stack", {1, 2})), float_bytes({8, 9}));
  EXPECT_EQ(file.bytes_read(), header + 4 * sizeof(float));
}

TEST(Safetensors, AFileThatIsTruncatedLaterIsAnError) {
  TempDirectory directory;
  SafetensorsWriter writer;
  writer.add("first", {5000}, std::vector<float>(5000, 1.0f));
  writer.add("last", {5000}, std::vector<float>(5000, 2.0f));
  directory.write("a.safetensors", writer.bytes());
  const std::string path = directory.file("a.safetensors");
  const SafetensorsFile file(path);
  std::filesystem::resize_file(path, file.entries().at("last").begin + 10000);
  EXPECT_EQ(text_of(file.read("first")), float_bytes(std::vector<float>(5000, 1.0f)));
  const CheckpointError error = checkpoint_error_of([&] { file.read("last"); });
  EXPECT_EQ(error.file(), path);
  EXPECT_TRUE(has_text(error.what(), "truncated while it was being read"));
}

TEST(Safetensors, AcceptsMetadataAndPaddedHeader) {
  TempDirectory directory;
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}   )";
  directory.write("a.safetensors", safetensors_bytes(header, float_bytes({1})));
  EXPECT_EQ(SafetensorsFile(directory.file("a.safetensors")).entries().size(), 1u);
}

struct Corruption {
  const char* name;
  std::string bytes;
  const char* tensor;   // the error must name it; empty: none
  const char* message;  // and contain this
};

std::string one_tensor(const std::string& entry, size_t data_bytes) {
  return safetensors_bytes("{\"w\":" + entry + "}", std::string(data_bytes, 'x'));
}

std::vector<Corruption> corruptions() {
  const std::string pair_header = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                                  R"("b":{"dtype":"F32","shape":[2],"data_offsets":)";
  const std::string good = one_tensor(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})", 8);
  return {
      {"EmptyFile", "", "", "empty"},
      {"ShorterThanLength", "abc", "", "not a safetensors file"},
      {"TextFile", "version https://git-lfs.github.com/spec/v1\n", "", "not a safetensors file"},
      {"TruncatedHeader", good.substr(0, 20), "", "truncated"},
      {"TruncatedData", good.substr(0, good.size() - 1), "w", "truncated"},
      {"TrailingBytes", good + "y", "", "belong to no tensor"},
      {"HeaderNotJson", safetensors_bytes("{nonsense", ""), "", "not valid JSON"},
      {"HeaderNotUtf8", safetensors_bytes("{\"\xff\xfe\":1}", ""), "", "not valid JSON"},
      {"HeaderNotObject", safetensors_bytes("[1, 2]", ""), "", "not a JSON object"},
      {"HeaderStartsWithSpace", safetensors_bytes(" {}", ""), "", "not a JSON object"},
      {"EmptyHeader", safetensors_bytes("", ""), "", "not a JSON object"},
      {"EntryNotObject", one_tensor("3", 0), "w", "expected an object"},
      {"UnknownDType", one_tensor(R"({"dtype":"F31","shape":[2],"data_offsets":[0,8]})", 8), "w",
       "'F31' is not a safetensors dtype"},
      {"MissingDType", one_tensor(R"({"shape":[2],"data_offsets":[0,8]})", 8), "w",
       "missing dtype"},
      {"MissingShape", one_tensor(R"({"dtype":"F32","data_offsets":[0,8]})", 8), "w",
       "missing shape"},
      {"MissingOffsets", one_tensor(R"({"dtype":"F32","shape":[2]})", 8), "w",
       "missing data_offsets"},
      {"ShapeDisagreesWithSize",
       one_tensor(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})", 8), "w",
       "hold 8 bytes, expected 12"},
      {"NegativeShape", one_tensor(R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})", 8), "w",
       "non-negative integers"},
      {"FractionalShape", one_tensor(R"({"dtype":"F32","shape":[2.5],"data_offsets":[0,8]})", 8),
       "w", "non-negative integers"},
      {"OverflowingShape",
       one_tensor(R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]})", 8),
       "w", "overflows"},
      {"OffsetsReversed", one_tensor(R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})", 8), "w",
       "lies after"},
      {"OffsetsPastEnd", one_tensor(R"({"dtype":"F32","shape":[4],"data_offsets":[0,16]})", 8), "w",
       "truncated"},
      {"ThreeOffsets", one_tensor(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8,8]})", 8), "w",
       "two non-negative integers"},
      {"Overlap", safetensors_bytes(pair_header + "[4,12]}}", std::string(12, 'x')), "b",
       "overlaps tensor 'a'"},
      {"Hole", safetensors_bytes(pair_header + "[12,20]}}", std::string(20, 'x')), "b",
       "belong to no tensor"},
      {"DuplicateTensor",
       safetensors_bytes(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                         R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
                         std::string(8, 'x')),
       "a", "stands twice"},
      {"DuplicateField",
       one_tensor(R"({"dtype":"F32","shape":[2],"shape":[2],"data_offsets":[0,8]})", 8), "",
       "'shape' stands twice"},
      {"MetadataNotStrings", safetensors_bytes(R"({"__metadata__":{"a":1}})", ""), "",
       "expected an object of strings"},
  };
}

class CorruptSafetensors : public ::testing::TestWithParam<Corruption> {};

TEST_P(CorruptSafetensors, IsRefusedNamingFileAndTensor) {
  TempDirectory directory;
  directory.write("a.safetensors", GetParam().bytes);
  const std::string path = directory.file("a.safetensors");
  const CheckpointError error = checkpoint_error_of([&] { SafetensorsFile file(path); });
  EXPECT_EQ(error.file(), path);
  EXPECT_EQ(error.tensor(), GetParam().tensor);
  EXPECT_TRUE(has_text(error.what(), path));
  EXPECT_TRUE(has_text(error.what(), GetParam().message));
  for (const char* c = error.what(); *c != '\0'; ++c) EXPECT_GT(*c, 0) << "not ASCII";
}

INSTANTIATE_TEST_SUITE_P(All, CorruptSafetensors, ::testing::ValuesIn(corruptions()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Safetensors, RefusesHeaderLongerThanTheFormatAllows) {
  TempDirectory directory;
  std::string bytes(16, '\0');
  bytes[3] = 0x7f;  // a header of 2 GB
  directory.write("a.safetensors", bytes);
  EXPECT_TRUE(has_text(
      checkpoint_error_of([&] { SafetensorsFile file(directory.file("a.safetensors")); }).what(),
      "at most 100000000"));
}

}  // namespace
}  // namespace specdec
