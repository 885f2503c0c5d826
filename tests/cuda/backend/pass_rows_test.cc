// Rows of a pass of a device step, which the lookup of their tokens makes from the seats: in the
// same launch, or by one of its own where ranks share the table.
#include "cuda/backend/pass_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "cuda/backend/device_array.h"
#include "testing/device_kinds.h"
#include "testing/on_ranks.h"
#include "testing/values.h"

namespace specdec::cuda {
namespace {

using specdec::testing::on_ranks;
using specdec::testing::random_values;
using specdec::testing::rounded;

constexpr DType kAct = DType::kBF16;
constexpr int64_t kVocab = 101, kDim = 96;
constexpr int kSeats = 3, kMaxRows = 8, kBlockSize = 16;

// The tokens that the draft model has not seen of two requests, in a batch of three seats.
const std::vector<int32_t> kTokens = {100, 0, 33, 34};
const std::vector<int32_t> kPositions = {17, 18, 19, 4};

// What a device step keeps for a first draft pass.
struct Step {
  explicit Step(CudaBackend& backend) : backend(backend), layout(backend.device()) {
    StepSeat first = {};
    first.is_active = 1;
    first.num_tokens = 20;
    first.num_seen = 17;
    first.max_num_tokens = 40;
    std::copy(kTokens.begin(), kTokens.begin() + 3, first.tail + kStepTail - 3);
    StepSeat ended = first;
    ended.is_active = 0;
    StepSeat second = first;
    second.num_tokens = 5;
    second.num_seen = 4;
    second.tail[kStepTail - 1] = kTokens.back();
    std::vector<StepSeat> seats = {first, ended, second};
    for (StepSeat& seat : seats) seat.max_depth = 4;
    std::vector<int32_t> tables = {1, 2, 0, 0, 3, 0};
    params.num_passes = 2;
    params.memory.growths.shape = {.width = 1, .max_nodes = 4};
    params.memory.draft_kind = DraftModelKind::kModel;
    params.memory.state = {.seats = copy(seats),
                           .drafts = layout.array<SeatDrafts>(kSeats),
                           .block_tables = copy(tables),
                           .num_seats = kSeats,
                           .max_blocks = 2,
                           .block_size = kBlockSize};
    params.memory.batch = {.token_ids = layout.array<int32_t>(kMaxRows),
                           .positions = layout.array<int32_t>(kMaxRows),
                           .slot_mapping = layout.array<int64_t>(kMaxRows),
                           .cu_rows = layout.array<int32_t>(kSeats + 1),
                           .base_lens = layout.array<int32_t>(kSeats),
                           .sample_ids = layout.array<int32_t>(kMaxRows),
                           .samples = layout.array<DeviceSampleRow>(kMaxRows),
                           .feature_slots = nullptr,
                           .state_slots = nullptr,
                           .max_rows = kMaxRows};
    params.memory.times = layout.array<StepTimes>(1);
  }

  // The embeddings of the pass, and in `num_nodes` the launches that made them and the rows.
  std::vector<float> embed(testing::BackendWorld& world, const EmbeddingTable& table,
                           int& num_nodes) {
    Buffer out = world.upload(std::vector<float>(kMaxRows * kDim, -7.0f));
    const auto look_up = [&] {
      PassRowMaker maker(PassRows::kDraft, params);
      backend.embed({.table = &table,
                     .token_ids = params.memory.batch.token_ids,
                     .out = out.as<float>(),
                     .num_rows = kMaxRows,
                     .row_maker = &maker});
      EXPECT_TRUE(maker.is_done);
    };
    look_up();
    backend.stream().synchronize();
    num_nodes = 0;
    if (backend.can_record_ranks()) {
      backend.stream().begin_capture();
      look_up();
      num_nodes = backend.stream().end_capture()->num_nodes();
    }
    return world.download<float>(out);
  }

  template <class T>
  std::vector<T> download(const T* values, size_t count) {
    std::vector<T> result(count);
    backend.read(values, std::as_writable_bytes(std::span(result)));
    return result;
  }

  template <class T>
  T* copy(const std::vector<T>& values) {
    const DeviceArray<T> array = layout.array<T>(values.size());
    backend.write(std::as_bytes(std::span(values)), array.data);
    return array;
  }

  CudaBackend& backend;
  DeviceLayout layout;
  StepParams params = {};
};

class PassRowsTest : public ::testing::TestWithParam<testing::DeviceKind> {
 protected:
  PassRowsTest() : table_(rounded(random_values(kVocab * kDim, 1), kAct)) {}

  WeightView rows_of(int64_t begin, int64_t end) const {
    return {.values = {table_.data() + begin * kDim, DType::kF32, {end - begin, kDim}}};
  }

  void expect_rows(Step& step, const std::vector<float>& embedded) {
    const StepBatch& batch = step.params.memory.batch;
    std::vector<int32_t> tokens = kTokens, positions = kPositions;
    tokens.resize(kMaxRows);  // padding is token 0 at position 0
    positions.resize(kMaxRows);
    EXPECT_EQ(step.download(batch.token_ids, kMaxRows), tokens);
    EXPECT_EQ(step.download(batch.positions, kMaxRows), positions);
    EXPECT_EQ(step.download(batch.cu_rows, kSeats + 1), (std::vector<int32_t>{0, 3, 3, 4}));
    // Positions 17 to 19 are in the first request's second block, position 4 in the other's first.
    const std::vector<int64_t> slots = {33, 34, 35, 52, 0, 0, 0, 0};
    EXPECT_EQ(step.download(batch.slot_mapping, kMaxRows), slots);
    for (int row = 0; row < kMaxRows; ++row) {
      const auto want = table_.begin() + tokens[row] * kDim;
      EXPECT_TRUE(std::equal(want, want + kDim, embedded.begin() + row * kDim)) << "row " << row;
    }
  }

  std::vector<float> table_;
};

TEST_P(PassRowsTest, AreMadeWhereTheirTokensAreLookedUp) {
  testing::BackendWorld world(GetParam(), kAct);
  const WeightView view = rows_of(0, kVocab);
  const auto packed = world.backend->pack_linear({.parts = {&view, 1}});
  const auto table = world.backend->embedding_from(*packed);
  Step step(*world.backend);
  int num_nodes = 0;
  const std::vector<float> embedded = step.embed(world, *table, num_nodes);
  expect_rows(step, embedded);
  EXPECT_EQ(num_nodes, 1);
}

// Each rank knows some of the tokens, so that a row's embedding is there after ranks have met.
TEST_P(PassRowsTest, AreMadeBeforeALookupThatRanksShare) {
  for (const int size : {1, 2}) {
    std::vector<int64_t> outputs;
    for (int rank = 0; rank <= size; ++rank) outputs.push_back(kVocab * rank / size);
    on_ranks(size, [&](Communicator& ranks) {
      testing::BackendWorld world(GetParam(), kAct);
      const WeightView own = rows_of(outputs[ranks.rank()], outputs[ranks.rank() + 1]);
      const auto share = world.backend->pack_linear(
          {.parts = {&own, 1}, .ranks = &ranks, .rank_outputs = outputs});
      const auto table = world.backend->embedding_from(*share);
      Step step(*world.backend);
      int num_nodes = 0;
      const std::vector<float> embedded = step.embed(world, *table, num_nodes);
      expect_rows(step, embedded);
      if (size == 1) {
        EXPECT_GT(num_nodes, 1) << "rows, lookup and exchange";
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, PassRowsTest, ::testing::ValuesIn(testing::device_kinds()),
                         testing::test_name);

}  // namespace
}  // namespace specdec::cuda
