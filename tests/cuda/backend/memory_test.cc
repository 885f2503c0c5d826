// Shortage of device memory, on an emulated device with little of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "cuda/backend/cuda_backend.h"
#include "cuda/emulation/emulated_device.h"
#include "engine/sizes.h"
#include "kv/block_pool.h"
#include "runtime/batch_inputs.h"
#include "runtime/kv_cache.h"
#include "runtime/model_runner.h"
#include "specdec/error.h"
#include "testing/tiny_llama.h"

namespace specdec::cuda {
namespace {

namespace tiny = specdec::testing::tiny_llama;

constexpr int64_t kMiB = int64_t{1} << 20;

CudaBackend backend_with(int64_t memory_bytes) {
  return CudaBackend(make_emulated_device({.memory_bytes = memory_bytes}), emulated::kernel_table(),
                     DType::kBF16);
}

// The message of the call's OutOfMemory; empty without one.
template <class Call>
std::string shortage_of(Call&& call) {
  try {
    call();
  } catch (const OutOfMemory& error) {
    return error.what();
  }
  return "";
}

KvCacheShape cache_shape() {
  return {.layers = {2, {.num_kv_heads = 2, .head_dim = 64}},
          .format = {.block_size = 16, .dtype = DType::kBF16}};
}

TEST(CudaMemory, IsTheDevices) {
  CudaBackend backend = backend_with(64 * kMiB);
  const MemoryInfo before = backend.memory();
  EXPECT_EQ(before.total_bytes, 64 * kMiB);
  EXPECT_LE(before.free_bytes, before.total_bytes);
  const Buffer buffer = backend.allocate(kMiB, "a test");
  EXPECT_LE(backend.memory().free_bytes, before.free_bytes - kMiB);
}

TEST(CudaMemory, WeightsThatDoNotFitSayWhatToDo) {
  const specdec::testing::TempDirectory directory;
  tiny::write_checkpoint(directory, tiny::llama_tensors());
  const ModelConfig model = load_model_config(directory.path());
  CudaBackend backend = backend_with(16 * kMiB);
  const Buffer others = backend.allocate(backend.memory().free_bytes - 2048, "a test");
  const std::string shortage = shortage_of([&] {
    ModelRunner(model, directory.path(), backend,
                {.max_model_len = 64, .max_rows = 64, .max_logit_rows = 4});
  });
  for (const char* part : {"device memory", "quantization=\"int8\"", "smaller model"}) {
    EXPECT_NE(shortage.find(part), std::string::npos) << shortage;
  }
}

TEST(CudaMemory, AnOpenCacheFitsAndLeavesTheRest) {
  CudaBackend backend = backend_with(64 * kMiB);
  const Buffer weights = backend.allocate(20 * kMiB, "weights");
  EngineConfig config;
  config.gpu_memory_utilization = 0.75;
  const int64_t block_bytes = KvCache::block_bytes(backend, cache_shape());
  const MemoryInfo memory = backend.memory();
  const CacheSize size = resolve_cache_size(config, DeviceKind::kGpu, 128, block_bytes,
                                            cache_shape().layers.front().num_kv_heads, memory);
  const KvCache cache(backend, cache_shape(), size.num_blocks);
  // 48 MiB less the bytes in use and 1 MiB for later; the null block is extra.
  const int64_t left = 47 * kMiB - (memory.total_bytes - memory.free_bytes);
  EXPECT_LE(cache.size_bytes(), left + block_bytes);
  EXPECT_GT(cache.size_bytes(), left - block_bytes);
  EXPECT_GE(backend.memory().free_bytes, 16 * kMiB);
}

// Bytes that the first step of many rows allocates, beside those for its batch.
int64_t bytes_of_first_large_step(bool rehearse) {
  constexpr int kRows = 512;
  const specdec::testing::TempDirectory directory;
  tiny::write_checkpoint(directory, tiny::llama_tensors());
  CudaBackend backend = backend_with(64 * kMiB);
  ModelRunner runner(load_model_config(directory.path()), directory.path(), backend,
                     {.max_model_len = kRows, .max_rows = kRows, .max_logit_rows = 64});
  const KvFormat format = {.block_size = 16, .dtype = DType::kBF16};
  if (rehearse) runner.rehearse(format);
  constexpr int kNumBlocks = kRows / 16;
  runner.allocate_cache(kNumBlocks, format);
  BlockPool pool(kNumBlocks);
  BlockTable blocks(16);
  EXPECT_TRUE(blocks.reserve(pool, kRows));
  BatchInputs inputs;
  const auto run = [&](int num_rows) {
    const std::vector<int32_t> tokens(num_rows, 1);
    inputs.clear();
    inputs.add_chain(tokens, 0, blocks);
    runner.forward(inputs);
    std::vector<int32_t> row_ids(std::min(num_rows, 64));
    std::vector<SampleResult> results(row_ids.size());
    runner.sample(row_ids, std::vector<SampleRow>(row_ids.size()), LogprobsMode::kRaw, results);
  };
  run(1);
  const int64_t before = backend.memory().free_bytes;
  run(kRows);
  run(96);
  run(16);
  return before - backend.memory().free_bytes;
}

TEST(CudaMemory, WhatStepsTakeIsTakenBeforeTheCache) {
  EXPECT_GT(bytes_of_first_large_step(/*rehearse=*/false), 128 << 10);
  EXPECT_LE(bytes_of_first_large_step(/*rehearse=*/true), 32 << 10);
}

TEST(CudaMemory, WhatRequestsMayWantOfDeviceStepsIsKnown) {
  const specdec::testing::TempDirectory directory;
  tiny::write_checkpoint(directory, tiny::llama_tensors());
  CudaBackend backend = backend_with(64 * kMiB);
  ModelRunner runner(load_model_config(directory.path()), directory.path(), backend,
                     {.max_model_len = 64, .max_rows = 64, .max_logit_rows = 4});
  // Made before the KV cache.
  const auto step = backend.make_device_step({.num_seats = 2,
                                              .max_rows = 64,
                                              .block_size = 16,
                                              .max_blocks_per_request = 4,
                                              .max_logprobs = 20,
                                              .target = &runner});
  runner.allocate_cache(4, {.block_size = 16, .dtype = DType::kBF16});
  const std::vector<int32_t> tokens = {5};
  const std::vector<int32_t> blocks = {1};
  DeviceSeat seat = {.is_active = true,
                     .num_tokens = 1,
                     .num_prompt_tokens = 1,
                     .max_num_tokens = 9,
                     .tokens = tokens,
                     .stop_token_ids = {},
                     .sampling = {},
                     .blocks = blocks};
  const std::vector<uint32_t> any_token(static_cast<size_t>(runner.vocab_size() + 31) / 32, ~0u);
  const HostMasks grammar = {.seat = 0, .nodes = {any_token}};
  const auto run = [&](bool wants_all) {
    step->set_seats({&seat, 1});
    step->launch({.num_seats = 1,
                  .masks = std::span(&grammar, wants_all ? 1 : 0),
                  .want_logprobs = wants_all});
    EXPECT_EQ(step->wait().sequences[0].logprobs.size(), wants_all ? 1u : 0u);
  };
  run(false);
  backend.stage_ids(tokens);  // staging grows in pieces: this allocates the first
  const int64_t before = backend.memory().free_bytes;
  const int64_t expected = step->bytes_on_demand();
  const std::vector<TokenCount> counts = {{.token_id = 5, .output_count = 1}};
  seat.sampling.repetition_penalty = 1.5f;
  seat.sampling.counts = counts;
  seat.sampling.want_logprobs = true;
  run(true);
  EXPECT_EQ(before - backend.memory().free_bytes, expected);
  EXPECT_GT(expected, 0);
  EXPECT_EQ(step->bytes_on_demand(), 0);
}

TEST(CudaMemory, HeadsThatSharedMemoryDoesNotHoldAreRefused) {
  const auto refused_by = [](int compute_capability, int head_dim) -> std::string {
    CudaBackend backend(make_emulated_device({.compute_capability = compute_capability}),
                        emulated::kernel_table(), DType::kBF16);
    KvCacheShape shape = cache_shape();
    for (KvLayerShape& layer : shape.layers) layer.head_dim = head_dim;
    try {
      KvCache(backend, shape, 1);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(refused_by(86, 256).find("101376 bytes"), std::string::npos);
  EXPECT_EQ(refused_by(86, 128), "");
  EXPECT_NE(refused_by(86, 512).find("101376 bytes"), std::string::npos);
  EXPECT_EQ(refused_by(80, 256), "");
  EXPECT_EQ(refused_by(80, 512), "");
}

TEST(CudaMemory, ACacheThatDoesNotFitSaysWhatToLower) {
  CudaBackend backend = backend_with(16 * kMiB);
  const int64_t free_bytes = backend.memory().free_bytes;
  const std::string shortage = shortage_of([&] { KvCache(backend, cache_shape(), 4096); });
  for (const char* part : {"4096 blocks", "kv_cache_memory_bytes", "gpu_memory_utilization"}) {
    EXPECT_NE(shortage.find(part), std::string::npos) << shortage;
  }
  // The failed attempt keeps no memory.
  EXPECT_EQ(backend.memory().free_bytes, free_bytes);
}

}  // namespace
}  // namespace specdec::cuda
