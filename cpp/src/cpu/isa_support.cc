// Which instruction sets the machine supports. SPECDEC_ISAS=NATIVE runs this file before the
// library is built (native_isas.cc), so this file needs no other source.
#include "cpu/isa.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace specdec::cpu {
namespace {

#if defined(__x86_64__)

struct CpuidLeaf {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

CpuidLeaf cpuid(uint32_t leaf, uint32_t subleaf) {
  CpuidLeaf out;
  if (__get_cpuid_count(leaf, subleaf, &out.eax, &out.ebx, &out.ecx, &out.edx) == 0) return {};
  return out;
}

bool has_bits(uint64_t word, uint64_t bits) { return (word & bits) == bits; }
constexpr uint64_t bit(int index) { return uint64_t{1} << index; }

// Register state the operating system saves and restores (XCR0).
uint64_t saved_state() {
  if (!has_bits(cpuid(1, 0).ecx, bit(27))) return 0;  // OSXSAVE
  uint32_t low = 0;
  uint32_t high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (uint64_t{high} << 32) | low;
}

bool has_avx2() {
  return has_bits(saved_state(), bit(1) | bit(2)) &&
         has_bits(cpuid(1, 0).ecx, bit(12) | bit(28) | bit(29)) &&  // FMA, AVX, F16C
         has_bits(cpuid(7, 0).ebx, bit(5) | bit(8));                // AVX2, BMI2
}

bool has_avx_vnni() { return has_avx2() && has_bits(cpuid(7, 1).eax, bit(4)); }

bool has_avx512() {
  return has_avx2() && has_bits(saved_state(), bit(5) | bit(6) | bit(7)) &&
         has_bits(cpuid(7, 0).ebx, bit(16) | bit(17) | bit(30) | bit(31));  // F, DQ, BW, VL
}

bool has_avx512_bf16() {
  return has_avx512() && has_bits(cpuid(7, 1).eax, bit(5)) &&
         has_bits(cpuid(7, 0).ecx, bit(11));  // BF16, VNNI
}

// Linux grants the 8 KiB tile state only to processes that ask. The answer covers all threads.
bool request_amx_permission() {
#if defined(__linux__)
  constexpr long kArchReqXcompPerm = 0x1023;
  constexpr long kXfeatureXtileData = 18;
  return syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureXtileData) == 0;
#else
  return false;
#endif
}

bool has_amx() {
  return has_avx512_bf16() && has_bits(saved_state(), bit(17) | bit(18)) &&
         has_bits(cpuid(7, 0).edx, bit(22) | bit(24)) &&  // AMX-BF16, AMX-TILE
         request_amx_permission();
}

// AMD's family 25 is Zen 3, which has no AVX-512, and Zen 4.
bool is_zen4() {
  const CpuidLeaf vendor = cpuid(0, 0);
  const bool is_amd = vendor.ebx == 0x68747541 && vendor.edx == 0x69746e65;  // "AuthenticAMD"
  const uint32_t version = cpuid(1, 0).eax;
  const uint32_t family = (version >> 8 & 0xf) + (version >> 20 & 0xff);
  return is_amd && family == 25 && has_avx512();
}

bool machine_supports(Isa isa) {
  switch (isa) {
    case Isa::kGeneric:
      return true;
    case Isa::kAvx2:
      return has_avx2();
    case Isa::kAvxVnni:
      return has_avx_vnni();
    case Isa::kAvx512:
      return has_avx512();
    case Isa::kAvx512Bf16:
      return has_avx512_bf16();
    case Isa::kAmx:
      return has_amx();
    default:
      return false;
  }
}

#elif defined(__aarch64__)

struct Features {
  bool dotprod, i8mm, bf16;
};

#if defined(__APPLE__)
bool has_feature(const char* name) {
  int value = 0;
  size_t size_bytes = sizeof(value);
  return sysctlbyname(name, &value, &size_bytes, nullptr, 0) == 0 && value != 0;
}
Features features() {
  return {.dotprod = has_feature("hw.optional.arm.FEAT_DotProd"),
          .i8mm = has_feature("hw.optional.arm.FEAT_I8MM"),
          .bf16 = has_feature("hw.optional.arm.FEAT_BF16")};
}
#elif defined(__linux__)
Features features() {
  // Bits of the kernel's interface, which older headers do not name.
  constexpr unsigned long kDotprod = 1ul << 20;  // AT_HWCAP
  constexpr unsigned long kI8mm = 1ul << 13;     // AT_HWCAP2
  constexpr unsigned long kBf16 = 1ul << 14;
  const unsigned long first = getauxval(AT_HWCAP);
  const unsigned long second = getauxval(AT_HWCAP2);
  return {.dotprod = (first & kDotprod) != 0,
          .i8mm = (second & kI8mm) != 0,
          .bf16 = (second & kBf16) != 0};
}
#else
Features features() { return {}; }
#endif

bool machine_supports(Isa isa) {
  const Features has = features();
  switch (isa) {
    case Isa::kGeneric:
    case Isa::kNeon:
      return true;
    case Isa::kNeonDotprod:
      return has.dotprod;
    case Isa::kNeonI8mm:
      return has.dotprod && has.i8mm;
    case Isa::kNeonBf16:
      return has.dotprod && has.i8mm && has.bf16;
    default:
      return false;
  }
}

#else

bool machine_supports(Isa isa) { return isa == Isa::kGeneric; }

#endif

}  // namespace

std::string_view name_of(Isa isa) {
  switch (isa) {
    case Isa::kGeneric:
      return "generic";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvxVnni:
      return "avx_vnni";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx512Bf16:
      return "avx512_bf16";
    case Isa::kAmx:
      return "amx";
    case Isa::kNeon:
      return "neon";
    case Isa::kNeonDotprod:
      return "neon_dotprod";
    case Isa::kNeonI8mm:
      return "neon_i8mm";
    case Isa::kNeonBf16:
      return "neon_bf16";
  }
  return "unknown";
}

bool is_supported(Isa isa) { return machine_supports(isa); }

PrefetchInto prefetch_into() {
#if defined(__x86_64__)
  if (is_zen4()) return PrefetchInto::kL2;
#endif
  return PrefetchInto::kL1;
}

}  // namespace specdec::cpu
