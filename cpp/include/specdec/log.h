// Destination of the library's messages.
#pragma once

#include <functional>
#include <string>

namespace specdec {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

using LogSink = std::function<void(LogLevel level, const std::string& message)>;

// Replaces the sink; an empty function restores the default, which writes warnings and errors to
// stderr. Safe from any thread.
void set_log_sink(LogSink sink);

}  // namespace specdec
