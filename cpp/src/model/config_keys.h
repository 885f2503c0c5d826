// Sorts the keys of config.json that no code reads into harmless ones and ones that may matter.
#pragma once

#include <string>

#include "model/json_file.h"

namespace specdec {

// Checks the keys of `fields` that no reader has asked for. Throws CheckpointError for a key that
// may change the computation of `architecture`. Returns the unknown keys among the others, with the
// file, for a warning; empty where there are none.
std::string check_unread(const JsonFields& fields, const std::string& architecture);

}  // namespace specdec
