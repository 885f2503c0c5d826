// Ranks as processes of one host and one user, over shared memory.
//
// A rank whose process ends, by kill -9, too, ends the waits of all others within about 0.1 s: they
// watch its pidfd. One that is stopped is noticed at the deadline. The memory has no name in a file
// system, so nothing is left of a group, whenever and however its processes end.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>

#include "comm/communicator.h"

namespace specdec {

class SharedRegion;

// What rank 0 makes before the other ranks' processes can join.
class ShmGroup {
 public:
  explicit ShmGroup(int size);
  // What the others join by, for as long as this process lives. Only for processes of this user
  // that see this process's /proc entry.
  const std::string& name() const;
  // Ends the group for a cause that is rank's, such as a process that could not start.
  void fail(int rank, std::string_view cause);
  // Rank 0, once all ranks have come. Throws RankFailure of "join" where one does not come within
  // the timeout or has ended. The group no longer needs this object.
  std::unique_ptr<Communicator> join(std::chrono::milliseconds timeout);

 private:
  std::shared_ptr<SharedRegion> region_;
};

// Rank `rank` of the group, as ShmGroup::join(); throws InvalidArgument("name" or "rank"), too.
std::unique_ptr<Communicator> join_shm_group(const std::string& name, int rank,
                                             std::chrono::milliseconds timeout);

}  // namespace specdec
