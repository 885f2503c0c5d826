// Writes checkpoint directories for tests, and catches what reading them throws.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/str_cat.h"
#include "specdec/error.h"
#include "testing/thrown.h"

namespace specdec::testing {

// A fresh directory, removed with its contents at the end of the scope.
class TempDirectory {
 public:
  TempDirectory() {
    std::random_device random;
    do {
      path_ = std::filesystem::temp_directory_path() / ("specdec_test_" + std::to_string(random()));
    } while (!std::filesystem::create_directory(path_));
  }
  ~TempDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDirectory(const TempDirectory&) = delete;
  TempDirectory& operator=(const TempDirectory&) = delete;

  std::string path() const { return path_.string(); }
  std::string file(const std::string& name) const { return (path_ / name).string(); }

  void write(const std::string& name, std::string_view content) const {
    std::ofstream(path_ / name, std::ios::binary).write(content.data(), content.size());
  }

 private:
  std::filesystem::path path_;
};

// The bytes of float32 values.
inline std::string float_bytes(const std::vector<float>& values) {
  std::string bytes(values.size() * sizeof(float), '\0');
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// The bytes of a safetensors file: header length, header, data.
inline std::string safetensors_bytes(const std::string& header, const std::string& data) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) {
    bytes.push_back(static_cast<char>(static_cast<uint64_t>(header.size()) >> (8 * i)));
  }
  return bytes + header + data;
}

// Collects tensors and writes them as one valid file.
class SafetensorsWriter {
 public:
  void add(const std::string& name, const std::string& dtype, const std::vector<int64_t>& shape,
           const std::string& bytes) {
    std::string extents;
    for (int64_t extent : shape) extents += str_cat(extents.empty() ? "" : ",", extent);
    entries_ += str_cat(entries_.empty() ? "" : ",", '"', name, R"(":{"dtype":")", dtype,
                        R"(","shape":[)", extents, R"(],"data_offsets":[)", data_.size(), ",",
                        data_.size() + bytes.size(), "]}");
    data_ += bytes;
  }

  void add(const std::string& name, const std::vector<int64_t>& shape,
           const std::vector<float>& values) {
    add(name, "F32", shape, float_bytes(values));
  }

  // `padding` spaces follow the header's JSON, as writers use them to align the data.
  std::string bytes(size_t padding = 0) const {
    return safetensors_bytes(str_cat("{", entries_, "}", std::string(padding, ' ')), data_);
  }

 private:
  std::string entries_;
  std::string data_;
};

template <class Call>
CheckpointError checkpoint_error_of(Call&& call) {
  return error_of<CheckpointError>(call);
}

}  // namespace specdec::testing
