#include "engine/limits.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "specdec/error.h"
#include "testing/refused_field.h"

namespace specdec {
namespace {

using testing::refused_field;

EngineConfig valid_config() {
  EngineConfig config;
  config.model = "checkpoint";
  return config;
}

TEST(Limits, EachBadFieldIsNamed) {
  struct Case {
    const char* field;
    std::function<void(EngineConfig&)> spoil;
  };
  const std::vector<Case> cases = {
      {"model", [](EngineConfig& c) { c.model = ""; }},
      {"dtype", [](EngineConfig& c) { c.dtype = "float16"; }},
      {"quantization", [](EngineConfig& c) { c.quantization = "awq"; }},
      {"kv_cache_dtype", [](EngineConfig& c) { c.kv_cache_dtype = "fp8"; }},
      {"max_model_len", [](EngineConfig& c) { c.max_model_len = -1; }},
      {"max_num_seqs", [](EngineConfig& c) { c.max_num_seqs = 0; }},
      {"max_num_batched_tokens", [](EngineConfig& c) { c.max_num_batched_tokens = 0; }},
      {"kv_cache_memory_bytes", [](EngineConfig& c) { c.kv_cache_memory_bytes = -1; }},
      {"num_kv_blocks", [](EngineConfig& c) { c.num_kv_blocks = -1; }},
      {"num_kv_blocks",
       [](EngineConfig& c) {
         c.num_kv_blocks = 1;
         c.kv_cache_memory_bytes = 1;
       }},
      {"block_size", [](EngineConfig& c) { c.block_size = 8; }},
      {"block_size", [](EngineConfig& c) { c.block_size = 24; }},
      {"num_threads", [](EngineConfig& c) { c.num_threads = -1; }},
      {"logprobs_mode", [](EngineConfig& c) { c.logprobs_mode = "raw"; }},
  };
  EXPECT_NO_THROW(validate(valid_config()));
  for (const Case& bad : cases) {
    EngineConfig config = valid_config();
    bad.spoil(config);
    EXPECT_EQ(refused_field([&] { validate(config); }), bad.field);
  }
}

TEST(Limits, RopeScalingStretchesThePositions) {
  ModelConfig model;
  model.max_position_embeddings = 1000;
  model.rope.factor = 4.0;
  for (const auto& [kind, longest] : std::vector<std::pair<RopeKind, int>>{
           {RopeKind::kDefault, 1000},
           {RopeKind::kLinear, 4000},
           {RopeKind::kDynamic, 4000},
           {RopeKind::kLlama3, 1000},
           {RopeKind::kYarn, 4000},
       }) {
    model.rope.kind = kind;
    EngineConfig config = valid_config();
    EXPECT_EQ(resolve_max_model_len(config, model), longest);
    config.max_model_len = longest;
    EXPECT_EQ(resolve_max_model_len(config, model), longest);
    config.max_model_len = longest + 1;
    EXPECT_EQ(refused_field([&] { resolve_max_model_len(config, model); }), "max_model_len");
  }
}

TEST(Limits, CacheTooSmallForAFixedLengthIsRefusedAndLowersAnOpenOne) {
  EngineConfig config = valid_config();
  config.num_kv_blocks = 4;
  EXPECT_EQ(resolve_cache_size(config, 1000, 1024, 0).max_model_len, 64);
  config.max_model_len = 1000;
  EXPECT_EQ(refused_field([&] { resolve_cache_size(config, 1000, 1024, 0); }), "num_kv_blocks");
  config.num_kv_blocks = 0;
  config.kv_cache_memory_bytes = 4 * 1024;
  EXPECT_EQ(refused_field([&] { resolve_cache_size(config, 1000, 1024, 0); }),
            "kv_cache_memory_bytes");
}

TEST(Limits, ACacheOfNoBlockIsRefused) {
  EngineConfig config = valid_config();
  config.kv_cache_memory_bytes = 1023;
  EXPECT_EQ(refused_field([&] { resolve_cache_size(config, 16, 1024, 0); }),
            "kv_cache_memory_bytes");
  config.kv_cache_memory_bytes = 0;
  EXPECT_THROW(resolve_cache_size(config, 16, int64_t{1} << 20, 1 << 20), OutOfMemory);
}

TEST(Limits, AnOpenCacheHoldsEverySequenceWithinHalfOfTheMemory) {
  EngineConfig config = valid_config();
  config.max_num_seqs = 4;
  EXPECT_EQ(resolve_cache_size(config, 160, 1024, int64_t{1} << 30).num_blocks, 40);
  EXPECT_EQ(resolve_cache_size(config, 160, 1024, 40 * 1024).num_blocks, 20);
}

}  // namespace
}  // namespace specdec
