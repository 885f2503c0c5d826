#include "specdec/error.h"

#include <utility>

#include "core/check.h"
#include "core/str_cat.h"

namespace specdec {

InvalidArgument::InvalidArgument(std::string field, const std::string& message)
    : Error(str_cat(field, ": ", message)), field_(std::move(field)) {}

CheckpointError::CheckpointError(std::string file, std::string tensor, const std::string& message)
    : Error(tensor.empty() ? str_cat(file, ": ", message)
                           : str_cat(file, ", tensor '", tensor, "': ", message)),
      file_(std::move(file)),
      tensor_(std::move(tensor)) {}

namespace detail {

void check_failed(const char* file, int line, const std::string& what) {
  throw InternalError(str_cat("internal error at ", file, ":", line, ": check failed: ", what));
}

}  // namespace detail
}  // namespace specdec
