// Assertions on messages.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace specdec::testing {

inline ::testing::AssertionResult has_text(std::string_view text, std::string_view part) {
  if (text.find(part) != std::string_view::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "'" << text << "' lacks '" << part << "'";
}

}  // namespace specdec::testing
