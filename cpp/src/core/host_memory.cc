#include "core/host_memory.h"

#include <unistd.h>

#include <fstream>
#include <limits>
#include <string>
#include <string_view>

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

// The number after `key` in a file of lines "key number ..."; 0 where there is none.
int64_t number_of(const char* path, std::string_view key) {
  std::ifstream file(path);
  std::string name;
  int64_t value = 0;
  std::string rest;
  while (file >> name >> value && std::getline(file, rest)) {
    if (name == key) return value;
  }
  return 0;
}

}  // namespace

int64_t available_host_memory_bytes() {
  constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();
  int64_t available = number_of("/proc/meminfo", "MemAvailable:") * 1024;
  const int64_t limit = read_number("/sys/fs/cgroup/memory.max", kUnlimited);
  if (limit != kUnlimited) {
    // Files that were read, such as the checkpoint, count as in use until the room is needed.
    const int64_t in_use = read_number("/sys/fs/cgroup/memory.current", 0) -
                           number_of("/sys/fs/cgroup/memory.stat", "inactive_file");
    const int64_t left = limit - in_use;
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
