// Ranks as processes of one host and one user, over shared memory.
//
// Ranks watch each other's pidfds: when a rank's process ends, even by kill -9, the waits of all
// others end within about 0.1 s. A stopped process is noticed at the deadline. The memory has no
// name in a file system, so a group leaves nothing behind, whenever and however its processes end.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>

#include "comm/communicator.h"

namespace specdec {

class SharedRegion;

// Made by rank 0 before the other ranks' processes can join.
class ShmGroup {
 public:
  explicit ShmGroup(int size);
  // The name by which other ranks join, valid while this process lives. Only for processes of this
  // user that see this process's /proc entry.
  const std::string& name() const;
  // Ends the group for a failure of `rank`, such as a process that could not start.
  void fail(int rank, std::string_view cause);
  // Joins as rank 0 once all ranks have come. Throws RankFailure("join") where a rank does not come
  // within the timeout or has ended. The group no longer needs this object afterwards.
  std::unique_ptr<Communicator> join(std::chrono::milliseconds timeout);

 private:
  std::shared_ptr<SharedRegion> region_;
};

// Joins as rank `rank`, otherwise like ShmGroup::join(). Also throws InvalidArgument("name" or
// "rank").
std::unique_ptr<Communicator> join_shm_group(const std::string& name, int rank,
                                             std::chrono::milliseconds timeout);

}  // namespace specdec
