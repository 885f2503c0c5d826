// The Communicator of ranks that share memory: threads of a process, or processes of a host.
#pragma once

#include <array>
#include <chrono>
#include <memory>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "comm/shared_region.h"

namespace specdec {

// An exchange copies nothing: a rank writes its part into its own area, which the others see,
// announces the part and waits for the others' parts. A rank has two areas that take turns, because
// a rank that has begun an exchange may still be read by one that has not left the exchange before.
class MemoryCommunicator final : public Communicator {
 public:
  // Rank `rank` of a group of `size` ranks, which are the region's ranks from `first_rank` on.
  // `share` is the group's part of the region's counts and areas, num_counts() and num_areas() of
  // them.
  MemoryCommunicator(std::shared_ptr<SharedRegion> region, SharedRegion::Share share,
                     int first_rank, int rank, int size, std::chrono::milliseconds timeout);
  ~MemoryCommunicator() override;

  static size_t num_counts(size_t size) { return size + 2 * size * size; }
  static size_t num_areas(size_t size) { return 4 * size + 2 * size * size; }

  std::byte* part(size_t size_bytes) override;
  std::span<const std::span<const std::byte>> exchange(size_t size_bytes) override;
  void broadcast(std::vector<std::byte>& message, int root, Patience patience) override;
  void send(int to, std::span<const std::byte> message) override;
  void receive(int from, std::span<std::byte> message) override;
  void post(int to, std::vector<std::byte> message) override { send(to, message); }
  void receive_any_size(int from, std::vector<std::byte>& message, Patience patience) override;
  std::unique_ptr<Communicator> subgroup(int first, int size) override;
  void check_ranks() override;
  void abort(std::string_view cause) noexcept override;

 private:
  struct Wait;
  // Count of collective operations that this rank has reached. Raised before the rank announces its
  // own part or message, and after it has copied another's message.
  SharedCount& operations(int rank) { return region_->count(share_.first_count + rank); }
  // Counts of the messages from one rank to another.
  SharedCount& sent(int from, int to) { return pair_count(from, to, 0); }
  SharedCount& received(int from, int to) { return pair_count(from, to, 1); }
  SharedCount& pair_count(int from, int to, int which) {
    return region_->count(share_.first_count + size() + (from * size() + to) * 2 + which);
  }
  // Indices of areas; `turn` is 0 or 1.
  size_t part_area(int rank, int turn) const { return share_.first_area + rank * 4 + turn; }
  size_t message_area(int rank, int turn) const { return share_.first_area + rank * 4 + 2 + turn; }
  size_t pair_area(int from, int to, int turn) const {
    return share_.first_area + size() * 4 + (from * size() + to) * 2 + turn;
  }
  // Waits until `rank` has raised `count` to `announcements`.
  void wait(SharedCount& count, uint32_t announcements, int rank, Patience patience,
            const char* operation);
  // Waits for a message of `from` and returns the oldest.
  std::span<const std::byte> next_message(int from, Patience patience);

  std::shared_ptr<SharedRegion> region_;
  SharedRegion::Share share_;
  int first_rank_;
  std::chrono::nanoseconds spin_;

  size_t part_bytes_ = 0;  // asked for by part()
  uint32_t num_operations_ = 0;
  uint32_t num_exchanges_ = 0;
  uint32_t num_broadcasts_ = 0;
  // 1 + the operation that last used each of this rank's message areas
  std::array<uint32_t, 2> message_operation_{};
  std::vector<uint32_t> num_sent_;      // by receiver
  std::vector<uint32_t> num_received_;  // by sender
  std::vector<std::span<const std::byte>> views_;
};

}  // namespace specdec
