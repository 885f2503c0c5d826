// Mutated files: each loads, or is a CheckpointError. A crash ends the test; the sanitizers see the
// rest. SPECDEC_FUZZ_CASES asks for more than the few that every run takes.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "specdec/error.h"

namespace specdec::testing {

inline constexpr int kCases = 1500;
inline constexpr std::chrono::seconds kLongest{
    20};  // of one case, in milliseconds when nothing is wrong

inline int num_cases() {
  const char* text = std::getenv("SPECDEC_FUZZ_CASES");
  return text != nullptr ? std::atoi(text) : kCases;
}

// Pieces of JSON that parsers and sizes trip over.
inline const std::vector<std::string>& pieces() {
  static const std::vector<std::string> list = {"2147483647",
                                                "-1",
                                                "0",
                                                "1e300",
                                                "18446744073709551615",
                                                "4294967296",
                                                "0.5",
                                                "1e-320",
                                                "null",
                                                "true",
                                                "\"\"",
                                                "\"\\ud800\"",
                                                "\"\\u0000\"",
                                                "[]",
                                                "{}",
                                                "[[",
                                                "]]",
                                                "{\"a\":",
                                                "}",
                                                ",",
                                                ":",
                                                "\"",
                                                "\xff",
                                                "[0,0]",
                                                "\"x\":1,",
                                                "1e999",
                                                "99999",
                                                "\"BF16\"",
                                                "\"yarn\"",
                                                std::string(300, '['),
                                                std::string(3000, 'x')};
  return list;
}

class Mutator {
 public:
  explicit Mutator(unsigned seed) : random_(seed) {}

  size_t below(size_t limit) {
    return std::uniform_int_distribution<size_t>(0, limit - 1)(random_);
  }

  std::string mutate(std::string text) {
    for (size_t edits = 1 + below(4); edits > 0; --edits) edit(text);
    return text;
  }

 private:
  void edit(std::string& text) {
    if (text.empty()) return;
    const size_t at = below(text.size());
    switch (below(6)) {
      case 0:
        text[at] = static_cast<char>(below(256));
        return;
      case 1:
        text.erase(at, 1 + below(8));
        return;
      case 2:
        text.insert(at, text.substr(below(text.size()), 1 + below(40)));
        return;
      case 3:
        text.insert(at, pieces()[below(pieces().size())]);
        return;
      default:
        replace_value(text, at);
    }
  }

  // The number, word or string that follows the first colon after `at`: well-formed all the same.
  void replace_value(std::string& text, size_t at) {
    const size_t colon = text.find(':', at);
    if (colon == std::string::npos) return;
    const size_t end = text.find_first_of(",}]", colon);
    if (end == std::string::npos) return;
    text.replace(colon + 1, end - colon - 1, pieces()[below(pieces().size())]);
  }

  std::mt19937 random_;
};

// Loads what `write(mutator)` has written, many times; names the case that fails.
template <class Write, class Load>
void fuzz_files(const Write& write, const Load& load) {
  int loaded = 0;
  for (int index = 0; index < num_cases(); ++index) {
    Mutator mutator(static_cast<unsigned>(index));
    const std::string written = write(mutator);
    const auto begin = std::chrono::steady_clock::now();
    try {
      load();
      ++loaded;
    } catch (const CheckpointError& error) {
      EXPECT_LT(std::string_view(error.what()).size(), 6000u) << index;
    } catch (const std::exception& error) {
      ADD_FAILURE() << "case " << index << ": " << error.what() << "\n" << written;
    }
    EXPECT_LT(std::chrono::steady_clock::now() - begin, kLongest) << index << "\n" << written;
  }
  EXPECT_GT(loaded, 0) << "nothing of the mutated files was still good: mutations are too wild";
  EXPECT_LT(loaded, num_cases());
}

}  // namespace specdec::testing
