#include "engine/sizes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "specdec/error.h"
#include "testing/thrown.h"
#include "testing/with_drafter.h"

namespace specdec {
namespace {

using testing::refused_field;

EngineConfig valid_config() {
  EngineConfig config;
  config.model = "checkpoint";
  return config;
}

TEST(Sizes, NoRopeScalingStretchesThePositionsOutOfRange) {
  for (const RopeKind kind : {RopeKind::kLinear, RopeKind::kDynamic, RopeKind::kYarn}) {
    ModelConfig model;
    model.max_position_embeddings = 1000;
    model.ropes = {{.kind = kind, .factor = 1e300, .original_max_position_embeddings = 1000}};
    EXPECT_EQ(max_positions(model), std::numeric_limits<int>::max());
  }
}

TEST(Sizes, PositionsAreNoMoreThanACacheCouldHold) {
  ModelConfig model;
  const AttentionHeads heads = {.num_heads = 4, .num_kv_heads = 4, .head_dim = 8};
  model.layers.assign(2, {.heads = heads});  // 256 bytes a token of bfloat16
  const KvFormat format = {.block_size = 16, .dtype = DType::kBF16};
  const MemoryInfo memory = {.total_bytes = 1 << 20, .free_bytes = 1 << 19};
  const auto limit = [&](const EngineConfig& config, DeviceKind device) {
    return limit_to_cache(1'000'000, config, device, model, format, memory);
  };
  EngineConfig config = valid_config();
  config.block_size = 16;
  EXPECT_EQ(limit(config, DeviceKind::kCpu), (1 << 18) / 256);
  EXPECT_EQ(limit(config, DeviceKind::kGpu), (1 << 20) / 256);
  config.kv_cache_memory_bytes = 100 * 256;
  EXPECT_EQ(limit(config, DeviceKind::kCpu), 100);
  config.kv_cache_memory_bytes = 1;
  EXPECT_EQ(limit(config, DeviceKind::kCpu), config.block_size);
  config.kv_cache_memory_bytes = 0;
  config.num_kv_blocks = 4;
  EXPECT_EQ(limit(config, DeviceKind::kCpu), 64);
  config.max_model_len = 1'000'000;  // as asked, to be refused by name when the cache is made
  EXPECT_EQ(limit(config, DeviceKind::kCpu), 1'000'000);
  config = valid_config();
  constexpr int kMost = std::numeric_limits<int>::max();
  model.layers.assign(2, {.heads = {kMost, kMost, kMost}});
  EXPECT_EQ(limit(config, DeviceKind::kCpu), config.block_size);
}

TEST(Sizes, RopeScalingStretchesThePositions) {
  ModelConfig model;
  model.max_position_embeddings = 1000;
  model.ropes = {{.factor = 4.0}};
  for (const auto& [kind, longest] : std::vector<std::pair<RopeKind, int>>{
           {RopeKind::kDefault, 1000},
           {RopeKind::kLinear, 4000},
           {RopeKind::kDynamic, 4000},
           {RopeKind::kLlama3, 1000},
           {RopeKind::kYarn, 4000},
       }) {
    model.ropes.front().kind = kind;
    EngineConfig config = valid_config();
    EXPECT_EQ(resolve_max_model_len(config, model), longest);
    config.max_model_len = longest;
    EXPECT_EQ(resolve_max_model_len(config, model), longest);
    config.max_model_len = longest + 1;
    EXPECT_EQ(refused_field([&] { resolve_max_model_len(config, model); }), "max_model_len");
  }
}

TEST(Sizes, OpenSizesAreLargerOnAGpu) {
  EngineConfig open = valid_config();
  fill_defaults(open, DeviceKind::kCpu);
  EXPECT_EQ(open.max_num_seqs, 64);
  EXPECT_EQ(open.max_num_batched_tokens, 512);
  open = valid_config();
  fill_defaults(open, DeviceKind::kGpu);
  EXPECT_EQ(open.max_num_seqs, 256);
  EXPECT_EQ(open.max_num_batched_tokens, 8192);
  open.max_num_seqs = 3;
  open.max_num_batched_tokens = 4;
  fill_defaults(open, DeviceKind::kGpu);
  EXPECT_EQ(open.max_num_seqs, 3);
  EXPECT_EQ(open.max_num_batched_tokens, 4);
}

TEST(Sizes, TheDtypeIsOneTheDeviceComputesIn) {
  struct Case {
    DType checkpoint;
    ModelDType asked;
    DType cpu;
    DType gpu;
  };
  ModelConfig model;
  EngineConfig config = valid_config();
  for (const Case& one : std::vector<Case>{
           {DType::kF32, ModelDType::kAuto, DType::kF32, DType::kBF16},
           {DType::kBF16, ModelDType::kAuto, DType::kBF16, DType::kBF16},
           {DType::kF16, ModelDType::kAuto, DType::kBF16, DType::kF16},
           {DType::kF16, ModelDType::kBFloat16, DType::kBF16, DType::kBF16},
       }) {
    model.checkpoint_dtype = one.checkpoint;
    config.dtype = one.asked;
    EXPECT_EQ(resolve_dtype(config, model, DeviceKind::kCpu), one.cpu);
    EXPECT_EQ(resolve_dtype(config, model, DeviceKind::kGpu), one.gpu);
  }
  config.dtype = ModelDType::kFloat16;
  EXPECT_EQ(resolve_dtype(config, model, DeviceKind::kGpu), DType::kF16);
  EXPECT_EQ(resolve_dtype(config, model, DeviceKind::kCpu), DType::kBF16);
  config.dtype = ModelDType::kFloat32;
  EXPECT_EQ(resolve_dtype(config, model, DeviceKind::kCpu), DType::kF32);
  EXPECT_EQ(refused_field([&] { resolve_dtype(config, model, DeviceKind::kGpu); }), "dtype");
}

// The cache of one request of `max_model_len` tokens, in blocks of 1 KiB.
CacheSize cpu_cache(const EngineConfig& config, int max_model_len, int64_t free_bytes) {
  return resolve_cache_size(config, DeviceKind::kCpu, max_model_len, 1024, /*num_kv_heads=*/2,
                            {.total_bytes = int64_t{1} << 40, .free_bytes = free_bytes});
}

TEST(Sizes, CacheTooSmallForAFixedLengthIsRefusedAndLowersAnOpenOne) {
  EngineConfig config = valid_config();
  config.num_kv_blocks = 4;
  EXPECT_EQ(cpu_cache(config, 1000, 0).max_model_len, 64);
  config.max_model_len = 1000;
  EXPECT_EQ(refused_field([&] { cpu_cache(config, 1000, 0); }), "num_kv_blocks");
  config.num_kv_blocks = 0;
  config.kv_cache_memory_bytes = 4 * 1024;
  EXPECT_EQ(refused_field([&] { cpu_cache(config, 1000, 0); }), "kv_cache_memory_bytes");
}

TEST(Sizes, ACacheOfNoBlockIsRefused) {
  EngineConfig config = valid_config();
  config.max_num_seqs = 1;
  config.kv_cache_memory_bytes = 1023;
  EXPECT_EQ(refused_field([&] { cpu_cache(config, 16, 0); }), "kv_cache_memory_bytes");
  config.kv_cache_memory_bytes = 0;
  EXPECT_THROW(cpu_cache(config, 16, 1024), OutOfMemory);
}

TEST(Sizes, ACacheBeyondTheFreeMemoryIsRefusedWithWhatFits) {
  EngineConfig config = valid_config();
  const auto refusal = [&] {
    try {
      cpu_cache(config, 16, 100 * 1024 + 5);
      return std::string();
    } catch (const InvalidArgument& error) {
      return error.field() + ": " + error.what();
    }
  };
  config.num_kv_blocks = 100;
  EXPECT_EQ(refusal(), "");
  config.num_kv_blocks = 101;
  EXPECT_NE(refusal().find(" 100 is the most"), std::string::npos) << refusal();
  config.num_kv_blocks = 0;
  config.kv_cache_memory_bytes = int64_t{1} << 40;
  EXPECT_NE(refusal().find(" 102400 is the most"), std::string::npos) << refusal();
  EXPECT_EQ(refusal().find("kv_cache_memory_bytes"), 0u);
}

TEST(Sizes, PositionsTimesHeadsAreCountedIn32Bits) {
  EngineConfig config = valid_config();
  config.num_kv_blocks = std::numeric_limits<int>::max();
  for (const int heads : {1, 127, 128, 129, 1024, 1 << 20}) {
    for (const DeviceKind device : {DeviceKind::kCpu, DeviceKind::kGpu}) {
      const int num_blocks = resolve_cache_size(config, device, 16, 1024, heads, {}).num_blocks;
      EXPECT_GE(num_blocks, 1);
      // With the null block.
      const int64_t rows = (int64_t{num_blocks} + 1) * config.block_size * heads;
      EXPECT_LE(rows, std::numeric_limits<int32_t>::max()) << heads;
      if (heads >= 128) {
        EXPECT_GT(rows + int64_t{config.block_size} * heads, std::numeric_limits<int32_t>::max());
      }
    }
  }
}

TEST(Sizes, AnOpenCacheHoldsEverySequenceWithinHalfOfTheMemory) {
  EngineConfig config = valid_config();
  config.max_num_seqs = 4;
  EXPECT_EQ(cpu_cache(config, 160, int64_t{1} << 30).num_blocks, 40);
  EXPECT_EQ(cpu_cache(config, 160, 40 * 1024).num_blocks, 20);
}

constexpr int64_t kGiB = int64_t{1} << 30;

CacheSize gpu_cache(const EngineConfig& config, int max_model_len, int64_t block_bytes,
                    int64_t free_bytes) {
  return resolve_cache_size(config, DeviceKind::kGpu, max_model_len, block_bytes,
                            /*num_kv_heads=*/2,
                            {.total_bytes = 64 * kGiB, .free_bytes = free_bytes});
}

TEST(Sizes, OnAGpuTheCacheIsWhatItsShareLeavesBesideAReserve) {
  EngineConfig config = valid_config();
  config.max_num_seqs = 1;
  config.gpu_memory_utilization = 0.5;
  // 32 GiB allowed, 20 GiB in use, 1 GiB for later.
  EXPECT_EQ(gpu_cache(config, 160, 1 << 20, 44 * kGiB).num_blocks, 11 * 1024);
  config.gpu_memory_utilization = 1;
  EXPECT_EQ(gpu_cache(config, 160, 1 << 20, 44 * kGiB).num_blocks, 43 * 1024);
  config.num_kv_blocks = 12;
  EXPECT_EQ(gpu_cache(config, 160, 1 << 20, 44 * kGiB).num_blocks, 12);
  config.num_kv_blocks = 0;
  config.kv_cache_memory_bytes = 13 << 20;
  EXPECT_EQ(gpu_cache(config, 160, 1 << 20, 44 * kGiB).num_blocks, 13);
}

TEST(Sizes, TheCacheLeavesRoomForStates) {
  EngineConfig config = valid_config();
  config.max_num_seqs = 4;
  config.speculative = {};
  const StateBytes bytes = {.slot = kGiB, .record = 5};
  const MemoryInfo memory = {.total_bytes = 64 * kGiB, .free_bytes = 10 * kGiB};
  EXPECT_EQ(bytes_for_states(config, DeviceKind::kGpu, bytes, memory), 4 * kGiB + 2 * kGiB);
  EXPECT_EQ(bytes_for_states(config, DeviceKind::kCpu, bytes, memory), 4 * kGiB);
  config.num_kv_blocks = 12;
  EXPECT_EQ(bytes_for_states(config, DeviceKind::kGpu, bytes, memory), 4 * kGiB);
  config.max_num_seqs = 10;
  EXPECT_EQ(
      testing::refused_field([&] { bytes_for_states(config, DeviceKind::kGpu, bytes, memory); }),
      "max_num_seqs");
}

TEST(Sizes, SequencesHaveRoomForTheirStates) {
  EngineConfig config = valid_config();
  config.max_num_seqs = 64;
  config.speculative = {};
  const MemoryInfo memory = {.total_bytes = 64 * kGiB, .free_bytes = 8 * kGiB};
  EXPECT_EQ(fit_num_seqs(config, {.slot = kGiB / 8}, memory), 16);
  EXPECT_EQ(fit_num_seqs(config, {.slot = 1000}, memory), 64);
  EXPECT_EQ(fit_num_seqs(config, {.slot = 5 * kGiB}, memory), 1);
  config.speculative.drafters = {testing::drafter_of(DraftMethod::kNgram)};
  config.speculative.num_speculative_tokens = 4;
  EXPECT_EQ(fit_num_seqs(config, {.slot = kGiB / 8, .record = kGiB / 64}, memory), 8);
}

TEST(Sizes, StatesOfPrefixesTakeTheMemoryOfTheCache) {
  EngineConfig config = valid_config();
  config.max_num_seqs = 4;
  config.speculative = {};
  ModelConfig model;
  model.layers.resize(2);
  model.layers[0].heads = {.num_heads = 4, .num_kv_heads = 2, .head_dim = 16};
  model.layers[1].mixer = Mixer::kShortConv;
  model.layers[1].state = {.conv_channels = 640, .conv_width = 3};
  const KvFormat format = {.block_size = 16, .dtype = DType::kF32};
  const StateBytes bytes = {.slot = 640 * 2 * 4};
  const MemoryInfo memory = {.total_bytes = 64 * kGiB, .free_bytes = 8 * kGiB};
  const StateConfig states = resolve_states(config, model, format, 100 * bytes.slot, bytes, memory);
  EXPECT_EQ(states.num_slots, 4);
  EXPECT_EQ(states.num_cached, 104);
  EXPECT_EQ(states.interval, 20);  // tokens of 2 * 2 * 16 floats
  config.enable_prefix_caching = false;
  EXPECT_EQ(resolve_states(config, model, format, 100 * bytes.slot, bytes, memory).num_cached, 0);
}

TEST(Sizes, AGpuWithoutRoomSaysWhatToChange) {
  EngineConfig config = valid_config();
  config.gpu_memory_utilization = 0.5;
  const std::string message =  // 31 of 32 GiB in use and 1 GiB for later
      testing::error_of<OutOfMemory>([&] { gpu_cache(config, 160, 1 << 20, 33 * kGiB); }).what();
  for (const char* part : {"gpu_memory_utilization 0.5", "32768 MiB", "31744 MiB", "int8"}) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
  // Room for two blocks of 16 tokens: too few for a length that was asked for.
  const int64_t free_bytes = 33 * kGiB + (2 << 20);
  EXPECT_EQ(gpu_cache(config, 160, 1 << 20, free_bytes).max_model_len, 32);
  config.max_model_len = 160;
  EXPECT_EQ(refused_field([&] { gpu_cache(config, 160, 1 << 20, free_bytes); }),
            "gpu_memory_utilization");
}

}  // namespace
}  // namespace specdec
