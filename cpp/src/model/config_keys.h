// Keys of config.json that nothing reads: which change nothing, and which may.
#pragma once

#include <string>

#include "model/json_file.h"

namespace specdec {

// Looks at the keys of `fields` that no reader has asked for. Throws CheckpointError for one that
// may change what `architecture` computes. Names the others that are not known at all, with the
// file, for a warning; empty where there is none.
std::string check_unread(const JsonFields& fields, const std::string& architecture);

}  // namespace specdec
