// A file of a checkpoint, read piece by piece into memory of ours.
#pragma once

#include <cstddef>
#include <string>
#include <utility>

namespace specdec {

// Not mapped: a mapping of a file that somebody truncates, as a download that starts again does,
// ends the process with SIGBUS at the next access. pread() reports the missing bytes instead.
class InputFile {
 public:
  // Throws CheckpointError when the file is missing, unreadable or not a regular file.
  explicit InputFile(std::string path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  size_t size() const { return size_; }  // bytes, when it was opened

  // Copies [begin, begin + count) of the file to `to`. Throws CheckpointError when the file no
  // longer has these bytes or cannot be read.
  void read(size_t begin, size_t count, void* to) const;
  size_t bytes_read() const { return bytes_read_; }

 private:
  std::string path_;
  int fd_ = -1;
  size_t size_ = 0;
  mutable size_t bytes_read_ = 0;  // so one thread reads at a time
};

}  // namespace specdec
