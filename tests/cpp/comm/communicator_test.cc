// Tests of every kind of communicator. Ranks are threads here, whatever carries their bytes.
#include "comm/communicator.h"

#include <gtest/gtest.h>

#include <atomic>

#include "comm/shm_communicator.h"
#include "comm/socket_communicator.h"
#include "comm/thread_communicator.h"
#include "cpp/comm/communicator_kinds.h"

namespace specdec {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

class CommunicatorTest : public ::testing::TestWithParam<CommunicatorKind> {
 protected:
  // Runs body on each of `size` ranks; a rank's communicator lives until all have returned.
  void run(int size, const std::function<void(Communicator&)>& body,
           std::chrono::milliseconds timeout = 20s) {
    const Ranks ranks = GetParam().make(size, timeout);
    ASSERT_EQ(static_cast<int>(ranks.size()), size);
    on_threads(size, [&](int rank) { body(*ranks[rank]); });
  }
};

void exchange_and_compare(Communicator& ranks, int number,
                          const std::function<size_t(int rank)>& num_bytes) {
  const size_t own = num_bytes(ranks.rank());
  std::byte* part = ranks.part(own + number % 3);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(part) % 64, 0u);
  if (own != 0) std::memcpy(part, test_bytes(number, ranks.rank(), own).data(), own);
  const auto parts = ranks.exchange(own);
  ASSERT_EQ(static_cast<int>(parts.size()), ranks.size());
  for (int rank = 0; rank < ranks.size(); ++rank) {
    ASSERT_TRUE(same_bytes(parts[rank], test_bytes(number, rank, num_bytes(rank))))
        << "part of rank " << rank << ", exchange " << number;
  }
}

void broadcast_and_compare(Communicator& ranks, int number, int root, size_t num_bytes) {
  const auto expected = test_bytes(number, root, num_bytes);
  std::vector<std::byte> message(3);
  if (ranks.rank() == root) message.assign(expected.begin(), expected.end());
  ranks.broadcast(message, root, number % 2 == 0 ? Patience::kDeadline : Patience::kForever);
  ASSERT_TRUE(same_bytes(message, expected)) << "broadcast " << number << " of " << root;
}

void pass_and_compare(Communicator& ranks, int number, int from, int to, size_t num_bytes) {
  const auto expected = test_bytes(number, from, num_bytes);
  if (ranks.rank() == from) ranks.send(to, expected);
  if (ranks.rank() != to) return;
  std::vector<std::byte> message(num_bytes);
  ranks.receive(from, message);
  ASSERT_TRUE(same_bytes(message, expected)) << "message " << number << " from " << from;
}

TEST_P(CommunicatorTest, SmallPartsReachEverybody) {
  for (const int size : {1, 2, 3, 5}) {
    run(size, [](Communicator& ranks) {
      for (int number = 0; number < 50; ++number) {
        exchange_and_compare(ranks, number,
                             [&](int rank) { return size_t(number * rank) * 997 % 5000; });
      }
    });
  }
}

TEST_P(CommunicatorTest, LargePartsReachEverybody) {
  constexpr size_t kLarge = (size_t{17} << 20) + 5;
  run(3, [](Communicator& ranks) {
    exchange_and_compare(ranks, 0, [](int rank) { return rank == 0 ? kLarge : 1; });
    exchange_and_compare(ranks, 1, [](int rank) { return rank == 2 ? kLarge : 0; });
    broadcast_and_compare(ranks, 2, 2, kLarge);
    broadcast_and_compare(ranks, 3, 0, 0);
    pass_and_compare(ranks, 4, 0, 2, kLarge);
    pass_and_compare(ranks, 5, 2, 0, 0);
    ranks.barrier();
  });
}

// Thousands of operations at random, ranks late at random: every byte must be as the list of
// operations says. The list is the same on all ranks.
TEST_P(CommunicatorTest, MixedOperationsBringWhatTheListSays) {
  for (const int size : {2, 3, 4}) {
    run(size, [&](Communicator& ranks) {
      std::mt19937 list(size), delays(ranks.rank());
      const auto upto = [&](size_t limit) { return static_cast<size_t>(list() % (limit + 1)); };
      std::vector<std::unique_ptr<Communicator>> groups;  // of this rank, or null
      for (int first = 0; first + 2 <= size; ++first) {
        const bool member = ranks.rank() >= first && ranks.rank() < first + 2;
        groups.push_back(member ? ranks.subgroup(first, 2) : nullptr);
      }
      for (int number = 0; number < 1500; ++number) {
        const size_t operation = upto(5), limit = upto(20) == 0 ? 200'000 : 2000;
        const size_t which = upto(groups.size() - 1), num_bytes = upto(limit);
        const int from = static_cast<int>(upto(size - 1));
        const int to = static_cast<int>((from + 1 + upto(size - 2)) % size);
        if (delays() % 50 == 0)
          std::this_thread::sleep_for(std::chrono::microseconds(delays() % 300));
        Communicator* group = groups[which].get();
        if (operation < 2) {
          exchange_and_compare(ranks, number, [&](int rank) { return num_bytes / (rank + 1); });
        } else if (operation == 2) {
          broadcast_and_compare(ranks, number, from, num_bytes);
        } else if (operation == 3) {
          pass_and_compare(ranks, number, from, to, num_bytes);
        } else if (operation == 4 && group != nullptr) {
          exchange_and_compare(*group, number, [&](int rank) { return num_bytes * rank; });
        } else if (operation == 5 && group != nullptr) {
          broadcast_and_compare(*group, number, number / 2 % 2, num_bytes);
        }
        if (::testing::Test::HasFatalFailure()) return;
      }
      ranks.barrier();
    });
  }
}

