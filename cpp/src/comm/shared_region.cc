#include "comm/shared_region.h"

#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <sstream>

#include "comm/system_memory.h"
#include "core/str_cat.h"
#include "specdec/error.h"

namespace specdec {
namespace {

constexpr uint64_t kMagic = 0x6d6d6f6365707300;  // "\0specomm"
constexpr uint32_t kVersion = 1;
constexpr size_t kGrowth = size_t{64} << 10;  // areas grow by multiples of this
// Counts and areas in multiples of the first group's: one for it and three for its subgroups.
constexpr size_t kSubgroupFactor = 4;

enum FailureState : uint32_t { kNone, kWritten, kComplete };

size_t rounded_up(size_t num_bytes) { return (num_bytes + kGrowth - 1) / kGrowth * kGrowth; }

}  // namespace

void SharedCount::announce() {
  word.fetch_add(kOne, std::memory_order_seq_cst);
  if (num_sleepers.load(std::memory_order_seq_cst) != 0) system::wake(word);
}

void SharedCount::end() {
  word.fetch_or(kEnded, std::memory_order_seq_cst);
  system::wake(word);
}

void SharedCount::sleep(uint32_t seen, std::chrono::nanoseconds longest) {
  num_sleepers.fetch_add(1, std::memory_order_seq_cst);
  system::wait(word, seen, longest);
  num_sleepers.fetch_sub(1, std::memory_order_relaxed);
}

struct alignas(kCacheLineBytes) SharedRegion::Header {  // followed by the counts
  std::atomic<uint64_t> magic;                          // written last
  uint64_t key;                                         // random, also part of the name
  uint32_t version;
  int32_t num_ranks;
  uint64_t num_bytes;
  uint64_t first_area_bytes;  // where areas begin
  uint64_t count_capacity;
  uint64_t area_capacity;
  std::atomic<uint64_t> counts_taken;
  std::atomic<uint64_t> areas_taken;

  struct Process {
    std::atomic<int32_t> id;  // 0: the rank has not entered. Written after start_time.
    uint64_t start_time;
    std::atomic<int32_t> claimed;
  } processes[kMaxRanks];

  std::atomic<uint32_t> failure;  // FailureState
  int32_t failed_rank;
  char cause[1000];

