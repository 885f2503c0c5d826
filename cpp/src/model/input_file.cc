#include "model/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/str_cat.h"
#include "specdec/error.h"

namespace specdec {

InputFile::InputFile(std::string path) : path_(std::move(path)) {
  // Without O_NONBLOCK, open() would block on a named pipe.
  fd_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd_ < 0) throw CheckpointError(path_, "", str_cat("cannot open: ", std::strerror(errno)));
  struct stat info{};
  const bool known = ::fstat(fd_, &info) == 0;
  if (known && S_ISREG(info.st_mode)) {
    size_ = static_cast<size_t>(info.st_size);
    return;
  }
  const std::string problem =
      known ? "expected a regular file" : str_cat("cannot stat: ", std::strerror(errno));
  ::close(fd_);
  throw CheckpointError(path_, "", problem);
}

InputFile::~InputFile() { ::close(fd_); }

void InputFile::read(size_t begin, size_t count, void* to) const {
  size_t done = 0;
  while (done < count) {
    const ssize_t got =
        ::pread(fd_, static_cast<char*>(to) + done, count - done, static_cast<off_t>(begin + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw CheckpointError(path_, "", str_cat("cannot read: ", std::strerror(errno)));
    if (got == 0) {
      throw CheckpointError(path_, "",
                            str_cat("truncated while it was being read: it had ", size_,
                                    " bytes, now it ends at byte ", begin + done));
    }
    done += static_cast<size_t>(got);
    bytes_read_ += static_cast<size_t>(got);
  }
}

}  // namespace specdec
