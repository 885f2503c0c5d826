// A file that several processes read and write, one after the other.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace specdec {

// An open file with a lock (flock) that lasts as long as the object: readers share it, a writer has
// it alone. What locks the file may replace it by another of the same name, so the lock is that of
// the file which has the name once the lock is got. Every function throws std::system_error.
class LockedFile {
 public:
  enum class For : uint8_t { kReading, kWriting };

  // Waits for the lock. For writing the file is created if there is none.
  LockedFile(std::string path, For use);
  ~LockedFile();
  LockedFile(const LockedFile&) = delete;
  LockedFile& operator=(const LockedFile&) = delete;

  // False: there is no such file.
  bool exists() const { return fd_ >= 0; }
  bool is_regular() const { return is_regular_; }
  int64_t size() const { return size_; }  // bytes, when it was opened
  // The file system's names of this file, which no other file has while it exists.
  uint64_t device() const { return device_; }
  uint64_t inode() const { return inode_; }

  // The bytes from `begin` up to `end`, or up to the end of the file.
  std::string read(int64_t begin, int64_t end) const;
  void write(int64_t begin, std::string_view bytes) const;
  // Returns once everything written is on the disk.
  void sync() const;
  // Gives the name to a new file with these bytes: whoever opens the file sees either all of the
  // old or all of the new one.
  void replace(std::string_view bytes) const;

 private:
  // Whether the locked file still has its name.
  bool keeps_name();

  std::string path_;
  int fd_ = -1;
  bool is_regular_ = false;
  int64_t size_ = 0;
  uint64_t device_ = 0;
  uint64_t inode_ = 0;
};

}  // namespace specdec
