// The Communicator of ranks that share no memory. Everything is a message from one rank to another:
// a header, then bytes.
#pragma once

#include <array>
#include <chrono>
#include <deque>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "comm/communicator.h"
#include "core/buffer.h"

namespace specdec {

class MessageCommunicator : public Communicator {
 public:
  std::byte* part(size_t size_bytes) override;
  std::span<const std::span<const std::byte>> exchange(size_t size_bytes) override;
  void broadcast(std::vector<std::byte>& message, int root, Patience patience) override;
  void send(int to, std::span<const std::byte> message) override;
  void receive(int from, std::span<std::byte> message) override;
  void post(int to, std::vector<std::byte> message) override;
  void receive_any_size(int from, std::vector<std::byte>& message, Patience patience) override;
  void check_ranks() override;

 protected:
  MessageCommunicator(int rank, int size, std::chrono::milliseconds timeout);

  // A rank whose bytes an operation still waits for.
  struct Pending {
    int rank = 0;
    bool write = false;
    bool read = false;
  };
  // Transfer as many bytes as possible without waiting, and return how many. The rest is passed
  // again in the next call. `more`: another write follows at once. The death of the rank fails the
  // group.
  virtual size_t write_some(int rank, std::span<const std::byte> bytes, bool more) = 0;
  virtual size_t read_some(int rank, std::span<std::byte> bytes) = 0;
  // Waits until a pending transfer can go on, the group fails, or `longest` has passed.
  virtual void wait(std::span<const Pending> pending, std::chrono::milliseconds longest) = 0;
  // Ends the group for a failure of `rank`. Only the first call has an effect.
  virtual void fail(int rank, std::string_view cause) noexcept = 0;
  // Throws RankFailure(operation) where the group has failed.
  virtual void check(const char* operation) = 0;

 private:
  enum class Kind : uint32_t { kPart = 1, kBroadcast, kMessage };
  struct Header {
    Kind kind;
    uint32_t reserved = 0;
    uint64_t num_bytes = 0;
  };
  struct Outgoing {
    int rank;
    Header header;
    std::span<const std::byte> body;
    size_t done = 0;  // bytes transferred of header and body
  };
  // A posted message. Every operation after post() continues its transfer; post() itself does not
  // wait.
  struct Posted {
    std::vector<std::byte> bytes;
    Outgoing message;  // its body is `bytes`
  };
  struct Incoming {
    int rank;
    std::function<std::byte*(size_t num_bytes)> buffer_for;  // returns where to put the body
    Header header{};
    std::byte* body = nullptr;
    size_t done = 0;
  };
  // Runs until everything is transferred. One rank's header and body never wait for another's.
  void transfer(Kind kind, Patience patience, const char* operation);
  bool push(Outgoing& message);
  static bool is_done(const Outgoing& message);
  bool push_posted();
  bool pull(Incoming& message, Kind kind);

  // Used in turn: others may read one until the next exchange begins
  std::array<Buffer, 2> own_parts_;
  int turn_ = 0;
  size_t part_bytes_ = 0;
  std::vector<Buffer> parts_;  // by rank
  std::vector<std::span<const std::byte>> views_;
  // By receiver, oldest first; sent before the current operation's messages
  std::vector<std::deque<Posted>> posted_;
  std::vector<Outgoing> outgoing_;
  std::vector<Incoming> incoming_;
  std::vector<Pending> pending_;
};

}  // namespace specdec
