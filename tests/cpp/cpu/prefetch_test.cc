// Which cache products ask for their weights shows in no result.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "cpu/kernel_table.h"
#include "cpu/projection.h"
#include "testing/cpu_isas.h"
#include "testing/values.h"

namespace specdec::cpu {
namespace {

using specdec::testing::random_values;
using specdec::testing::view_of;

// [rows, out_features] of float32 rows.
std::vector<float> product(Projector& projector, const CpuPackedLinear& weight,
                           const std::vector<float>& x, int rows) {
  std::vector<float> out(rows * weight.out_features());
  const ProjectionInput in = {.x = x.data(), .num_rows = rows};
  projector.run(weight, in, 1, [&](const SumsCell& cell) {
    const int64_t end = std::min(cell.end, weight.out_features());
    for (int64_t row = cell.row_begin; row < cell.row_end; ++row) {
      std::memcpy(&out[row * weight.out_features() + cell.begin],
                  cell.sums + (row - cell.row_begin) * cell.stride,
                  (end - cell.begin) * sizeof(float));
    }
  });
  return out;
}

TEST(CpuPrefetch, IntoEitherCacheGivesTheSameBits) {
  constexpr int64_t kOutputs = 61, kInputs = 845;
  constexpr int kMostRows = 37;
  const std::vector<float> values = random_values(kOutputs * kInputs, 1);
  const std::vector<float> x = random_values(kMostRows * kInputs, 2);
  const WeightView view = view_of(values, kOutputs);
  for (Isa isa : specdec::testing::supported_isas()) {
    const KernelTable into_l1 = kernel_table(isa, PrefetchInto::kL1);
    const KernelTable into_l2 = kernel_table(isa, PrefetchInto::kL2);
    ThreadPool pool(2);
    HostArena arena;
    for (const DType act : {DType::kF32, DType::kBF16}) {
      for (const WeightFormat format : {WeightFormat::kAct, WeightFormat::kInt8,
                                        WeightFormat::kInt8Grouped, WeightFormat::kInt4Grouped}) {
        const PackArgs args = {.parts = {&view, 1}, .format = format};
        const CpuPackedLinear packed(args, act, into_l1, arena, pool);
        SCOPED_TRACE(::testing::Message() << name_of(isa) << " format " << packed.packed_format());
        const auto run_of = [&](const KernelTable& kernels) {
          return kernels.linear.run[packed.packed_format()];
        };
        if (isa == Isa::kAvx512Bf16) {
          EXPECT_NE(run_of(into_l1), run_of(into_l2));
        }
        Projector first(into_l1, pool), second(into_l2, pool);
        for (const int rows : {1, 2, 4, 7, 8, 9, 16, 17, kMostRows}) {
          const std::vector<float> want = product(first, packed, x, rows);
          const std::vector<float> got = product(second, packed, x, rows);
          ASSERT_EQ(0, std::memcmp(got.data(), want.data(), want.size() * sizeof(float))) << rows;
        }
      }
    }
  }
}

}  // namespace
}  // namespace specdec::cpu
