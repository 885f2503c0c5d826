// Brings the parts of all ranks of a group to the device of each by copies, where kernels cannot
// reach other ranks' memory.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "comm/communicator.h"
#include "cuda/gpu/device.h"

namespace specdec::cuda {

class PartCopies {
 public:
  virtual ~PartCopies() = default;
  // all [sum of counts] = the parts of all ranks, by rank, of which this one's is `own`. All three
  // may be reused once what is queued after them is done.
  virtual void gather(const float* own, std::span<const int64_t> counts, float* all) = 0;
  // Whether a graph can do so.
  virtual bool can_be_recorded() const = 0;
  // A rank is gone: what waits for it on the device goes on, with wrong results.
  virtual void end() {}
};

// Over the host and the group's communicator.
std::unique_ptr<PartCopies> make_host_copies(Device& device, Stream& stream, Communicator& ranks);

}  // namespace specdec::cuda
