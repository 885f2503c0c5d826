// Prints the kernel sets that this machine runs, with a semicolon after each. CMake compiles and
// runs this file alone where SPECDEC_ISAS is NATIVE.
#include <cstdio>

#include "cpu/isa_support.cc"

int main() {
  for (specdec::cpu::Isa isa : specdec::cpu::kAllIsas) {
    if (!specdec::cpu::is_supported(isa)) continue;
    std::printf("%s;", std::string(specdec::cpu::name_of(isa)).c_str());
  }
}
