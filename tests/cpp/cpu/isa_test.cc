#include "cpu/isa.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "specdec/error.h"
#include "testing/thrown.h"

namespace specdec::cpu {
namespace {

#if defined(__x86_64__)
// What Linux reports of a CPU, word by word; of the flags, it hides those whose register state it
// does not save.
std::vector<std::string> reported(const std::string& field) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(field + "\t")) continue;
    std::istringstream words(line.substr(line.find(':') + 1));
    return {std::istream_iterator<std::string>(words), {}};
  }
  return {};
}

std::set<std::string> kernel_flags() {
  const std::vector<std::string> flags = reported("flags");
  return {flags.begin(), flags.end()};
}
#endif

TEST(Isa, GenericIsAlwaysThere) {
  EXPECT_EQ(compiled_isas().front(), Isa::kGeneric);
  EXPECT_TRUE(is_supported(Isa::kGeneric));
  EXPECT_EQ(parse_isa("generic"), Isa::kGeneric);
}

TEST(Isa, AutoIsTheWidestSupported) {
  const Isa best = parse_isa("auto");
  EXPECT_TRUE(is_supported(best));
  for (Isa isa : compiled_isas()) {
    if (is_supported(isa)) {
      EXPECT_LE(isa, best);
    }
  }
}

#if defined(__x86_64__)
TEST(Isa, AgreesWithTheOperatingSystem) {
  const std::set<std::string> flags = kernel_flags();
  ASSERT_FALSE(flags.empty());
  const auto has = [&](std::initializer_list<const char*> names) {
    return std::all_of(names.begin(), names.end(),
                       [&](const char* name) { return flags.contains(name); });
  };
  EXPECT_EQ(is_supported(Isa::kAvx2), has({"avx2", "fma", "f16c", "bmi2"}));
  EXPECT_EQ(is_supported(Isa::kAvxVnni), has({"avx2", "fma", "f16c", "bmi2", "avx_vnni"}));
  EXPECT_EQ(is_supported(Isa::kAvx512), has({"avx512f", "avx512bw", "avx512vl", "avx512dq"}));
  EXPECT_EQ(is_supported(Isa::kAvx512Bf16), has({"avx512f", "avx512_bf16", "avx512_vnni"}));
  if (!has({"amx_tile", "amx_bf16"})) {
    EXPECT_FALSE(is_supported(Isa::kAmx));
  }
}

TEST(Isa, OnlyZen4PrefetchesIntoL2) {
  const bool is_zen4 = reported("vendor_id") == std::vector<std::string>{"AuthenticAMD"} &&
                       reported("cpu family") == std::vector<std::string>{"25"} &&
                       kernel_flags().contains("avx512f");
  EXPECT_EQ(prefetch_into(), is_zen4 ? PrefetchInto::kL2 : PrefetchInto::kL1);
}
#elif defined(__aarch64__)
TEST(Isa, EachArmSetImpliesTheNarrowerOnes) {
  EXPECT_TRUE(is_supported(Isa::kNeon));
  EXPECT_GE(is_supported(Isa::kNeonDotprod), is_supported(Isa::kNeonI8mm));
  EXPECT_GE(is_supported(Isa::kNeonI8mm), is_supported(Isa::kNeonBf16));
  EXPECT_FALSE(is_supported(Isa::kAvx2));
}
#endif

TEST(Isa, NamesRoundTrip) {
  for (Isa isa : compiled_isas()) {
    if (is_supported(isa)) {
      EXPECT_EQ(parse_isa(name_of(isa)), isa);
    } else {
      EXPECT_THROW(parse_isa(name_of(isa)), Unavailable);
    }
  }
}

// The advice is to build a set only where this machine could run the set.
TEST(Isa, ASetThatIsNotThereSaysWhatToDo) {
  const std::vector<Isa> compiled = compiled_isas();
  for (Isa isa : kAllIsas) {
    const bool is_compiled = std::ranges::find(compiled, isa) != compiled.end();
    if (is_compiled && is_supported(isa)) continue;
    const std::string message =
        specdec::testing::error_of<Unavailable>([&] { parse_isa(name_of(isa)); }).what();
    EXPECT_NE(message.find(name_of(isa)), std::string::npos) << message;
    EXPECT_NE(message.find(is_supported(isa) ? "SPECDEC_ISAS=ALL" : "this machine cannot run"),
              std::string::npos)
        << message;
  }
}

TEST(Isa, UnknownNameIsRefusedByField) {
  const auto error = specdec::testing::error_of<InvalidArgument>([] { parse_isa("avx1024"); });
  EXPECT_EQ(error.field(), "cpu_isa");
  EXPECT_NE(std::string(error.what()).find("generic"), std::string::npos);
}

}  // namespace
}  // namespace specdec::cpu
