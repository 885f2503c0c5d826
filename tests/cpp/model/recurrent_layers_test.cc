// Families with recurrent layers: what is read from config.json, and how their tensors are laid
// out.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/str_cat.h"
#include "model/load_mixer.h"
#include "model/model_shard.h"
#include "model/parts.h"
#include "testing/checkpoint_files.h"
#include "testing/model_config.h"
#include "testing/on_ranks.h"
#include "testing/text.h"

namespace specdec {
namespace {

using namespace testing::model_config;
using testing::has_text;
using testing::SafetensorsWriter;
using testing::TempDirectory;

std::vector<Mixer> mixers_of(const ModelConfig& config) {
  std::vector<Mixer> mixers;
  for (const LayerSpec& layer : config.layers) mixers.push_back(layer.mixer);
  return mixers;
}

// ---- config.json

TEST(RecurrentFamily, ReadsLfm2OfTheHub) {
  const ModelConfig config =
      load(config_json("Lfm2ForCausalLM",
                       R"(,"block_auto_adjust_ff_dim":true,"block_dim":64,"block_ff_dim":12288,
      "block_ffn_dim_multiplier":1.0,"block_mlp_init_scale":1.0,"block_multiple_of":256,
      "block_norm_eps":1e-05,"block_out_init_scale":1.0,"block_use_swiglu":true,
      "block_use_xavier_init":true,"conv_L_cache":3,"conv_bias":false,"conv_dim":64,
      "conv_dim_out":64,"conv_use_xavier_init":true,"full_attn_idxs":[1],"norm_eps":1e-05,
      "num_heads":4,"rope_theta":1000000.0,"use_pos_enc":true)"));
  EXPECT_EQ(mixers_of(config),
            (std::vector{Mixer::kShortConv, Mixer::kAttention, Mixer::kShortConv}));
  EXPECT_EQ(config.layers[0].state, (StateShape{.conv_channels = 64, .conv_width = 3}));
  EXPECT_EQ(config.layers[0].heads, AttentionHeads{});
  EXPECT_EQ(config.layers[0].rope, -1);
  EXPECT_EQ(config.layers[1].heads, (AttentionHeads{4, 2, 16}));
  EXPECT_TRUE(config.layers[1].state.empty());
  EXPECT_EQ(config.layers[2].inner_size, 8192);
  EXPECT_EQ(config.ropes[0].theta, 1e6);
  EXPECT_EQ(config.qk_norm, QkNorm::kPerHead);
  EXPECT_TRUE(config.tie_word_embeddings && config.has_states() && !config.mixer_bias);
}

TEST(RecurrentFamily, Lfm2SaysWhichTieAndWhichSizeGoesFirst) {
  const std::string types = R"(,"layer_types":["conv","conv","full_attention"])";
  const auto lfm2 = [&](const std::string& extra) {
    return load(config_json("Lfm2ForCausalLM", types + extra));
  };
  EXPECT_TRUE(lfm2(R"(,"tie_word_embeddings":false,"tie_embedding":true)").tie_word_embeddings);
  EXPECT_FALSE(lfm2(R"(,"tie_word_embeddings":true,"tie_embedding":false)").tie_word_embeddings);
  EXPECT_EQ(lfm2("").layers[0].inner_size, 256);  // 2/3 of 96, rounded up
  EXPECT_EQ(lfm2(R"(,"block_auto_adjust_ff_dim":false)").layers[0].inner_size, 96);
  EXPECT_EQ(lfm2(R"(,"block_ff_dim":300,"block_ffn_dim_multiplier":1.3,"block_multiple_of":10)")
                .layers[0]
                .inner_size,
            260);
  EXPECT_EQ(lfm2(R"(,"block_ffn_dim_multiplier":null)").layers[0].inner_size, 64);
  // Without a list of layers all have attention.
  EXPECT_FALSE(load(config_json("Lfm2ForCausalLM")).has_states());
}

TEST(RecurrentFamily, ReadsLfm2Moe) {
  const std::string extra = R"(,"layer_types":["conv","full_attention","conv"],"num_experts":8,
      "num_experts_per_tok":3,"moe_intermediate_size":32,"num_dense_layers":1,
      "routed_scaling_factor":2.5,"conv_bias":true)";
  const ModelConfig config = load(config_json("Lfm2MoeForCausalLM", extra));
  EXPECT_EQ(config.layers[0].mlp, MlpKind::kGated);
  EXPECT_EQ(config.layers[0].inner_size, 96);
  EXPECT_EQ(config.layers[1].mlp, MlpKind::kExperts);
  EXPECT_EQ(config.layers[1].inner_size, 32);
  EXPECT_EQ(config.router_scores, RouterScores::kSigmoid);
  EXPECT_EQ(config.expert_scale, 2.5f);
  EXPECT_TRUE(config.renormalize_experts && config.mixer_bias && config.conv_bias);
  EXPECT_EQ(config.names.selection_bias, "feed_forward.expert_bias");
  EXPECT_EQ(load(config_json("Lfm2MoeForCausalLM", extra + R"(,"use_expert_bias":false)"))
                .names.selection_bias,
            "");
}

constexpr const char* kDeltaSizes =
    R"(,"linear_num_key_heads":2,"linear_num_value_heads":6,"linear_key_head_dim":16,
    "linear_value_head_dim":24)";
constexpr StateShape kDelta = {.conv_channels = 2 * 2 * 16 + 6 * 24,
                               .conv_width = 4,
                               .num_key_heads = 2,
                               .num_heads = 6,
                               .key_dim = 16,
                               .value_dim = 24};

TEST(RecurrentFamily, ReadsQwen3Next) {
  const ModelConfig config = load(
      config_json("Qwen3NextForCausalLM",
                  std::string(kDeltaSizes) + R"(,"num_hidden_layers":8,"full_attention_interval":4,
      "num_experts":8,"num_experts_per_tok":3,"mlp_only_layers":[1],"partial_rotary_factor":0.5)"));
  for (int i = 0; i < 8; ++i) {
    const LayerSpec& layer = config.layers[i];
    EXPECT_EQ(layer.mixer, i % 4 == 3 ? Mixer::kAttention : Mixer::kGatedDelta) << i;
    EXPECT_EQ(layer.state, i % 4 == 3 ? StateShape{} : kDelta);
    EXPECT_EQ(layer.mlp, i == 1 ? MlpKind::kGated : MlpKind::kExperts);
    EXPECT_EQ(layer.shared_inner_size, i == 1 ? 0 : 512);
  }
  EXPECT_EQ(config.layers[3].heads, (AttentionHeads{4, 2, 256}));
  EXPECT_EQ(config.ropes[0].partial_rotary_factor, 0.5);
  EXPECT_EQ(config.norm_offset, 1.0f);
  EXPECT_TRUE(config.attention_gate && config.renormalize_experts);
}

TEST(RecurrentFamily, ReadsQwen3_5OfTheHub) {
  // Sizes and keys as the hub has them, the text part within the whole.
  const std::string text =
      R"("vocab_size":100,"hidden_size":64,"intermediate_size":96,"num_hidden_layers":4,
      "num_attention_heads":4,"num_key_value_heads":2,"head_dim":256,"attention_bias":false,
      "attention_dropout":0.0,"attn_output_gate":true,"dtype":"bfloat16","eos_token_id":7,
      "full_attention_interval":4,"hidden_act":"silu","initializer_range":0.02,
      "layer_types":["linear_attention","linear_attention","linear_attention","full_attention"],
      "linear_conv_kernel_dim":4,"linear_key_head_dim":16,"linear_num_key_heads":2,
      "linear_num_value_heads":6,"linear_value_head_dim":24,"max_position_embeddings":256,
      "mlp_only_layers":[],"mtp_num_hidden_layers":1,"mtp_use_dedicated_embeddings":false,
      "output_gate_type":"swish","rms_norm_eps":1e-06,"tie_word_embeddings":true,"use_cache":true,
      "mamba_ssm_dtype":"float32","rope_parameters":{"mrope_interleaved":true,
      "mrope_section":[11,11,10],"rope_type":"default","rope_theta":10000000,
      "partial_rotary_factor":0.25})";
  const std::string wrapped =
      str_cat(R"({"architectures":["Qwen3_5ForConditionalGeneration"],"image_token_id":5,
      "model_type":"qwen3_5","tie_word_embeddings":false,"text_config":{"model_type":"qwen3_5_text",)",
              text, R"(},"video_token_id":6,"vision_config":{"depth":1}})");
  const std::string plain =
      str_cat(R"({"architectures":["Qwen3_5ForCausalLM"],"model_type":"qwen3_5_text",)", text, "}");
  for (const std::string& json : {wrapped, plain}) {
    const ModelConfig config = load(json);
    EXPECT_EQ(config.architecture, "Qwen3_5ForCausalLM");
    EXPECT_EQ(config.layers[0].state, kDelta);
    EXPECT_EQ(config.layers[3].mixer, Mixer::kAttention);
    EXPECT_EQ(config.ropes[0].theta, 1e7);
    EXPECT_EQ(config.ropes[0].partial_rotary_factor, 0.25);
    EXPECT_EQ(config.tie_word_embeddings, json == plain);
    EXPECT_EQ(config.unknown_keys, "");
  }
}

TEST(RecurrentFamily, ReadsQwen3_5Moe) {
  const ModelConfig config =
      load(R"({"architectures":["Qwen3_5MoeForConditionalGeneration"],"text_config":{
      "model_type":"qwen3_5_moe_text","vocab_size":100,"hidden_size":64,"num_hidden_layers":4,
      "num_attention_heads":4,"num_experts":8,"num_experts_per_tok":3,"moe_intermediate_size":32,
      "shared_expert_intermediate_size":48}})");
  EXPECT_EQ(config.architecture, "Qwen3_5MoeForCausalLM");
  EXPECT_EQ(config.layers[0].inner_size, 32);
  EXPECT_EQ(config.layers[0].shared_inner_size, 48);
  EXPECT_EQ(config.layers[3].heads, (AttentionHeads{4, 2, 256}));
  EXPECT_EQ(config.ropes[0].partial_rotary_factor, 0.25);
  EXPECT_TRUE(config.renormalize_experts);
}

