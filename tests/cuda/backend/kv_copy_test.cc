// Moves of tokens' keys and values between slots of the cache on the device.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "specdec/error.h"
#include "testing/device_kinds.h"

namespace specdec::cuda::testing {
namespace {

class KvCopyTest : public ::testing::TestWithParam<DeviceKind> {};

TEST_P(KvCopyTest, MovesSlotsInEveryLayer) {
  const auto backend = make_backend(GetParam(), DType::kBF16);
  for (const DType dtype : {DType::kBF16, DType::kI8}) {
    PagedKvView shape = {
        .dtype = dtype, .num_blocks = 5, .block_size = 16, .num_kv_heads = 2, .head_dim = 48};
    const size_t size_bytes = backend->kv_layer_bytes(shape);
    const size_t row_bytes = shape.head_dim * size_of(dtype);
    EXPECT_EQ(size_bytes, 5 * 16 * 2 * (row_bytes + (dtype == DType::kI8 ? 4 : 0)));
    std::vector<Buffer> buffers;
    std::vector<std::vector<uint8_t>> contents;
    std::vector<PagedKvView> layers(3, shape);
    std::mt19937 random(1);
    for (PagedKvView& layer : layers) {
      for (void** part : {&layer.keys, &layer.values}) {
        std::vector<uint8_t> bytes(size_bytes);
        for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
        buffers.push_back(backend->allocate(size_bytes, "test"));
        *part = buffers.back().data();
        backend->stream().copy_to_device(*part, bytes.data(), size_bytes);
        backend->stream().synchronize();
        contents.push_back(std::move(bytes));
      }
    }
    // Two requests; the first has more pairs than the kernel reads at once.
    std::vector<std::pair<int64_t, int64_t>> pairs;
    for (int64_t i = 0; i < 12; ++i) pairs.emplace_back(17 + 2 * i, 17 + i);
    pairs.emplace_back(66, 65);
    pairs.emplace_back(70, 66);
    backend->begin_step();
    backend->copy_kv({.layers = layers, .slots = pairs});
    const int64_t num_rows = 5 * 16 * 2;
    for (size_t i = 0; i < buffers.size(); ++i) {
      std::vector<uint8_t>& want = contents[i];
      for (const auto& [from, to] : pairs) {
        for (int head = 0; head < 2; ++head) {
          const int64_t source = (from / 16 * 2 + head) * 16 + from % 16;
          const int64_t target = (to / 16 * 2 + head) * 16 + to % 16;
          std::memcpy(&want[target * row_bytes], &want[source * row_bytes], row_bytes);
          if (dtype == DType::kI8) {
            std::memcpy(&want[num_rows * row_bytes + target * 4],
                        &want[num_rows * row_bytes + source * 4], 4);
          }
        }
      }
      std::vector<uint8_t> got(size_bytes);
      backend->stream().copy_to_host(got.data(), buffers[i].data(), size_bytes);
      backend->stream().synchronize();
      EXPECT_EQ(got, want) << i;
    }
  }
}

TEST_P(KvCopyTest, HeadsThatNoKernelTakesAreRefused) {
  const auto backend = make_backend(GetParam(), DType::kF16);
  PagedKvView shape = {
      .dtype = DType::kF16, .num_blocks = 5, .block_size = 16, .num_kv_heads = 2, .head_dim = 520};
  EXPECT_THROW(backend->kv_layer_bytes(shape), InvalidArgument);
  shape.head_dim = 512;
  EXPECT_GT(backend->kv_layer_bytes(shape), 0u);
  shape.head_dim = 72;
  EXPECT_GT(backend->kv_layer_bytes(shape), 0u);
  shape.dtype = DType::kI8;
  EXPECT_THROW(backend->kv_layer_bytes(shape), InvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Devices, KvCopyTest, ::testing::ValuesIn(device_kinds()), test_name);

}  // namespace
}  // namespace specdec::cuda::testing
