#include "common/bandwidth.h"

#include <cstdint>
#include <cstring>

#include "common/timing.h"

namespace specdec::bench {
namespace {

constexpr int64_t kPieceBytes = 64 << 10;

}  // namespace

CopyBandwidth::CopyBandwidth(size_t footprint_bytes, ThreadPool& pool)
    : from_(make_probe_buffer(footprint_bytes / 2, pool)),
      to_(make_probe_buffer(footprint_bytes / 2, pool)),
      pool_(pool) {}

double CopyBandwidth::copy_seconds() {
  const auto num_pieces = static_cast<int64_t>(from_.size_bytes()) / kPieceBytes;
  const ThreadPool::StepScope hot(pool_);
  const Stopwatch watch;
  pool_.parallel_for(num_pieces, 1, [&](int64_t begin, int64_t end, int) {
    std::memcpy(to_.as<char>() + begin * kPieceBytes, from_.as<char>() + begin * kPieceBytes,
                (end - begin) * kPieceBytes);
  });
  return watch.seconds();
}

}  // namespace specdec::bench
