#include "core/read_bandwidth.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <limits>

#include "specdec/device.h"

namespace specdec {
namespace {

constexpr int64_t kPieceBytes = 64 << 10;
constexpr int64_t kWords = kPieceBytes / sizeof(uint64_t);
constexpr int64_t kAheadWords = (8 << 10) / sizeof(uint64_t);

int64_t num_pieces(const Buffer& buffer) {
  return static_cast<int64_t>(buffer.size_bytes()) / kPieceBytes;
}

// Reads a piece, prefetching as products do: without that, processors read less than the memory
// delivers (Zen 4: 22 of 36 GB/s), and with it a few per cent less of what lies in the caches. The
// sum keeps the compiler from leaving the loads out. Compiled for the widest
// loads there are: in the caches their number counts.
#if defined(__x86_64__) && defined(__linux__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
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

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

Buffer make_probe_buffer(size_t size_bytes, ThreadPool& pool) {
  const int64_t count = std::max<int64_t>(1, static_cast<int64_t>(size_bytes) / kPieceBytes);
  Buffer buffer = Buffer::host(static_cast<size_t>(count * kPieceBytes), "the bandwidth probe");
  const ThreadPool::StepScope hot(pool);
  pool.parallel_for(count, 1, [&](int64_t begin, int64_t end, int) {
    std::memset(buffer.as<char>() + begin * kPieceBytes, 1, (end - begin) * kPieceBytes);
  });
  return buffer;
}

ReadBandwidth::ReadBandwidth(size_t footprint_bytes, ThreadPool& pool)
    : buffer_(make_probe_buffer(footprint_bytes, pool)), pool_(pool) {}

double ReadBandwidth::read_seconds() {
  const uint64_t* words = buffer_.as<uint64_t>();
  const ThreadPool::StepScope hot(pool_);
  const double start = now();
  pool_.parallel_for(num_pieces(buffer_), 1, [&](int64_t begin, int64_t end, int) {
    uint64_t sum = 0;
    for (int64_t piece = begin; piece < end; ++piece) sum ^= read_piece(words + piece * kWords);
    asm volatile("" : : "g"(&sum) : "memory");
  });
  return now() - start;
}

double read_bandwidth(int64_t num_bytes, int num_threads, double seconds) {
  ThreadPool pool(num_threads > 0 ? num_threads : ThreadPool::default_num_threads());
  ReadBandwidth probe(static_cast<size_t>(std::max<int64_t>(num_bytes, 0)), pool);
  double fastest = std::numeric_limits<double>::infinity();
  const double end = now() + seconds;
  do {
    fastest = std::min(fastest, probe.read_seconds());
  } while (now() < end);
  return static_cast<double>(probe.size_bytes()) / fastest;
}

}  // namespace specdec
