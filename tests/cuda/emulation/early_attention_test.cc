// Attention reads lengths before it waits. That is right behind a kernel that lets it start after
// its own wait; behind other kernels the launch's reads_before_wait holds it back. Without this
// flag the emulated device shows what a GPU would do: attention reads old lengths.
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "cuda/kernels/attention.h"
#include "testing/device_kinds.h"
#include "testing/values.h"
#include "tests/cuda/emulation/emulation_kernels.h"

#ifdef SPECDEC_CUDA_EMULATION

namespace specdec::cuda::testing {
namespace {

using specdec::testing::random_values;
using specdec::testing::to_bits;

// Drops LaunchConfig::reads_before_wait.
class ForgetfulStream final : public Stream {
 public:
  explicit ForgetfulStream(Stream& stream) : stream_(stream) {}

  void submit(const KernelLaunch& launch) override {
    KernelLaunch changed = launch;
    changed.config.reads_before_wait = false;
    stream_.submit(changed);
  }
  void prepare(const KernelLaunch& launch) override { stream_.prepare(launch); }
  void copy_to_device(void* to, const void* from, size_t size_bytes) override {
    stream_.copy_to_device(to, from, size_bytes);
  }
  void copy_to_host(void* to, const void* from, size_t size_bytes) override {
    stream_.copy_to_host(to, from, size_bytes);
  }
  void copy(void* to, const void* from, size_t size_bytes) override {
    stream_.copy(to, from, size_bytes);
  }
  void fill(void* to, uint8_t value, size_t size_bytes) override {
    stream_.fill(to, value, size_bytes);
  }
  void call_library(const char* name, const std::function<void(void*)>& call) override {
    stream_.call_library(name, call);
  }
  void begin_capture() override { stream_.begin_capture(); }
  std::unique_ptr<Graph> end_capture() override { return stream_.end_capture(); }
  bool is_capturing() const override { return stream_.is_capturing(); }
  void launch(Graph& graph) override { stream_.launch(graph); }
  void record(Event& event) override { stream_.record(event); }
  void synchronize() override { stream_.synchronize(); }

 private:
  Stream& stream_;
};

class EarlyAttentionTest : public CudaDeviceTest {
 protected:
  // Heads so large that an SM has one block, which has all items: on the emulated device that block
  // starts early, whatever the schedule.
  static constexpr int kHeadDim = 256, kMultiprocessors = 1, kBlockSize = 16, kLength = 4;

  EarlyAttentionTest() {
    const auto values_of = [&](int count, int seed) {
      return upload(to_bits(random_values(count, seed), DType::kBF16));
    };
    q_ = values_of(kHeadDim, 1);
    keys_ = values_of(2 * kBlockSize * kHeadDim, 2);
    values_ = values_of(2 * kBlockSize * kHeadDim, 3);
    workspace_ = device().allocate(size_t{1} << 20, "test");
    cu_rows_ = upload(std::vector<int32_t>{0, 1});
    table_ = upload(std::vector<int32_t>{1});
    out_ = allocate<uint16_t>(kHeadDim);
  }

  // The result of one row. The kernel two before attention writes the context's length, or, if not
  // `written`, the length is in memory from the start.
  std::vector<uint16_t> attended(Stream& launches, int length, bool written, bool early) {
    Buffer length_on_device = upload(std::vector<int32_t>{written ? length - 1 : length});
    const EmulationKernels run = SPECDEC_KERNELS_FOR(GetParam(), emulation_kernels);
    run.idle(stream(), {.grid = {1}, .block = {32}});
    if (written) run.increment(launches, length_on_device.as<int>(), 1);
    run.pass_on(launches, early, early);
    kernels().attention.tree_attention(
        launches, {.q = q_.data(),
                   .out = out_.data(),
                   .act_dtype = DType::kBF16,
                   .batch = {.num_requests = 1,
                             .num_rows = 1,
                             .cu_rows = cu_rows_.as<int32_t>(),
                             .base_lens = length_on_device.as<int32_t>(),
                             .block_tables = table_.as<int32_t>(),
                             .max_blocks_per_request = 1},
                   .kv = {.keys = keys_.data(),
                          .values = values_.data(),
                          .dtype = DType::kBF16,
                          .num_blocks = 2,
                          .block_size = kBlockSize,
                          .num_kv_heads = 1,
                          .head_dim = kHeadDim},
                   .num_heads = 1,
                   .scale = 0.0625f,
                   .num_multiprocessors = kMultiprocessors,
                   .max_shared_bytes =
                       device().properties().max_shared_bytes_per_block - kMaxStaticSharedBytes,
                   .workspace = workspace_.data(),
                   .workspace_bytes = workspace_.size_bytes()});
    return download<uint16_t>(out_);
  }

  Buffer q_, keys_, values_, workspace_, cu_rows_, table_, out_;
};

TEST_P(EarlyAttentionTest, OldLengthsAreReadOnlyWhereTheLaunchHidesIt) {
  const std::vector<uint16_t> right = attended(stream(), kLength, /*written=*/false, false);
  const std::vector<uint16_t> old = attended(stream(), kLength - 1, /*written=*/false, false);
  ASSERT_NE(right, old);
  ForgetfulStream forgetful(stream());
  EXPECT_EQ(attended(stream(), kLength, true, /*early=*/false), right);
  EXPECT_EQ(attended(stream(), kLength, true, /*early=*/true), right);
  EXPECT_EQ(attended(forgetful, kLength, true, /*early=*/false), right);
  EXPECT_EQ(attended(forgetful, kLength, true, /*early=*/true), old) << "the planted fault";
}

std::vector<DeviceKind> emulated_kinds() {
  std::vector<DeviceKind> kinds = device_kinds();
  std::erase(kinds, DeviceKind::kGpu);
  return kinds;
}
INSTANTIATE_TEST_SUITE_P(Devices, EarlyAttentionTest, ::testing::ValuesIn(emulated_kinds()),
                         test_name);

}  // namespace
}  // namespace specdec::cuda::testing

#endif