constexpr const char* kGraniteMamba =
    R"(,"num_local_experts":0,"shared_intermediate_size":80,"mamba_n_heads":8,"mamba_d_state":24,
    "mamba_n_groups":2,"mamba_d_conv":4,"mamba_expand":2,"mamba_chunk_size":256)";

TEST(RecurrentFamily, ReadsGranite) {
  const std::string extra =
      std::string(kGraniteMamba) +
      R"(,"layer_types":["mamba","attention","linear_attention"],"attention_multiplier":0.5)";
  const ModelConfig config = load(config_json("GraniteMoeHybridForCausalLM", extra));
  EXPECT_EQ(mixers_of(config), (std::vector{Mixer::kMamba2, Mixer::kAttention, Mixer::kMamba2}));
  EXPECT_EQ(config.layers[2].state, (StateShape{.conv_channels = 128 + 2 * 2 * 24,
                                                .conv_width = 4,
                                                .num_key_heads = 2,
                                                .num_heads = 8,
                                                .key_dim = 24,
                                                .value_dim = 16}));
  EXPECT_EQ(config.layers[1].rope, -1);
  EXPECT_EQ(config.layers[1].attention_scale, 0.5f);
  EXPECT_EQ(config.mixer_norm_groups, 2);
  EXPECT_TRUE(config.conv_bias && !config.mixer_bias);
  const ModelConfig other =
      load(config_json("GraniteMoeHybridForCausalLM",
                       extra + R"(,"normalization_function":"rmsnorm","init_method":"mup",
      "position_embedding_type":"rope","mamba_d_head":"auto","mamba_proj_bias":true,
      "mamba_conv_bias":false,"time_step_limit":[0.0,{"__float__":"Infinity"}])"));
  EXPECT_EQ(other.layers[0].rope, -1);
  EXPECT_EQ(other.layers[1].rope, 0);
  EXPECT_EQ(other.layers[0].state, config.layers[0].state);
  EXPECT_TRUE(!other.conv_bias && other.mixer_bias);
}

// As wide as Granite 4-H Tiny.
ModelConfig wide_granite(const std::string& extra) {
  return load(config_json("GraniteMoeHybridForCausalLM",
                          R"(,"hidden_size":1536,"num_attention_heads":12,"num_key_value_heads":4,
      "shared_intermediate_size":1024,"num_local_experts":0,"mamba_n_heads":48,"mamba_d_head":64,
      "mamba_d_state":128,"mamba_expand":2,"layer_types":["mamba","attention","mamba"])" +
                              extra));
}

