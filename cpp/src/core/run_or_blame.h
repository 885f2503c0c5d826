// Finds out whose error it is: when work for many throws, it is done again for each one alone.
#pragma once

#include <cstddef>
#include <exception>

#include "specdec/error.h"

namespace specdec {

// Calls work(0, count). If that throws, calls work(i, i + 1) for every i, and fail(i, error) for
// each i that also throws alone. The work must be repeatable. EngineFailed, which is no single
// item's fault, is rethrown.
template <class Work, class Fail>
void run_or_blame(size_t count, const Work& work, const Fail& fail) {
  if (count > 1) {
    try {
      return work(size_t{0}, count);
    } catch (const EngineFailed&) {
      throw;
    } catch (...) {  // found again below
    }
  }
  for (size_t i = 0; i < count; ++i) {
    try {
      work(i, i + 1);
    } catch (const EngineFailed&) {
      throw;
    } catch (...) {
      fail(i, std::current_exception());
    }
  }
}

}  // namespace specdec
