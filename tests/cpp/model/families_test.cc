// How each family reads config.json.
#include <gtest/gtest.h>

#include "model/families/family.h"
#include "testing/model_config.h"

namespace specdec {
namespace {

using namespace testing::model_config;

TEST(Family, ReadsQwenAndMixtral) {
  const ModelConfig qwen2 = load(config_json("Qwen2ForCausalLM"));
  EXPECT_TRUE(qwen2.qkv_bias && !qwen2.out_bias);
  EXPECT_EQ(qwen2.qk_norm, QkNorm::kNone);
  const ModelConfig qwen3 = load(config_json("Qwen3ForCausalLM"));
  EXPECT_EQ(qwen3.qk_norm, QkNorm::kPerHead);
  EXPECT_FALSE(qwen3.qkv_bias);
  EXPECT_EQ(qwen3.layers.front().heads.head_dim, 128);
  const ModelConfig mixtral =
      load(config_json("MixtralForCausalLM", R"(,"num_local_experts":6,"num_experts_per_tok":3)"));
  EXPECT_EQ(mixtral.num_experts, 6);
  EXPECT_EQ(mixtral.num_experts_per_token, 3);
  EXPECT_EQ(windows_of(mixtral), std::vector<int>(3, 0));
}

TEST(Family, ReadsOpt) {
  const std::string body = R"({"architectures":["OPTForCausalLM"],"vocab_size":100,
      "hidden_size":64,"ffn_dim":96,"num_hidden_layers":2,"num_attention_heads":4,
      "max_position_embeddings":128)";
  const ModelConfig before = load(body + "}");
  EXPECT_EQ(before.norm_kind, NormKind::kLayer);
  EXPECT_TRUE(before.learned_positions && before.final_norm && before.tie_word_embeddings);
  EXPECT_TRUE(before.qkv_bias && before.out_bias && before.mlp_bias);
  EXPECT_EQ(before.layers.front().norms, NormPlacement::kInput);
  EXPECT_EQ(before.layers.front().mlp, MlpKind::kPlain);
  EXPECT_EQ(before.activation, Activation::kRelu);
  EXPECT_EQ(before.learned_position_offset, 2);
  EXPECT_EQ(before.embed_dim, 0);
  EXPECT_EQ(before.layers.front().inner_size, 96);
  const ModelConfig after =
      load(body + R"(,"do_layer_norm_before":false,"word_embed_proj_dim":32,"enable_bias":false})");
  EXPECT_EQ(after.layers.front().norms, NormPlacement::kResidual);
  EXPECT_TRUE(!after.final_norm && !after.qkv_bias);
  EXPECT_EQ(after.embed_dim, 32);
  EXPECT_FALSE(load(body + R"(,"_remove_final_layer_norm":true})").final_norm);
}

TEST(Family, GemmaLayersHaveTheirOwnWindowsAndRopes) {
  // transformers 4's spelling: a pattern, and a separate rope for layers with windows.
  const ModelConfig config = load(config_json(
      "Gemma3ForCausalLM",
      R"(,"sliding_window":32,"sliding_window_pattern":2,"rope_theta":5e5,"query_pre_attn_scalar":64,
      "rope_local_base_freq":2e4,"rope_scaling":{"rope_type":"linear","factor":8})"));
  EXPECT_EQ(windows_of(config), (std::vector<int>{32, 0, 32}));
  ASSERT_EQ(config.ropes.size(), 2u);
  EXPECT_EQ(config.layers[0].rope, 1);
  EXPECT_EQ(config.layers[1].rope, 0);
  EXPECT_EQ(config.ropes[0].theta, 5e5);
  EXPECT_EQ(config.ropes[0].kind, RopeKind::kLinear);
  EXPECT_EQ(config.ropes[1].theta, 2e4);
  EXPECT_EQ(config.ropes[1].kind, RopeKind::kDefault);
  EXPECT_EQ(max_positions(config), 256);  // which the factor has gone into
  EXPECT_EQ(config.layers[0].attention_scale, 0.125f);
  EXPECT_EQ(config.layers[0].norms, NormPlacement::kInputAndOutput);
  EXPECT_EQ(config.embedding_scale, 8.0f);
  EXPECT_EQ(config.layers.front().heads.head_dim, 256);
  EXPECT_EQ(config.activation, Activation::kGeluTanh);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_EQ(windows_of(load(config_json("Gemma3ForCausalLM"))), std::vector<int>(3, 4096));
}

constexpr const char* kGemma4Layers =
    R"(,"num_hidden_layers":4,"layer_types":["sliding_attention","full_attention",
    "sliding_attention","sliding_attention"],"sliding_window":32,"vocab_size_per_layer_input":100)";

