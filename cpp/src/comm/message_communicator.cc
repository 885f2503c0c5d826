#include "comm/message_communicator.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "core/str_cat.h"
#include "specdec/error.h"

namespace specdec {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLongestWait{100};
constexpr size_t kLongestPiece = size_t{1} << 30;  // some systems count in int

std::byte* grown(Buffer& buffer, size_t num_bytes) {
  if (buffer.size_bytes() < num_bytes || buffer.empty())
    buffer = Buffer::host(std::max<size_t>(num_bytes, 64), "communicator");
  return buffer.as<std::byte>();
}

}  // namespace

MessageCommunicator::MessageCommunicator(int rank, int size, std::chrono::milliseconds timeout)
    : Communicator(rank, size, timeout), parts_(size), views_(size), posted_(size) {}

bool MessageCommunicator::is_done(const Outgoing& message) {
  return message.done == sizeof(Header) + message.body.size();
}

bool MessageCommunicator::push(Outgoing& message) {
  if (is_done(message)) return false;
  const bool in_header = message.done < sizeof(Header);
  const auto bytes = in_header ? std::as_bytes(std::span(&message.header, 1)).subspan(message.done)
                               : message.body.subspan(message.done - sizeof(Header));
  const size_t moved = write_some(message.rank, bytes.first(std::min(bytes.size(), kLongestPiece)),
                                  in_header && !message.body.empty());
  message.done += moved;
  return moved != 0;
}

bool MessageCommunicator::push_posted() {
  bool moved = false;
  for (std::deque<Posted>& messages : posted_) {
    while (!messages.empty()) {
      moved |= push(messages.front().message);
      if (!is_done(messages.front().message)) break;
      messages.pop_front();
    }
  }
  return moved;
}

bool MessageCommunicator::pull(Incoming& message, Kind kind) {
  const bool in_header = message.done < sizeof(Header);
  const auto bytes =
      in_header ? std::as_writable_bytes(std::span(&message.header, 1)).subspan(message.done)
                : std::span(message.body, message.header.num_bytes)
                      .subspan(message.done - sizeof(Header));
  if (bytes.empty()) return false;
  const size_t moved = read_some(message.rank, bytes.first(std::min(bytes.size(), kLongestPiece)));
  message.done += moved;
  if (in_header && message.done == sizeof(Header)) {
    SPECDEC_CHECK_EQ(static_cast<int>(message.header.kind), static_cast<int>(kind));
    message.body = message.buffer_for(message.header.num_bytes);
  }
  return moved != 0;
}

void MessageCommunicator::transfer(Kind kind, Patience patience, const char* operation) {
  struct Clear {
    MessageCommunicator& of;
    ~Clear() {
      of.outgoing_.clear();
      of.incoming_.clear();
    }
  } clear{*this};
  // A failure already reported takes precedence over messages that have come
  wait({}, std::chrono::milliseconds(0));
  check(operation);
  const auto start = Clock::now();
  for (;;) {
    bool moved = push_posted();
    pending_.clear();
    for (int other = 0; other < size(); ++other) {
      if (!posted_[other].empty()) pending_.push_back({.rank = other, .write = true});
    }
    const size_t num_posting = pending_.size();
    for (Outgoing& message : outgoing_) {
      if (posted_[message.rank].empty()) moved |= push(message);
      if (!is_done(message)) pending_.push_back({.rank = message.rank, .write = true});
    }
    for (Incoming& message : incoming_) {
      moved |= pull(message, kind);
      if (message.done < sizeof(Header) + message.header.num_bytes)
        pending_.push_back({.rank = message.rank, .read = true});
    }
    if (pending_.size() == num_posting) break;
    check(operation);
    if (moved) continue;
    const auto waited = Clock::now() - start;
    if (patience == Patience::kDeadline && waited >= timeout()) {
      fail(pending_[num_posting].rank,
           str_cat("did not answer within ", timeout().count() / 1000.0, " s"));
      continue;
    }
    auto longest = kLongestWait;
    if (patience == Patience::kDeadline) {
      longest = std::min(longest, std::chrono::ceil<std::chrono::milliseconds>(timeout() - waited));
    }
    wait(pending_, longest);
  }
}

