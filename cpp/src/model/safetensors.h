// Reader of the safetensors format: an 8-byte little-endian header length, a JSON header
// {name: {dtype, shape, data_offsets}}, then the tensors' bytes, which are read when asked for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/buffer.h"
#include "core/dtype.h"
#include "model/input_file.h"

namespace specdec {

// Rows of a matrix or of a stack of matrices. A row spans the last extent.
struct RowRange {
  int64_t begin = 0;
  int64_t count = 0;
  int64_t end() const { return begin + count; }
};

struct SafetensorsEntry {
  std::string dtype_name;      // as the header spells it: "BF16"
  std::optional<DType> dtype;  // none: valid in the format, but not a type of this library
  std::vector<int64_t> shape;
  size_t begin = 0;  // byte offsets in the file
  size_t end = 0;

  int64_t num_rows() const;  // 1 of a scalar
};

class SafetensorsFile {
 public:
  // Opens the file and checks the whole header: every offset, size, dtype and key. The tensors must
  // cover the data exactly, without overlap or holes. Throws CheckpointError.
  explicit SafetensorsFile(std::string path);

  const std::string& path() const { return path_; }
  const std::map<std::string, SafetensorsEntry>& entries() const { return entries_; }

  // Copies a tensor's rows; other rows are not read. `seen` receives each part, of whole elements,
  // while the part is in the cache. Throws CheckpointError when there is no tensor of that name, or
  // the file no longer has the bytes.
  using Seen = std::function<void(std::span<const std::byte>)>;
  Buffer read(const std::string& name, RowRange rows, const Seen& seen = {}) const;
  Buffer read(const std::string& name) const;               // all rows
  size_t bytes_read() const { return file_.bytes_read(); }  // header included

 private:
  std::string path_;
  InputFile file_;
  std::map<std::string, SafetensorsEntry> entries_;
};

}  // namespace specdec
