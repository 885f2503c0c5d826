#include "model/config.h"

#include <gtest/gtest.h>

#include "specdec/error.h"
#include "testing/checkpoint_files.h"
#include "testing/model_config.h"
#include "testing/text.h"

namespace specdec {
namespace {

using namespace testing::model_config;
using testing::has_text;
using testing::TempDirectory;

TEST(ModelConfig, ReadsLlama) {
  const ModelConfig config =
      load(config_json("LlamaForCausalLM", R"(,"rms_norm_eps":1e-5,"torch_dtype":"bfloat16")"));
  EXPECT_EQ(config.architecture, "LlamaForCausalLM");
  EXPECT_EQ(config.checkpoint_dtype, DType::kBF16);
  EXPECT_EQ(config.vocab_size, 100);
  EXPECT_EQ(config.num_layers, 3);
  EXPECT_EQ(config.layers.front().heads.num_kv_heads, 2);
  EXPECT_EQ(config.layers.front().heads.head_dim, 16);
  EXPECT_FLOAT_EQ(config.norm_eps, 1e-5f);
  EXPECT_FALSE(config.qkv_bias || config.out_bias || config.mlp_bias);
  EXPECT_EQ(config.qk_norm, QkNorm::kNone);
  EXPECT_FALSE(config.tie_word_embeddings);
  EXPECT_TRUE(config.final_norm);
  for (const LayerSpec& layer : config.layers) {
    EXPECT_EQ(layer.mlp, MlpKind::kGated);
    EXPECT_EQ(layer.norms, NormPlacement::kInput);
    EXPECT_EQ(layer.inner_size, 96);
    EXPECT_EQ(layer.attention_scale, 0.25f);
  }
  EXPECT_EQ(windows_of(config), (std::vector<int>{0, 0, 0}));
  EXPECT_EQ(config.ropes.front().kind, RopeKind::kDefault);
  EXPECT_EQ(config.ropes.front().theta, 10000.0);
}

TEST(ModelConfig, OverridesReplaceKeysAndMergeObjects) {
  TempDirectory directory;
  directory.write(
      "config.json",
      config_json("LlamaForCausalLM", R"(,"rope_scaling":{"rope_type":"linear","factor":2.0})"));
  const ModelConfig config = load_model_config(
      directory.path(),
      R"({"max_position_embeddings":512,"dtype":"float16","rope_scaling":{"factor":4.0}})");
  EXPECT_EQ(config.max_position_embeddings, 512);
  EXPECT_EQ(config.checkpoint_dtype, DType::kF16);
  EXPECT_EQ(config.ropes.front().kind, RopeKind::kLinear);
  EXPECT_EQ(config.ropes.front().factor, 4.0);
  EXPECT_EQ(config.num_layers, 3);
  for (const char* bad : {"[]", "3", "{", "nonsense"}) {
    EXPECT_THROW(load_model_config(directory.path(), bad), InvalidArgument) << bad;
  }
}

TEST(ModelConfig, ReadsLlamaBiasesAndHeadDim) {
  const ModelConfig config =
      load(config_json("LlamaForCausalLM", R"(,"attention_bias":true,"mlp_bias":true,"head_dim":32,
                       "tie_word_embeddings":true,"dtype":"float16")"));
  EXPECT_TRUE(config.qkv_bias && config.out_bias && config.mlp_bias);
  EXPECT_EQ(config.layers.front().heads.head_dim, 32);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_EQ(config.checkpoint_dtype, DType::kF16);
}

TEST(ModelConfig, HeadsWithoutKeyValueHeadsAreAllTheirOwn) {
  const std::string json = R"({"architectures":["LlamaForCausalLM"],"vocab_size":100,
      "hidden_size":64,"intermediate_size":96,"num_hidden_layers":3,"num_attention_heads":4})";
  EXPECT_EQ(load(json).layers.front().heads.num_kv_heads, 4);
}

TEST(ModelConfig, FindsFamilyByModelTypeAndBaseModelName) {
  const std::string body = R"("vocab_size":10,"hidden_size":64,"intermediate_size":96,
      "num_hidden_layers":1,"num_attention_heads":4,"num_key_value_heads":4})";
  EXPECT_EQ(load(R"({"model_type":"qwen2",)" + body).architecture, "Qwen2ForCausalLM");
  EXPECT_EQ(load(R"({"architectures":["LlamaModel"],)" + body).architecture, "LlamaForCausalLM");
}