std::byte* MessageCommunicator::part(size_t size_bytes) {
  part_bytes_ = size_bytes;
  return grown(own_parts_[turn_], size_bytes);
}

std::span<const std::span<const std::byte>> MessageCommunicator::exchange(size_t size_bytes) {
  SPECDEC_CHECK_LE(size_bytes, part_bytes_);
  views_[rank()] = {own_parts_[turn_].as<std::byte>(), size_bytes};
  for (int other = 0; other < size(); ++other) {
    if (other == rank()) continue;
    outgoing_.push_back({.rank = other,
                         .header = {.kind = Kind::kPart, .num_bytes = size_bytes},
                         .body = views_[rank()]});
    incoming_.push_back({.rank = other, .buffer_for = [this, other](size_t num_bytes) {
                           std::byte* data = grown(parts_[other], num_bytes);
                           views_[other] = {data, num_bytes};
                           return data;
                         }});
  }
  transfer(Kind::kPart, Patience::kDeadline, "exchange");
  turn_ ^= 1;
  part_bytes_ = 0;
  return views_;
}

void MessageCommunicator::broadcast(std::vector<std::byte>& message, int root, Patience patience) {
  SPECDEC_CHECK(root >= 0 && root < size());
  if (root == rank()) {
    for (int other = 0; other < size(); ++other) {
      if (other == rank()) continue;
      outgoing_.push_back({.rank = other,
                           .header = {.kind = Kind::kBroadcast, .num_bytes = message.size()},
                           .body = message});
    }
  } else {
    incoming_.push_back({.rank = root, .buffer_for = [&message](size_t num_bytes) {
                           message.resize(num_bytes);
                           return message.data();
                         }});
  }
  transfer(Kind::kBroadcast, patience, "broadcast");
}

void MessageCommunicator::send(int to, std::span<const std::byte> message) {
  SPECDEC_CHECK(to >= 0 && to < size() && to != rank());
  outgoing_.push_back({.rank = to,
                       .header = {.kind = Kind::kMessage, .num_bytes = message.size()},
                       .body = message});
  transfer(Kind::kMessage, Patience::kDeadline, "send");
}

void MessageCommunicator::receive(int from, std::span<std::byte> message) {
  SPECDEC_CHECK(from >= 0 && from < size() && from != rank());
  incoming_.push_back({.rank = from, .buffer_for = [message](size_t num_bytes) {
                         SPECDEC_CHECK_EQ(num_bytes, message.size());
                         return message.data();
                       }});
  transfer(Kind::kMessage, Patience::kDeadline, "receive");
}

void MessageCommunicator::post(int to, std::vector<std::byte> message) {
  SPECDEC_CHECK(to >= 0 && to < size() && to != rank());
  check("send");
  Posted posted{.bytes = std::move(message), .message = {}};
  posted.message = {.rank = to,
                    .header = {.kind = Kind::kMessage, .num_bytes = posted.bytes.size()},
                    .body = posted.bytes};
  posted_[to].push_back(std::move(posted));
  push_posted();
}

void MessageCommunicator::receive_any_size(int from, std::vector<std::byte>& message,
                                           Patience patience) {
  SPECDEC_CHECK(from >= 0 && from < size() && from != rank());
  incoming_.push_back({.rank = from, .buffer_for = [&message](size_t num_bytes) {
                         message.resize(num_bytes);
                         return message.data();
                       }});
  transfer(Kind::kMessage, patience, "receive");
}

void MessageCommunicator::check_ranks() {
  push_posted();
  wait({}, std::chrono::milliseconds(0));
  check("idle");
}

}  // namespace specdec
