// Levelled log lines to the sink of specdec/log.h.
#pragma once

#include <string>

#include "core/str_cat.h"
#include "specdec/log.h"

namespace specdec {

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
