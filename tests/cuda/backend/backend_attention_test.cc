// Attention as a backend runs it: over staged batches, with work lists that layers share.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "cuda/backend/attention_work_lists.h"
#include "testing/cuda_attention.h"
#include "testing/device_kinds.h"
#include "testing/paged_world.h"
#include "testing/request_mixture.h"
#include "testing/thrown.h"

namespace specdec::cuda::testing {
namespace {

using specdec::testing::error_of;
using specdec::testing::make_mixture;
using specdec::testing::Mixture;
using specdec::testing::PagedWorld;
using specdec::testing::RowBytes;

// A world's batch, queries and cache on a backend.
class BackendAttention {
 public:
  explicit BackendAttention(CudaBackend& backend) : backend_(backend) { backend.begin_step(); }

  template <class T>
  void* move(const std::vector<T>& values) {
    copies_.push_back(backend_.allocate(values.size() * sizeof(T), "test"));
    backend_.stream().copy_to_device(copies_.back().data(), values.data(),
                                     values.size() * sizeof(T));
    backend_.stream().synchronize();
    return copies_.back().data();
  }

  RowBytes run(TreeAttentionArgs args, size_t num_rows, size_t row_bytes) {
    // A staged batch may be padded.
    const size_t padded = static_cast<size_t>(args.batch->num_rows) * row_bytes;
    args.out = move(std::vector<uint8_t>(padded, 0xff));
    backend_.tree_attention(args);
    RowBytes rows(num_rows, std::vector<uint8_t>(row_bytes));
    for (size_t row = 0; row < num_rows; ++row) {
      backend_.stream().copy_to_host(rows[row].data(),
                                     static_cast<char*>(args.out) + row * row_bytes, row_bytes);
    }
    backend_.stream().synchronize();
    return rows;
  }

 private:
  CudaBackend& backend_;
  std::vector<Buffer> copies_;
};

class BackendAttentionTest : public AttentionTest {};

TEST_P(BackendAttentionTest, BackendTakesStagedBatches) {
  PagedWorld world =
      make_world({.num_kv_heads = 2, .group_size = 2, .head_dim = 64, .has_sinks = true}, 140);
  Mixture mixture = make_mixture(world);
  const RowBytes want = attend(world, mixture.pointers());
  const auto backend = make_backend(GetParam(), DType::kBF16);
  BackendAttention on_backend(*backend);
  const BatchView batch = backend->stage(world.batch());
  TreeAttentionArgs args = world.attention_args();
  args.batch = &batch;
  args.q = on_backend.move(q_);
  args.kv.dtype = DType::kBF16;
  EXPECT_EQ(backend->kv_layer_bytes(args.kv), keys_.size());
  args.sinks = static_cast<const float*>(on_backend.move(world.sinks()));
  args.kv.keys = on_backend.move(keys_);
  args.kv.values = on_backend.move(values_);
  ASSERT_GE(batch.num_rows, world.batch().num_rows);
  EXPECT_EQ(on_backend.run(args, want.size(), want[0].size()), want);
}

// Two passes of layers, with and without a window in turn, whose batches have the same addresses:
// each layer computes what it would compute alone.
TEST_P(BackendAttentionTest, ABackendHasAPlanForEachKindOfLayersAndEachPass) {
  PagedWorld world = make_world({.num_kv_heads = 2, .group_size = 2, .head_dim = 64}, 140);
  Mixture mixture = make_mixture(world);
  const auto backend = make_backend(GetParam(), DType::kBF16);
  BackendAttention on_backend(*backend);
  const int32_t* lengths = nullptr;
  for (const bool swapped : {false, true}) {
    if (swapped) std::swap(mixture.requests[0], mixture.requests[3]);  // 5 rows and 1
    std::vector<RowBytes> want;
    for (const int window : {0, 90}) {
      shape_.sliding_window = window;
      want.push_back(attend(world, mixture.pointers()));
    }
    ASSERT_NE(want[0], want[1]);
    const BatchView batch = backend->stage(world.batch());
    if (swapped) {
      ASSERT_EQ(batch.base_lens, lengths);
    }
    lengths = batch.base_lens;
    TreeAttentionArgs args = world.attention_args();
    args.batch = &batch;
    args.q = on_backend.move(q_);
    args.kv.dtype = DType::kBF16;
    args.kv.keys = on_backend.move(keys_);
    args.kv.values = on_backend.move(values_);
    for (const int layer : {0, 1, 2, 3}) {
      args.sliding_window = layer % 2 == 0 ? 0 : 90;
      EXPECT_EQ(on_backend.run(args, want[0].size(), want[0][0].size()), want[layer % 2])
          << "layer " << layer << " of pass " << swapped;
    }
  }
}

TEST_P(BackendAttentionTest, APassHasAFewWorkLists) {
  const auto backend = make_backend(GetParam(), DType::kBF16);
  AttentionWorkLists work_lists(backend->device());
  const BatchView batch = {.num_requests = 2, .num_rows = 3};
  TreeAttentionArgs args = {};
  args.batch = &batch;
  args.num_heads = 4;
  std::vector<AttentionWorkList> made;
  for (int kind = 0; made.size() < 10; ++kind) {
    args.sliding_window = 100 * kind;
    const AttentionWorkList work_list = work_lists.list_of(args);
    if (work_list.memory == nullptr) break;
    EXPECT_FALSE(work_list.is_made);
    for (const AttentionWorkList& other : made) EXPECT_NE(work_list.memory, other.memory);
    made.push_back(work_list);
  }
  ASSERT_GE(made.size(), 2u);
  ASSERT_LT(made.size(), 10u) << "memory has an end";
  for (size_t kind = 0; kind < made.size(); ++kind) {
    args.sliding_window = static_cast<int>(100 * kind);
    const AttentionWorkList work_list = work_lists.list_of(args);
    EXPECT_TRUE(work_list.is_made);
    EXPECT_EQ(work_list.memory, made[kind].memory);
  }
  work_lists.begin_pass();
  EXPECT_FALSE(work_lists.list_of(args).is_made);
  backend->device().set_launch_settings({.work_lists = false});
  EXPECT_EQ(work_lists.list_of(args).memory, nullptr);
}

TEST_P(BackendAttentionTest, LargeHeadsWithASoftCapAreRefused) {
  PagedWorld world = make_world({.num_kv_heads = 1, .group_size = 2, .head_dim = 264}, 140);
  Mixture mixture = make_mixture(world);
  world.build(mixture.pointers());
  const auto backend = make_backend(GetParam(), DType::kBF16);
  TreeAttentionArgs args = world.attention_args();
  args.kv.dtype = DType::kBF16;
  args.soft_cap = 50.0f;
  const auto error = error_of<InvalidArgument>([&] { backend->tree_attention(args); });
  EXPECT_EQ(error.field(), "model");
  for (const char* part : {"attn_logit_softcapping", "264", "device='cpu'"}) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, BackendAttentionTest, ::testing::ValuesIn(device_kinds()),
                         test_name);

}  // namespace
}  // namespace specdec::cuda::testing
