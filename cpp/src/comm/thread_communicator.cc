#include "comm/thread_communicator.h"

#include "comm/memory_communicator.h"

namespace specdec {

std::vector<std::unique_ptr<Communicator>> make_thread_communicators(
    int size, std::chrono::milliseconds timeout) {
  const auto region = SharedRegion::create(size);
  const auto share =
      region->take(MemoryCommunicator::num_counts(size), MemoryCommunicator::num_areas(size));
  std::vector<std::unique_ptr<Communicator>> ranks;
  for (int rank = 0; rank < size; ++rank)
    ranks.push_back(std::make_unique<MemoryCommunicator>(region, share, 0, rank, size, timeout));
  return ranks;
}

}  // namespace specdec
