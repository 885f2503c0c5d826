#include "engine/failure.h"

#include <new>

#include "core/str_cat.h"
#include "specdec/error.h"

namespace specdec {
namespace {

constexpr const char* kLessMemory =
    "; lower max_num_batched_tokens or max_num_seqs, or on a GPU gpu_memory_utilization";

}  // namespace

std::string message_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const OutOfMemory& exception) {
    return str_cat(exception.what(), kLessMemory);
  } catch (const std::bad_alloc&) {
    return str_cat("out of memory", kLessMemory);
  } catch (const std::exception& exception) {
    return exception.what();
  } catch (...) {
    return "unknown error";
  }
}

}  // namespace specdec
