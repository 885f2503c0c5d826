// A file mapped read-only into memory.
#pragma once

#include <cstddef>
#include <string>
#include <utility>

namespace specdec {

class MappedFile {
 public:
  MappedFile() = default;
  // Throws CheckpointError when the file is missing, unreadable or not a regular file.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  MappedFile& operator=(MappedFile&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }

  const char* data() const { return data_; }  // null for an empty file
  size_t size() const { return size_; }       // bytes

  // Drops the resident pages that hold [begin, end) of the file; reading them again is slow but
  // allowed.
  void drop_pages(size_t begin, size_t end) const;

 private:
  const char* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace specdec