TEST(ModelConfig, UnknownArchitectureListsTheKnownOnes) {
  const std::string message = error_of(config_json("GPT2LMHeadModel"));
  EXPECT_TRUE(has_text(message, "GPT2LMHeadModel"));
  const size_t suffix = std::string("ForCausalLM").size();
  for (const std::string& known : known_architectures()) {
    EXPECT_TRUE(has_text(message, " " + known.substr(0, known.size() - suffix)));
  }
  EXPECT_FALSE(known_architectures().empty());
}

// ---- rope

TEST(ModelConfig, ReadsRopeOfTransformers4) {
  const ModelConfig config =
      load(config_json("LlamaForCausalLM", R"(,"rope_theta":500000,"rope_scaling":{
        "rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,
        "original_max_position_embeddings":8192})"));
  EXPECT_EQ(config.ropes.front().kind, RopeKind::kLlama3);
  EXPECT_EQ(config.ropes.front().theta, 500000.0);
  EXPECT_EQ(config.ropes.front().factor, 8.0);
  EXPECT_EQ(config.ropes.front().high_freq_factor, 4.0);
  EXPECT_EQ(config.ropes.front().original_max_position_embeddings, 8192);
}

TEST(ModelConfig, ReadsRopeOfTransformers5) {
  const ModelConfig config = load(config_json(
      "Phi3ForCausalLM", R"(,"rope_parameters":{"rope_type":"yarn","rope_theta":1000000.0,
      "factor":4.0,"original_max_position_embeddings":32768,"beta_fast":16,"attention_factor":1.2,
      "partial_rotary_factor":0.5,"truncate":false})"));
  EXPECT_EQ(config.ropes.front().kind, RopeKind::kYarn);
  EXPECT_EQ(config.ropes.front().theta, 1e6);
  EXPECT_EQ(config.ropes.front().beta_fast, 16.0);
  EXPECT_EQ(config.ropes.front().beta_slow, 1.0);
  EXPECT_EQ(config.ropes.front().attention_factor, 1.2);
  EXPECT_EQ(config.ropes.front().partial_rotary_factor, 0.5);
  EXPECT_FALSE(config.ropes.front().truncate);
}

TEST(ModelConfig, LegacyTypeKeyAndDefaultsOfScaling) {
  const ModelConfig linear =
      load(config_json("LlamaForCausalLM", R"(,"rope_scaling":{"type":"linear","factor":2})"));
  EXPECT_EQ(linear.ropes.front().kind, RopeKind::kLinear);
  EXPECT_EQ(linear.ropes.front().factor, 2.0);
  const ModelConfig dynamic =
      load(config_json("LlamaForCausalLM", R"(,"rope_scaling":{"type":"dynamic","factor":2.0})"));
  EXPECT_EQ(dynamic.ropes.front().original_max_position_embeddings, 256);
  EXPECT_EQ(load(config_json("LlamaForCausalLM", R"(,"rope_scaling":null)")).ropes.front().kind,
            RopeKind::kDefault);
  EXPECT_EQ(load(config_json("MixtralForCausalLM")).ropes.front().theta, 1e6);
}

// ---- windows

TEST(ModelConfig, MistralWindowIsForAllLayersAndDefaultsTo4096) {
  EXPECT_EQ(windows_of(load(config_json("MistralForCausalLM", R"(,"sliding_window":64)"))),
            (std::vector<int>{64, 64, 64}));
  EXPECT_EQ(windows_of(load(config_json("MistralForCausalLM", R"(,"sliding_window":null)"))),
            std::vector<int>(3, 0));
  EXPECT_EQ(windows_of(load(config_json("MistralForCausalLM"))), std::vector<int>(3, 4096));
}

