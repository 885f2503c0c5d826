#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "specdec/config.h"
#include "specdec/error.h"
#include "testing/thrown.h"

namespace specdec {
namespace {

using testing::refused_field;

EngineConfig valid_config() {
  EngineConfig config;
  config.model = "checkpoint";
  return config;
}

TEST(EngineConfig, EachBadFieldIsNamed) {
  struct Case {
    const char* field;
    std::function<void(EngineConfig&)> spoil;
  };
  const std::vector<Case> cases = {
      {"model", [](EngineConfig& c) { c.model = ""; }},
      {"quantization", [](EngineConfig& c) { c.quantization = "hqq"; }},
      {"max_model_len", [](EngineConfig& c) { c.max_model_len = -1; }},
      {"max_num_seqs", [](EngineConfig& c) { c.max_num_seqs = -1; }},
      {"max_num_batched_tokens", [](EngineConfig& c) { c.max_num_batched_tokens = -1; }},
      {"kv_cache_memory_bytes", [](EngineConfig& c) { c.kv_cache_memory_bytes = -1; }},
      {"num_kv_blocks", [](EngineConfig& c) { c.num_kv_blocks = -1; }},
      {"num_kv_blocks",
       [](EngineConfig& c) {
         c.num_kv_blocks = 1;
         c.kv_cache_memory_bytes = 1;
       }},
      {"gpu_memory_utilization", [](EngineConfig& c) { c.gpu_memory_utilization = 0; }},
      {"gpu_memory_utilization", [](EngineConfig& c) { c.gpu_memory_utilization = 1.01; }},
      {"gpu_memory_utilization", [](EngineConfig& c) { c.gpu_memory_utilization = std::nan(""); }},
      {"block_size", [](EngineConfig& c) { c.block_size = 8; }},
      {"block_size", [](EngineConfig& c) { c.block_size = 24; }},
      {"num_threads", [](EngineConfig& c) { c.num_threads = -1; }},
  };
  EXPECT_NO_THROW(valid_config().validate());
  for (const Case& bad : cases) {
    EngineConfig config = valid_config();
    bad.spoil(config);
    EXPECT_EQ(refused_field([&] { config.validate(); }), bad.field);
  }
}

TEST(EngineConfig, AStepOfMoreRowsThanACacheHoldsTokensIsRefused) {
  EngineConfig config = valid_config();
  config.max_num_batched_tokens = 1 << 24;
  EXPECT_NO_THROW(config.validate());
  for (const int rows : {(1 << 24) + 1, (1 << 30) + 1, std::numeric_limits<int>::max()}) {
    config.max_num_batched_tokens = rows;
    EXPECT_EQ(refused_field([&] { config.validate(); }), "max_num_batched_tokens");
  }
}

}  // namespace
}  // namespace specdec
