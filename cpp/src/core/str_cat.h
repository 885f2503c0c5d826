// str_cat(a, b, ...) -> std::string, for messages. (std::format is not in every C++20 library yet.)
#pragma once

#include <sstream>
#include <string>

namespace specdec {

template <class... Parts>
std::string str_cat(const Parts&... parts) {
  std::ostringstream stream;
  (stream << ... << parts);
  return stream.str();
}

}  // namespace specdec
