#include "common/read_bandwidth.h"

#include <cstdint>
#include <cstring>

#include "common/timing.h"

namespace specdec::bench {
namespace {

constexpr int64_t kPieceBytes = 64 << 10;

// Reads a piece; the sum keeps the compiler from leaving the loads out.
uint64_t read_piece(const uint64_t* words, int64_t count) {
  uint64_t sums[16] = {};
  for (int64_t i = 0; i < count; i += 16) {
    for (int64_t lane = 0; lane < 16; ++lane) sums[lane] ^= words[i + lane];
  }
  uint64_t sum = 0;
  for (uint64_t lane : sums) sum ^= lane;
  return sum;
}

}  // namespace

ReadBandwidth::ReadBandwidth(size_t footprint_bytes, ThreadPool& pool)
    : buffer_(Buffer::host(footprint_bytes / kPieceBytes * kPieceBytes, "the bandwidth probe")),
      pool_(pool) {
  std::memset(buffer_.data(), 1, buffer_.size_bytes());
}

double ReadBandwidth::read_seconds() {
  const int64_t num_pieces = static_cast<int64_t>(buffer_.size_bytes()) / kPieceBytes;
  const uint64_t* words = buffer_.as<uint64_t>();
  constexpr int64_t kWords = kPieceBytes / sizeof(uint64_t);
  const ThreadPool::StepScope hot(pool_);
  const Stopwatch watch;
  pool_.parallel_for(num_pieces, 1, [&](int64_t begin, int64_t end, int) {
    uint64_t sum = 0;
    for (int64_t piece = begin; piece < end; ++piece) {
      sum ^= read_piece(words + piece * kWords, kWords);
    }
    asm volatile("" : : "r"(sum));
  });
  return watch.seconds();
}

}  // namespace specdec::bench
