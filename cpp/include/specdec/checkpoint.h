// Information about a checkpoint that needs no loading.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace specdec {

// Architectures that can be loaded, as config.json names them.
const std::vector<std::string>& known_architectures();

// End-of-sequence tokens of the checkpoint in `directory`: generation_config.json's, else
// config.json's. Throws CheckpointError.
std::vector<int32_t> load_eos_token_ids(const std::string& directory);

}  // namespace specdec
