// Ranks of a group as threads of a test, and sums in slices written out.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "comm/thread_communicator.h"
#include "core/k_slices.h"

namespace specdec::testing {

// Runs rank(communicator) on a thread each, and throws what one of them throws.
inline void on_ranks(int size, const std::function<void(Communicator&)>& rank) {
  auto ranks = make_thread_communicators(size, std::chrono::seconds(60));
  std::exception_ptr error;
  std::mutex mutex;
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < size; ++i) {
      threads.emplace_back([&, i] {
        try {
          rank(*ranks[i]);
        } catch (...) {
          {
            const std::scoped_lock lock(mutex);
            if (error == nullptr) error = std::current_exception();
          }
          ranks[i]->abort("a rank of the test has failed");
        }
      });
    }
  }
  if (error != nullptr) std::rethrow_exception(error);
}

inline std::vector<SliceRun> runs_of(int size) {
  std::vector<SliceRun> runs;
  for (int rank = 0; rank < size; ++rank) runs.push_back(SliceRun::of_rank(rank, size));
  return runs;
}

// The tree of core/k_slices.h, written out.
inline float sum_of_slices(const float* s) {
  return ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
}

}  // namespace specdec::testing
