#include "comm/socket_communicator.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "comm/message_communicator.h"
#include "comm/system_socket.h"
#include "core/check.h"
#include "core/log.h"
#include "core/str_cat.h"
#include "specdec/error.h"

namespace specdec {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kMagic = 0x6d6d6f6363657073;  // "speccomm"
constexpr uint32_t kVersion = 1;
constexpr uint32_t kControl = 0;  // instead of a group's number
constexpr std::chrono::milliseconds kBetweenTries{20};
// Longest time that an unknown peer may keep others waiting
constexpr std::chrono::milliseconds kHelloTime{1000};
const char* const kGone = "left the group, or its process has ended";

class Socket {
 public:
  explicit Socket(int file = -1) : file_(file) {}
  ~Socket() {
    if (file_ >= 0) close(file_);
  }
  Socket(Socket&& other) noexcept : file_(std::exchange(other.file_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(file_, other.file_);
    return *this;
  }
  int file() const { return file_; }
  explicit operator bool() const { return file_ >= 0; }

 private:
  int file_;
};

struct Endpoint {
  sockaddr_storage address{};
  socklen_t length = 0;

  sockaddr* get() { return reinterpret_cast<sockaddr*>(&address); }
  // IPv4 and IPv6 addresses have the port at the same offset.
  void set_port(uint16_t port) { reinterpret_cast<sockaddr_in*>(&address)->sin_port = htons(port); }
  uint16_t port() const { return ntohs(reinterpret_cast<const sockaddr_in*>(&address)->sin_port); }
};

struct Hello {
  uint64_t magic = kMagic;
  uint32_t version = kVersion;
  uint32_t size = 0;
  uint32_t rank = 0;
  uint32_t group = kControl;
  uint32_t port = 0;  // on which the rank listens
  uint32_t reserved = 0;
};

struct Reply {
  uint64_t magic = kMagic;
  char field[24] = {};  // the field that was refused; empty: accepted
  char text[232] = {};
};

// The message of a control connection.
struct Farewell {
  uint32_t is_failure = 0;  // 0: the rank leaves
  int32_t rank = 0;         // the rank that failed
  char cause[248] = {};
};

template <size_t kSize>
void copy_text(char (&field)[kSize], std::string_view text) {
  const size_t length = std::min(text.size(), kSize - 1);
  std::memcpy(field, text.data(), length);
  field[length] = '\0';
}

bool wait_for(int file, short events, Clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
  pollfd polled{file, events, 0};
  return left.count() > 0 && poll(&polled, 1, static_cast<int>(left.count())) > 0;
}

template <class T>
bool read_all(const Socket& socket, T& value, Clock::time_point deadline) {
  char* data = reinterpret_cast<char*>(&value);
  for (size_t done = 0; done < sizeof(T);) {
    const ssize_t n = recv(socket.file(), data + done, sizeof(T) - done, MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return false;
    if (n > 0) done += n;
    if (n < 0 && !wait_for(socket.file(), POLLIN, deadline)) return false;
  }
  return true;
}

// For messages of a few hundred bytes on a new connection, which never block.
template <class T>
bool write_all(const Socket& socket, const T& value) {
  return ::send(socket.file(), &value, sizeof(T), system::send_flags(/*more=*/false)) == sizeof(T);
}

Endpoint resolve(const SocketAddress& master) {
  if (master.port < 1 || master.port > 65535)
    throw InvalidArgument("master_port", str_cat("is ", master.port, "; give one of 1 to 65535"));
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(master.host.c_str(), nullptr, &hints, &found);
  if (error != 0) {
    throw InvalidArgument("master_addr",
                          str_cat("\"", master.host, "\" is not known (", gai_strerror(error),
                                  "); give a name or an address of rank 0's host"));
  }
  Endpoint endpoint;
  endpoint.length = found->ai_addrlen;
  std::memcpy(&endpoint.address, found->ai_addr, found->ai_addrlen);
  freeaddrinfo(found);
  endpoint.set_port(static_cast<uint16_t>(master.port));
  return endpoint;
}

Socket new_socket(const Endpoint& endpoint) {
  Socket made(system::new_tcp_socket(endpoint.address.ss_family));
  if (!made) throw Unavailable(str_cat("no socket: ", std::strerror(errno)));
  return made;
}

void set_options(const Socket& socket) {
  const int on = 1;
  setsockopt(socket.file(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);  // messages are sent at once
  system::keep_alive(socket.file());
}

Socket listen_at(Endpoint& endpoint) {
  Socket listener = new_socket(endpoint);
  const int on = 1;
  setsockopt(listener.file(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(listener.file(), endpoint.get(), endpoint.length) != 0 ||
      listen(listener.file(), SOMAXCONN) != 0) {
    const bool is_address = errno == EADDRNOTAVAIL;
    throw InvalidArgument(
        is_address ? "master_addr" : "master_port",
        str_cat("rank 0 cannot listen at port ", endpoint.port(), ": ", std::strerror(errno),
                is_address ? "; give an address of rank 0's host"
                           : "; give a free port (with torchrun: SPECDEC_MASTER_PORT)"));
  }
  getsockname(listener.file(), endpoint.get(), &endpoint.length);
  return listener;
}

// State that all groups of a process share: the addresses of the ranks, and the failure that ended
// the group.
class Network {
 public:
  Network(const SocketAddress& master, int rank, int size, std::chrono::milliseconds timeout)
      : rank_(rank), size_(size), endpoints_(size), timeout_(timeout), controls_(size) {
    const auto deadline = Clock::now() + timeout;
    endpoints_[0] = resolve(master);
    if (rank == 0) {
      listener_ = listen_at(endpoints_[0]);
      for (int other = 1; other < size; ++other)
        controls_[other] = accept(other, kControl, deadline);
      for (int other = 1; other < size; ++other) {
        for (int each = 1; each < size; ++each) {
          if (!write_all(controls_[other], endpoints_[each]))
            throw RankFailure(other, "join", kGone);
        }
      }
    } else {
      controls_[0] = connect(0, kControl, deadline);
      for (int each = 1; each < size; ++each) {
        if (!read_all(controls_[0], endpoints_[each], deadline))
          throw RankFailure(0, "join", "did not bring all ranks together in time");
      }
      for (int other = 1; other < rank; ++other)
        controls_[other] = connect(other, kControl, deadline);
      for (int other = rank + 1; other < size; ++other)
        controls_[other] = accept(other, kControl, deadline);
    }
  }
  ~Network() {
    for (const Socket& control : controls_)
      if (control) write_all(control, Farewell{});
  }

  int rank() const { return rank_; }
  uint32_t new_group() { return (++num_groups_ << 16) | static_cast<uint32_t>(rank_); }

  // The connections of a group of the ranks first .. first + size - 1, none to this rank itself.
  std::vector<Socket> connect_group(uint32_t group, int first, int size) {
    const auto deadline = Clock::now() + timeout_;
    std::vector<Socket> connections(size);
    for (int other = first; other < first + size; ++other) {
      if (other < rank_) connections[other - first] = connect(other, group, deadline);
      if (other > rank_) connections[other - first] = accept(other, group, deadline);
    }
    return connections;
  }

  void fail(int rank, std::string_view cause) noexcept {
    const std::lock_guard lock(mutex_);
    if (failure_) return;
    set_failure(rank, cause);
    for (const Socket& control : controls_)
      if (control) write_all(control, *failure_);
  }

  void check(const char* operation) {
    const std::lock_guard lock(mutex_);
    if (failure_) throw RankFailure(failure_->rank, operation, failure_->cause);
  }

  // Polls `polled` and the control connections.
  void wait(std::vector<pollfd>& polled, std::chrono::milliseconds longest) {
    const size_t first = polled.size();
    {
      const std::lock_guard lock(mutex_);
      for (const Socket& control : controls_) polled.push_back({control.file(), POLLIN, 0});
    }
    if (poll(polled.data(), polled.size(), static_cast<int>(longest.count())) <= 0) return;
    const std::lock_guard lock(mutex_);
    for (int other = 0; other < size_; ++other) {
      if (polled[first + other].revents == 0 || !controls_[other]) continue;
      Farewell farewell;
      const bool came = read_all(controls_[other], farewell, Clock::now() + kHelloTime);
      controls_[other] = Socket();
      if (came && farewell.is_failure == 0) continue;  // its other connections end, too
      set_failure(came ? farewell.rank : other, came ? farewell.cause : kGone);
    }
  }

 private:
  void set_failure(int rank, std::string_view cause) {
    if (failure_) return;
    failure_ = Farewell{.is_failure = 1, .rank = rank};
    copy_text(failure_->cause, cause);
  }

  Socket connect(int to, uint32_t group, Clock::time_point deadline) {
    Endpoint& endpoint = endpoints_[to];
    for (;;) {
      Socket socket = new_socket(endpoint);
      const auto left = std::chrono::duration_cast<std::chrono::microseconds>(
          std::max(deadline - Clock::now(), Clock::duration(kBetweenTries)));
      timeval limit{};  // applies to connect(), too
      limit.tv_sec = static_cast<time_t>(left.count() / 1'000'000);
      limit.tv_usec = static_cast<suseconds_t>(left.count() % 1'000'000);
      setsockopt(socket.file(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
      if (::connect(socket.file(), endpoint.get(), endpoint.length) == 0) {
        set_options(socket);
        Hello hello{.size = static_cast<uint32_t>(size_),
                    .rank = static_cast<uint32_t>(rank_),
                    .group = group};
        if (!listener_) {  // listens at the address that rank 0 sees
          Endpoint own;
          own.length = sizeof own.address;
          getsockname(socket.file(), own.get(), &own.length);
          own.set_port(0);
          listener_ = listen_at(own);
          listening_port_ = own.port();
        }
        hello.port = listening_port_;
        Reply reply;
        if (write_all(socket, hello) && read_all(socket, reply, deadline)) {
          if (reply.magic != kMagic)
            throw InvalidArgument("master_port", "something that is not this engine listens there");
          if (reply.field[0] != '\0') throw InvalidArgument(reply.field, reply.text);
          return socket;
        }
      }
      const int error = errno;
      if (Clock::now() + kBetweenTries >= deadline) {
        throw RankFailure(to, "join",
                          str_cat("did not come within ", timeout_.count() / 1000.0, " s (",
                                  std::strerror(error), ")"));
      }
      std::this_thread::sleep_for(kBetweenTries);
    }
  }

  // Accepts rank `from`'s connection for `group`. Connections of others that come meanwhile are
  // kept.
  Socket accept(int from, uint32_t group, Clock::time_point deadline) {
    const auto key = std::pair(group, from);
    while (kept_.count(key) == 0) {
      if (!wait_for(listener_.file(), POLLIN, deadline)) {
        throw RankFailure(from, "join",
                          str_cat("did not come within ", timeout_.count() / 1000.0, " s"));
      }
      welcome(deadline);
    }
    return std::move(kept_.extract(key).mapped());
  }

  void welcome(Clock::time_point deadline) {
    Endpoint peer;
    peer.length = sizeof peer.address;
    Socket socket(system::accept_tcp(listener_.file(), peer.get(), &peer.length));
    Hello hello;
    if (!socket || !read_all(socket, hello, std::min(deadline, Clock::now() + kHelloTime)) ||
        hello.magic != kMagic) {
      log_warning("communicator: closed a connection that did not come from a rank");
      return;
    }
    set_options(socket);
    Reply reply;
    const auto refuse = [&](const char* field, const std::string& text) {
      if (reply.field[0] != '\0') return;
      copy_text(reply.field, field);
      copy_text(reply.text, text);
    };
    const int from = static_cast<int>(hello.rank);
    if (hello.version != kVersion) {
      refuse("version", str_cat("of the protocol is ", hello.version, ", rank ", rank_, " has ",
                                kVersion, "; use one version of specdec on all hosts"));
    }
    if (hello.size != static_cast<uint32_t>(size_)) {
      refuse("world_size", str_cat("is ", hello.size, ", rank ", rank_, " has ", size_,
                                   "; give all ranks the same"));
    }
    if (hello.rank >= hello.size || from <= rank_)
      refuse("rank",
             str_cat("is ", hello.rank, "; give each process one of its own, below ", size_));
    const auto key = std::pair(hello.group, from);
    if (reply.field[0] == '\0' &&
        (kept_.count(key) != 0 || (hello.group == kControl && controls_[from])))
      refuse("rank", str_cat("is ", from, ", which another process is; give each its own"));
    if (!write_all(socket, reply)) return;
    if (reply.field[0] != '\0') {
      log_warning("communicator: refused a rank: ", reply.field, " ", reply.text);
      return;
    }
    if (hello.group == kControl && rank_ == 0) {
      endpoints_[from] = peer;
      endpoints_[from].set_port(static_cast<uint16_t>(hello.port));
    }
    kept_[key] = std::move(socket);
  }

  const int rank_;
  const int size_;
  std::vector<Endpoint> endpoints_;  // where each rank listens
  Socket listener_;
  uint16_t listening_port_ = 0;
  std::map<std::pair<uint32_t, int>, Socket> kept_;  // accepted, by group and rank
  std::atomic<uint32_t> num_groups_{0};
  std::chrono::milliseconds timeout_;
  std::mutex mutex_;              // guards the following, once all ranks have come
  std::vector<Socket> controls_;  // by rank; none for this rank and for ranks that have left
  std::optional<Farewell> failure_;
};

class SocketCommunicator final : public MessageCommunicator {
 public:
  SocketCommunicator(std::shared_ptr<Network> network, uint32_t group, int first, int size,
                     std::chrono::milliseconds timeout)
      : MessageCommunicator(network->rank() - first, size, timeout),
        network_(std::move(network)),
        first_(first),
        connections_(network_->connect_group(group, first, size)) {}

  std::unique_ptr<Communicator> subgroup(int first, int size) override {
    SPECDEC_CHECK(first >= 0 && first <= rank() && rank() < first + size &&
                  first + size <= this->size());
    uint32_t group = network_->new_group();
    for (int other = first; other < first + size; ++other) {
      if (rank() == first && other != first) send(other, std::as_bytes(std::span(&group, 1)));
    }
    if (rank() != first) receive(first, std::as_writable_bytes(std::span(&group, 1)));
    return std::make_unique<SocketCommunicator>(network_, group, first_ + first, size, timeout());
  }

  void abort(std::string_view cause) noexcept override { fail(rank(), cause); }

 protected:
  size_t write_some(int rank, std::span<const std::byte> bytes, bool more) override {
    return moved(rank, ::send(connections_[rank].file(), bytes.data(), bytes.size(),
                              system::send_flags(more)));
  }
  size_t read_some(int rank, std::span<std::byte> bytes) override {
    return moved(rank, recv(connections_[rank].file(), bytes.data(), bytes.size(), MSG_DONTWAIT));
  }
  void wait(std::span<const Pending> pending, std::chrono::milliseconds longest) override {
    polled_.clear();
    for (const Pending& each : pending) {
      polled_.push_back(
          {connections_[each.rank].file(), static_cast<short>(each.write ? POLLOUT : POLLIN), 0});
    }
    network_->wait(polled_, longest);
  }
  void fail(int rank, std::string_view cause) noexcept override {
    network_->fail(first_ + rank, cause);
  }
  void check(const char* operation) override { network_->check(operation); }

 private:
  size_t moved(int rank, ssize_t result) {
    if (result > 0) return static_cast<size_t>(result);
    if (result == 0 || (errno != EAGAIN && errno != EINTR)) fail(rank, kGone);
    return 0;
  }

  std::shared_ptr<Network> network_;
  int first_;
  std::vector<Socket> connections_;  // by rank; none for this one
  std::vector<pollfd> polled_;
};

}  // namespace

std::unique_ptr<Communicator> join_socket_group(const SocketAddress& master, int rank, int size,
                                                std::chrono::milliseconds timeout) {
  if (size < 1) throw InvalidArgument("world_size", str_cat("is ", size, "; give 1 or more"));
  if (rank < 0 || rank >= size)
    throw InvalidArgument("rank", str_cat("is ", rank, "; give one of 0 to ", size - 1));
  auto network = std::make_shared<Network>(master, rank, size, timeout);
  return std::make_unique<SocketCommunicator>(std::move(network), /*group=*/1, 0, size, timeout);
}

}  // namespace specdec
