// Short convolutions, linear recurrences and gated norms: against double loops, and bit for bit
// against decoding token by token, however tokens come to a state.
#include "testing/oracle/recurrent.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "cpu/cpu_backend.h"
#include "testing/cpu_isas.h"
#include "testing/recurrent_walks.h"
#include "testing/shared_norms.h"

namespace specdec {
namespace {

using testing::DraftWalk;
using testing::kWalkShape;
using testing::random_values;
using testing::RecurrentFault;
using testing::RecurrentStep;
using testing::RecurrentVariant;
using testing::RunStep;

class CpuRecurrent : public ::testing::TestWithParam<testing::IsaAndDType> {
 protected:
  DType dtype() const { return std::get<1>(GetParam()); }
  cpu::CpuBackend make_backend(int num_threads = 2) {
    return cpu::CpuBackend(std::get<0>(GetParam()), num_threads, dtype());
  }
  static RunStep run_by(Backend& backend) {
    return [&backend](RecurrentStep& step) { step.run(backend); };
  }
};

TEST_P(CpuRecurrent, BatchesMatchReference) {
  cpu::CpuBackend backend = make_backend();
  testing::expect_batches_match_reference(run_by(backend), dtype(), /*num_seeds=*/60);
}

TEST_P(CpuRecurrent, ChunksDoNotShowInBits) {
  cpu::CpuBackend backend = make_backend();
  testing::expect_chunks_do_not_show(run_by(backend), /*num_seeds=*/12);
}

TEST_P(CpuRecurrent, NeighboursAndThreadsDoNotShowInBits) {
  cpu::CpuBackend backend = make_backend(), single = make_backend(1), three = make_backend(3);
  const RunStep runs[] = {run_by(single), run_by(three), run_by(backend)};
  testing::expect_neighbours_do_not_show(runs, dtype(), /*num_seeds=*/20);
}

TEST_P(CpuRecurrent, DraftsDoNotShowInBits) {
  cpu::CpuBackend backend = make_backend(1);
  StateShape short_conv = kWalkShape;
  short_conv.conv_width = 3;
  short_conv.value_dim = 16;
  const RecurrentVariant delta = {};
  const RecurrentVariant state_space = {.kind = RecurrenceKind::kStateSpace,
                                        .skip = true,
                                        .bias = true,
                                        .silu = false,
                                        .gates = true};
  EXPECT_EQ(DraftWalk(run_by(backend), kWalkShape, delta, RecurrentFault::kNone, 1).run(2000), 0);
  EXPECT_EQ(DraftWalk(run_by(backend), short_conv, state_space, RecurrentFault::kNone, 2).run(2000),
            0);
}

TEST_P(CpuRecurrent, FaultsBetweenStepsShowInBits) {
  cpu::CpuBackend backend = make_backend(1);
  for (const RecurrentFault fault :
       {RecurrentFault::kFoldsRejected, RecurrentFault::kDropsRecord, RecurrentFault::kSwapsRecords,
        RecurrentFault::kStaleState, RecurrentFault::kWrongParent}) {
    EXPECT_GT(DraftWalk(run_by(backend), kWalkShape, {}, fault, 3).run(100), 0)
        << static_cast<int>(fault);
  }
}

TEST_P(CpuRecurrent, GatedNormsMatchReference) {
  cpu::CpuBackend backend = make_backend();
  std::mt19937 random(1);
  for (const int dim : {16, 24, 128, 1000}) {
    for (const int num_groups : {1, 3}) {
      for (const bool gates_first : {false, true}) {
        const int num_rows = 7, width = num_groups * dim;
        const std::vector<float> x = random_values(random, num_rows * width, 3.0f);
        const std::vector<float> gates = random_values(random, num_rows * (width + 5), 2.0f);
        const std::vector<float> weight = random_values(random, width);
        std::vector<uint8_t> out(x.size() * size_of(dtype()));
        const GatedNormArgs args = {.x = x.data(),
                                    .gates = gates.data(),
                                    .gate_stride = width + 5,
                                    .weight = weight.data(),
                                    .eps = 1e-3f,
                                    .gates_first = gates_first,
                                    .num_rows = num_rows,
                                    .num_groups = num_groups,
                                    .dim = dim,
                                    .out = out.data()};
        backend.gated_norm(args);
        const double rounding = dtype() == DType::kBF16 ? 0x1p-8 : 0.0;
        SCOPED_TRACE(dim);
        testing::expect_all_near(testing::widened(out, dtype()), reference::gated_norm(args),
                                 2e-6 + rounding, "norm");
      }
    }
  }
}

TEST_P(CpuRecurrent, RanksThatShareHeadsNormThemLikeOneRank) {
  testing::expect_ranks_share_norms(
      [&](const testing::NormInputs& inputs, GatedNormArgs args) {
        cpu::CpuBackend backend = make_backend();
        std::vector<uint8_t> out(inputs.x.size() * size_of(dtype()));
        args.x = inputs.x.data();
        args.gates = inputs.gates.data();
        args.gate_stride = inputs.width + testing::NormInputs::kGap;
        args.weight = inputs.weight.data();
        args.out = out.data();
        backend.gated_norm(args);
        return out;
      },
      static_cast<int>(size_of(dtype())));
}

INSTANTIATE_TEST_SUITE_P(AllIsas, CpuRecurrent, testing::all_isas_and_dtypes(),
                         testing::isa_and_dtype_name);

}  // namespace
}  // namespace specdec
