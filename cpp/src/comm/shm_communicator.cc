#include "comm/shm_communicator.h"

#include <thread>

#include "comm/memory_communicator.h"
#include "comm/shared_region.h"
#include "core/str_cat.h"

namespace specdec {
namespace {

constexpr std::chrono::milliseconds kBetweenLooks{1};

std::unique_ptr<Communicator> join(const std::shared_ptr<SharedRegion>& region, int rank,
                                   std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  // Made first, because its destructor tells the others that this rank gave up.
  auto communicator = std::make_unique<MemoryCommunicator>(region, SharedRegion::Share{}, 0, rank,
                                                           region->num_ranks(), timeout);
  for (int missing = region->first_missing(); missing >= 0; missing = region->first_missing()) {
    region->look_at_processes();
    region->check("join");
    if (std::chrono::steady_clock::now() >= deadline)
      region->fail(missing, str_cat("did not come within ", timeout.count() / 1000.0, " s"));
    std::this_thread::sleep_for(kBetweenLooks);
  }
  region->check("join");
  return communicator;
}

}  // namespace

ShmGroup::ShmGroup(int size) : region_(SharedRegion::create(size)) {
  region_->take(MemoryCommunicator::num_counts(size), MemoryCommunicator::num_areas(size));
  region_->enter(0);
}

const std::string& ShmGroup::name() const { return region_->name(); }
void ShmGroup::fail(int rank, std::string_view cause) { region_->fail(rank, cause); }

std::unique_ptr<Communicator> ShmGroup::join(std::chrono::milliseconds timeout) {
  return specdec::join(region_, 0, timeout);
}

std::unique_ptr<Communicator> join_shm_group(const std::string& name, int rank,
                                             std::chrono::milliseconds timeout) {
  const auto region = SharedRegion::open(name);
  region->enter(rank);
  return join(region, rank, timeout);
}

}  // namespace specdec
