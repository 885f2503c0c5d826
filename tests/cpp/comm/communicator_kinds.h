// Groups of each kind whose ranks are threads of the test, and what they send.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "specdec/error.h"
#include "testing/thrown.h"

namespace specdec {

using Ranks = std::vector<std::unique_ptr<Communicator>>;

struct CommunicatorKind {
  std::string name;
  std::function<Ranks(int size, std::chrono::milliseconds timeout)> make;
};
inline void PrintTo(const CommunicatorKind& kind, std::ostream* stream) { *stream << kind.name; }

// Runs body(rank) on a thread for each rank. The first exception is thrown on.
inline void on_threads(int size, const std::function<void(int rank)>& body) {
  std::vector<std::exception_ptr> errors(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (...) {
        errors[rank] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

// Bytes that differ with (number, rank), up to 18 MiB.
inline std::span<const std::byte> test_bytes(int number, int rank, size_t num_bytes) {
  constexpr size_t kLongest = size_t{18} << 20;
  static const std::vector<uint64_t> random = [] {
    std::mt19937_64 generator(7);
    std::vector<uint64_t> words(kLongest / 8 + 4096);
    for (uint64_t& word : words) word = generator();
    return words;
  }();
  const size_t offset = (static_cast<size_t>(number) * 61 + rank * 1009) % (4096 * 8);
  EXPECT_LE(num_bytes, kLongest);
  return std::as_bytes(std::span(random)).subspan(offset, num_bytes);
}

inline bool same_bytes(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

// A port of this host that is free now, outside the range from which the kernel takes ports.
inline int free_port() {
  static std::mt19937 random(getpid());
  for (;;) {
    const int port = 15000 + static_cast<int>(random() % 15000);
    const int file = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const bool is_free = bind(file, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    close(file);
    if (is_free) return port;
  }
}

// Waits up to a minute for the condition, more than a loaded machine needs: whether it came true.
inline bool comes_true(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!condition()) {
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

// The failure that `body` ends with.
inline RankFailure failure_of(const std::function<void()>& body) {
  return testing::error_of<RankFailure>(body);
}

}  // namespace specdec