TEST(RecurrentFamily, RanksShareMamba2ByHeads) {
  const ModelConfig config = wide_granite(R"(,"mamba_n_groups":1)");
  EXPECT_EQ(tensor_parallel_sizes(config), (std::vector{1, 2, 4}));
  const AttentionHeads heads = shared_heads_of(config.layers[0]);
  EXPECT_FALSE(ModelShard(config, 1).shares_norms(heads, config.mixer_norm_groups));
  const ModelShard shard(config, 4);
  EXPECT_TRUE(shard.shares_norms(heads, config.mixer_norm_groups));
  EXPECT_EQ(shard.state_of(config.layers[0]), (StateShape{.conv_channels = 12 * 64 + 2 * 128,
                                                          .conv_width = 4,
                                                          .num_key_heads = 1,
                                                          .num_heads = 12,
                                                          .key_dim = 128,
                                                          .value_dim = 64}));
  // Two of four ranks share a group; each of two has one.
  const ModelConfig by_key_head = wide_granite(R"(,"mamba_n_groups":2)");
  const AttentionHeads groups = shared_heads_of(by_key_head.layers[0]);
  EXPECT_TRUE(ModelShard(by_key_head, 4).shares_norms(groups, 2));
  EXPECT_FALSE(ModelShard(by_key_head, 2).shares_norms(groups, 2));
}

