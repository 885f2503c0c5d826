// Captures work as a graph in the way the backend does.
#pragma once

#include <functional>
#include <memory>

#include "cuda/gpu/device.h"
#include "cuda/gpu/rehearsal_stream.h"

namespace specdec::cuda::testing {

// Captures `work`, whose kernels are loaded before.
inline std::unique_ptr<Graph> captured(Device& device, const std::function<void(Stream&)>& work) {
  RehearsalStream stream(device.make_stream());
  stream.set_rehearsing(true);
  work(stream);
  stream.set_rehearsing(false);
  stream.begin_capture();
  work(stream);
  return stream.end_capture();
}

}  // namespace specdec::cuda::testing
