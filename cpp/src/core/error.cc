#include "specdec/error.h"

#include <utility>

#include "core/check.h"
#include "core/str_cat.h"

namespace specdec {
namespace {

// Names and values that a file makes up may be as long as the file. Cut between characters of
// UTF-8, which a message stays.
std::string shortened(const std::string& text, size_t limit) {
  if (text.size() <= limit) return text;
  while (limit > 0 && (text[limit] & 0xc0) == 0x80) --limit;
  return text.substr(0, limit) + "...";
}

}  // namespace

InvalidArgument::InvalidArgument(std::string field, const std::string& message)
    : Error(str_cat(field, ": ", message)), field_(std::move(field)) {}

CheckpointError::CheckpointError(std::string file, std::string tensor, const std::string& message)
    : Error(str_cat(file, tensor.empty() ? "" : ", tensor '", shortened(tensor, 200),
                    tensor.empty() ? ": " : "': ", shortened(message, 1000))),
      file_(std::move(file)),
      tensor_(std::move(tensor)) {}

RankFailure::RankFailure(int rank, std::string operation, const std::string& cause)
    : RankFailure(str_cat("rank ", rank, " failed in ", operation, ": ", cause), rank, operation) {}

RankFailure::RankFailure(const std::string& message, int rank, std::string operation)
    : EngineFailed(message), rank_(rank), operation_(std::move(operation)) {}

RankFailure RankFailure::with_message(const std::string& message) const {
  return {message, rank_, operation_};
}

namespace detail {

void check_failed(const char* file, int line, const std::string& what) {
  throw InternalError(str_cat("internal error at ", file, ":", line, ": check failed: ", what));
}

}  // namespace detail
}  // namespace specdec
