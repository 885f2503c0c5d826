// Checkpoints of networks with images or sound whose text part is a network of a known family.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace specdec {

// config.json as the text part alone would have it: its keys, and those that only the whole has.
// Returns `whole` unchanged where it is not of a known wrapper. `path`: for errors.
nlohmann::json text_part_of(const std::string& path, nlohmann::json whole);
// The same for a file that is a wrapper of the text part `text_type`, unless that names its type.
nlohmann::json text_part_of(const std::string& path, const nlohmann::json& whole,
                            std::string_view text_type);

}  // namespace specdec
