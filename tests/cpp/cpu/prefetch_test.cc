// Which cache kernels ask for what they read next shows in no result.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "cpu/kernel_table.h"
#include "testing/cpu_attention.h"
#include "testing/cpu_int_formats.h"
#include "testing/values.h"

namespace specdec::cpu {
namespace {

using specdec::testing::random_values;
using specdec::testing::supported_isas;
namespace attention = specdec::testing::cpu_attention;

TEST(CpuPrefetch, SetsOfZen4HaveKernelsForBothCaches) {
  for (const Isa isa : supported_isas()) {
    const KernelTable into_l1 = kernel_table(isa, PrefetchInto::kL1);
    const KernelTable into_l2 = kernel_table(isa, PrefetchInto::kL2);
    const bool has_projections = isa == Isa::kAvx512Bf16;
    const bool has_attention =
        has_projections || isa == Isa::kAvx512 || isa == Isa::kAvxVnni || isa == Isa::kAvx2;
    for (int format = 0; format < kNumPackedFormats; ++format) {
      EXPECT_EQ(into_l1.linear.run[format] != into_l2.linear.run[format], has_projections)
          << name_of(isa) << " " << format;
    }
    for (int kind = 0; kind < kNumKvKinds; ++kind) {
      EXPECT_EQ(into_l1.attention.by_kind[kind].attend != into_l2.attention.by_kind[kind].attend,
                has_attention)
          << name_of(isa) << " " << kind;
    }
  }
}

TEST(CpuPrefetch, ProductsHaveTheSameBits) {
  constexpr int64_t kOutputs = 61;
  constexpr int kMostRows = 37;
  for (const Isa isa : supported_isas()) {
    for (const DType act : {DType::kF32, DType::kBF16}) {
      CpuBackend into_l1(isa, 2, act, PrefetchInto::kL1), into_l2(isa, 2, act, PrefetchInto::kL2);
      for (const WeightFormat format :
           {WeightFormat::kAct, WeightFormat::kInt8, WeightFormat::kInt8Grouped,
            WeightFormat::kInt4Grouped, WeightFormat::kInt4GroupedZero, WeightFormat::kInt4Table,
            WeightFormat::kInt8Grouped16}) {
        const int64_t num_k = inputs_for(format, 845);
        const Source source(format, kOutputs, num_k, 1);
        const WeightView view = source.view();
        const std::vector<float> x = random_values(kMostRows * num_k, 2);
        const PackArgs args = {.parts = {&view, 1}, .format = format};
        const auto first = into_l1.pack_linear(args), second = into_l2.pack_linear(args);
        for (const int rows : {1, 2, 4, 7, 8, 9, 16, 17, kMostRows}) {
          EXPECT_EQ(run(into_l1, *first, x.data(), rows), run(into_l2, *second, x.data(), rows))
              << name_of(isa) << " " << name_of(format) << " rows " << rows;
        }
      }
    }
  }
}

TEST(CpuPrefetch, AttentionHasTheSameBits) {
  for (const Isa isa : supported_isas()) {
    for (const DType act : {DType::kF32, DType::kBF16}) {
      for (const bool int8_kv : {false, true}) {
        specdec::testing::RowBytes results[2];
        for (const PrefetchInto into : {PrefetchInto::kL1, PrefetchInto::kL2}) {
          CpuBackend backend(isa, 2, act, into);
          std::mt19937_64 random(7);
          specdec::testing::PagedWorld world(backend, {.int8_kv = int8_kv}, 60);
          using attention::Kind;
          auto decode = attention::make_request(world, random, Kind::kDecode, 300, 1);
          auto chunk = attention::make_request(world, random, Kind::kChunk, 40, 9);
          auto tree = attention::make_request(world, random, Kind::kTree, 150, 12);
          results[into == PrefetchInto::kL2] = world.step({&decode, &chunk, &tree});
        }
        EXPECT_EQ(results[0], results[1]) << name_of(isa) << " " << int8_kv;
      }
    }
  }
}

}  // namespace
}  // namespace specdec::cpu
