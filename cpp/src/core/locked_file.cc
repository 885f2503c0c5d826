#include "core/locked_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

namespace specdec {
namespace {

[[noreturn]] void fail() { throw std::system_error(errno, std::generic_category()); }

// Calls a function of the system until no signal interrupts it. Throws where it returns -1.
template <class Call>
auto uninterrupted(const Call& call) {
  auto result = call();
  while (result == -1 && errno == EINTR) result = call();
  if (result == -1) fail();
  return result;
}

void write_all(int fd, int64_t begin, std::string_view bytes) {
  while (!bytes.empty()) {
    const auto written =
        uninterrupted([&] { return ::pwrite(fd, bytes.data(), bytes.size(), begin); });
    bytes.remove_prefix(static_cast<size_t>(written));
    begin += written;
  }
}

}  // namespace

LockedFile::LockedFile(std::string path, For use) : path_(std::move(path)) {
  const bool writes = use == For::kWriting;
  // Not blocking: a pipe of this name must not stop the caller.
  const int flags = (writes ? O_RDWR | O_CREAT : O_RDONLY) | O_CLOEXEC | O_NONBLOCK;
  do {
    if (fd_ >= 0) ::close(fd_);
    fd_ = ::open(path_.c_str(), flags, 0666);
    if (fd_ < 0 && !writes && errno == ENOENT) return;
    if (fd_ < 0) fail();
    try {
      uninterrupted([&] { return ::flock(fd_, writes ? LOCK_EX : LOCK_SH); });
    } catch (...) {
      ::close(fd_);
      throw;
    }
  } while (!keeps_name());
}

LockedFile::~LockedFile() {
  if (fd_ >= 0) ::close(fd_);
}

bool LockedFile::keeps_name() {
  struct stat opened = {};
  struct stat named = {};
  if (::fstat(fd_, &opened) != 0 || ::stat(path_.c_str(), &named) != 0) return false;
  is_regular_ = S_ISREG(opened.st_mode);
  size_ = opened.st_size;
  device_ = static_cast<uint64_t>(opened.st_dev);
  inode_ = static_cast<uint64_t>(opened.st_ino);
  return opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

std::string LockedFile::read(int64_t begin, int64_t end) const {
  std::string bytes(static_cast<size_t>(std::max<int64_t>(end - begin, 0)), '\0');
  size_t num_read = 0;
  while (num_read < bytes.size()) {
    const auto now = uninterrupted([&] {
      return ::pread(fd_, bytes.data() + num_read, bytes.size() - num_read,
                     begin + static_cast<int64_t>(num_read));
    });
    if (now == 0) break;
    num_read += static_cast<size_t>(now);
  }
  bytes.resize(num_read);
  return bytes;
}

void LockedFile::write(int64_t begin, std::string_view bytes) const {
  write_all(fd_, begin, bytes);
}

void LockedFile::sync() const {
  uninterrupted([&] { return ::fsync(fd_); });
}

void LockedFile::replace(std::string_view bytes) const {
  // No other process writes this file: it would hold the lock.
  const std::string temporary = path_ + ".tmp";
  const int fd = uninterrupted(
      [&] { return ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666); });
  try {
    write_all(fd, 0, bytes);
    // The content has to be on the disk before the name is.
    uninterrupted([&] { return ::fsync(fd); });
    uninterrupted([&] { return ::rename(temporary.c_str(), path_.c_str()); });
  } catch (...) {
    ::close(fd);
    ::unlink(temporary.c_str());
    throw;
  }
  ::close(fd);
}

}  // namespace specdec
