// Streams and events of the CUDA runtime.
#pragma once

#include <memory>

#include "cuda/gpu/device.h"
#include "cuda/gpu/runtime_functions.h"

namespace specdec::cuda {

std::unique_ptr<Stream> make_cuda_stream(int device, std::shared_ptr<Functions> functions);
std::unique_ptr<Event> make_cuda_event(int device);
// Seconds between two events of make_cuda_event().
double seconds_between_cuda_events(Event& begin, Event& end);

}  // namespace specdec::cuda