TEST(ModelConfig, QwenWindowStartsAtMaxWindowLayers) {
  const std::string window = R"(,"sliding_window":64,"max_window_layers":1)";
  EXPECT_EQ(windows_of(load(config_json("Qwen2ForCausalLM", window))), std::vector<int>(3, 0));
  EXPECT_EQ(
      windows_of(load(config_json("Qwen2ForCausalLM", window + R"(,"use_sliding_window":true)"))),
      (std::vector<int>{0, 64, 64}));
}

TEST(ModelConfig, QwenLayerTypesSayWhichLayersHaveWindows) {
  const std::string types =
      R"(,"layer_types":["sliding_attention","full_attention","sliding_attention"])";
  EXPECT_EQ(windows_of(load(config_json(
                "Qwen3ForCausalLM", types + R"(,"use_sliding_window":true,"sliding_window":32)"))),
            (std::vector<int>{32, 0, 32}));
  EXPECT_TRUE(has_text(error_of(config_json("Qwen3ForCausalLM", types)),
                       "sliding_window: is none or not in use, but layer 0"));
}

// ---- what is not implemented is refused, never ignored

class RefusedConfig : public ::testing::TestWithParam<Refusal> {};

TEST_P(RefusedConfig, NamesTheKey) { expect_refused(GetParam()); }

constexpr const char* kLlama = "LlamaForCausalLM";

