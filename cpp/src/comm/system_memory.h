// What the operating system does for memory that ranks share: the memory, waiting on its words, and
// watching the processes that have it. Linux has all of it. Elsewhere (macOS) ranks are threads of
// one process: the memory has no file, and no process opens or watches another's.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace specdec::system {

// Wakes all that wait for `word`.
void wake(std::atomic<uint32_t>& word);
// Waits until somebody wakes it or `longest` has passed, if the word is still `seen`.
void wait(std::atomic<uint32_t>& word, uint32_t seen, std::chrono::nanoseconds longest);

// A file of memory with `num_bytes` addresses and no pages, which lives as long as somebody has it
// open; -1: the system has none, and memory is without a file. Throws OutOfMemory.
int create_memory_file(size_t num_bytes);
// That of a process, by its number there; -1 with errno. Throws Unavailable where it cannot be.
int open_memory_file(pid_t process, int number);
// All of a memory file; of file -1 new memory, for this process. nullptr with errno.
void* map_memory(int file, size_t num_bytes);
// Gives a part of a memory file its pages; an error number, or 0.
int give_pages(int file, size_t offset, size_t num_bytes);

// A file that poll() finds readable once the process has ended; -1 with errno.
int open_process(pid_t process);
// In clock ticks since the machine's start; 0: there is no such process.
uint64_t start_time(pid_t process);

}  // namespace specdec::system
