// A file of a checkpoint, read piece by piece into our own memory.
#pragma once

#include <cstddef>
#include <string>
#include <utility>

namespace specdec {

// Not mapped: if a mapped file is truncated, for example by a restarted download, the next access
// ends the process with SIGBUS. pread() reports the missing bytes instead.
class InputFile {
 public:
  // Throws CheckpointError when the file is missing, unreadable or not a regular file.
  explicit InputFile(std::string path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  size_t size() const { return size_; }  // bytes when opened

  // Copies [begin, begin + count) of the file to `to`. Throws CheckpointError when the file no
  // longer has these bytes or cannot be read.
  void read(size_t begin, size_t count, void* to) const;
  size_t bytes_read() const { return bytes_read_; }

 private:
  std::string path_;
  int fd_ = -1;
  size_t size_ = 0;
  mutable size_t bytes_read_ = 0;  // not atomic, so only one thread may read at a time
};

}  // namespace specdec