INSTANTIATE_TEST_SUITE_P(
    All, RefusedConfig,
    ::testing::Values(
        Refusal{"Quantization", kLlama, R"(,"quantization_config":{"quant_method":"exl3"})",
                "quantization_config.quant_method: weights of 'exl3' are not read (trellis codes"},
        Refusal{"QuantizationGroups", kLlama,
                R"(,"quantization_config":{"quant_method":"specdec_native","group_size":128})",
                "quantization_config.group_size: expected 32"},
        Refusal{"Fp8Format", kLlama,
                R"(,"quantization_config":{"quant_method":"fp8","fmt":"e5m2"})",
                "quantization_config.fmt: 'e5m2'"},
        Refusal{"Fp8Blocks", kLlama,
                R"(,"quantization_config":{"quant_method":"fp8","weight_block_size":[128,0]})",
                "quantization_config.weight_block_size: expected two positive integers"},
        Refusal{"CompressedFormat", kLlama,
                R"(,"quantization_config":{"quant_method":"compressed-tensors",
                "format":"marlin-24"})",
                "quantization_config.format: 'marlin-24'"},
        Refusal{"CompressedGroups", kLlama,
                R"(,"quantization_config":{"quant_method":"compressed-tensors",
                "format":"float-quantized","config_groups":{"group_0":{"weights":{
                "type":"float","strategy":"token"}}}})",
                "quantization_config.config_groups.group_0.weights.strategy: 'token'"},
        Refusal{"CompressedSparse", kLlama,
                R"(,"quantization_config":{"quant_method":"compressed-tensors",
                "format":"float-quantized","sparsity_config":{"format":"sparse-24-bitmask"}})",
                "quantization_config.sparsity_config.format: sparse"},
        Refusal{"CompressedTransforms", kLlama,
                R"(,"quantization_config":{"quant_method":"compressed-tensors",
                "format":"float-quantized","transform_config":{"config_groups":{"u":{"type":
                "hadamard"}}}})",
                "quantization_config.transform_config: transforms of activations"},
        Refusal{"CompressedGroupFormat", kLlama,
                R"(,"quantization_config":{"quant_method":"compressed-tensors",
                "format":"float-quantized","config_groups":{"group_0":{"format":"marlin-24"}}})",
                "quantization_config.config_groups.group_0.format: 'marlin-24'"},
        Refusal{"CompressedDynamicWeights", kLlama,
                R"(,"quantization_config":{"quant_method":"compressed-tensors",
                "format":"float-quantized","config_groups":{"group_0":{"weights":{
                "type":"float","dynamic":true}}}})",
                "quantization_config.config_groups.group_0.weights.dynamic: is true"},
        Refusal{"AwqVersion", kLlama,
                R"(,"quantization_config":{"quant_method":"awq","version":"gemv"})",
                "quantization_config.version: 'gemv' is not read, only 'gemm'"},
        Refusal{"GptqBits", kLlama, R"(,"quantization_config":{"quant_method":"gptq","bits":5})",
                "quantization_config.bits: 5 bits are not read, only 4, 8, 3, 2"},
        Refusal{"GptqGroup", kLlama,
                R"(,"quantization_config":{"quant_method":"gptq","group_size":0})",
                "quantization_config.group_size: expected -1 or more than 0, got 0"},
        Refusal{"GptqFormat", kLlama,
                R"(,"quantization_config":{"quant_method":"gptq","checkpoint_format":"marlin"})",
                "quantization_config.checkpoint_format: 'marlin' is not read"},
        Refusal{"Fp8Unknown", kLlama,
                R"(,"quantization_config":{"quant_method":"fp8","rounding":"up"})",
                "quantization_config.rounding: is \"up\""},
        Refusal{"UnknownScale", kLlama, R"(,"my_Logit-Scale":2.5)", "my_Logit-Scale: is 2.5"},
        Refusal{"UnknownObject", kLlama, R"(,"router":{"first":0,"second":1})",
                "router: is an object"},
        Refusal{"BothWays", kLlama, R"(,"is_causal":false)", "is_causal: is false"},
        Refusal{"UnusualScale", kLlama, R"(,"logits_scaling":8)", "logits_scaling: is 8"},
        Refusal{"HiddenAct", kLlama, R"(,"hidden_act":"quick_gelu")", "hidden_act: 'quick_gelu'"},
        Refusal{"RopeType", kLlama, R"(,"rope_scaling":{"rope_type":"ntk","factor":2})",
                "rope_scaling.rope_type: 'ntk'"},
        Refusal{"RopeKey", kLlama,
                R"(,"rope_parameters":{"rope_type":"default","mrope_section":[1,2]})",
                "rope_parameters.mrope_section"},
        Refusal{"RopePerLayerType", kLlama,
                R"(,"rope_parameters":{"full_attention":{"rope_type":"default"}})",
                "rope_parameters.full_attention"},
        Refusal{"RopeWithoutFactor", kLlama, R"(,"rope_scaling":{"rope_type":"linear"})",
                "rope_scaling.factor: missing"},
        Refusal{"Llama3WithoutFactors", kLlama, R"(,"rope_scaling":{"rope_type":"llama3",
                "factor":8})",
                "low_freq_factor: missing"},
        Refusal{"PartOfAHead", kLlama,
                R"(,"rope_parameters":{"rope_type":"default","partial_rotary_factor":0.5})",
                "partial_rotary_factor: is 0.5, and only 1 is implemented for Llama"},
        Refusal{"NegativeTheta", kLlama, R"(,"rope_theta":-1)", "rope_theta"},
        Refusal{"LlamaWindow", kLlama, R"(,"sliding_window":32)", "sliding_window"},
        Refusal{"ChunkedLayers", "Qwen2ForCausalLM",
                R"(,"layer_types":["full_attention","full_attention","chunked_attention"])",
                "'chunked_attention'"},
        Refusal{"TooFewLayerTypes", "Qwen2ForCausalLM", R"(,"layer_types":["full_attention"])",
                "layer_types: expected 3"},
        Refusal{"Softcapping", kLlama, R"(,"final_logit_softcapping":30.0)",
                "final_logit_softcapping"},
        Refusal{"DType", kLlama, R"(,"torch_dtype":"float8_e4m3fn")", "torch_dtype"},
        Refusal{"OddHeadDim", kLlama, R"(,"head_dim":7)", "head_dim"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(ModelConfig, KeysThatAreKnownOrOffAreSilent) {
  const ModelConfig config = load(config_json(kLlama, R"(,"auto_map":{"AutoModel":"x.Y"},
      "_name_or_path":"x","transformers_version":"4.40","bos_token_id":1,"attention_dropout":0.1,
      "initializer_range":0.02,"max_window_layers":28,"sliding_window":null,"logits_scaling":1.0,
      "is_causal":true,"clip_qkv":0,"no_rope_layers":[],"new_attention":{"gate":false,"bias":0},
      "head_act":"","original_max_position_embeddings":64,"temperature":0.6)"));
  EXPECT_EQ(config.unknown_keys, "");
}

TEST(ModelConfig, OtherUnknownKeysAreNamed) {
  const std::string unknown =
      load(config_json(kLlama, R"(,"note":"mine","tags":["a"],"revision_date":3)")).unknown_keys;
  EXPECT_TRUE(unknown.ends_with("config.json: note, revision_date, tags"));
  std::string many;
  for (int i = 10; i < 30; ++i) many += str_cat(",\"note", i, "\":1");
  EXPECT_TRUE(load(config_json(kLlama, many)).unknown_keys.ends_with(", note19, ..."));
}

TEST(ModelConfig, AnOverrideDropsAKeyThatIsRefused) {
  TempDirectory directory;
  directory.write("config.json", config_json(kLlama, R"(,"my_scale":2,"rope_scaling":{
      "rope_type":"default","turns":3})"));
  EXPECT_THROW(load_model_config(directory.path(), R"({"my_scale":null})"), CheckpointError);
  EXPECT_EQ(
      load_model_config(directory.path(), R"({"my_scale":null,"rope_scaling":{"turns":null}})")
          .unknown_keys,
      "");
}

TEST(ModelConfig, ReadsHowEightBitFloatsAreStored) {
  TempDirectory directory;
  const auto config_of = [&](const std::string& quantization) {
    directory.write("config.json",
                    config_json(kLlama, str_cat(R"(,"quantization_config":)", quantization)));
    return load_model_config(directory.path());
  };
  ModelConfig config = config_of(
      R"({"quant_method":"fp8","fmt":"e4m3","activation_scheme":"dynamic",
          "weight_block_size":[128,64]})");
  EXPECT_EQ(config.stored_format, "fp8");
  EXPECT_EQ(config.scheme.block.rows, 128);
  EXPECT_EQ(config.scheme.block.cols, 64);
  config = config_of(R"({"quant_method":"fp8","activation_scheme":"static"})");
  EXPECT_EQ(config.scheme.block.rows, 0);
  config = config_of(R"({"quant_method":"fbgemm_fp8","activation_scale_ub":1200.0})");
  EXPECT_EQ(config.stored_format, "fbgemm_fp8");
  config = config_of(R"({"quant_method":"compressed-tensors","format":"float-quantized",
      "kv_cache_scheme":null,"sparsity_config":{"format":"dense"},"ignore":["lm_head"],
      "config_groups":{"group_0":{"targets":["Linear"],"weights":{"num_bits":8,"type":"float",
      "strategy":"block","block_structure":[128,128],"symmetric":true,"dynamic":false,
      "actorder":null,"group_size":null,"observer":"static_minmax","observer_kwargs":{"a":1},
      "zp_dtype":null,"scale_dtype":"torch.bfloat16"},"input_activations":{"dynamic":true,
      "num_bits":8},"output_activations":null,"format":"float-quantized"}},"version":"0.12",
      "quantization_status":"compressed","global_compression_ratio":1.5,"transform_config":{}})");
  EXPECT_EQ(config.stored_format, "compressed-tensors float-quantized");
  EXPECT_EQ(config.scheme.block.cols, 128);
}

