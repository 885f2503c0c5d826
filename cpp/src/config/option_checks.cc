#include "config/option_checks.h"

#include <cmath>
#include <cstdint>

#include "core/str_cat.h"
#include "specdec/error.h"

namespace specdec {
namespace {

// Whole numbers with all their digits.
std::string number_text(double value) {
  const bool is_whole = std::abs(value) < 1e15 && value == std::floor(value);
  return is_whole ? str_cat(static_cast<int64_t>(value)) : str_cat(value);
}

// "at least 1", "in (0, 1]".
std::string range_text(const Range& range) {
  if (!range.has_lowest() && !range.has_highest()) return "finite";
  if (!range.has_lowest()) return str_cat("at most ", number_text(range.highest));
  if (!range.has_highest()) {
    return str_cat(range.above_lowest ? "finite and above " : "at least ",
                   number_text(range.lowest));
  }
  return str_cat("in ", range.above_lowest ? "(" : "[", number_text(range.lowest), ", ",
                 number_text(range.highest), "]");
}

}  // namespace

void check_number(const OptionText& option, double value) {
  const bool is_zero = option.zero != nullptr && value == 0;
  if (is_zero || option.range.contains(value)) return;
  const std::string zero = option.zero == nullptr ? "" : str_cat(", or 0 for ", option.zero);
  throw InvalidArgument(option.name, str_cat("must be ", range_text(option.range), zero, ", got ",
                                             number_text(value)));
}

}  // namespace specdec