TEST(RecurrentFamily, RanksDoNotShareAHeadOfMamba2) {
  const ModelConfig config =
      wide_granite(R"(,"mamba_n_groups":1,"mamba_n_heads":2,"mamba_d_head":1536)");
  EXPECT_EQ(tensor_parallel_sizes(config), (std::vector{1, 2}));
  const auto error = testing::error_of<InvalidArgument>([&] { ModelShard(config, 4); });
  EXPECT_EQ(error.field(), "tensor_parallel_size");
  EXPECT_TRUE(has_text(error.what(), "the layers of GraniteMoeHybridForCausalLM"));
}

TEST(RecurrentFamily, StagesHaveTheStatesOfTheirLayers) {
  const ModelConfig config =
      load(config_json("Lfm2ForCausalLM", R"(,"layer_types":["conv","conv","full_attention"])"));
  const ModelShard first(config, {.stage = 0, .num_stages = 2});
  EXPECT_EQ(first.config_of_share(config).layers[0].state, config.layers[0].state);
  const ModelShard last(config, {.stage = 1, .num_stages = 2});
  EXPECT_EQ(last.config_of_share(config).layers[1].heads, config.layers[2].heads);
}

class RefusedByRecurrentFamily : public ::testing::TestWithParam<Refusal> {};

TEST_P(RefusedByRecurrentFamily, NamesTheKey) { expect_refused(GetParam()); }

INSTANTIATE_TEST_SUITE_P(
    All, RefusedByRecurrentFamily,
    ::testing::Values(
        Refusal{"Lfm2Type", "Lfm2ForCausalLM",
                R"(,"layer_types":["conv","sliding_attention","conv"])",
                "layer_types: 'sliding_attention' is not implemented; known: conv"},
        Refusal{"Lfm2TypesAreCounted", "Lfm2ForCausalLM", R"(,"layer_types":["conv"])",
                "layer_types: expected 3 entries, found 1"},
        Refusal{"Lfm2WithoutAttention", "Lfm2ForCausalLM", R"(,"full_attn_idxs":[])",
                "layer_types: no layer is of attention"},
        Refusal{"Lfm2Width", "Lfm2ForCausalLM", R"(,"conv_dim":128)", "conv_dim: expected"},
        Refusal{"Lfm2Taps", "Lfm2ForCausalLM", R"(,"conv_L_cache":1)", "conv_L_cache: expected"},
        Refusal{"Lfm2ManyTaps", "Lfm2ForCausalLM", R"(,"conv_L_cache":5)",
                "conv_L_cache: 5, expected at most 4"},
        Refusal{"Lfm2Eps", "Lfm2ForCausalLM", R"(,"block_norm_eps":1e-6)", "block_norm_eps"},
        Refusal{"Lfm2PlainMlp", "Lfm2ForCausalLM", R"(,"block_use_swiglu":false)",
                "block_use_swiglu"},
        Refusal{"Lfm2UnknownKey", "Lfm2ForCausalLM", R"(,"conv_gating":"tanh")", "conv_gating"},
        Refusal{"QwenUnevenHeads", "Qwen3_5ForCausalLM",
                R"(,"linear_num_key_heads":4,"linear_num_value_heads":6)",
                "linear_num_value_heads: linear_num_key_heads, 4, does not divide it"},
        Refusal{"QwenKeyDim", "Qwen3_5ForCausalLM", R"(,"linear_key_head_dim":20)",
                "linear_key_head_dim: 20, expected a multiple of 8"},
        Refusal{"QwenHugeState", "Qwen3_5ForCausalLM",
                R"(,"linear_key_head_dim":1000000000,"linear_num_key_heads":2000000000,
                "linear_num_value_heads":2000000000)",
                "linear_key_head_dim: the states are too large"},
        Refusal{"QwenWithoutGate", "Qwen3_5ForCausalLM", R"(,"attn_output_gate":false)",
                "attn_output_gate: is false"},
        Refusal{"QwenBias", "Qwen3NextForCausalLM", R"(,"attention_bias":true)", "attention_bias"},
        Refusal{"QwenGateType", "Qwen3_5ForCausalLM", R"(,"output_gate_type":"sigmoid")",
                "output_gate_type: 'sigmoid'"},
        Refusal{"QwenStateDtype", "Qwen3_5ForCausalLM", R"(,"mamba_ssm_dtype":"bfloat16")",
                "mamba_ssm_dtype: 'bfloat16'"},
        Refusal{"QwenActivation", "Qwen3_5ForCausalLM", R"(,"hidden_act":"gelu")", "hidden_act"},
        Refusal{"QwenWithoutSum", "Qwen3_5MoeForCausalLM",
                R"(,"full_attention_interval":3,"norm_topk_prob":false)",
                "norm_topk_prob: is false"},
        Refusal{"GraniteStepLimit", "GraniteMoeHybridForCausalLM",
                R"(,"layer_types":["mamba","attention","mamba"],"mamba_n_heads":8,
                "time_step_limit":[0.0,0.5])",
                "time_step_limit: is not [0, infinity]"},
        Refusal{"GraniteHeads", "GraniteMoeHybridForCausalLM",
                R"(,"layer_types":["mamba","attention","mamba"],"mamba_n_heads":9)",
                "mamba_n_heads: 9 heads of 14"},
        Refusal{"GraniteGroups", "GraniteMoeHybridForCausalLM",
                R"(,"layer_types":["mamba","attention","mamba"],"mamba_n_heads":8,
                "mamba_n_groups":3)",
                "mamba_n_groups: 3 does not divide"},
        Refusal{"GraniteState", "GraniteMoeHybridForCausalLM",
                R"(,"layer_types":["mamba","attention","mamba"],"mamba_n_heads":8,
                "mamba_d_state":20)",
                "mamba_d_state: 20, expected a multiple of 8"},
        Refusal{"GraniteWithoutAttention", "GraniteMoeHybridForCausalLM", R"(,"mamba_n_heads":8)",
                "layers_block_type: no layer is of attention"}),
    [](const auto& info) { return std::string(info.param.name); });

