#include "model/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/check.h"
#include "core/str_cat.h"
#include "specdec/error.h"

namespace specdec {
namespace {

// Closes the descriptor at the end of the scope; a mapping stays valid without it.
struct Descriptor {
  int fd = -1;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

}  // namespace

MappedFile::MappedFile(const std::string& path) {
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.fd < 0) throw CheckpointError(path, "", str_cat("cannot open: ", std::strerror(errno)));
  struct stat info{};
  if (::fstat(file.fd, &info) != 0) {
    throw CheckpointError(path, "", str_cat("cannot stat: ", std::strerror(errno)));
  }
  if (!S_ISREG(info.st_mode)) throw CheckpointError(path, "", "expected a regular file");
  if (info.st_size == 0) return;
  void* mapped =
      ::mmap(nullptr, static_cast<size_t>(info.st_size), PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (mapped == MAP_FAILED) {
    throw CheckpointError(path, "", str_cat("cannot map: ", std::strerror(errno)));
  }
  data_ = static_cast<const char*>(mapped);
  size_ = static_cast<size_t>(info.st_size);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<char*>(data_), size_);
}

void MappedFile::drop_pages(size_t begin, size_t end) const {
  SPECDEC_CHECK_LE(begin, end);
  SPECDEC_CHECK_LE(end, size_);
  if (begin == end) return;
  const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t first = begin / page * page;
  ::madvise(const_cast<char*>(data_) + first, end - first, MADV_DONTNEED);
}

}  // namespace specdec
