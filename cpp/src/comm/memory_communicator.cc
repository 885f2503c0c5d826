#include "comm/memory_communicator.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <cstring>

#include "core/check.h"
#include "core/cpu_topology.h"
#include "core/str_cat.h"
#include "specdec/error.h"

namespace specdec {
namespace {

using Clock = std::chrono::steady_clock;

// About the cost of sleeping and waking, so a longer wait is cheaper asleep. With more ranks than
// CPUs, a spinning rank takes a CPU from the others.
constexpr std::chrono::microseconds kSpin{20};
constexpr std::chrono::microseconds kSpinOvercommitted{2};
// Longest time between two checks that the other ranks' processes are alive.
constexpr std::chrono::milliseconds kLongestSleep{100};

void pause_cpu() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

MemoryCommunicator::MemoryCommunicator(std::shared_ptr<SharedRegion> region,
                                       SharedRegion::Share share, int first_rank, int rank,
                                       int size, std::chrono::milliseconds timeout)
    : Communicator(rank, size, timeout),
      region_(std::move(region)),
      share_(share),
      first_rank_(first_rank),
      spin_(size <= static_cast<int>(allowed_cpus().size()) ? kSpin : kSpinOvercommitted),
      num_sent_(size),
      num_received_(size),
      views_(size) {}

MemoryCommunicator::~MemoryCommunicator() {
  operations(rank()).end();
  for (int other = 0; other < size(); ++other) {
    sent(rank(), other).end();
    received(other, rank()).end();
  }
}

void MemoryCommunicator::wait(SharedCount& count, uint32_t announcements, int rank,
                              Patience patience, const char* operation) {
  uint32_t word = count.word.load(std::memory_order_acquire);
  if (SharedCount::reached(word, announcements)) return;
  const auto start = Clock::now();
  while ((word & SharedCount::kEnded) == 0 && Clock::now() - start < spin_) {
    for (int pauses = 0; pauses < 16; ++pauses) {
      word = count.word.load(std::memory_order_acquire);
      if (SharedCount::reached(word, announcements)) return;
      pause_cpu();
    }
  }
  // Announcements made before a rank left or died still count, so that a leader's last message
  // reaches every rank.
  for (bool process_looked_at = false;;) {
    word = count.word.load(std::memory_order_acquire);
    if (SharedCount::reached(word, announcements)) return;
    region_->check(operation);
    const auto waited = Clock::now() - start;
    if ((word & SharedCount::kEnded) != 0) {
      region_->fail(first_rank_ + rank, "left the group");
    } else if (patience == Patience::kDeadline && waited >= timeout()) {
      region_->fail(first_rank_ + rank,
                    str_cat("did not answer within ", timeout().count() / 1000.0, " s"));
    } else if (!process_looked_at) {
      process_looked_at = true;
      region_->look_at_processes();
    } else {
      process_looked_at = false;
      auto longest = std::chrono::nanoseconds(kLongestSleep);
      if (patience == Patience::kDeadline)
        longest = std::min<std::chrono::nanoseconds>(longest, timeout() - waited);
      count.sleep(word, longest);
    }
  }
}

std::byte* MemoryCommunicator::part(size_t size_bytes) {
  part_bytes_ = size_bytes;
  // Every rank has left the exchange that used this area: each has come to the exchange after it.
  return region_->grow(part_area(rank(), num_exchanges_ % 2), size_bytes);
}

std::span<const std::span<const std::byte>> MemoryCommunicator::exchange(size_t size_bytes) {
  SPECDEC_CHECK_LE(size_bytes, part_bytes_);
  region_->check("exchange");
  const int turn = num_exchanges_++ % 2;
  SharedCount& own = operations(rank());
  own.num_bytes[turn] = size_bytes;
  own.announce();
  ++num_operations_;
  for (int other = 0; other < size(); ++other) {
    SharedCount& count = operations(other);
    if (other != rank()) wait(count, num_operations_, other, Patience::kDeadline, "exchange");
    views_[other] = {region_->area(part_area(other, turn)), count.num_bytes[turn]};
  }
  part_bytes_ = 0;
  return views_;
}

void MemoryCommunicator::broadcast(std::vector<std::byte>& message, int root, Patience patience) {
  SPECDEC_CHECK(root >= 0 && root < size());
  region_->check("broadcast");
  const int turn = num_broadcasts_++ % 2;
  const uint32_t operation = ++num_operations_;
  SharedCount& own = operations(rank());
  if (root == rank()) {
    for (int other = 0; other < size(); ++other) {
      if (other != rank())
        wait(operations(other), message_operation_[turn], other, patience, "broadcast");
    }
    message_operation_[turn] = operation;
    std::byte* area = region_->grow(message_area(root, turn), message.size());
    if (!message.empty()) std::memcpy(area, message.data(), message.size());
    own.num_bytes[2 + turn] = message.size();
  } else {
    SharedCount& count = operations(root);
    wait(count, operation, root, patience, "broadcast");
    const std::byte* area = region_->area(message_area(root, turn));
    message.assign(area, area + count.num_bytes[2 + turn]);
  }
  own.announce();
}

void MemoryCommunicator::send(int to, std::span<const std::byte> message) {
  SPECDEC_CHECK(to >= 0 && to < size() && to != rank());
  region_->check("send");
  const uint32_t number = num_sent_[to]++;
  const int turn = number % 2;
  if (number >= 2) wait(received(rank(), to), number - 1, to, Patience::kDeadline, "send");
  std::byte* area = region_->grow(pair_area(rank(), to, turn), message.size());
  if (!message.empty()) std::memcpy(area, message.data(), message.size());
  SharedCount& own = sent(rank(), to);
  own.num_bytes[turn] = message.size();
  own.announce();
}

std::span<const std::byte> MemoryCommunicator::next_message(int from, Patience patience) {
  SPECDEC_CHECK(from >= 0 && from < size() && from != rank());
  region_->check("receive");
  const uint32_t number = num_received_[from]++;
  const int turn = number % 2;
  SharedCount& count = sent(from, rank());
  wait(count, number + 1, from, patience, "receive");
  return {region_->area(pair_area(from, rank(), turn)), count.num_bytes[turn]};
}

void MemoryCommunicator::receive(int from, std::span<std::byte> message) {
  const std::span<const std::byte> sent = next_message(from, Patience::kDeadline);
  SPECDEC_CHECK_EQ(sent.size(), message.size());
  std::ranges::copy(sent, message.begin());
  received(from, rank()).announce();
}

void MemoryCommunicator::receive_any_size(int from, std::vector<std::byte>& message,
                                          Patience patience) {
  const std::span<const std::byte> sent = next_message(from, patience);
  message.assign(sent.begin(), sent.end());
  received(from, rank()).announce();
}

std::unique_ptr<Communicator> MemoryCommunicator::subgroup(int first, int size) {
  SPECDEC_CHECK(first >= 0 && first <= rank() && rank() < first + size &&
                first + size <= this->size());
  SharedRegion::Share share;
  if (rank() == first) {
    share = region_->take(num_counts(size), num_areas(size));
    for (int other = first + 1; other < first + size; ++other)
      send(other, std::as_bytes(std::span(&share, 1)));
  } else {
    receive(first, std::as_writable_bytes(std::span(&share, 1)));
  }
  return std::make_unique<MemoryCommunicator>(region_, share, first_rank_ + first, rank() - first,
                                              size, timeout());
}

void MemoryCommunicator::check_ranks() {
  region_->look_at_processes();
  for (int other = 0; other < size(); ++other) {
    const uint32_t word = operations(other).word.load(std::memory_order_acquire);
    if (other != rank() && (word & SharedCount::kEnded) != 0)
      region_->fail(first_rank_ + other, "left the group");
  }
  region_->check("idle");
}

void MemoryCommunicator::abort(std::string_view cause) noexcept {
  region_->fail(first_rank_ + rank(), cause);
}

}  // namespace specdec
