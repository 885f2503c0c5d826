#include "core/buffer.h"

#include <sys/mman.h>

#include "core/host_memory.h"
#include "core/str_cat.h"
#include "specdec/error.h"

namespace specdec {
namespace {

[[maybe_unused]] constexpr size_t kHugePageBytes = size_t{2} << 20;

}  // namespace

Buffer Buffer::host(size_t size_bytes, const char* purpose) {
  if (size_bytes == 0) return {};
  // mmap gives zeroed pages lazily and, unlike malloc, a mapping of its own to advise.
  // Only to whole small pages: what a buffer has beyond its last huge page takes small ones, or
  // shares a huge page with the buffer mapped beside it.
  const size_t mapped_bytes = (size_bytes + page_bytes() - 1) / page_bytes() * page_bytes();
  if (mapped_bytes < size_bytes) {
    throw OutOfMemory(str_cat("cannot allocate ", size_bytes, " bytes for ", purpose));
  }
  void* data =
      mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    throw OutOfMemory(str_cat("cannot allocate ", size_bytes, " bytes for ", purpose));
  }
#if defined(__linux__)
  if (size_bytes >= kHugePageBytes) madvise(data, mapped_bytes, MADV_HUGEPAGE);
#endif
  return Buffer(data, size_bytes,
                [mapped_bytes](void* mapped, size_t) { munmap(mapped, mapped_bytes); });
}

}  // namespace specdec