std::string gemma4(const std::string& extra) {
  return config_json("Gemma4ForCausalLM", kGemma4Layers + extra);
}

TEST(Family, Gemma4LayersHaveTheirOwnHeads) {
  const ModelConfig of_hub = load(gemma4(
      R"(,"num_attention_heads":8,"num_key_value_heads":4,"num_global_key_value_heads":2,
      "attention_k_eq_v":true,"hidden_size_per_layer_input":0)"));
  EXPECT_EQ(windows_of(of_hub), (std::vector<int>{32, 0, 32, 0}));  // the last has none
  EXPECT_EQ(of_hub.layers[0].heads, (AttentionHeads{8, 4, 256}));
  EXPECT_EQ(of_hub.layers[1].heads, (AttentionHeads{8, 2, 512}));
  EXPECT_TRUE(!of_hub.layers[0].values_are_keys && of_hub.layers[1].values_are_keys);
  EXPECT_EQ(of_hub.ropes[0].kind, RopeKind::kProportional);
  EXPECT_EQ(of_hub.ropes[0].partial_rotary_factor, 0.25);
  EXPECT_EQ(of_hub.per_layer_dim, 0);
  // As transformers saves them.
  const ModelConfig saved =
      load(gemma4(R"(,"head_dim":16,"per_layer_config":{"1":{"head_dim":64,"num_key_value_heads":1},
      "3":{"head_dim":64,"num_key_value_heads":1}})"));
  EXPECT_EQ(saved.layers[1].heads.head_dim, 64);
  EXPECT_EQ(saved.layers[1].heads.num_kv_heads, 1);
  EXPECT_EQ(saved.layers[2].heads.head_dim, 16);
  EXPECT_EQ(saved.per_layer_dim, 256);
}

TEST(Family, Gemma4ListsHeadsByIndicesOfEqualLength) {
  const ModelConfig padded = load(gemma4(R"(,"head_dim":32,"per_layer_config":
      {"01":{"head_dim":64},"03":{"head_dim":64}})"));
  EXPECT_EQ(padded.layers[1].heads.head_dim, 64);
  EXPECT_EQ(padded.layers[2].heads.head_dim, 32);
  // Without the key layers of full attention have heads of 512, with null the usual.
  EXPECT_EQ(load(gemma4(R"(,"per_layer_config":null)")).layers[1].heads.head_dim, 256);
  for (const char* refused : {R"(,"per_layer_config":{"1":{"head_dim":64}})",  // unlike layer 3's
                              R"(,"per_layer_config":{"4":{"head_dim":64}})",
                              R"(,"per_layer_config":{"full_attention":{"head_dim":64}})",
                              R"(,"per_layer_config":{"1":{"sliding_window":64}})"}) {
    EXPECT_THROW(load(gemma4(refused)), CheckpointError) << refused;
  }
}

TEST(Family, Gemma4UnifiedHasNoEmbeddingsOfLayers) {
  const ModelConfig config =
      load(config_json("Gemma4UnifiedForCausalLM",
                       R"(,"vocab_size_per_layer_input":262144,"hidden_size_per_layer_input":0,
      "enable_moe_block":false,"num_experts":null,"top_k_experts":null,"num_global_key_value_heads":1,
      "moe_intermediate_size":null,"attention_k_eq_v":true,"use_bidirectional_attention":"vision")"));
  EXPECT_EQ(config.per_layer_dim, 0);
  EXPECT_EQ(config.layers.back().heads.num_kv_heads, 1);
}

TEST(Family, LastLayersOfGemma4ReadKeysAndValuesOfTheirKind) {
  const ModelConfig config =
      load(gemma4(R"(,"num_kv_shared_layers":2,"use_double_wide_mlp":true)"));
  EXPECT_EQ(config.layers[1].kv_source, -1);
  EXPECT_EQ(config.layers[2].kv_source, 0);
  EXPECT_EQ(config.layers[3].kv_source, 1);
  EXPECT_EQ(config.layers[3].inner_size, 2 * config.layers[1].inner_size);
  for (const char* refused :
       {R"(,"num_kv_shared_layers":3)", R"(,"use_bidirectional_attention":"all")",
        R"(,"vocab_size_per_layer_input":99)", R"(,"enable_moe_block":true,"top_k_experts":2)",
        R"(,"rope_parameters":{"rope_theta":1e4})"}) {
    EXPECT_THROW(load(gemma4(refused)), CheckpointError) << refused;
  }
}

TEST(Family, SparsityOfGemma3nIsAQuantile) {
  const ModelConfig config = load(config_json(
      "Gemma3nForCausalLM", R"(,"num_kv_shared_layers":0,"intermediate_size":[64,96,128],
      "activation_sparsity_pattern":[0.95,0.5,0.0])"));
  EXPECT_NEAR(*config.layers[0].gate_deviations, 1.6448536269514722, 1e-6);
  EXPECT_NEAR(*config.layers[1].gate_deviations, 0.0, 1e-6);
  EXPECT_FALSE(config.layers[2].gate_deviations.has_value());
  EXPECT_EQ(config.layers[2].inner_size, 128);
  EXPECT_EQ(config.num_streams, 4);
}

TEST(Family, GemmaSoftCapsAreTheFamilysUnlessNull) {
  const ModelConfig absent = load(config_json("Gemma2ForCausalLM"));
  EXPECT_EQ(absent.layers.front().attention_soft_cap, 50.0f);
  EXPECT_EQ(absent.logits_soft_cap, 30.0f);
  EXPECT_EQ(windows_of(absent), (std::vector<int>{4096, 0, 4096}));
  const ModelConfig none = load(config_json(
      "Gemma2ForCausalLM", R"(,"attn_logit_softcapping":null,"final_logit_softcapping":null)"));
  EXPECT_EQ(none.layers.front().attention_soft_cap, 0.0f);
  EXPECT_EQ(none.logits_soft_cap, 0.0f);
  EXPECT_EQ(load(config_json("Gemma3ForCausalLM")).logits_soft_cap, 0.0f);
}

TEST(Family, ReadsLongRope) {
  const std::string factors = "[1,1,1,1,1,1,1,2]";
  const ModelConfig config = load(config_json(
      "Phi3ForCausalLM", R"(,"original_max_position_embeddings":64,"rope_scaling":{"type":"su",
      "short_factor":)" + factors +
                             R"(,"long_factor":)" + factors + "}"));
  const RopeConfig& rope = config.ropes.front();
  EXPECT_EQ(rope.kind, RopeKind::kLongRope);
  EXPECT_EQ(rope.original_max_position_embeddings, 64);
  EXPECT_EQ(rope.factor, 4.0);
  EXPECT_EQ(rope.long_factors.back(), 2.0);
  EXPECT_EQ(max_positions(config), 256);
}

TEST(Family, QwenExpertsMayBeInSomeLayers) {
  const std::string extra =
      R"(,"num_experts":8,"num_experts_per_tok":2,"moe_intermediate_size":32)";
  const ModelConfig all = load(config_json("Qwen3MoeForCausalLM", extra));
  EXPECT_EQ(all.num_experts, 8);
  EXPECT_FALSE(all.renormalize_experts);
  EXPECT_FALSE(all.any_layer([](const LayerSpec& layer) {
    return layer.mlp != MlpKind::kExperts || layer.inner_size != 32;
  }));
  const ModelConfig some = load(config_json(
      "Qwen3MoeForCausalLM",
      extra + R"(,"mlp_only_layers":[0],"decoder_sparse_step":1,"norm_topk_prob":true)"));
  EXPECT_TRUE(some.renormalize_experts);
  EXPECT_EQ(some.layers[0].mlp, MlpKind::kGated);
  EXPECT_EQ(some.layers[0].inner_size, 96);
  EXPECT_EQ(some.layers[1].mlp, MlpKind::kExperts);
  const ModelConfig every_second =
      load(config_json("Qwen3MoeForCausalLM", extra + R"(,"decoder_sparse_step":2)"));
  EXPECT_EQ(every_second.layers[0].mlp, MlpKind::kGated);
  EXPECT_EQ(every_second.layers[1].mlp, MlpKind::kExperts);
}

TEST(Family, ReadsGraniteMultipliers) {
  const ModelConfig config =
      load(config_json("GraniteForCausalLM",
                       R"(,"attention_multiplier":0.5,"embedding_multiplier":12,
                       "residual_multiplier":0.25,"logits_scaling":8)"));
  EXPECT_EQ(config.layers.front().attention_scale, 0.5f);
  EXPECT_EQ(config.embedding_scale, 12.0f);
  EXPECT_EQ(config.residual_scale, 0.25f);
  EXPECT_EQ(config.logits_scale, 0.125f);
}

TEST(Family, ReadsOlmo2) {
  const ModelConfig config = load(config_json("Olmo2ForCausalLM"));
  EXPECT_EQ(config.qk_norm, QkNorm::kAllHeads);
  EXPECT_FALSE(config.layers.front().norms_input());
  EXPECT_TRUE(config.layers.front().norms_output());
}

TEST(Family, ReadsGptNeox) {
  const std::string body = R"({"architectures":["GPTNeoXForCausalLM"],"vocab_size":100,
      "hidden_size":64,"intermediate_size":96,"num_hidden_layers":2,"num_attention_heads":4)";
  const ModelConfig config = load(body + R"(,"rotary_emb_base":2e4})");
  EXPECT_EQ(config.norm_kind, NormKind::kLayer);
  EXPECT_EQ(config.layers.front().mlp, MlpKind::kPlain);
  EXPECT_TRUE(config.layers.front().is_parallel);
  EXPECT_TRUE(config.qkv_bias && config.out_bias && config.mlp_bias);
  EXPECT_EQ(config.activation, Activation::kGelu);
  EXPECT_EQ(config.ropes.front().theta, 2e4);
  EXPECT_EQ(config.ropes.front().partial_rotary_factor, 0.25);
  EXPECT_EQ(config.layers.front().heads.num_kv_heads, 4);
  const ModelConfig other =
      load(body + R"(,"rotary_pct":1.0,"use_parallel_residual":false,"attention_bias":false})");
  EXPECT_FALSE(other.layers.front().is_parallel || other.qkv_bias || other.out_bias);
  EXPECT_TRUE(other.mlp_bias);
  EXPECT_EQ(other.ropes.front().partial_rotary_factor, 1.0);
}

// ---- what a family does not implement it refuses

class RefusedByFamily : public ::testing::TestWithParam<Refusal> {};

TEST_P(RefusedByFamily, NamesTheKey) { expect_refused(GetParam()); }

INSTANTIATE_TEST_SUITE_P(
    All, RefusedByFamily,
    ::testing::Values(
        Refusal{"MistralLayerTypes", "MistralForCausalLM",
                R"(,"layer_types":["full_attention","sliding_attention","full_attention"])",
                "layer_types"},
        Refusal{"MistralBias", "MistralForCausalLM", R"(,"attention_bias":true)", "attention_bias"},
        Refusal{"TooManyExpertsPerToken", "MixtralForCausalLM",
                R"(,"num_local_experts":2,"num_experts_per_tok":3)", "num_experts_per_tok"},
        Refusal{"OptNormWithoutWeights", "OPTForCausalLM",
                R"(,"ffn_dim":96,"layer_norm_elementwise_affine":false)",
                "layer_norm_elementwise_affine"},
        Refusal{"GemmaBidirectional", "Gemma3ForCausalLM", R"(,"use_bidirectional_attention":true)",
                "use_bidirectional_attention"},
        Refusal{"Gemma3AttentionCap", "Gemma3ForCausalLM", R"(,"attn_logit_softcapping":50.0)",
                "attn_logit_softcapping: is 50.0"},
        Refusal{"GemmaWithoutWindow", "Gemma3ForCausalLM", R"(,"sliding_window":null)",
                "sliding_window: is none"},
        Refusal{"GemmaLayerRope", "Gemma3ForCausalLM",
                R"(,"rope_parameters":{"full_attention":{"rope_type":"ntk"}})",
                "rope_parameters.full_attention.rope_type: 'ntk'"},
        Refusal{"LongRopeWithoutFactors", "Phi3ForCausalLM",
                R"(,"rope_scaling":{"rope_type":"longrope","short_factor":[1,2]})",
                "rope_scaling.long_factor: expected a list of numbers above 0"},
        Refusal{"LongRopeFactorsAreCounted", "Phi3ForCausalLM",
                R"(,"rope_scaling":{"rope_type":"longrope","short_factor":[1,2],
                "long_factor":[1,2]})",
                "rope_scaling: longrope needs 8 factors"},
        Refusal{"FactorsOfAnotherRope", "Phi3ForCausalLM",
                R"(,"rope_scaling":{"rope_type":"linear","factor":2,"long_factor":[1,2]})",
                "rope_scaling.long_factor"},
        Refusal{"TooManyQwenExpertsPerToken", "Qwen3MoeForCausalLM", R"(,"num_experts":4)",
                "num_experts_per_tok: more than num_experts"},
        Refusal{"GraniteMultiplier", "GraniteForCausalLM", R"(,"logits_scaling":0)",
                "logits_scaling: expected a number above 0"},
        Refusal{"Olmo2Window", "Olmo2ForCausalLM", R"(,"sliding_window":32)", "sliding_window"},
        Refusal{"UnevenGroups", "Glm4MoeForCausalLM", R"(,"n_routed_experts":8,"n_group":3)",
                "n_group: 3, expected to divide 8 experts"},
        Refusal{"TooFewGroups", "Glm4MoeForCausalLM",
                R"(,"n_routed_experts":8,"n_group":4,"topk_group":1,"num_experts_per_tok":3)",
                "topk_group: 1"},
        Refusal{"TooManyGroups", "Glm4MoeForCausalLM", R"(,"n_routed_experts":128,"n_group":64)",
                "n_group: expected at most 32"},
        Refusal{"GraniteLayerThetas", "GraniteSWAForCausalLM", R"(,"layer_rope_theta":[1e4])",
                "layer_rope_theta: expected 3 entries, found 1"},
        Refusal{"CohereNormOfHeads", "CohereForCausalLM", R"(,"use_qk_norm":true)", "use_qk_norm"},
        Refusal{"CohereSerial", "CohereForCausalLM", R"(,"use_parallel_block":false)",
                "use_parallel_block: is false"},
        Refusal{"ExaonePattern", "Exaone4ForCausalLM", R"(,"sliding_window_pattern":"LGL")",
                "sliding_window_pattern: expected a number"},
        Refusal{"Olmo3ThetaAlone", "Olmo3ForCausalLM", R"(,"rope_theta":10000)",
                "rope_theta: is not"},
        Refusal{"HunYuanWithoutNorm", "HunYuanDenseV1ForCausalLM", R"(,"use_qk_norm":false)",
                "use_qk_norm: is false"},
        Refusal{"SparseMiniCpm", "MiniCPMForCausalLM", R"(,"sparse_config":{"dense_len":8192})",
                "sparse_config"},
        Refusal{"ApertusActivation", "ApertusForCausalLM", R"(,"hidden_act":"silu")",
                "hidden_act: 'silu' is not implemented"},
        Refusal{"GptOssActivation", "GptOssForCausalLM", R"(,"hidden_act":"gelu")", "hidden_act"},
        Refusal{"SmolLmLayers", "SmolLM3ForCausalLM", R"(,"no_rope_layers":[1])",
                "no_rope_layers: expected 3 entries"},
        Refusal{"ErnieBiasOfExperts", "Ernie4_5_MoeForCausalLM", R"(,"use_bias":true)",
                "use_bias: is not implemented"},
        Refusal{"GptNeoxSharedHeads", "GPTNeoXForCausalLM", "", "num_attention_heads"}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace specdec
