#include "core/log.h"

#include <cstdio>
#include <mutex>
#include <utility>

namespace specdec {
namespace {

struct SinkSlot {
  std::mutex mutex;
  LogSink sink;
};

// The one process-wide object of the library: a log has no owner to pass it down from.
SinkSlot& sink_slot() {
  static SinkSlot* slot = new SinkSlot;  // never destroyed, so logging at exit is safe
  return *slot;
}

void write_to_stderr(LogLevel level, const std::string& message) {
  if (level < LogLevel::kWarning) return;
  std::fprintf(stderr, "specdec: %s: %s\n", level == LogLevel::kError ? "error" : "warning",
               message.c_str());
}

}  // namespace

void set_log_sink(LogSink sink) {
  SinkSlot& slot = sink_slot();
  const std::lock_guard lock(slot.mutex);
  slot.sink = std::move(sink);
}

void log_message(LogLevel level, const std::string& message) {
  SinkSlot& slot = sink_slot();
  const std::lock_guard lock(slot.mutex);
  if (slot.sink) {
    slot.sink(level, message);
  } else {
    write_to_stderr(level, message);
  }
}

}  // namespace specdec
