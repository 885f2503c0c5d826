// Memory that the ranks of a group share, within one process or between several of one host: counts
// on which ranks wait, areas for the bytes they exchange, and the failure that ended the group.
//
// The memory is a memfd. So nothing is left behind once the processes are gone, however they ended,
// and the size of /dev/shm (64 MB in many containers) does not matter. Each area reserves a GiB of
// addresses and gets pages as it grows, so no rank ever maps again. system_memory.h has the parts
// that depend on the operating system.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/cache_line.h"

namespace specdec {

// A count that one rank raises and others wait for, with the sizes of the announced parts.
struct alignas(kCacheLineBytes) SharedCount {
  static constexpr uint32_t kEnded = 1;  // of `word`: the rank has left, or the group has failed
  static constexpr uint32_t kOne = 2;

  std::atomic<uint32_t> word;  // kOne for each announcement, from 0, wrapping; and kEnded
  std::atomic<uint32_t> num_sleepers;
  uint64_t num_bytes[4];

  // The two numbers may be at most 2^29 announcements apart.
  static bool reached(uint32_t word, uint32_t announcements) {
    return static_cast<int32_t>((word & ~kEnded) - announcements * kOne) >= 0;
  }
  void announce();
  void end();
  // Sleeps until somebody wakes it or `longest` has passed, if the word is still `seen`.
  void sleep(uint32_t seen, std::chrono::nanoseconds longest);
};

class SharedRegion {
 public:
  static constexpr int kMaxRanks = 64;
  static constexpr size_t kAreaBytes = size_t{1} << 30;

  // Throws OutOfMemory where the system does not give the addresses.
  static std::shared_ptr<SharedRegion> create(int num_ranks);
  // Opens the region `name` that another process of this user has created. Throws
  // InvalidArgument("name") where there is none, or where another version of this library made it.
  static std::shared_ptr<SharedRegion> open(const std::string& name);
  ~SharedRegion();
  SharedRegion(const SharedRegion&) = delete;
  SharedRegion& operator=(const SharedRegion&) = delete;

  const std::string& name() const { return name_; }
  int num_ranks() const;

  // Registers this process as `rank`. From then on the others notice when this process ends. Throws
  // InvalidArgument("rank") where another process is this rank.
  void enter(int rank);
  // The first rank that has not entered; -1: all have. Also checks that the processes of entered
  // ranks are alive.
  int first_missing();

  // Takes `counts` and `areas` permanently and returns their first indices. Throws OutOfMemory.
  struct Share {
    uint64_t first_count = 0;
    uint64_t first_area = 0;
  };
  Share take(size_t counts, size_t areas);
  SharedCount& count(size_t index);
  // Grows an area to at least `num_bytes`; its address never changes. Only the area's owner calls
  // it.
  std::byte* grow(size_t area, size_t num_bytes);
  const std::byte* area(size_t index) const;

  // Ends the group with `cause`, a failure of `rank`. Only the first call has an effect. Any
  // thread.
  void fail(int rank, std::string_view cause) noexcept;
  // Throws RankFailure(operation) where the group has failed.
  void check(const char* operation) const;
  // Fails the group where another process that has entered has ended.
  void look_at_processes();

 private:
  struct Header;
  SharedRegion(int file, std::string name);
  void map(size_t num_bytes);
  Header& header() const { return *reinterpret_cast<Header*>(base_); }

  int file_;  // -1: memory of this process alone
  std::string name_;
  std::byte* base_ = nullptr;
  size_t num_bytes_ = 0;
  std::vector<size_t> grown_;   // bytes of each area with pages, as known to this process
  std::vector<int> processes_;  // a pidfd for each rank; -1: none, or this process
};

}  // namespace specdec