TEST(ModelConfig, WrongTypesAndMissingKeysAreNamed) {
  EXPECT_TRUE(
      has_text(error_of(R"({"architectures":["LlamaForCausalLM"]})"), "vocab_size: missing"));
  EXPECT_TRUE(has_text(error_of(R"({"architectures":["LlamaForCausalLM"],"vocab_size":"many"})"),
                       "vocab_size: expected an integer of at least 1, got \"many\""));
  EXPECT_TRUE(
      has_text(error_of(R"({"architectures":["LlamaForCausalLM"],"vocab_size":0})"), "vocab_size"));
  EXPECT_TRUE(has_text(
      error_of(R"({"architectures":["LlamaForCausalLM"],"vocab_size":3000000000})"), "vocab_size"));
  EXPECT_TRUE(has_text(error_of(R"({"architectures":"LlamaForCausalLM"})"), "architectures"));
  EXPECT_TRUE(has_text(error_of("[]"), "JSON object"));
  EXPECT_TRUE(has_text(error_of("{"), "not valid JSON"));
  EXPECT_TRUE(has_text(error_of(""), "not valid JSON"));
}

TEST(ModelConfig, KeyValueHeadsMustDivideHeads) {
  const std::string json = R"({"architectures":["LlamaForCausalLM"],"vocab_size":100,
      "hidden_size":60,"intermediate_size":96,"num_hidden_layers":3,"num_attention_heads":4,
      "num_key_value_heads":3})";
  EXPECT_TRUE(has_text(error_of(json), "num_key_value_heads"));
}

