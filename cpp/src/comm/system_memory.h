// The operating system's part of memory shared by ranks: the memory itself, waiting on its words,
// and watching the processes that map it. Linux has all of these. Elsewhere (macOS) ranks are
// threads of one process: the memory has no file, and no process opens or watches another's.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace specdec::system {

// Wakes every thread that waits for `word`.
void wake(std::atomic<uint32_t>& word);
// Waits until another thread wakes it or `longest` has passed, if the word is still `seen`.
void wait(std::atomic<uint32_t>& word, uint32_t seen, std::chrono::nanoseconds longest);

// A memory file with `num_bytes` addresses and no pages, which lives as long as a process has it
// open; -1: the system has none, and memory is without a file. Throws OutOfMemory.
int create_memory_file(size_t num_bytes);
// Opens file number `number` of `process`; -1 with errno. Throws Unavailable on systems that
// cannot.
int open_memory_file(pid_t process, int number);
// Maps all of a memory file; for file -1, maps new memory of this process. nullptr with errno.
void* map_memory(int file, size_t num_bytes);
// Gives a part of a memory file its pages. Returns 0 or an error number.
int give_pages(int file, size_t offset, size_t num_bytes);

// A file descriptor that poll() finds readable once the process has ended; -1 with errno.
int open_process(pid_t process);
// In clock ticks since the machine's start; 0: no such process.
uint64_t start_time(pid_t process);

}  // namespace specdec::system