TEST_P(CommunicatorTest, ViewsLiveUntilTheNextExchangeBegins) {
  run(3, [](Communicator& ranks) {
    for (int number = 0; number < 200; ++number) {
      std::byte* part = ranks.part(100);
      std::memcpy(part, test_bytes(number, ranks.rank(), 100).data(), 100);
      const auto parts = ranks.exchange(100);
      if ((number + ranks.rank()) % 40 == 0) std::this_thread::sleep_for(1ms);
      std::memset(ranks.part(100), 0xee, 100);  // of the next exchange; others still read these
      for (int rank = 0; rank < ranks.size(); ++rank)
        ASSERT_TRUE(same_bytes(parts[rank], test_bytes(number, rank, 100)));
    }
  });
}

TEST_P(CommunicatorTest, TwoBroadcastsNeedNobodyToHaveCome) {
  std::atomic<bool> has_sent = false;
  run(2, [&](Communicator& ranks) {
    if (ranks.rank() == 1) {
      EXPECT_TRUE(comes_true([&] { return has_sent.load(); }));
    }
    broadcast_and_compare(ranks, 0, 0, 1000);
    broadcast_and_compare(ranks, 1, 0, 1000);
    if (ranks.rank() == 0) has_sent = true;
    ranks.barrier();
  });
}

TEST_P(CommunicatorTest, TwoPostedMessagesNeedNobodyToHaveCome) {
  constexpr size_t kLarge = (size_t{9} << 20) + 3;  // more than a system buffers
  std::atomic<bool> has_posted = false;
  run(2, [&](Communicator& ranks) {
    const std::vector<size_t> sizes = {0, kLarge};
    for (size_t number = 0; ranks.rank() == 0 && number < sizes.size(); ++number) {
      const auto bytes = test_bytes(static_cast<int>(number), 0, sizes[number]);
      ranks.post(1, {bytes.begin(), bytes.end()});
    }
    if (ranks.rank() == 0) has_posted = true;
    EXPECT_TRUE(comes_true([&] { return has_posted.load(); }));
    std::vector<std::byte> message = {std::byte{1}};
    for (size_t number = 0; ranks.rank() == 1 && number < sizes.size(); ++number) {
      ranks.receive_any_size(0, message);
      EXPECT_TRUE(same_bytes(message, test_bytes(static_cast<int>(number), 0, sizes[number])));
    }
    ranks.barrier();
  });
}

