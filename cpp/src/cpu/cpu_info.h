// What the host calls itself.
#pragma once

#include <cstdint>
#include <string>

namespace specdec::cpu {

std::string cpu_model_name();     // as the machine reports it, else its architecture
int64_t physical_memory_bytes();  // 0 when it cannot be told

}  // namespace specdec::cpu
