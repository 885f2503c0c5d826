// Who may join over sockets, and processes that end.
#include "comm/socket_communicator.h"

#include <signal.h>
#include <sys/wait.h>

#include <array>
#include <atomic>

#include "cpp/comm/communicator_kinds.h"
#include "testing/thrown.h"

namespace specdec {
namespace {

using namespace std::chrono_literals;

// Whoever has sent `hello` to a listening rank 0 gets this answer; "": the connection was closed.
std::string answer_to(int port, std::span<const uint32_t> hello) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int file = -1;
  for (;;) {
    file = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(file, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) break;
    close(file);
    std::this_thread::sleep_for(1ms);
  }
  EXPECT_EQ(write(file, hello.data(), hello.size_bytes()),
            static_cast<ssize_t>(hello.size_bytes()));
  std::string answer;
  char buffer[300];
  for (ssize_t n; answer.size() < 264 && (n = read(file, buffer, sizeof buffer)) > 0;)
    answer.append(buffer, n);
  close(file);
  return answer;
}

// magic (2 words), version, size, rank, group, port, reserved
constexpr std::array<uint32_t, 8> kGoodHello = {0x63657073, 0x6d6d6f63, 1, 2, 1, 0, 1, 0};

std::string field_of_join(const SocketAddress& master, int rank, int size) {
  return testing::refused_field([&] { join_socket_group(master, rank, size, 2s); });
}

TEST(SocketCommunicatorTest, StrangersAreRefusedAndTheGroupForms) {
  const SocketAddress master{"127.0.0.1", free_port()};
  const auto with = [](int word, uint32_t value) {
    auto hello = kGoodHello;
    hello[word] = value;
    return hello;
  };
  on_threads(2, [&](int rank) {
    if (rank == 1) {
      EXPECT_EQ(answer_to(master.port, with(0, 0x20544547)), "");  // "GET "
      const std::string version = answer_to(master.port, with(2, 9));
      EXPECT_NE(version.find("version"), std::string::npos);
      EXPECT_NE(version.find("one version of specdec on all hosts"), std::string::npos);
      EXPECT_NE(answer_to(master.port, with(3, 7)).find("world_size"), std::string::npos);
      EXPECT_NE(answer_to(master.port, with(4, 0)).find("rank"), std::string::npos);
      EXPECT_NE(answer_to(master.port, with(4, 2)).find("rank"), std::string::npos);
      EXPECT_EQ(field_of_join(master, 2, 3), "world_size");
    }
    const auto ranks = join_socket_group(master, rank, 2, 20s);
    ranks->barrier();
  });
}

TEST(SocketCommunicatorTest, ARankIsOneProcess) {
  const SocketAddress master{"127.0.0.1", free_port()};
  std::atomic<int> num_refused{0};
  on_threads(4, [&](int thread) {
    const int rank = std::min(thread, 2);
    while (rank == 1 && num_refused == 0) std::this_thread::yield();
    try {
      const auto ranks = join_socket_group(master, rank, 3, 20s);
      ranks->barrier();
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(error.field(), "rank");
      ++num_refused;
      EXPECT_EQ(rank, 2);
    }
  });
  EXPECT_EQ(num_refused, 1);
}

TEST(SocketCommunicatorTest, BadAddressesNameTheirField) {
  EXPECT_EQ(field_of_join({"127.0.0.1", 0}, 0, 2), "master_port");
  EXPECT_EQ(field_of_join({"127.0.0.1", 65536}, 1, 2), "master_port");
  EXPECT_EQ(field_of_join({"not an address", 2000}, 1, 2), "master_addr");
  EXPECT_EQ(field_of_join({"192.0.2.1", free_port()}, 0, 2), "master_addr");  // of no host
  EXPECT_EQ(field_of_join({"127.0.0.1", 2000}, 2, 2), "rank");
  EXPECT_EQ(field_of_join({"127.0.0.1", 2000}, 0, 0), "world_size");
}

TEST(SocketCommunicatorTest, WhoeverDoesNotComeFailsJoin) {
  const SocketAddress master{"127.0.0.1", free_port()};
  const RankFailure of_leader = failure_of([&] { join_socket_group(master, 0, 2, 100ms); });
  EXPECT_EQ(of_leader.rank(), 1);
  EXPECT_EQ(of_leader.operation(), "join");
  const RankFailure of_worker = failure_of([&] { join_socket_group(master, 1, 2, 100ms); });
  EXPECT_EQ(of_worker.rank(), 0);
  EXPECT_NE(std::string(of_worker.what()).find("refused"), std::string::npos) << of_worker.what();
}

// Rank 1 is a process. Rank 0 waits for rank 2, which never comes, and hears of rank 1's end.
TEST(SocketCommunicatorTest, AKilledProcessEndsTheWaitsOfAll) {
  const SocketAddress master{"127.0.0.1", free_port()};
  const pid_t process = fork();
  if (process == 0) {
    try {
      const auto ranks = join_socket_group(master, 1, 3, 20s);
      pause();
    } catch (...) {
    }
    _exit(1);
  }
  std::atomic<bool> is_over{false};
  on_threads(2, [&](int thread) {
    const auto ranks = join_socket_group(master, 2 * thread, 3, 60s);
    if (thread == 1) {
      kill(process, SIGKILL);
      while (!is_over) std::this_thread::sleep_for(1ms);
      return;
    }
    std::vector<std::byte> message;
    const RankFailure failure =
        failure_of([&] { ranks->broadcast(message, 2, Patience::kForever); });
    EXPECT_EQ(failure.rank(), 1) << failure.what();
    is_over = true;
  });
  waitpid(process, nullptr, 0);
}

}  // namespace
}  // namespace specdec
