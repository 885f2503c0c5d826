// Wall-clock times and their median.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

namespace specdec::bench {

class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Seconds per call of a body that is too short for the clock: the median over `samples` batches of
// about `batch_seconds` each. The calls that determine the batch size are the warm-up.
template <class Body>
double seconds_per_call(int samples, double batch_seconds, Body&& body) {
  int64_t calls = 1;
  const auto batch = [&] {
    const Stopwatch watch;
    for (int64_t i = 0; i < calls; ++i) {
      body();
      asm volatile("" : : : "memory");  // an empty body is a loop all the same
    }
    return watch.seconds();
  };
  for (double seconds = batch(); seconds < batch_seconds; seconds = batch()) {
    const double wanted = 1.2 * batch_seconds / std::max(seconds, 1e-9);
    calls = static_cast<int64_t>(static_cast<double>(calls) * std::min(wanted, 10.0)) + 1;
  }
  std::vector<double> times;
  for (int i = 0; i < samples; ++i) times.push_back(batch() / static_cast<double>(calls));
  return median(times);
}

// Keeps the compiler from dropping the computation of a value.
template <class T>
void keep(const T& value) {
  asm volatile("" : : "g"(&value) : "memory");
}

}  // namespace specdec::bench
