// Which field a call refuses.
#pragma once

#include <string>

#include "specdec/error.h"

namespace specdec::testing {

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
