#include "core/host_memory.h"

#include <unistd.h>

#include <fstream>
#include <limits>
#include <string>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace specdec {
namespace {

// A file that holds one number; `fallback` when it is absent or says "max".
int64_t read_number(const char* path, int64_t fallback) {
  std::ifstream file(path);
  int64_t value = 0;
  return file >> value ? value : fallback;
}

int64_t mem_available_bytes() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  int64_t kib = 0;
  std::string unit;
  while (file >> key >> kib && std::getline(file, unit)) {
    if (key == "MemAvailable:") return kib * 1024;
  }
  return 0;
}

}  // namespace

int64_t available_host_memory_bytes() {
  constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();
  int64_t available = mem_available_bytes();
  const int64_t limit = read_number("/sys/fs/cgroup/memory.max", kUnlimited);
  if (limit != kUnlimited) {
    const int64_t left = limit - read_number("/sys/fs/cgroup/memory.current", 0);
    if (available == 0 || left < available) available = left;
  }
  return available > 0 ? available : 0;
}

size_t page_bytes() {
  static const size_t kBytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return kBytes;
}

void release_free_heap() {
#if defined(__GLIBC__)
  malloc_trim(0);
#endif
}

}  // namespace specdec
