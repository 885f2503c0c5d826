#include "model/model_shard.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "comm/thread_communicator.h"
#include "specdec/error.h"
#include "testing/thrown.h"

namespace specdec {
namespace {

using std::chrono::seconds;

ModelConfig model(int num_heads, int num_kv_heads, int head_dim, int inner_size) {
  ModelConfig config;
  config.architecture = "LlamaForCausalLM";
  config.num_layers = 3;
  config.layers.assign(
      3, LayerSpec{.heads = {num_heads, num_kv_heads, head_dim}, .inner_size = inner_size});
  return config;
}

// The shards of all ranks of a group.
struct Shards {
  Shards(const ModelConfig& config, int size)
      : groups(make_thread_communicators(size, seconds(1))) {
    for (const auto& group : groups)
      all.emplace_back(config, RankCoordinates{.ranks = group.get()});
  }
  std::vector<std::unique_ptr<Communicator>> groups;
  std::vector<ModelShard> all;
};

TEST(ModelShardTest, SizesThatLeaveNobodyMuchMore) {
  const auto sizes = [](int heads, int kv_heads, int inner) {
    return tensor_parallel_sizes(model(heads, kv_heads, 64, inner));
  };
  EXPECT_EQ(sizes(9, 3, 1536), (std::vector{1, 3}));  // SmolLM2-135M
  EXPECT_EQ(sizes(6, 6, 1536), (std::vector{1, 2, 3}));
  EXPECT_EQ(sizes(12, 2, 1536), (std::vector{1, 2, 4}));     // KV heads are held twice by 4
  EXPECT_EQ(sizes(14, 2, 4864), (std::vector{1, 2, 4, 8}));  // Qwen2.5-0.5B
  EXPECT_EQ(sizes(32, 8, 8192), (std::vector{1, 2, 3, 4, 8}));
  EXPECT_EQ(sizes(32, 8, 128), (std::vector{1, 2}));  // an MLP of two units
}

TEST(ModelShardTest, SharesCoverTheModelOnce) {
  for (const int size : {1, 2, 3, 4, 8}) {
    const ModelConfig config = model(32, 8, 64, 8192);
    int head = 0, inner = 0;
    const Shards shards(config, size);
    for (const ModelShard& shard : shards.all) {
      const HeadShare& heads = shard.share_of(config.layers.front().heads);
      EXPECT_EQ(heads.first_head, head);
      EXPECT_EQ(heads.first_kv_head, head / 4);
      EXPECT_EQ(heads.num_heads, 4 * heads.num_kv_heads);
      head += heads.num_heads;
      EXPECT_EQ(shard.inner_slices(8192).begin(), inner);
      inner = static_cast<int>(shard.inner_slices(8192).end());
      const ModelConfig share = shard.config_of_share(config);
      EXPECT_EQ(share.layers[2].heads.num_heads, heads.num_heads);
      EXPECT_EQ(share.layers[2].inner_size, shard.inner_slices(8192).in_features());
      const std::vector<int64_t> vocabulary = shard.vocabulary(1000);
      if (size == 1) {
        EXPECT_TRUE(vocabulary.empty());
      } else {
        EXPECT_EQ(vocabulary.front(), 0);
        EXPECT_EQ(vocabulary.back(), 1000);
        EXPECT_EQ(vocabulary.size(), static_cast<size_t>(size) + 1);
      }
    }
    EXPECT_EQ(head, 32);
    EXPECT_EQ(inner, 8192);
  }
}

TEST(ModelShardTest, SeveralRanksHoldOneKvHead) {
  const ModelConfig config = model(12, 2, 64, 1536);
  const Shards shards(config, 4);
  std::vector<int> kv_heads;
  for (const ModelShard& shard : shards.all) {
    const HeadShare& heads = shard.share_of(config.layers.front().heads);
    EXPECT_EQ(heads.num_kv_heads, 1);
    kv_heads.push_back(heads.first_kv_head);
  }
  EXPECT_EQ(kv_heads, (std::vector{0, 0, 1, 1}));
}

TEST(ModelShardTest, LayersOfOtherHeadsAreSharedByThemselves) {
  ModelConfig config = model(8, 4, 64, 1536);
  config.layers[1].heads = {.num_heads = 8, .num_kv_heads = 1, .head_dim = 128};
  const Shards shards(config, 2);
  const ModelConfig second = shards.all[1].config_of_share(config);
  EXPECT_EQ(second.layers[0].heads, (AttentionHeads{4, 2, 64}));
  EXPECT_EQ(second.layers[1].heads, (AttentionHeads{4, 1, 128}));
  EXPECT_EQ(shards.all[1].share_of(config.layers[0].heads).first_kv_head, 2);
  EXPECT_EQ(shards.all[1].share_of(config.layers[1].heads).first_kv_head, 0);
  EXPECT_EQ(shards.all[1].attention(config.layers[1].heads).slices.begin(), 4 * 128);
}

TEST(ModelShardTest, StagesHoldTheKeysAndValuesThatTheirLayersRead) {
  ModelConfig config = model(6, 6, 64, 1536);
  config.layers[2].kv_source = 1;
  const ModelShard last(config, {.stage = 1, .num_stages = 2});
  EXPECT_EQ(last.config_of_share(config).layers[1].kv_source, 0);
  config.layers[2].kv_source = 0;
  for (const int stage : {0, 1}) {  // all ranks refuse
    const auto error = testing::error_of<InvalidArgument>(
        [&] { ModelShard(config, {.stage = stage, .num_stages = 2}); });
    EXPECT_EQ(error.field(), "pipeline_parallel_size");
  }
}

TEST(ModelShardTest, StagesHaveTheirLayers) {
  const ModelConfig config = model(6, 6, 64, 1536);
  const ModelShard first(config, {.stage = 0, .num_stages = 2});
  const ModelShard last(config, {.stage = 1, .num_stages = 2});
  EXPECT_EQ(first.config_of_share(config).num_layers, 1);
  EXPECT_EQ(last.config_of_share(config).num_layers, 2);
  EXPECT_EQ(last.coordinates().first_layer(3), 1);
  EXPECT_THROW(ModelShard(config, {.num_stages = 4}), InvalidArgument);
}

TEST(ModelShardTest, RefusalsNameTheFieldAndTheSizesThatWork) {
  const ModelConfig config = model(9, 3, 64, 1536);
  const auto error = testing::error_of<InvalidArgument>([&] { Shards(config, 2); });
  EXPECT_EQ(error.field(), "tensor_parallel_size");
  EXPECT_NE(std::string(error.what()).find("sizes that work: 1, 3"), std::string::npos);
}

}  // namespace
}  // namespace specdec
