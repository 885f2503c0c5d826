// Copies bytes between the ranks of a group. Ranks compute the shares of one model; a communicator
// only copies, and every sum of what it brings is the backend's, in an order of its own.
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
  kDeadline,  // the group's timeout; then RankFailure
  kForever,   // until something comes; a rank that is gone ends the wait all the same
};

// Collective operations are called by all ranks of the group, in the same order, each by one thread
// at a time. Every one throws RankFailure, and all later ones do, once a rank of the group has
// called abort(), is gone, or does not come within the timeout.
class Communicator {
 public:
  virtual ~Communicator() = default;
  int rank() const { return rank_; }
  int size() const { return size_; }
  // How long a rank waits for the others.
  std::chrono::milliseconds timeout() const { return timeout_; }

  // Where the caller's part of the next exchange goes: at least `size_bytes`, aligned to 64.
  // Valid until exchange() returns.
  virtual std::byte* part(size_t size_bytes) = 0;
  // Brings everybody's part to everybody: [size()] views by rank, the caller's own among them.
  // Parts may differ in size. The views are valid until the next exchange() or broadcast() begins.
  virtual std::span<const std::span<const std::byte>> exchange(size_t size_bytes) = 0;
  // Brings `message` of rank `root` to all others, whatever its size.
  virtual void broadcast(std::vector<std::byte>& message, int root,
                         Patience patience = Patience::kDeadline) = 0;
  // Brings bytes from one rank to one other. The receiver knows their number. send() may return
  // before receive() begins, or wait for receive(): two ranks must not both send first.
  virtual void send(int to, std::span<const std::byte> message) = 0;
  virtual void receive(int from, std::span<std::byte> message) = 0;
  // Like send(), but waits for nobody while `to` has not received fewer than two of the messages
  // before this one.
  virtual void post(int to, std::vector<std::byte> message) = 0;
  // The same for a message whose size only the sender knows.
  virtual void receive_any_size(int from, std::vector<std::byte>& message,
                                Patience patience = Patience::kDeadline) = 0;
  // Returns once all ranks have called it.
  void barrier() { exchange(0); }

  // A group of the ranks first .. first + size - 1 of this one, which call it at the same point of
  // their operations; the others do not. The group may not outlive this one, shares its timeout,
  // and an abort of one is an abort of both. Failures name ranks by their numbers in the outermost
  // group. Different groups may be used by different threads.
  virtual std::unique_ptr<Communicator> subgroup(int first, int size) = 0;

  // Throws RankFailure of "idle" where the group has failed or a rank is known to be gone, without
  // waiting: for a rank that has nothing to do with the others for long.
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
