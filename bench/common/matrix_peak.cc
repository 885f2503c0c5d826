#include "common/matrix_peak.h"

#include <algorithm>
#include <cstdint>

#include "common/timing.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

// Keeps a sum in its register.
#if defined(__aarch64__)
#define SPECDEC_KEEP(sum) asm volatile("" : "+w"(sum))
#else
#define SPECDEC_KEEP(sum) asm volatile("" : "+v"(sum))
#endif

namespace specdec::bench {
namespace {

// Runs `rounds` rounds of independent products.
struct PeakLoop {
  const char* operands;
  const char* instruction;
  cpu::Isa needs;
  double flops_per_round;
  void (*run)(int64_t rounds);
};

// Enough sums in flight to hide the latency of two units; the empty statement keeps each in its
// register and its product in the loop.
constexpr int kSums = 16;

void run_generic(int64_t rounds) {
  float sums[kSums] = {};
  for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 16
    for (float& sum : sums) {
      sum = sum * 0.5f + 1.0f;
      SPECDEC_KEEP(sum);
    }
  }
}

#if defined(__x86_64__)

// `product` adds the product of x and y to sum.
#define SPECDEC_PEAK_LOOP(name, extensions, Sum, num_sums, x_value, y_value, product) \
  __attribute__((target(extensions))) void name(int64_t rounds) {                     \
    Sum sums[num_sums] = {};                                                          \
    auto x = x_value;                                                                 \
    const auto y = y_value;                                                           \
    for (int64_t i = 0; i < rounds; ++i) {                                            \
      _Pragma("GCC unroll 16") for (Sum& sum : sums) {                                \
        SPECDEC_KEEP(x); /* each product anew */                                      \
        sum = product;                                                                \
        SPECDEC_KEEP(sum);                                                            \
      }                                                                               \
    }                                                                                 \
  }
SPECDEC_PEAK_LOOP(run_avx2, "avx2,fma", __m256, 12, _mm256_set1_ps(0.5f), _mm256_set1_ps(0.25f),
                  _mm256_fmadd_ps(x, y, sum))
SPECDEC_PEAK_LOOP(run_avx512, "avx512f", __m512, kSums, _mm512_set1_ps(0.5f), _mm512_set1_ps(0.25f),
                  _mm512_fmadd_ps(x, y, sum))
SPECDEC_PEAK_LOOP(run_avx512_bf16, "avx512f,avx512bf16", __m512, kSums, _mm512_set1_epi16(0x3f00),
                  _mm512_set1_epi16(0x3e80), _mm512_dpbf16_ps(sum, (__m512bh)x, (__m512bh)y))
SPECDEC_PEAK_LOOP(run_avx_vnni, "avx2,avxvnni", __m256i, 12, _mm256_set1_epi8(3),
                  _mm256_set1_epi8(-2), _mm256_dpbusd_avx_epi32(sum, x, y))
SPECDEC_PEAK_LOOP(run_avx512_vnni, "avx512f,avx512vnni", __m512i, kSums, _mm512_set1_epi8(3),
                  _mm512_set1_epi8(-2), _mm512_dpbusd_epi32(sum, x, y))
// The instructions of kernels without a dot product of bytes: products of pairs, then a separate
// addition. Products of 4-bit codes fit into 16 bits.
SPECDEC_PEAK_LOOP(run_avx2_madd, "avx2", __m256i, 12, _mm256_set1_epi16(3), _mm256_set1_epi16(-2),
                  _mm256_add_epi32(sum, _mm256_madd_epi16(x, y)))
SPECDEC_PEAK_LOOP(run_avx2_maddubs, "avx2", __m256i, 12, _mm256_set1_epi8(3), _mm256_set1_epi8(-2),
                  _mm256_add_epi16(sum, _mm256_maddubs_epi16(x, y)))
SPECDEC_PEAK_LOOP(run_avx512_madd, "avx512bw", __m512i, kSums, _mm512_set1_epi16(3),
                  _mm512_set1_epi16(-2), _mm512_add_epi32(sum, _mm512_madd_epi16(x, y)))
SPECDEC_PEAK_LOOP(run_avx512_maddubs, "avx512bw", __m512i, kSums, _mm512_set1_epi8(3),
                  _mm512_set1_epi8(-2), _mm512_add_epi16(sum, _mm512_maddubs_epi16(x, y)))
#undef SPECDEC_PEAK_LOOP

// Four sums of 16 x 16, as many as the eight tiles leave room for beside two operands of each kind.
__attribute__((target("amx-tile,amx-bf16"))) void run_amx_bf16(int64_t rounds) {
  struct alignas(64) Config {
    uint8_t palette = 1;
    uint8_t reserved[15] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  };
  const Config config;
  // The intrinsic tells g++ 12 of the first 8 bytes alone, and the other stores are dropped.
  asm volatile("ldtilecfg %0" ::"m"(config));
  for (int64_t i = 0; i < rounds; ++i) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_release();
}

#elif defined(__aarch64__)

// Instructions by their names: the compiler has intrinsics only for a target that it must be told
// of, and each compiler in its own words.
#define SPECDEC_PEAK_LOOP(name, extension, instruction)                                          \
  void name(int64_t rounds) {                                                                    \
    float32x4_t sums[kSums] = {};                                                                \
    const float32x4_t x = vdupq_n_f32(0.5f), y = vdupq_n_f32(0.25f);                             \
    for (int64_t i = 0; i < rounds; ++i) {                                                       \
      _Pragma("GCC unroll 16") for (float32x4_t& sum : sums) {                                   \
        asm volatile(".arch armv8.2-a" extension "\n" instruction : "+w"(sum) : "w"(x), "w"(y)); \
      }                                                                                          \
    }                                                                                            \
  }
SPECDEC_PEAK_LOOP(run_fmla, "", "fmla %0.4s, %1.4s, %2.4s")
SPECDEC_PEAK_LOOP(run_bfdot, "+bf16", "bfdot %0.4s, %1.8h, %2.8h")
SPECDEC_PEAK_LOOP(run_sdot, "+dotprod", "sdot %0.4s, %1.16b, %2.16b")
SPECDEC_PEAK_LOOP(run_usmmla, "+i8mm", "usmmla %0.4s, %1.16b, %2.16b")
#undef SPECDEC_PEAK_LOOP

#endif

const std::vector<PeakLoop>& peak_loops() {
  using cpu::Isa;
  static const std::vector<PeakLoop> kLoops = {
#if defined(__x86_64__)
      {"float32", "vfmadd256", Isa::kAvx2, 12 * 16.0, run_avx2},
      {"int8", "vpmaddwd", Isa::kAvx2, 12 * 32.0, run_avx2_madd},
      {"int4", "vpmaddubsw", Isa::kAvx2, 12 * 64.0, run_avx2_maddubs},
      {"int8", "vpdpbusd256", Isa::kAvxVnni, 12 * 64.0, run_avx_vnni},
      {"int8", "vpmaddwd512", Isa::kAvx512, kSums * 64.0, run_avx512_madd},
      {"int4", "vpmaddubsw512", Isa::kAvx512, kSums * 128.0, run_avx512_maddubs},
      {"float32", "vfmadd512", Isa::kAvx512, kSums * 32.0, run_avx512},
      {"bfloat16", "vdpbf16ps", Isa::kAvx512Bf16, kSums * 64.0, run_avx512_bf16},
      {"bfloat16", "tdpbf16ps", Isa::kAmx, 4 * 2.0 * 16 * 16 * 32, run_amx_bf16},
      {"int8", "vpdpbusd", Isa::kAvx512Bf16, kSums * 128.0, run_avx512_vnni},
#elif defined(__aarch64__)
      {"float32", "fmla", Isa::kNeon, kSums * 8.0, run_fmla},
      {"int8", "sdot", Isa::kNeonDotprod, kSums * 32.0, run_sdot},
      {"int8", "usmmla", Isa::kNeonI8mm, kSums * 64.0, run_usmmla},
      {"bfloat16", "bfdot", Isa::kNeonBf16, kSums * 16.0, run_bfdot},
#endif
      {"float32", "scalar", Isa::kGeneric, kSums * 2.0, run_generic},
  };
  return kLoops;
}

// The rate of all threads of the pool together.
double flops_per_second(const PeakLoop& loop, ThreadPool& pool, int samples) {
  const int threads = pool.num_threads();
  const ThreadPool::StepScope hot(pool);
  int64_t rounds = 1000;
  const auto seconds = [&] {
    const Stopwatch watch;
    pool.parallel_for(threads, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) loop.run(rounds);
    });
    return watch.seconds();
  };
  while (seconds() < 1e-3) rounds *= 2;  // warm-up too
  double best = seconds();
  for (int i = 0; i < samples; ++i) best = std::min(best, seconds());
  return static_cast<double>(rounds) * threads * loop.flops_per_round / best;
}

}  // namespace

std::vector<MatrixPeak> measure_matrix_peaks(cpu::Isa isa, ThreadPool& pool, int samples) {
  std::vector<MatrixPeak> peaks;
  for (const PeakLoop& loop : peak_loops()) {
    if (loop.needs > isa || !cpu::is_supported(loop.needs)) continue;
    const double rate = flops_per_second(loop, pool, samples);
    const auto known = std::ranges::find(peaks, loop.operands, &MatrixPeak::operands);
    if (known == peaks.end()) {
      peaks.push_back({loop.operands, loop.instruction, rate});
    } else if (rate > known->flops_per_second) {
      *known = {loop.operands, loop.instruction, rate};
    }
  }
  return peaks;
}

double peak_for(const std::vector<MatrixPeak>& peaks, std::string_view operands) {
  double best = 0;
  for (std::string_view name = operands;;) {
    const auto found = std::ranges::find(peaks, name, &MatrixPeak::operands);
    if (found != peaks.end()) best = std::max(best, found->flops_per_second);
    if (name == "float32") return best;
    name = name == "int4" ? "int8" : "float32";
  }
}

}  // namespace specdec::bench
