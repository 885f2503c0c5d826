// Short convolutions, linear recurrences and gated norms, against double loops.
#include "testing/oracle/recurrent.h"

#include <gtest/gtest.h>

#include <cmath>

#include "cpu/cpu_backend.h"
#include "testing/cpu_isas.h"
#include "testing/oracle/operations.h"
#include "testing/recurrent_world.h"

namespace specdec {
namespace {

using testing::random_values;
using testing::RecurrentChunk;
using testing::RecurrentInputs;
using testing::RecurrentStates;
using testing::RecurrentStep;
using testing::RecurrentVariant;

int draw(std::mt19937& random, int begin, int end) {
  return begin + static_cast<int>(random() % static_cast<uint32_t>(end - begin));
}
template <class T>
T choose(std::mt19937& random, std::initializer_list<T> of) {
  return of.begin()[draw(random, 0, static_cast<int>(of.size()))];
}

StateShape random_shape(std::mt19937& random) {
  StateShape shape;
  shape.conv_channels = choose(random, {1, 16, 40, 515, 1100});
  shape.conv_width = choose(random, {2, 3, 4});
  shape.num_key_heads = choose(random, {1, 2});
  shape.num_heads = shape.num_key_heads * choose(random, {1, 2, 3});
  shape.key_dim = choose(random, {16, 24, 128});
  shape.value_dim = choose(random, {16, 24, 40, 128});
  return shape;
}

RecurrentVariant random_variant(std::mt19937& random) {
  const auto flag = [&] { return random() % 2 == 0; };
  return {.kind = flag() ? RecurrenceKind::kGatedDelta : RecurrenceKind::kStateSpace,
          .skip = flag(),
          .bias = flag(),
          .silu = flag(),
          .gates = flag()};
}

// Requests with a state or none, pending records, a chain of rows whose states may be stored, and
// draft rows below any of them. Each request has slots and records of its own.
enum : int { kSlotsOfRequest = 4, kRecordsOfRequest = 24 };
std::vector<RecurrentChunk> random_chunks(std::mt19937& random, int num_requests, int num_inputs) {
  std::vector<RecurrentChunk> chunks;
  for (int request = 0; request < num_requests; ++request) {
    RecurrentChunk& chunk = chunks.emplace_back();
    const int first_slot = request * kSlotsOfRequest;
    const int first_record = request * kRecordsOfRequest;
    if (random() % 4 != 0) chunk.slot_in = first_slot;
    const int num_pending = choose(random, {0, 0, 1, 3, 11});
    for (int i = 0; i < num_pending; ++i) chunk.pending.push_back(first_record + i);
    std::shuffle(chunk.pending.begin(), chunk.pending.end(), random);
    const int num_chain = draw(random, 0, 8);
    for (int i = 0; i < num_chain; ++i) {
      chunk.rows.push_back({.input = draw(random, 0, num_inputs), .parent = i - 1});
    }
    const int num_drafts = choose(random, {0, 1, 3, 12});
    for (int i = 0; i < num_drafts; ++i) {
      const int row = num_chain + i;
      chunk.rows.push_back({.input = draw(random, 0, num_inputs),
                            .parent = draw(random, -1, row),
                            .record = first_record + num_pending + i});
    }
    const int num_tokens = num_pending + num_chain;
    const int slots[] = {first_slot + draw(random, 0, 2), first_slot + 2, first_slot + 3};
    int at = 1;
    for (const int slot : slots) {
      if (at > num_tokens || random() % 4 == 0) break;
      at = draw(random, at, num_tokens + 1);
      chunk.stores.push_back({at, slot});
    }
  }
  return chunks;
}

template <class Actual>
void expect_near(const Actual& actual, const std::vector<double>& expected, double tolerance,
                 const char* what) {
  ASSERT_EQ(actual.size(), expected.size());
  double scale = 1.0;
  for (const double value : expected) scale = std::max(scale, std::abs(value));
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_NEAR(actual[i], expected[i], tolerance * scale) << what << " " << i;
  }
}

class CpuRecurrent : public ::testing::TestWithParam<testing::IsaAndDType> {
 protected:
  DType dtype() const { return std::get<1>(GetParam()); }
  cpu::CpuBackend make_backend(int num_threads = 2) {
    return cpu::CpuBackend(std::get<0>(GetParam()), num_threads, dtype());
  }
  std::vector<double> widened(const std::vector<uint8_t>& rows, DType of) {
    std::vector<double> values;
    for (size_t i = 0; i < rows.size() / size_of(of); ++i) {
      values.push_back(reference::element(rows.data(), of, static_cast<int64_t>(i)));
    }
    return values;
  }
};

TEST_P(CpuRecurrent, BatchesMatchReference) {
  cpu::CpuBackend backend = make_backend();
  for (uint32_t seed = 0; seed < 60; ++seed) {
    std::mt19937 random(seed);
    const StateShape shape = random_shape(random);
    const RecurrentInputs inputs(shape, random_variant(random), 20, seed);
    const int num_requests = draw(random, 1, 4);
    RecurrentStates states(shape, num_requests * kSlotsOfRequest, num_requests * kRecordsOfRequest,
                           seed + 1);
    const DType conv_dtype = random() % 2 == 0 ? dtype() : DType::kF32;
    RecurrentStep step(inputs, states, random_chunks(random, num_requests, 20), conv_dtype);
    const reference::ConvResult conv =
        reference::short_conv(step.conv_args(), states.num_slots, states.num_records);
    const reference::RecurrenceResult recurrence =
        reference::recurrence(step.recurrence_args(), states.num_slots, states.num_records);
    step.run(backend);
    SCOPED_TRACE(seed);
    const double rounding = conv_dtype == DType::kBF16 ? 0x1p-8 : 0.0;
    expect_near(widened(step.conv_out(), conv_dtype), conv.out, 2e-6 + rounding, "conv out");
    expect_near(states.tails, conv.tails, 1e-6, "tail");
    expect_near(states.conv_records, conv.conv_records, 1e-6, "conv record");
    expect_near(step.out(), recurrence.out, 4e-6, "out");
    expect_near(states.matrices, recurrence.matrices, 4e-6, "matrix");
    expect_near(states.records, recurrence.records, 4e-6, "record");
    if (HasFatalFailure()) return;
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
        expect_near(widened(out, dtype()), reference::gated_norm(args), 2e-6 + rounding, "norm");
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(AllIsas, CpuRecurrent, testing::all_isas_and_dtypes(),
                         testing::isa_and_dtype_name);

}  // namespace
}  // namespace specdec
