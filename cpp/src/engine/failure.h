// Why a request or the whole engine cannot go on.
#pragma once

#include <cstdint>
#include <exception>
#include <string>

namespace specdec {

// Ends the request of this sequence (its ordinal), and no other.
struct Failure {
  uint64_t sequence = 0;
  std::string message;
};

// The message that a user sees for an error of a step.
std::string message_of(const std::exception_ptr& error);

}  // namespace specdec