// ---- tensors

struct Stored {
  std::vector<int64_t> shape;
  std::vector<float> values;

  int64_t width() const { return shape.back(); }
  std::vector<float> row(int64_t index) const {
    return {values.begin() + index * width(), values.begin() + (index + 1) * width()};
  }
};

Stored random(std::vector<int64_t> shape, uint32_t seed) {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  Stored stored = {std::move(shape), {}};
  for (int64_t i = 0; i < count; ++i) {
    // Distinct values, exact in float32.
    stored.values.push_back(static_cast<float>((i * 37 + seed * 1009) % 8191) / 4096.0f - 1.0f);
  }
  return stored;
}

// Rows of several matrices, one after the other.
Stored rows_of(const std::vector<std::pair<const Stored*, int64_t>>& rows) {
  Stored stored = {{static_cast<int64_t>(rows.size()), rows.front().first->width()}, {}};
  for (const auto& [from, row] : rows) {
    const std::vector<float> values = from->row(row);
    stored.values.insert(stored.values.end(), values.begin(), values.end());
  }
  return stored;
}

using TensorsByName = std::map<std::string, Stored>;

class LoadedLayer {
 public:
  // The first layer of a model of this config.json and tensors.
  LoadedLayer(const std::string& json, const TensorsByName& tensors,
              const RankCoordinates& coordinates = {}) {
    const TempDirectory directory;
    directory.write("config.json", json);
    SafetensorsWriter writer;
    for (const auto& [name, stored] : tensors) writer.add(name, stored.shape, stored.values);
    directory.write("model.safetensors", writer.bytes());
    config_ = load_model_config(directory.path());
    TensorLoader loader(config_, directory.path(), Quantization::kAuto, *backend_, coordinates);
    layer_ = load_layer(loader, "model.layers.0.", config_.layers.front());
  }

  const Layer* operator->() const { return layer_.get(); }
  // The values of a packed matrix: its products with the unit vectors.
  std::vector<std::vector<float>> rows_of(const PackedLinear& matrix) const {
    const int64_t inputs = matrix.in_features(), outputs = matrix.out_features();
    std::vector<float> units(inputs * inputs, 0.0f), columns(inputs * outputs);
    for (int64_t i = 0; i < inputs; ++i) units[i * inputs + i] = 1.0f;
    backend_->linear({.weight = &matrix,
                      .in = {.x = units.data(), .num_rows = static_cast<int>(inputs)},
                      .out = columns.data()});
    std::vector<std::vector<float>> rows(outputs, std::vector<float>(inputs));
    for (int64_t row = 0; row < outputs; ++row) {
      for (int64_t i = 0; i < inputs; ++i) rows[row][i] = columns[i * outputs + row];
    }
    return rows;
  }
  void expect_rows(const PackedLinear& matrix,
                   const std::vector<std::pair<const Stored*, int64_t>>& expected) const {
    const std::vector<std::vector<float>> found = rows_of(matrix);
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(found[i], expected[i].first->row(expected[i].second)) << i;
    }
  }

 private:
  std::unique_ptr<Backend> backend_ =
      make_backend({.device = "cpu", .num_threads = 1, .act_dtype = DType::kF32});
  ModelConfig config_;
  std::shared_ptr<const Layer> layer_;
};

