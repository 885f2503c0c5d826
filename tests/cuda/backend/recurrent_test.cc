// Short convolutions, linear recurrences and gated norms against double loops, and bit for bit
// against decoding token by token, however tokens come to a state.
#include "testing/oracle/recurrent.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <type_traits>
#include <vector>

#include "testing/device_kinds.h"
#include "testing/recurrent_walks.h"
#include "testing/shared_norms.h"

namespace specdec::cuda {
namespace {

using specdec::testing::DraftWalk;
using specdec::testing::kWalkShape;
using specdec::testing::random_values;
using specdec::testing::RecurrentFault;
using specdec::testing::RecurrentStates;
using specdec::testing::RecurrentStep;
using specdec::testing::RecurrentVariant;
using specdec::testing::RunStep;
using testing::DeviceKind;

// Copies of a step's arrays on a device.
class DeviceArrays {
 public:
  explicit DeviceArrays(testing::BackendWorld& world) : world_(world) {}

  // Null where `values` is.
  template <class T>
  T* add(T* values, int64_t count) {
    if (values == nullptr) return nullptr;
    buffers_.push_back(world_.upload(std::vector<std::remove_const_t<T>>(values, values + count)));
    return buffers_.back().template as<std::remove_const_t<T>>();
  }
  // Likewise, and read() copies it back.
  template <class T>
  T* add_result(T* values, int64_t count) {
    T* const copy = add(values, count);
    if (copy != nullptr) results_.push_back({values, buffers_.size() - 1});
    return copy;
  }
  void read() {
    for (const Result& result : results_) {
      const auto bytes = world_.download<uint8_t>(buffers_[result.buffer]);
      std::copy(bytes.begin(), bytes.end(), static_cast<uint8_t*>(result.to));
    }
  }

 private:
  struct Result {
    void* to;
    size_t buffer;
  };
  testing::BackendWorld& world_;
  std::vector<Buffer> buffers_;
  std::vector<Result> results_;
};

void run_step(testing::BackendWorld& world, RecurrentStep& step) {
  DeviceArrays arrays(world);
  RecurrentStates& states = step.states();
  const StateShape& shape = states.shape;
  LayerStateView state = states.view();
  state.tails = arrays.add_result(state.tails, std::ssize(states.tails));
  state.matrices = arrays.add_result(state.matrices, std::ssize(states.matrices));
  state.conv_records = arrays.add_result(state.conv_records, std::ssize(states.conv_records));
  state.records = arrays.add_result(state.records, std::ssize(states.records));
  const int64_t num_rows = step.num_rows();
  // Rows that the device adds are of no request, and nothing of theirs is read or written.
  const auto add_rows = [&](auto* values, int64_t stride, int64_t size) {
    return arrays.add(values, num_rows == 0 ? 0 : (num_rows - 1) * stride + size);
  };

  CudaBackend& backend = *world.backend;
  backend.begin_step();
  ShortConvArgs conv = step.conv_args();
  BatchView given = *conv.batch;
  // What these operations do not read.
  const std::vector<int64_t> zeros(static_cast<size_t>(given.num_rows + given.num_requests + 1));
  given.slot_mapping = zeros.data();
  given.token_ids = given.positions = given.base_lens = given.block_tables =
      reinterpret_cast<const int32_t*>(zeros.data());
  given.is_tree = reinterpret_cast<const uint8_t*>(zeros.data());
  const BatchView batch = backend.stage(given);
  const int64_t channels = shape.conv_channels;
  conv.x = add_rows(conv.x, conv.stride, channels);
  conv.input_gates = add_rows(conv.input_gates, conv.stride, channels);
  conv.output_gates = add_rows(conv.output_gates, conv.stride, channels);
  conv.weight = arrays.add(conv.weight, channels * shape.conv_width);
  conv.bias = arrays.add(conv.bias, channels);
  conv.batch = &batch;
  conv.state = state;
  conv.out = arrays.add_result(static_cast<uint8_t*>(conv.out),
                               num_rows * channels * size_of(conv.out_dtype));
  backend.short_conv(conv);

  RecurrenceArgs recurrence = step.recurrence_args();
  recurrence.queries = add_rows(recurrence.queries, recurrence.stride, shape.key_size());
  recurrence.keys = add_rows(recurrence.keys, recurrence.stride, shape.key_size());
  recurrence.values = add_rows(recurrence.values, recurrence.stride, shape.value_size());
  recurrence.gates = add_rows(recurrence.gates, recurrence.step_stride, shape.num_heads);
  recurrence.steps = add_rows(recurrence.steps, recurrence.step_stride, shape.num_heads);
  recurrence.decay_rates = arrays.add(recurrence.decay_rates, shape.num_heads);
  recurrence.step_bias = arrays.add(recurrence.step_bias, shape.num_heads);
  recurrence.skip = arrays.add(recurrence.skip, shape.num_heads);
  recurrence.batch = &batch;
  recurrence.state = state;
  recurrence.out = arrays.add_result(recurrence.out, num_rows * shape.value_size());
  backend.recurrence(recurrence);
  arrays.read();
}

class CudaRecurrent : public ::testing::TestWithParam<DeviceKind> {
 protected:
  using World = testing::BackendWorld;

