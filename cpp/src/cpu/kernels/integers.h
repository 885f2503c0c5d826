// Small functions of integers. Only for files compiled once per ISA.
#pragma once

namespace specdec::cpu::SPECDEC_ISA {

inline int min_of(int a, int b) { return a < b ? a : b; }
inline int max_of(int a, int b) { return a > b ? a : b; }
inline int clamp(int x, int low, int high) { return max_of(low, min_of(x, high)); }
inline int round_down(int x, int unit) { return x / unit * unit; }
inline int round_up(int x, int unit) { return (x + unit - 1) / unit * unit; }

}  // namespace specdec::cpu::SPECDEC_ISA
