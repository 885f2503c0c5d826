// Levelled log lines to one sink. The default sink writes warnings and errors to stderr; the Python
// package routes all of them to `logging.getLogger("specdec_native")`.
#pragma once

#include <functional>
#include <string>

#include "core/str_cat.h"

namespace specdec {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

using LogSink = std::function<void(LogLevel level, const std::string& message)>;

// Replaces the sink; an empty function restores the default. Safe from any thread.
void set_log_sink(LogSink sink);
void log_message(LogLevel level, const std::string& message);

template <class... Parts>
void log_info(const Parts&... parts) {
  log_message(LogLevel::kInfo, str_cat(parts...));
}
template <class... Parts>
void log_warning(const Parts&... parts) {
  log_message(LogLevel::kWarning, str_cat(parts...));
}

}  // namespace specdec