TEST(ModelConfig, MissingDirectoryAndConfigAreTold) {
  TempDirectory directory;
  directory.write("model.gguf", "x");
  const auto message = [](const std::string& path) -> std::string {
    return testing::checkpoint_error_of([&] { load_model_config(path); }).what();
  };
  EXPECT_TRUE(has_text(message(directory.path()), "config.json"));
  EXPECT_TRUE(has_text(message(directory.path()), "missing"));
  EXPECT_TRUE(has_text(message(directory.file("none")), "no such directory"));
  EXPECT_TRUE(has_text(message(directory.file("model.gguf")), "not a directory"));
  EXPECT_TRUE(has_text(message(""), "no such directory"));
}

TEST(ModelConfig, AFileIsBoundedBeforeAnythingIsMadeOfIt) {
  struct Case {
    std::string member;
    const char* message;
  };
  const std::string deep(200'000, '[');
  const std::string end(200'000, ']');
  const std::vector<Case> cases = {
      {R"(,"dtype":)" + deep + end, "nested deeper than 64 levels"},
      {R"(,"unknown":)" + deep + end, "nested deeper than 64 levels"},
      {R"(,"dtype":[1,{"a":[]}])", "dtype: expected a string, got a list"},
      {R"(,"dtype":{"a":1})", "dtype: expected a string, got an object"},
      {R"(,"head_dim":")" + std::string(5000, 'x') + '"', "integer of at least 1, got \"xxx"},
      {R"(,"dtype":")" + std::string(5000, 'x') + '"', "dtype: 'xxx"},
      {",\"scale" + std::string(5000, 'x') + "\":1", ": is 1, which may change"},
      {",\"scale\xc3\xa9\":1", "\"scale\\u00e9\": is 1"},
      {R"(,"num_hidden_layers":2147483647)", "num_hidden_layers: expected at most 65536"},
  };
  for (const Case& bad : cases) {
    const std::string message = error_of(config_json(kLlama, bad.member));
    EXPECT_TRUE(has_text(message, bad.message));
    EXPECT_LT(message.size(), 1200u);
  }
}

// ---- end-of-sequence tokens

TEST(EosTokenIds, GenerationConfigGoesFirst) {
  TempDirectory directory;
  directory.write("config.json", config_json(kLlama, R"(,"eos_token_id":2)"));
  EXPECT_EQ(load_eos_token_ids(directory.path()), (std::vector<int>{2}));
  directory.write("generation_config.json", R"({"eos_token_id":[7,9]})");
  EXPECT_EQ(load_eos_token_ids(directory.path()), (std::vector<int>{7, 9}));
  EXPECT_EQ(load_model_config(directory.path()).eos_token_ids, (std::vector<int>{7, 9}));
  directory.write("generation_config.json", R"({"eos_token_id":null})");
  EXPECT_EQ(load_eos_token_ids(directory.path()), (std::vector<int>{2}));
}

TEST(EosTokenIds, MayBeAbsentButNotMalformed) {
  TempDirectory directory;
  directory.write("config.json", config_json(kLlama));
  EXPECT_TRUE(load_eos_token_ids(directory.path()).empty());
  directory.write("config.json", config_json(kLlama, R"(,"eos_token_id":"</s>")"));
  EXPECT_THROW(load_eos_token_ids(directory.path()), CheckpointError);
}

}  // namespace
}  // namespace specdec
