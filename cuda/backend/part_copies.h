// Copies the parts of all ranks to each rank's device, for devices whose kernels cannot reach other
// ranks' memory.
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
  // all [sum of counts] = the parts of all ranks, in order of ranks; `own` is this rank's. Work
  // that is queued later may reuse all three.
  virtual void gather(const float* own, std::span<const int64_t> counts, float* all) = 0;
  // Whether a graph can record gather().
  virtual bool can_be_recorded() const = 0;
  // A rank is gone: device work that waits for it goes on, with wrong results.
  virtual void end() {}
};

// Copies over the host, by the group's communicator.
std::unique_ptr<PartCopies> make_host_copies(Device& device, Stream& stream, Communicator& ranks);

}  // namespace specdec::cuda