void expect_values(const Buffer& buffer, const std::vector<float>& expected) {
  ASSERT_EQ(buffer.size_bytes(), expected.size() * sizeof(float));
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(buffer.as<float>()[i], expected[i]) << i;
}

using RowsOf = std::vector<std::pair<const Stored*, int64_t>>;

void add_rows(RowsOf& rows, const Stored& from, int64_t first, int64_t count) {
  for (int64_t i = 0; i < count; ++i) rows.emplace_back(&from, first + i);
}

constexpr int64_t kHidden = 64, kKeyHeads = 2, kHeads = 6, kKeyDim = 16, kValueDim = 24;
constexpr int64_t kKeys = kKeyHeads * kKeyDim, kValues = kHeads * kValueDim;

TensorsByName mlp_tensors() {
  const std::string layer = "model.layers.0.";
  return {{layer + "input_layernorm.weight", random({kHidden}, 1)},
          {layer + "post_attention_layernorm.weight", random({kHidden}, 2)},
          {layer + "mlp.gate_proj.weight", random({96, kHidden}, 3)},
          {layer + "mlp.up_proj.weight", random({96, kHidden}, 4)},
          {layer + "mlp.down_proj.weight", random({kHidden, 96}, 5)}};
}

class GatedDeltaTensors {
 public:
  const Stored q = random({kKeys, kHidden}, 11), k = random({kKeys, kHidden}, 12),
               v = random({kValues, kHidden}, 13), z = random({kValues, kHidden}, 14),
               b = random({kHeads, kHidden}, 15), a = random({kHeads, kHidden}, 16),
               conv = random({2 * kKeys + kValues, 1, 4}, 17), a_log = random({kHeads}, 18),
               dt_bias = random({kHeads}, 19), norm = random({kValueDim}, 20),
               out = random({kHidden, kValues}, 21);

  // As Qwen3.5 stores them.
  TensorsByName apart() const {
    RowsOf qkv;
    add_rows(qkv, q, 0, kKeys);
    add_rows(qkv, k, 0, kKeys);
    add_rows(qkv, v, 0, kValues);
    TensorsByName tensors = others();
    tensors[kBlock + "in_proj_qkv.weight"] = rows_of(qkv);
    tensors[kBlock + "in_proj_z.weight"] = z;
    tensors[kBlock + "in_proj_b.weight"] = b;
    tensors[kBlock + "in_proj_a.weight"] = a;
    return tensors;
  }
  // As Qwen3-Next does: all that belongs to a key head together.
  TensorsByName by_key_head() const {
    constexpr int64_t kGroup = kHeads / kKeyHeads;
    RowsOf qkvz, ba;
    for (int64_t head = 0; head < kKeyHeads; ++head) {
      add_rows(qkvz, q, head * kKeyDim, kKeyDim);
      add_rows(qkvz, k, head * kKeyDim, kKeyDim);
      add_rows(qkvz, v, head * kGroup * kValueDim, kGroup * kValueDim);
      add_rows(qkvz, z, head * kGroup * kValueDim, kGroup * kValueDim);
      add_rows(ba, b, head * kGroup, kGroup);
      add_rows(ba, a, head * kGroup, kGroup);
    }
    TensorsByName tensors = others();
    tensors[kBlock + "in_proj_qkvz.weight"] = rows_of(qkvz);
    tensors[kBlock + "in_proj_ba.weight"] = rows_of(ba);
    return tensors;
  }

