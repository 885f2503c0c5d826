#include "core/log.h"

#include <cstdio>
#include <mutex>
#include <utility>

namespace specdec {
namespace {

struct SharedSink {
  std::mutex mutex;
  LogSink sink;
};

// The one process-wide object of the library: a log has no owner to pass it down from.
SharedSink& shared_sink() {
  static SharedSink* shared = new SharedSink;  // never destroyed, so logging at exit is safe
  return *shared;
}

void write_to_stderr(LogLevel level, const std::string& message) {
  if (level < LogLevel::kWarning) return;
  std::fprintf(stderr, "specdec: %s: %s\n", level == LogLevel::kError ? "error" : "warning",
               message.c_str());
}

}  // namespace

void set_log_sink(LogSink sink) {
  SharedSink& shared = shared_sink();
  const std::lock_guard lock(shared.mutex);
  shared.sink = std::move(sink);
}

void log_message(LogLevel level, const std::string& message) {
  SharedSink& shared = shared_sink();
  const std::lock_guard lock(shared.mutex);
  if (shared.sink) {
    shared.sink(level, message);
  } else {
    write_to_stderr(level, message);
  }
}

}  // namespace specdec
