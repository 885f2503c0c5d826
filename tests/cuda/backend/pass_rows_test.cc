// The rows of a device step's pass, made from its seats.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "cuda/backend/cuda_backend.h"
#include "cuda/backend/device_array.h"
#include "cuda/kernels/step.h"
#include "testing/device_kinds.h"

namespace specdec::cuda {
namespace {

constexpr int kSeats = 3, kMaxRows = 8, kBlockSize = 16;

// Two requests' tokens that the draft model has not seen, in a batch of three seats.
const std::vector<int32_t> kTokens = {100, 0, 33, 34};
const std::vector<int32_t> kPositions = {17, 18, 19, 4};

// A device step's memory for a first draft pass.
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
                           .states = nullptr,
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

class PassRowsTest : public ::testing::TestWithParam<testing::DeviceKind> {};

TEST_P(PassRowsTest, OfAFirstDraftPassAreTheTokensThatItsModelHasNotSeen) {
  testing::BackendWorld world(GetParam(), DType::kBF16);
  Step step(*world.backend);
  testing::kernels_for(GetParam())
      .step.make_rows(world.backend->stream(), PassRows::kDraft, step.params);
  const StepBatch& batch = step.params.memory.batch;
  std::vector<int32_t> tokens = kTokens, positions = kPositions;
  tokens.resize(kMaxRows);  // padding: token 0 at position 0
  positions.resize(kMaxRows);
  EXPECT_EQ(step.download(batch.token_ids, kMaxRows), tokens);
  EXPECT_EQ(step.download(batch.positions, kMaxRows), positions);
  EXPECT_EQ(step.download(batch.cu_rows, kSeats + 1), (std::vector<int32_t>{0, 3, 3, 4}));
  // Positions 17 to 19 are in the first request's second block, position 4 in the second request's
  // first.
  const std::vector<int64_t> slots = {33, 34, 35, 52, 0, 0, 0, 0};
  EXPECT_EQ(step.download(batch.slot_mapping, kMaxRows), slots);
}

INSTANTIATE_TEST_SUITE_P(Devices, PassRowsTest, ::testing::ValuesIn(testing::device_kinds()),
                         testing::test_name);

}  // namespace
}  // namespace specdec::cuda
