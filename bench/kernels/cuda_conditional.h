// The cost of a loop on the device: a graph with a WHILE node, whose body runs until a kernel in it
// ends the loop.
#pragma once

#include <string>

namespace specdec::bench {

struct WhileCost {
  double iteration_seconds = 0;  // of a body of `num_kernels` kernels, the deciding one included
  int num_kernels = 1;
  bool overlaps_previous = false;  // kernels of the body by programmatic dependent launch
  std::string refused;  // CUDA's error where it cannot be built; then nothing else counts
};

WhileCost measure_while(int num_kernels, bool overlaps_previous, int num_iterations);

}  // namespace specdec::bench
