// Whose an error is: work that many share is done again for each alone when it throws.
#pragma once

#include <cstddef>
#include <exception>

namespace specdec {

// Calls work(0, count); where that throws, work(i, i + 1) for every i, and fail(i, error) for those
// that throw alone, too. The work must bear being repeated.
template <class Work, class Fail>
void run_or_blame(size_t count, const Work& work, const Fail& fail) {
  if (count > 1) {
    try {
      return work(size_t{0}, count);
    } catch (...) {  // found again below
    }
  }
  for (size_t i = 0; i < count; ++i) {
    try {
      work(i, i + 1);
    } catch (...) {
      fail(i, std::current_exception());
    }
  }
}

}  // namespace specdec
