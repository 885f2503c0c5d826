// Results that have the same bits on every machine: quantised weights, their products, and the
// noise of samples. tests/data/cpu_bits.txt has their hashes, written on x86-64 by
// `specdec_cpu_linear_test --gtest_also_run_disabled_tests --gtest_filter='*WriteFile'`; every
// machine compares with it.
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "cpu/kernel_table.h"
#include "testing/cpu_int_formats.h"
#include "testing/values.h"

namespace specdec::cpu {
namespace {

using specdec::testing::supported_isas;
using specdec::testing::view_of;

// Results by name; their hashes.
using Results = std::map<std::string, std::vector<float>>;
using Hashes = std::map<std::string, uint64_t>;

// FNV-1a.
uint64_t hash_of(const std::vector<float>& values) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const float value : values) {
    hash = (hash ^ std::bit_cast<uint32_t>(value)) * 0x100000001b3;
  }
  return hash;
}
Hashes hashes_of(const Results& results) {
  Hashes hashes;
  for (const auto& [name, values] : results) hashes[name] = hash_of(values);
  return hashes;
}

// Magnitudes from 2^-23 to 16. Made without the C library, whose logarithms differ.
std::vector<float> exact_values(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) {
    const float value = static_cast<float>(static_cast<int32_t>(random()) >> 8) * 0x1p-23f;
    values.push_back(value * static_cast<float>(1u << random() % 5));
  }
  return values;
}

Results results_of(Isa isa) {
  constexpr int64_t kN = 35, kK = 845;
  constexpr int kRows = 11;
  Results results;
  CpuBackend backend(isa, 2, DType::kF32);
  const std::vector<float> weight = exact_values(kN * kK, 1);
  for (const WeightFormat format : kIntFormats) {
    const int64_t k = inputs_for(format, kK);
    const std::vector<float> x = exact_values(kRows * k, 2);
    const auto codes = codes_for(format, kN, inputs_for(WeightFormat::kInt4Table, kK), 1);
    const WeightView view = takes_codes_alone(format) ? codes.view() : view_of(weight, kN);
    const auto packed = backend.pack_linear({.parts = {&view, 1}, .format = format});
    const std::string name(name_of(format));
    results[name + "_weights"] = unpacked(*packed);
    results[name + "_products"] = run(backend, *packed, x.data(), kRows);
  }
  if (isa == Isa::kGeneric) return results;  // its logarithms round products, too
  std::vector<float>& noise = results["noise"];
  for (int i = 0; i < 2000; ++i) {
    const int32_t token = i * 71 % 151936;
    const float zero = 0.0f;
    RowMaximum drawn = {};
    kernel_table(isa).sampling.draw_listed(&token, &zero, 1,
                                           {0x9e3779b97f4a7c15u * i, i % 4096, i % 3u}, &drawn, 1);
    noise.push_back(drawn.value);
  }
  return results;
}

const char* const kFile = SPECDEC_TEST_DATA "/cpu_bits.txt";

Hashes read_file() {
  Hashes hashes;
  std::ifstream file(kFile);
  file >> std::hex;
  std::string name;
  for (uint64_t hash; file >> name >> hash;) hashes[name] = hash;
  return hashes;
}

TEST(CpuSameBits, EveryKernelSetGivesThoseOfTheFile) {
  const Hashes expected = read_file();
  ASSERT_EQ(expected.size(), 17u) << kFile;
  for (const Isa isa : supported_isas()) {
    for (const auto& [name, hash] : hashes_of(results_of(isa))) {
      EXPECT_EQ(hash, expected.at(name)) << name << " on " << name_of(isa);
    }
  }
}

TEST(CpuSameBits, TheLastBitOfAnyResultCounts) {
  const Hashes expected = read_file();
  for (auto& [name, values] : results_of(best_isa())) {
    for (const size_t index : {size_t{0}, values.size() / 2, values.size() - 1}) {
      std::vector<float> changed = values;
      changed[index] = std::bit_cast<float>(std::bit_cast<uint32_t>(values[index]) ^ 1);
      EXPECT_NE(hash_of(changed), expected.at(name)) << name << " at " << index;
    }
  }
}

TEST(CpuSameBits, DISABLED_WriteFile) {
  std::ofstream file(kFile);
  for (const auto& [name, hash] : hashes_of(results_of(best_isa()))) {
    file << name << ' ' << std::hex << hash << '\n';
  }
}

}  // namespace
}  // namespace specdec::cpu
