// Which cache a prefetch fills.
#pragma once

namespace specdec::cpu {

enum class PrefetchInto { kL1, kL2 };

}  // namespace specdec::cpu