  SharedCount* counts() { return reinterpret_cast<SharedCount*>(this + 1); }
};

SharedRegion::SharedRegion(int file, std::string name) : file_(file), name_(std::move(name)) {}

SharedRegion::~SharedRegion() {
  for (const int process : processes_)
    if (process >= 0) close(process);
  if (base_ != nullptr) munmap(base_, num_bytes_);
  if (file_ >= 0) close(file_);
}

void SharedRegion::map(size_t num_bytes) {
  void* base = system::map_memory(file_, num_bytes);
  if (base == nullptr) {
    throw OutOfMemory(str_cat("communicator: ", num_bytes >> 30, " GiB of addresses (no memory) ",
                              "were refused: ", std::strerror(errno),
                              "; raise the limit of address space (ulimit -v)"));
  }
  base_ = static_cast<std::byte*>(base);
  num_bytes_ = num_bytes;
}

std::shared_ptr<SharedRegion> SharedRegion::create(int num_ranks) {
  if (num_ranks < 1 || num_ranks > kMaxRanks) {
    throw InvalidArgument("size",
                          str_cat("is ", num_ranks, "; a host has 1 to ", kMaxRanks, " ranks"));
  }
  const size_t ranks = num_ranks;
  const size_t counts = kSubgroupFactor * (ranks + 2 * ranks * ranks);
  const size_t areas = kSubgroupFactor * (4 * ranks + 2 * ranks * ranks);
  const size_t header_bytes = sizeof(Header) + counts * sizeof(SharedCount);
  const size_t first_area = rounded_up(header_bytes);
  const size_t num_bytes = first_area + areas * kAreaBytes;
  std::random_device random;
  const uint64_t key = (uint64_t{random()} << 32) | random();
  const int file = system::create_memory_file(num_bytes);
  std::shared_ptr<SharedRegion> region(
      new SharedRegion(file, str_cat(getpid(), ":", file, ":", key)));
  if (system::give_pages(file, 0, first_area) != 0) {
    throw OutOfMemory(str_cat("communicator: no shared memory for ", num_ranks, " ranks"));
  }
  region->map(num_bytes);
  Header& header = region->header();  // zero so far
  header.key = key;
  header.version = kVersion;
  header.num_ranks = num_ranks;
  header.num_bytes = num_bytes;
  header.first_area_bytes = first_area;
  header.count_capacity = counts;
  header.area_capacity = areas;
  header.magic.store(kMagic, std::memory_order_release);
  region->grown_.assign(areas, 0);
  region->processes_.assign(num_ranks, -1);
  return region;
}

std::shared_ptr<SharedRegion> SharedRegion::open(const std::string& name) {
  const auto refuse = [&](const std::string& what) {
    return InvalidArgument(
        "name", str_cat("\"", name, "\" ", what,
                        "; pass on the leader's shm_group_name() while the leader lives"));
  };
  int process = 0, number = 0;
  uint64_t key = 0;
  char colons[2] = {};
  std::istringstream fields(name);
  fields >> process >> colons[0] >> number >> colons[1] >> key;
  if (fields.fail() || colons[0] != ':' || colons[1] != ':') throw refuse("names no group");
  const int file = system::open_memory_file(process, number);
  if (file < 0) throw refuse(str_cat("cannot be opened: ", std::strerror(errno)));
  std::shared_ptr<SharedRegion> region(new SharedRegion(file, name));

  struct stat status{};
  if (fstat(file, &status) != 0 || !S_ISREG(status.st_mode) ||
      static_cast<size_t>(status.st_size) < sizeof(Header)) {
    throw refuse("is not a group's memory");
  }
  region->map(static_cast<size_t>(status.st_size));
  const Header& header = region->header();
  if (header.magic.load(std::memory_order_acquire) != kMagic || header.key != key)
    throw refuse("is not that group's memory");
  if (header.version != kVersion || header.num_bytes != region->num_bytes_) {
    throw refuse(str_cat("has version ", header.version, " of the protocol, this library ",
                         kVersion, ": use one version of specdec on all ranks"));
  }
  region->grown_.assign(header.area_capacity, 0);
  region->processes_.assign(header.num_ranks, -1);
  return region;
}

int SharedRegion::num_ranks() const { return header().num_ranks; }

void SharedRegion::enter(int rank) {
  if (rank < 0 || rank >= num_ranks()) {
    throw InvalidArgument("rank",
                          str_cat("is ", rank, "; the group has ranks 0 to ", num_ranks() - 1));
  }
  Header::Process& own = header().processes[rank];
  if (own.claimed.exchange(1) != 0) {
    throw InvalidArgument(
        "rank", str_cat("is ", rank, ", which another process is; give each process its own rank"));
  }
  own.start_time = system::start_time(getpid());
  own.id.store(getpid(), std::memory_order_release);
}

int SharedRegion::first_missing() {
  int missing = -1;
  for (int rank = num_ranks() - 1; rank >= 0; --rank) {
    const Header::Process& process = header().processes[rank];
    const pid_t id = process.id.load(std::memory_order_acquire);
    if (id == 0) missing = rank;
    if (id == 0 || id == getpid() || processes_[rank] >= 0) continue;
    processes_[rank] = system::open_process(id);
    if (processes_[rank] < 0 && errno != ESRCH) {
      throw Unavailable(str_cat("ranks as processes: the kernel lets no process watch another ",
                                "(pidfd_open: ", std::strerror(errno), "); use ranks as threads"));
    }
    const bool was_used_again = system::start_time(id) != process.start_time;
    if (processes_[rank] < 0 || was_used_again) fail(rank, str_cat("process ", id, " has ended"));
  }
  return missing;
}

SharedRegion::Share SharedRegion::take(size_t counts, size_t areas) {
  Header& h = header();
  const Share share{h.counts_taken.fetch_add(counts), h.areas_taken.fetch_add(areas)};
  if (share.first_count + counts > h.count_capacity || share.first_area + areas > h.area_capacity) {
    h.counts_taken.fetch_sub(counts);
    h.areas_taken.fetch_sub(areas);
    throw OutOfMemory("communicator: a group has no room for so many subgroups; make fewer");
  }
  return share;
}

SharedCount& SharedRegion::count(size_t index) { return header().counts()[index]; }

const std::byte* SharedRegion::area(size_t index) const {
  return base_ + header().first_area_bytes + index * kAreaBytes;
}

std::byte* SharedRegion::grow(size_t area, size_t num_bytes) {
  const size_t offset = header().first_area_bytes + area * kAreaBytes;
  if (num_bytes > grown_[area]) {
    if (num_bytes > kAreaBytes) {
      throw OutOfMemory(str_cat("communicator: a rank has to send ", num_bytes,
                                " bytes at once and may send ", kAreaBytes,
                                "; lower max_num_batched_tokens"));
    }
    const size_t size = rounded_up(num_bytes);
    const int error = system::give_pages(file_, offset, size);
    if (error != 0) {
      throw OutOfMemory(str_cat("communicator: no ", size, " bytes of shared memory: ",
                                std::strerror(error), "; lower max_num_batched_tokens"));
    }
    grown_[area] = size;
  }
  return base_ + offset;
}

void SharedRegion::fail(int rank, std::string_view cause) noexcept {
  Header& h = header();
  uint32_t state = kNone;
  if (!h.failure.compare_exchange_strong(state, kWritten)) return;
  h.failed_rank = rank;
  const size_t length = std::min(cause.size(), sizeof h.cause - 1);
  std::memcpy(h.cause, cause.data(), length);
  h.cause[length] = '\0';
  h.failure.store(kComplete, std::memory_order_release);
  const size_t taken = std::min<uint64_t>(h.counts_taken.load(), h.count_capacity);
  for (size_t i = 0; i < taken; ++i) h.counts()[i].end();
}

void SharedRegion::check(const char* operation) const {
  const Header& h = header();
  uint32_t state = h.failure.load(std::memory_order_acquire);
  if (state == kNone) return;
  // The writer needs less than a microsecond, unless it is killed meanwhile.
  for (int looks = 0; state != kComplete && looks < 100; ++looks) {
    usleep(100);
    state = h.failure.load(std::memory_order_acquire);
  }
  if (state != kComplete) throw RankFailure(-1, operation, "a process ended while it failed");
  throw RankFailure(h.failed_rank, operation, h.cause);
}

void SharedRegion::look_at_processes() {
  std::vector<pollfd> polled;
  for (const int process : processes_) polled.push_back({process, POLLIN, 0});
  if (poll(polled.data(), polled.size(), 0) <= 0) return;
  for (size_t rank = 0; rank < polled.size(); ++rank) {
    if (polled[rank].revents != 0)
      fail(static_cast<int>(rank),
           str_cat("process ", header().processes[rank].id.load(), " has ended"));
  }
}

}  // namespace specdec
