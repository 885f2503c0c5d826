// The cache that what is read from memory next is asked into.
#pragma once

namespace specdec::cpu {

enum class PrefetchInto { kL1, kL2 };

}  // namespace specdec::cpu