  static RunStep run_by(World& world) {
    return [&world](RecurrentStep& step) { run_step(world, step); };
  }
};

TEST_P(CudaRecurrent, BatchesMatchReference) {
  World world(GetParam(), DType::kBF16), half_world(GetParam(), DType::kF16);
  specdec::testing::expect_batches_match_reference(run_by(world), DType::kBF16, /*num_seeds=*/24);
  specdec::testing::expect_batches_match_reference(run_by(half_world), DType::kF16,
                                                   /*num_seeds=*/8);
}

TEST_P(CudaRecurrent, ChunksDoNotShowInBits) {
  World world(GetParam(), DType::kBF16);
  specdec::testing::expect_chunks_do_not_show(run_by(world), /*num_seeds=*/3);
}

TEST_P(CudaRecurrent, NeighboursDoNotShowInBits) {
  World world(GetParam(), DType::kBF16);
  const RunStep runs[] = {run_by(world)};
  specdec::testing::expect_neighbours_do_not_show(runs, DType::kBF16, /*num_seeds=*/8);
}

TEST_P(CudaRecurrent, DraftsDoNotShowInBits) {
  World world(GetParam(), DType::kBF16);
  StateShape short_conv = kWalkShape;
  short_conv.conv_width = 3;
  short_conv.value_dim = 16;
  const RecurrentVariant state_space = {.kind = RecurrenceKind::kStateSpace,
                                        .skip = true,
                                        .bias = true,
                                        .silu = false,
                                        .gates = true};
  EXPECT_EQ(DraftWalk(run_by(world), kWalkShape, {}, RecurrentFault::kNone, 1).run(60), 0);
  EXPECT_EQ(DraftWalk(run_by(world), short_conv, state_space, RecurrentFault::kNone, 2).run(60), 0);
}

TEST_P(CudaRecurrent, FaultsBetweenStepsShowInBits) {
  World world(GetParam(), DType::kBF16);
  for (const RecurrentFault fault : {RecurrentFault::kFoldsRejected, RecurrentFault::kSwapsRecords,
                                     RecurrentFault::kStaleState, RecurrentFault::kWrongParent}) {
    EXPECT_GT(DraftWalk(run_by(world), kWalkShape, {}, fault, 3).run(8), 0)
        << static_cast<int>(fault);
  }
}

// A large batch is staged in another way.
TEST_P(CudaRecurrent, ManyRowsMatchReference) {
  World world(GetParam(), DType::kBF16);
  const StateShape shape = {.conv_channels = 16,
                            .conv_width = 4,
                            .num_key_heads = 1,
                            .num_heads = 1,
                            .key_dim = 16,
                            .value_dim = 8};
  const specdec::testing::RecurrentInputs inputs(shape, {}, 20, 1);
  RecurrentStates states(shape, 2, 2, 2);
  specdec::testing::RecurrentChunk chunk = {.slot_in = 1, .pending = {1, 0}, .stores = {{100, 0}}};
  for (int i = 0; i < 150; ++i) chunk.rows.push_back({.input = i % 20, .parent = i - 1});
  const std::vector<specdec::testing::RecurrentChunk> chunks = {chunk};
  RecurrentStep step(inputs, states, chunks);
  const auto expected = reference::recurrence(step.recurrence_args(), 2, 2);
  const auto conv = reference::short_conv(step.conv_args(), 2, 2);
  run_step(world, step);
  specdec::testing::expect_all_near(step.out(), expected.out, 4e-6, "out");
  specdec::testing::expect_all_near(states.matrices, expected.matrices, 4e-6, "matrix");
  specdec::testing::expect_all_near(states.tails, conv.tails, 1e-6, "tail");
}

TEST_P(CudaRecurrent, GatedNormsMatchReference) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    World world(GetParam(), dtype);
    std::mt19937 random(1);
    for (const int dim : {16, 24, 128, 1000}) {
      for (const int num_groups : {1, 3}) {
        for (const bool gates_first : {false, true}) {
          const int num_rows = 5, width = num_groups * dim;
          const std::vector<float> x = random_values(random, num_rows * width, 3.0f);
          const std::vector<float> gates = random_values(random, num_rows * (width + 5), 2.0f);
          const std::vector<float> weight = random_values(random, width);
          std::vector<uint8_t> out(x.size() * size_of(dtype));
          GatedNormArgs args = {.x = x.data(),
                                .gates = gates.data(),
                                .gate_stride = width + 5,
                                .weight = weight.data(),
                                .eps = 1e-3f,
                                .gates_first = gates_first,
                                .num_rows = num_rows,
                                .num_groups = num_groups,
                                .dim = dim};
          const std::vector<double> expected = reference::gated_norm(args);
          DeviceArrays arrays(world);
          args.x = arrays.add(args.x, std::ssize(x));
          args.gates = arrays.add(args.gates, std::ssize(gates));
          args.weight = arrays.add(args.weight, std::ssize(weight));
          args.out = arrays.add_result(out.data(), std::ssize(out));
          world.backend->gated_norm(args);
          arrays.read();
          SCOPED_TRACE(dim);
          specdec::testing::expect_all_near(specdec::testing::widened(out, dtype), expected,
                                            2e-6 + specdec::testing::rounding_unit(dtype), "norm");
        }
      }
    }
  }
}

TEST_P(CudaRecurrent, RanksThatShareHeadsNormThemLikeOneRank) {
  if (GetParam() == DeviceKind::kGpu) GTEST_SKIP() << "ranks of a test share one GPU";
  using specdec::testing::NormInputs;
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    specdec::testing::expect_ranks_share_norms(
        [&](const NormInputs& inputs, GatedNormArgs args) {
          World world(GetParam(), dtype);
          DeviceArrays arrays(world);
          std::vector<uint8_t> out(inputs.x.size() * size_of(dtype));
          args.x = arrays.add(inputs.x.data(), std::ssize(inputs.x));
          args.gates = arrays.add(inputs.gates.data(), std::ssize(inputs.gates));
          args.gate_stride = inputs.width + NormInputs::kGap;
          args.weight = arrays.add(inputs.weight.data(), std::ssize(inputs.weight));
          args.out = arrays.add_result(out.data(), std::ssize(out));
          world.backend->gated_norm(args);
          arrays.read();
          return out;
        },
        static_cast<int>(size_of(dtype)));
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, CudaRecurrent, ::testing::ValuesIn(testing::device_kinds()),
                         testing::test_name);

}  // namespace
}  // namespace specdec::cuda
