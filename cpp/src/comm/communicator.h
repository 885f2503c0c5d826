// Copies bytes between the ranks of a group. Ranks compute shares of one model. A communicator only
// copies; the backend adds up what the ranks sent, in a fixed order.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace specdec {

// How long a rank waits for the others.
enum class Patience {
  kDeadline,  // the group's timeout, then RankFailure
  kForever,   // until a message comes; the death of a rank ends the wait all the same
};

// All ranks of the group call collective operations in the same order, each rank from one thread at
// a time. Once a rank has called abort(), has died, or does not come within the timeout, the
// operation and all later ones throw RankFailure.
class Communicator {
 public:
  virtual ~Communicator() = default;
  int rank() const { return rank_; }
  int size() const { return size_; }
  // How long a rank waits for the others.
  std::chrono::milliseconds timeout() const { return timeout_; }

  // Buffer for the caller's part of the next exchange: at least `size_bytes`, aligned to 64. Valid
  // until exchange() returns.
  virtual std::byte* part(size_t size_bytes) = 0;
  // Brings every rank's part to every rank: [size()] views by rank, the caller's own included.
  // Parts may differ in size. The views are valid until the next exchange() or broadcast() begins.
  virtual std::span<const std::span<const std::byte>> exchange(size_t size_bytes) = 0;
  // Brings `message` of rank `root` to all others, whatever its size.
  virtual void broadcast(std::vector<std::byte>& message, int root,
                         Patience patience = Patience::kDeadline) = 0;
  // Copies bytes from one rank to one other. The receiver knows the size. send() may return before
  // receive() begins, or wait for receive(): two ranks must not both send first.
  virtual void send(int to, std::span<const std::byte> message) = 0;
  virtual void receive(int from, std::span<std::byte> message) = 0;
  // Like send(), but does not wait as long as `to` has at most one of this rank's earlier messages
  // left to receive.
  virtual void post(int to, std::vector<std::byte> message) = 0;
  // Like receive(), for a message whose size only the sender knows.
  virtual void receive_any_size(int from, std::vector<std::byte>& message,
                                Patience patience = Patience::kDeadline) = 0;
  // Returns once all ranks have called it.
  void barrier() { exchange(0); }

  // A group of the ranks first .. first + size - 1 of this group. Those ranks call it at the same
  // point of their operations; the others do not. The subgroup may not outlive this group and
  // shares its timeout, and an abort of either aborts both. Failures name ranks by their numbers in
  // the outermost group. Different groups may be used by different threads.
  virtual std::unique_ptr<Communicator> subgroup(int first, int size) = 0;

  // Throws RankFailure("idle") where the group has failed or a rank is known to have died, without
  // waiting. A rank that has no operation with the others for a long time calls it.
  virtual void check_ranks() = 0;

  // Ends the waits of all ranks of the group with RankFailure, which names this rank and `cause`.
  // Any thread may call it, at any time.
  virtual void abort(std::string_view cause) noexcept = 0;

 protected:
  Communicator(int rank, int size, std::chrono::milliseconds timeout)
      : rank_(rank), size_(size), timeout_(timeout) {}

 private:
  int rank_;
  int size_;
  std::chrono::milliseconds timeout_;
};

}  // namespace specdec
