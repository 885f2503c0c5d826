#include "common/bandwidth.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "common/timing.h"

namespace specdec::bench {
namespace {

constexpr int64_t kPieceBytes = 64 << 10;
constexpr int64_t kWords = kPieceBytes / sizeof(uint64_t);
constexpr int64_t kAheadWords = (8 << 10) / sizeof(uint64_t);

// At least one whole piece per thread, written by the thread that will read it.
Buffer make_buffer(size_t size_bytes, ThreadPool& pool) {
  const int64_t num_pieces = std::max<int64_t>(1, static_cast<int64_t>(size_bytes) / kPieceBytes);
  Buffer buffer =
      Buffer::host(static_cast<size_t>(num_pieces * kPieceBytes), "the bandwidth probe");
  const ThreadPool::StepScope hot(pool);
  pool.parallel_for(num_pieces, 1, [&](int64_t begin, int64_t end, int) {
    std::memset(buffer.as<char>() + begin * kPieceBytes, 1, (end - begin) * kPieceBytes);
  });
  return buffer;
}

int64_t num_pieces(const Buffer& buffer) {
  return static_cast<int64_t>(buffer.size_bytes()) / kPieceBytes;
}

// Reads a piece, prefetching as products do: without that, processors read less than the memory
// delivers (Zen 4: 22 of 36 GB/s), and with it a few per cent less of what lies in the caches. The
// sum keeps the compiler from leaving the loads out. Compiled for the widest
// loads there are: in the caches their number counts.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
uint64_t read_piece(const uint64_t* words) {
  uint64_t sums[64] = {};
  for (int64_t i = 0; i < kWords; i += 64) {
    for (int64_t line = 0; line < 64; line += 8) __builtin_prefetch(words + i + kAheadWords + line);
    for (int64_t lane = 0; lane < 64; ++lane) sums[lane] ^= words[i + lane];
  }
  uint64_t sum = 0;
  for (uint64_t lane : sums) sum ^= lane;
  return sum;
}

}  // namespace

ReadBandwidth::ReadBandwidth(size_t footprint_bytes, ThreadPool& pool)
    : buffer_(make_buffer(footprint_bytes, pool)), pool_(pool) {}

double ReadBandwidth::read_seconds() {
  const uint64_t* words = buffer_.as<uint64_t>();
  const ThreadPool::StepScope hot(pool_);
  const Stopwatch watch;
  pool_.parallel_for(num_pieces(buffer_), 1, [&](int64_t begin, int64_t end, int) {
    uint64_t sum = 0;
    for (int64_t piece = begin; piece < end; ++piece) sum ^= read_piece(words + piece * kWords);
    keep(sum);
  });
  return watch.seconds();
}

CopyBandwidth::CopyBandwidth(size_t footprint_bytes, ThreadPool& pool)
    : from_(make_buffer(footprint_bytes / 2, pool)),
      to_(make_buffer(footprint_bytes / 2, pool)),
      pool_(pool) {}

double CopyBandwidth::copy_seconds() {
  const ThreadPool::StepScope hot(pool_);
  const Stopwatch watch;
  pool_.parallel_for(num_pieces(from_), 1, [&](int64_t begin, int64_t end, int) {
    std::memcpy(to_.as<char>() + begin * kPieceBytes, from_.as<char>() + begin * kPieceBytes,
                (end - begin) * kPieceBytes);
  });
  return watch.seconds();
}

}  // namespace specdec::bench