  void expect_loaded(const LoadedLayer& layer) const {
    RowsOf in, gates, after;
    add_rows(in, q, 0, kKeys);
    add_rows(in, k, 0, kKeys);
    add_rows(in, v, 0, kValues);
    add_rows(in, z, 0, kValues);
    add_rows(gates, b, 0, kHeads);
    add_rows(gates, a, 0, kHeads);
    add_rows(after, out, 0, kHidden);
    layer.expect_rows(*layer->mixer.in, in);
    layer.expect_rows(*layer->mixer.gates, gates);
    layer.expect_rows(*layer->attention_out.weight, after);
    expect_values(layer->mixer.conv_weight, conv.values);
    std::vector<float> rates, weights;
    for (const float value : a_log.values) rates.push_back(-std::exp(value));
    for (int64_t i = 0; i < kValues; ++i) weights.push_back(norm.values[i % kValueDim]);
    expect_values(layer->mixer.decay_rates, rates);
    expect_values(layer->mixer.step_bias, dt_bias.values);
    expect_values(layer->mixer.norm_weight, weights);
    EXPECT_TRUE(layer->mixer.skip.empty() && layer->mixer.conv_bias.empty());
    EXPECT_EQ(layer->state, kDelta);
    // The norms of the stream are stored less one.
    EXPECT_EQ(layer->attention_norm.weight.as<float>()[5], 1.0f + random({kHidden}, 1).values[5]);
  }

 private:
  inline static const std::string kBlock = "model.layers.0.linear_attn.";

  TensorsByName others() const {
    TensorsByName tensors = mlp_tensors();
    tensors[kBlock + "conv1d.weight"] = conv;
    tensors[kBlock + "A_log"] = a_log;
    tensors[kBlock + "dt_bias"] = dt_bias;
    tensors[kBlock + "norm.weight"] = norm;
    tensors[kBlock + "out_proj.weight"] = out;
    return tensors;
  }
};

TEST(LoadMixer, RowsOfGatedDeltaNetsComeInOneOrder) {
  const GatedDeltaTensors tensors;
  tensors.expect_loaded(
      LoadedLayer(config_json("Qwen3_5ForCausalLM",
                              std::string(kDeltaSizes) + R"(,"full_attention_interval":3)"),
                  tensors.apart()));
  tensors.expect_loaded(LoadedLayer(
      config_json(
          "Qwen3NextForCausalLM",
          std::string(kDeltaSizes) + R"(,"full_attention_interval":3,"mlp_only_layers":[0])"),
      tensors.by_key_head()));
}

TEST(LoadMixer, QueriesComeApartFromTheirGates) {
  constexpr int64_t kHeadDim = 16;
  const std::string block = "model.layers.0.self_attn.";
  TensorsByName tensors = mlp_tensors();
  const Stored q = random({2 * 4 * kHeadDim, kHidden}, 31), k = random({2 * kHeadDim, kHidden}, 32),
               v = random({2 * kHeadDim, kHidden}, 33);
  tensors[block + "q_proj.weight"] = q;
  tensors[block + "k_proj.weight"] = k;
  tensors[block + "v_proj.weight"] = v;
  tensors[block + "q_norm.weight"] = random({kHeadDim}, 34);
  tensors[block + "k_norm.weight"] = random({kHeadDim}, 35);
  tensors[block + "o_proj.weight"] = random({kHidden, 4 * kHeadDim}, 36);
  const LoadedLayer layer(
      config_json("Qwen3_5ForCausalLM", R"(,"head_dim":16,"full_attention_interval":1)"), tensors);
  RowsOf qkv, gates;
  for (int64_t head = 0; head < 4; ++head) {
    add_rows(qkv, q, 2 * head * kHeadDim, kHeadDim);
    add_rows(gates, q, (2 * head + 1) * kHeadDim, kHeadDim);
  }
  add_rows(qkv, k, 0, 2 * kHeadDim);
  add_rows(qkv, v, 0, 2 * kHeadDim);
  layer.expect_rows(*layer->qkv.weight, qkv);
  layer.expect_rows(*layer->attention_gate, gates);
  EXPECT_EQ(layer->mixer.in, nullptr);
}

// Of 2 key heads of 24 and 8 heads of 64.
class Mamba2Tensors {
 public:
  static constexpr int64_t kStateHeads = 8, kHeadDim = 64, kSize = kStateHeads * kHeadDim,
                           kGroups = 48, kChannels = kSize + 2 * kGroups;
  const Stored in = random({kSize + kChannels + kStateHeads, kHidden}, 41),
               bias = random({kChannels}, 42), skip = random({kStateHeads}, 43),
               norm = random({kSize}, 44), conv = random({kChannels, 1, 4}, 45),
               steps = random({kStateHeads}, 47);