// A posted message arrives before messages sent later, and other operations advance it.
TEST_P(CommunicatorTest, PostedMessagesKeepTheirOrder) {
  run(3, [](Communicator& ranks) {
    std::mt19937 sizes(3);
    for (int number = 0; number < 300; ++number) {
      const size_t posted_bytes = sizes() % (number % 10 == 0 ? 500'000 : 3000);
      const size_t sent_bytes = sizes() % 2000;
      const auto posted = test_bytes(2 * number, 0, posted_bytes);
      if (ranks.rank() == 0) {
        for (int to : {1, 2}) ranks.post(to, {posted.begin(), posted.end()});
        ranks.send(2, test_bytes(2 * number + 1, 0, sent_bytes));
      } else {
        std::vector<std::byte> message;
        ranks.receive_any_size(0, message);
        ASSERT_TRUE(same_bytes(message, posted));
      }
      if (ranks.rank() == 2) {
        std::vector<std::byte> message(sent_bytes);
        ranks.receive(0, message);
        ASSERT_TRUE(same_bytes(message, test_bytes(2 * number + 1, 0, sent_bytes)));
      }
      if (number % 7 == 0) broadcast_and_compare(ranks, number, 0, 100);
    }
    ranks.barrier();
  });
}

TEST_P(CommunicatorTest, AbortEndsEveryWait) {
  for (const bool by_another_thread : {false, true}) {
    std::atomic<int> num_failures{0};
    run(4, [&](Communicator& ranks) {
      const auto subgroup = ranks.rank() < 2 ? ranks.subgroup(0, 2) : nullptr;
      ranks.barrier();
      std::thread other;
      if (ranks.rank() == 3) {
        const auto end = [&] {
          std::this_thread::sleep_for(50ms);
          ranks.abort("no memory for weights");
        };
        if (by_another_thread) {
          other = std::thread(end);
        } else {
          end();
        }
      }
      std::vector<std::byte> message;
      const RankFailure failure = failure_of([&] {
        if (ranks.rank() == 0) subgroup->receive(1, std::span(message.data(), size_t{0}));
        if (ranks.rank() == 1) ranks.broadcast(message, 0, Patience::kForever);
        if (ranks.rank() >= 2) ranks.barrier();
      });
      if (other.joinable()) other.join();
      const char* operations[] = {"receive", "broadcast", "exchange", "exchange"};
      EXPECT_EQ(failure.operation(), operations[ranks.rank()]);
      EXPECT_EQ(failure.rank(), 3);
      EXPECT_NE(std::string(failure.what()).find("no memory for weights"), std::string::npos)
          << failure.what();
      // And of all that follow.
      EXPECT_EQ(failure_of([&] { ranks.barrier(); }).rank(), 3);
      EXPECT_EQ(failure_of([&] { ranks.broadcast(message, 0); }).rank(), 3);
      if (subgroup) {
        EXPECT_EQ(failure_of([&] { subgroup->barrier(); }).rank(), 3);
      }
      ++num_failures;
    });
    EXPECT_EQ(num_failures, 4);
  }
}

TEST_P(CommunicatorTest, ARankThatDoesNotComeEndsTheWaitAtTheDeadline) {
  constexpr std::chrono::milliseconds kTimeout = 5s;  // of joining and of the first barrier, too
  std::atomic<int> num_failures{0};
  run(
      3,
      [&](Communicator& ranks) {
        const auto start = Clock::now();  // before any rank waits for one that does not come
        ranks.barrier();
        if (ranks.rank() == 2) {
          if (!comes_true([&] { return num_failures == 2; })) ranks.abort("nobody missed it");
        } else {
          const RankFailure failure = failure_of([&] { ranks.barrier(); });
          EXPECT_GE(Clock::now() - start, kTimeout);
          EXPECT_EQ(failure.rank(), 2) << failure.what();
          EXPECT_EQ(failure.operation(), "exchange");
          EXPECT_NE(std::string(failure.what()).find("did not answer within 5 s"),
                    std::string::npos)
              << failure.what();
          ++num_failures;
        }
        // Whoever came too late fails, too.
        EXPECT_EQ(failure_of([&] { ranks.barrier(); }).rank(), 2);
      },
      kTimeout);
}

TEST_P(CommunicatorTest, PatienceOutlastsTheDeadline) {
  constexpr std::chrono::milliseconds kTimeout = 4s;  // of joining, too
  run(
      2,
      [&](Communicator& ranks) {
        std::vector<std::byte> message(ranks.rank() == 0 ? 5 : 0);
        if (ranks.rank() == 0) std::this_thread::sleep_for(kTimeout + 300ms);
        ranks.broadcast(message, 0, Patience::kForever);
        EXPECT_EQ(message.size(), 5u);
      },
      kTimeout);
}

TEST_P(CommunicatorTest, ARankThatLeavesEndsTheOthersWaits) {
  Ranks ranks = GetParam().make(3, 1h);  // a test that waits for so long does not end
  std::atomic<int> num_heard{0};
  on_threads(3, [&](int rank) {
    std::vector<std::byte> message(rank == 2 ? 7 : 0);
    if (rank == 2) {
      ranks[2]->broadcast(message, 2);
      ranks[2] = nullptr;
      return;
    }
    std::this_thread::sleep_for(20ms);
    ranks[rank]->broadcast(message, 2);  // the last words of a rank that has left already
    EXPECT_EQ(message.size(), 7u);
    ++num_heard;
    while (num_heard < 2) std::this_thread::yield();  // the next wait ends the group for both
    const RankFailure failure =
        failure_of([&] { ranks[rank]->broadcast(message, 2, Patience::kForever); });
    EXPECT_EQ(failure.rank(), 2);
    EXPECT_NE(std::string(failure.what()).find("left"), std::string::npos) << failure.what();
  });
}

Ranks make_shm_communicators(int size, std::chrono::milliseconds timeout) {
  ShmGroup group(size);
  Ranks ranks(size);
  on_threads(size, [&](int rank) {
    ranks[rank] = rank == 0 ? group.join(timeout) : join_shm_group(group.name(), rank, timeout);
  });
  return ranks;
}

Ranks make_socket_communicators(int size, std::chrono::milliseconds timeout) {
  const SocketAddress master{"127.0.0.1", free_port()};
  Ranks ranks(size);
  on_threads(size, [&](int rank) { ranks[rank] = join_socket_group(master, rank, size, timeout); });
  return ranks;
}

INSTANTIATE_TEST_SUITE_P(Kinds, CommunicatorTest,
                         ::testing::Values(CommunicatorKind{"threads", make_thread_communicators},
                                           CommunicatorKind{"shm", make_shm_communicators},
                                           CommunicatorKind{"sockets", make_socket_communicators}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace specdec
