// The host's description of itself.
#pragma once

#include <cstdint>
#include <string>

namespace specdec::cpu {

std::string cpu_model_name();     // as reported by the machine, else its architecture
int64_t physical_memory_bytes();  // 0 where the system does not tell

}  // namespace specdec::cpu
