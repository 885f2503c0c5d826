// Time on the steady clock.
#pragma once

#include <chrono>

namespace specdec {

// Seconds since an arbitrary start.
inline double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Adds the seconds of its lifetime to a total.
class Stopwatch {
 public:
  explicit Stopwatch(double& total) : total_(total), start_(now_seconds()) {}
  ~Stopwatch() { total_ += now_seconds() - start_; }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double& total_;
  double start_;
};

}  // namespace specdec
