#include "comm/system_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/str_cat.h"
#include "specdec/error.h"

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>

#include <climits>
#include <fstream>
#include <sstream>
#include <string>
#else
#include <algorithm>
#include <thread>
#endif

namespace specdec::system {

#if defined(__linux__)

void wake(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void wait(std::atomic<uint32_t>& word, uint32_t seen, std::chrono::nanoseconds longest) {
  const timespec time{.tv_sec = longest.count() / 1'000'000'000,
                      .tv_nsec = longest.count() % 1'000'000'000};
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, seen, &time, nullptr, 0);
}

int create_memory_file(size_t num_bytes) {
  const int file = memfd_create("specdec communicator", MFD_CLOEXEC);
  if (file < 0)
    throw OutOfMemory(str_cat("communicator: no shared memory: ", std::strerror(errno)));
  if (ftruncate(file, static_cast<off_t>(num_bytes)) != 0) {
    close(file);
    throw OutOfMemory(str_cat("communicator: no shared memory of ", num_bytes, " bytes"));
  }
  return file;
}

int open_memory_file(pid_t process, int number) {
  return ::open(str_cat("/proc/", process, "/fd/", number).c_str(), O_RDWR | O_CLOEXEC);
}

int give_pages(int file, size_t offset, size_t num_bytes) {
  int error = EINTR;
  while (error == EINTR)
    error = posix_fallocate(file, static_cast<off_t>(offset), static_cast<off_t>(num_bytes));
  return error;
}

int open_process(pid_t process) { return static_cast<int>(syscall(SYS_pidfd_open, process, 0)); }

uint64_t start_time(pid_t process) {
  std::ifstream file(str_cat("/proc/", process, "/stat"));
  std::string line;
  if (!std::getline(file, line)) return 0;
  std::istringstream fields(line.substr(line.rfind(')') + 1));
  std::string skipped;
  for (int i = 3; i < 22; ++i) fields >> skipped;
  uint64_t ticks = 0;
  fields >> ticks;
  return ticks;
}

#else

void wake(std::atomic<uint32_t>&) {}  // waiters poll by themselves

void wait(std::atomic<uint32_t>& word, uint32_t seen, std::chrono::nanoseconds longest) {
  constexpr std::chrono::nanoseconds kBetweenLooks = std::chrono::microseconds(50);
  const auto deadline = std::chrono::steady_clock::now() + longest;
  while (word.load(std::memory_order_acquire) == seen) {
    const auto left = deadline - std::chrono::steady_clock::now();
    if (left.count() <= 0) return;
    std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(left, kBetweenLooks));
  }
}

int create_memory_file(size_t) { return -1; }

int open_memory_file(pid_t, int) {
  throw Unavailable(
      "ranks as processes of one host share memory on Linux only; use ranks as threads");
}

int give_pages(int, size_t, size_t) { return 0; }  // pages come when they are touched

int open_process(pid_t) {
  errno = ENOSYS;
  return -1;
}

uint64_t start_time(pid_t) { return 0; }

#endif

void* map_memory(int file, size_t num_bytes) {
  const int flags = MAP_SHARED | MAP_NORESERVE | (file < 0 ? MAP_ANON : 0);
  void* base = mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, flags, file, 0);
  return base == MAP_FAILED ? nullptr : base;
}

}  // namespace specdec::system
