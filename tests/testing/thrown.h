// Returns the exception that a call throws.
#pragma once

#include <stdexcept>
#include <string>

#include "specdec/error.h"

namespace specdec::testing {

// Fails the test where the call throws nothing, or something else.
template <class Expected, class Call>
Expected error_of(Call&& call) {
  try {
    call();
  } catch (const Expected& error) {
    return error;
  }
  throw std::logic_error("nothing was thrown");
}

// The field of the InvalidArgument that `call` throws; empty when it throws none.
template <class Call>
std::string refused_field(Call&& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.field();
  }
  return "";
}

}  // namespace specdec::testing
