// `read_bandwidth BYTES THREADS [PASSES]`: how fast that much memory is read through, as JSON.
#include "core/read_bandwidth.h"

#include <cstdlib>
#include <iostream>
#include <vector>

#include "common/bandwidth.h"
#include "common/timing.h"
#include "core/thread_pool.h"

int main(int argc, char** argv) {
  if (argc < 3) {
    std::cerr << "usage: read_bandwidth BYTES THREADS [PASSES]\n";
    return EXIT_FAILURE;
  }
  const int num_passes = argc > 3 ? std::atoi(argv[3]) : 15;
  specdec::ThreadPool pool(std::atoi(argv[2]));
  specdec::ReadBandwidth probe(std::strtoull(argv[1], nullptr, 10), pool);
  probe.read_seconds();  // warm-up
  std::vector<double> seconds;
  for (int pass = 0; pass < num_passes; ++pass) seconds.push_back(probe.read_seconds());
  const double bytes = static_cast<double>(probe.size_bytes());
  std::cout << "{\"bytes\": " << probe.size_bytes()
            << ", \"bytes_per_s\": " << bytes / specdec::bench::median(seconds) << "}\n";
  return EXIT_SUCCESS;
}