  TensorsByName tensors() const {
    const std::string layer = "model.layers.0.", block = layer + "mamba.";
    return {{layer + "input_layernorm.weight", random({kHidden}, 1)},
            {layer + "post_attention_layernorm.weight", random({kHidden}, 2)},
            {layer + "shared_mlp.input_linear.weight", random({2 * 512, kHidden}, 3)},
            {layer + "shared_mlp.output_linear.weight", random({kHidden, 512}, 4)},
            {block + "in_proj.weight", in},
            {block + "conv1d.weight", conv},
            {block + "conv1d.bias", bias},
            {block + "A_log", random({kStateHeads}, 46)},
            {block + "D", skip},
            {block + "dt_bias", steps},
            {block + "norm.weight", norm},
            {block + "out_proj.weight", random({kHidden, kSize}, 48)}};
  }
  static std::string json() {
    return config_json("GraniteMoeHybridForCausalLM",
                       std::string(kGraniteMamba) +
                           R"(,"mamba_expand":8,"shared_intermediate_size":512,"head_dim":64,
      "num_attention_heads":4,"layer_types":["mamba","mamba","attention"])");
  }
};

TEST(LoadMixer, ReadsMamba2) {
  using Tensors = Mamba2Tensors;
  const Tensors stored;
  const LoadedLayer layer(Tensors::json(), stored.tensors());
  RowsOf rows;
  add_rows(rows, stored.in, 0, Tensors::kSize + Tensors::kChannels + Tensors::kStateHeads);
  layer.expect_rows(*layer->mixer.in, rows);
  expect_values(layer->mixer.conv_weight, stored.conv.values);
  expect_values(layer->mixer.conv_bias, stored.bias.values);
  expect_values(layer->mixer.skip, stored.skip.values);
  expect_values(layer->mixer.norm_weight, stored.norm.values);
  EXPECT_EQ(layer->mixer.norm_groups, 2);
  EXPECT_TRUE(layer->mixer.norm_heads.by_rank.empty());
  EXPECT_TRUE(layer->mixer.in_bias.empty() && layer->mixer.gates == nullptr);
}

// Gates, values, keys, queries and steps of a rank's heads. Four ranks have half a key head's heads
// each, and its keys and queries all.
TEST(LoadMixer, RanksReadTheirHeadsOfMamba2) {
  using Tensors = Mamba2Tensors;
  const Tensors stored;
  for (const int size : {2, 4}) {
    testing::on_ranks(size, [&](Communicator& ranks) {
      const LoadedLayer layer(Tensors::json(), stored.tensors(), {.ranks = &ranks});
      const int64_t heads = Tensors::kStateHeads / size, first = ranks.rank() * heads;
      const int64_t values = heads * Tensors::kHeadDim, from = first * Tensors::kHeadDim;
      const int64_t key = ranks.rank() * 2 / size * 24;
      RowsOf rows, channels;
      for (const auto& [begin, count] : {std::pair{from, values},
                                         {Tensors::kSize + key, int64_t{24}},
                                         {Tensors::kSize + Tensors::kGroups + key, int64_t{24}}}) {
        add_rows(channels, stored.conv, begin, count);
      }
      add_rows(rows, stored.in, from, values);
      for (const auto& [channel, index] : channels) {
        rows.emplace_back(&stored.in, Tensors::kSize + index);
      }
      add_rows(rows, stored.in, Tensors::kSize + Tensors::kChannels + first, heads);
      layer.expect_rows(*layer->mixer.in, rows);
      std::vector<float> bias;
      for (const auto& [channel, index] : channels) bias.push_back(stored.bias.values[index]);
      expect_values(layer->mixer.conv_bias, bias);
      const auto own = [](const Stored& all, int64_t begin, int64_t count) {
        return std::vector<float>(all.values.begin() + begin, all.values.begin() + begin + count);
      };
      expect_values(layer->mixer.skip, own(stored.skip, first, heads));
      expect_values(layer->mixer.step_bias, own(stored.steps, first, heads));
      expect_values(layer->mixer.norm_weight, own(stored.norm, from, values));
      EXPECT_EQ(layer->mixer.norm_groups, size == 2 ? 1 : 2);
      EXPECT_EQ(layer->mixer.norm_heads.by_rank.size(), size == 2 ? 0u : 4u);
    });
  }
}

TEST(LoadMixer, NamesATensorOfAnotherShape) {
  const GatedDeltaTensors stored;
  TensorsByName tensors = stored.apart();
  const std::string name = "model.layers.0.linear_attn.conv1d.weight";
  tensors[name] = random({2 * kKeys + kValues, 1, 3}, 17);
  const auto error = testing::checkpoint_error_of([&] {
    LoadedLayer(config_json("Qwen3_5ForCausalLM",
                            std::string(kDeltaSizes) + R"(,"full_attention_interval":3)"),
                tensors);
  });
  EXPECT_TRUE(has_text(error.what(), name));
}

}  // namespace
}  // namespace specdec
