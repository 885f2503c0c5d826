#include "cuda/backend/part_copies.h"

#include <algorithm>
#include <numeric>

#include "core/check.h"

namespace specdec::cuda {
namespace {

constexpr size_t kLeastPinnedBytes = size_t{1} << 16;

class HostCopies final : public PartCopies {
 public:
  HostCopies(Device& device, Stream& stream, Communicator& ranks)
      : device_(device), stream_(stream), ranks_(ranks) {}

  void gather(const float* own, std::span<const int64_t> counts, float* all) override {
    SPECDEC_CHECK(!stream_.is_capturing());
    const auto num_own = static_cast<size_t>(counts[ranks_.rank()]);
    const int64_t num_floats = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    float* host = pinned(static_cast<size_t>(num_floats));
    stream_.copy_to_host(host, own, num_own * sizeof(float));
    stream_.synchronize();
    std::byte* part = ranks_.part(num_own * sizeof(float));
    std::copy_n(reinterpret_cast<const std::byte*>(host), num_own * sizeof(float), part);
    const auto parts = ranks_.exchange(num_own * sizeof(float));
    auto* to = reinterpret_cast<std::byte*>(host);
    for (int rank = 0; rank < ranks_.size(); ++rank) {
      SPECDEC_CHECK_EQ(parts[rank].size(), static_cast<size_t>(counts[rank]) * sizeof(float));
      to = std::ranges::copy(parts[rank], to).out;
    }
    stream_.copy_to_device(all, host, static_cast<size_t>(num_floats) * sizeof(float));
  }
  bool can_be_recorded() const override { return false; }

 private:
  float* pinned(size_t num_floats) {
    stream_.synchronize();  // earlier copies from it
    if (pinned_.size_bytes() < num_floats * sizeof(float)) {
      pinned_ = {};
      pinned_ = device_.allocate_pinned(std::max(num_floats * sizeof(float), kLeastPinnedBytes),
                                        "parts of ranks");
    }
    return pinned_.as<float>();
  }

  Device& device_;
  Stream& stream_;
  Communicator& ranks_;
  Buffer pinned_;
};

}  // namespace

std::unique_ptr<PartCopies> make_host_copies(Device& device, Stream& stream, Communicator& ranks) {
  return std::make_unique<HostCopies>(device, stream, ranks);
}

}  // namespace specdec::cuda
