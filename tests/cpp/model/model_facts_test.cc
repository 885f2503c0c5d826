// Bytes, operations and exchanges of passes against numbers computed by hand; bytes of weights
// against loaded models.
#include "specdec/model_facts.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/str_cat.h"
#include "model/decoder.h"
#include "testing/checkpoint_files.h"

namespace specdec {
namespace {

using testing::TempDirectory;

// config.json of a model with 8 heads of 64 and an MLP of 1024.
std::string json_of(const std::string& architecture, const std::string& extra = "") {
  return str_cat(R"({"architectures":[")", architecture,
                 R"("],"vocab_size":1000,"hidden_size":512,"intermediate_size":1024,)",
                 R"("num_hidden_layers":4,"num_attention_heads":8,"head_dim":64,)",
                 R"("max_position_embeddings":512,"torch_dtype":"bfloat16")", extra, "}");
}

constexpr const char* kFourKvHeads = R"(,"num_key_value_heads":4)";
constexpr const char* kTied = R"(,"num_key_value_heads":4,"tie_word_embeddings":true)";

std::vector<ModelFacts> facts_of(const std::string& architecture,
                                 const std::string& extra = kFourKvHeads,
                                 const FactsFormats& formats = {}) {
  TempDirectory directory;
  directory.write("config.json", json_of(architecture, extra));
  return model_facts(directory.path(), formats);
}

std::vector<ModelFacts> llama(const std::string& extra = kFourKvHeads,
                              const FactsFormats& formats = {}) {
  return facts_of("LlamaForCausalLM", extra, formats);
}

ModelFacts shared(const std::vector<ModelFacts>& all, int size) {
  for (const ModelFacts& facts : all) {
    if (facts.num_ranks == size) return facts;
  }
  ADD_FAILURE() << size << " ranks cannot share the model";
  return {};
}

constexpr double kLmHead = 1000.0 * 512;
constexpr double kAttention = 512 * 64 * (2.0 * 8 + 2 * 4);
constexpr double kLayer = kAttention + 3.0 * 512 * 1024;
constexpr double kToken = 2.0 * 4 * 64 * 2;  // bytes of keys and values in a layer

TEST(ModelFactsTest, OfADenseModel) {
  const ModelFacts facts = llama()[0];
  EXPECT_EQ(facts.num_layers(), 4);
  EXPECT_EQ(facts.pass_bytes(1, 1, 100), 2 * (4 * kLayer + kLmHead) + 4 * 101 * kToken);
  EXPECT_EQ(facts.pass_bytes(6, 2, 100) - facts.pass_bytes(1, 1, 100), 4 * 105 * kToken);
  EXPECT_EQ(facts.pass_flops(3, 0), 3 * 2 * (4 * kLayer + kLmHead));
  EXPECT_EQ(facts.pass_flops(3, 10) - facts.pass_flops(3, 0), 3 * 4 * 4 * 8 * 64 * 10);
  EXPECT_EQ(facts.pass_flops(3, 10) - facts.pass_flops(3, 10, 1), 2 * 2 * kLmHead);
  EXPECT_EQ(facts.memory_bytes(10), 2 * (4 * kLayer + 2 * kLmHead) + 4 * 10 * kToken);
  EXPECT_EQ(llama(kTied)[0].memory_bytes(0), 2 * (4 * kLayer + kLmHead));
  EXPECT_EQ(facts.num_exchanges(), 0);
  EXPECT_EQ(facts.received_bytes(8), 0);
}

TEST(ModelFactsTest, OfLayersThatReadOthersKeysAndTheirOwnEmbeddings) {
  const ModelFacts facts = facts_of(
      "Gemma4ForCausalLM",
      R"(,"num_key_value_heads":4,"layer_types":["sliding_attention","full_attention",)"
      R"("sliding_attention","full_attention"],"sliding_window":20,"num_kv_shared_layers":2,)"
      R"("global_head_dim":128,"use_double_wide_mlp":true,"hidden_size_per_layer_input":32,)"
      R"("vocab_size_per_layer_input":1000)")[0];
  constexpr double kQ = 512 * 64 * 8, kKv = 2 * 512 * 64 * 4, kMlp = 3.0 * 512 * 1024;
  constexpr double kPerLayer = 2 * 512 * 32;
  EXPECT_EQ(facts.layers[0].weights, 2 * kQ + kKv + kMlp + kPerLayer);
  EXPECT_EQ(facts.layers[1].weights, 2 * (2 * kQ + kKv) + kMlp + kPerLayer);
  EXPECT_EQ(facts.layers[2].weights, 2 * kQ + 2 * kMlp + kPerLayer);
  EXPECT_EQ(facts.layers[3].weights, 2 * 2 * kQ + 2 * kMlp + kPerLayer);
  EXPECT_EQ(facts.input.weights, 512.0 * 4 * 32);
  EXPECT_EQ(facts.table_weights, 1000.0 * 4 * 32);
  // Of a token, the first layer of each kind holds keys and values, and two layers read them.
  EXPECT_EQ(facts.memory_bytes(1) - facts.memory_bytes(0), kToken + 2 * kToken);
  EXPECT_EQ(facts.pass_bytes(1, 1, 100) - facts.pass_bytes(1, 1, 0),
            2 * (20 * kToken + 100 * 2 * kToken));
}

TEST(ModelFactsTest, OfRecurrentLayers) {
  const ModelFacts facts = facts_of(
      "Qwen3_5ForCausalLM",
      R"(,"num_key_value_heads":4,"linear_num_key_heads":2,"linear_num_value_heads":6,)"
      R"("linear_key_head_dim":32,"linear_value_head_dim":64,"full_attention_interval":2)")[0];
  constexpr double kMlp = 3.0 * 512 * 1024, kMatrix = 6.0 * 32 * 64;
  constexpr double kChannels = 2 * 2 * 32 + 6 * 64, kValues = 6 * 64;
  constexpr double kState = 4 * (3 * kChannels + kMatrix);
  // Projections to the channels, the gates of the output, and two numbers for each head.
  EXPECT_EQ(facts.layers[0].weights, 512 * (kChannels + 2 * kValues + 2 * 6) + kMlp);
  EXPECT_EQ(facts.layers[1].weights, kAttention + 512.0 * 512 + kMlp);  // with a gate
  EXPECT_EQ(facts.memory_bytes(1) - facts.memory_bytes(0), 2 * kToken);
  EXPECT_EQ(facts.pass_bytes(0, 2, 100) - facts.pass_bytes(0, 1, 100),
            2 * 100 * kToken + 2 * 2 * kState);
  EXPECT_EQ(facts.layers[0].state_flops, 2 * 4 * kChannels + 6 * kMatrix);
}

TEST(ModelFactsTest, FormatsChangeBytesAndNotOperations) {
  const auto weights = [](const FactsFormats& formats) {
    const ModelFacts facts = llama(kFourKvHeads, formats)[0];
    EXPECT_EQ(facts.pass_flops(4, 9), llama()[0].pass_flops(4, 9));
    return facts.pass_bytes(0, 0, 0);
  };
  EXPECT_EQ(weights({.dtype = "float32"}), 4 * (4 * kLayer + kLmHead));
  EXPECT_EQ(weights({.quantization = "int8"}), 4 * kLayer + kLmHead);
  EXPECT_EQ(weights({.quantization = "int4"}), 0.5625 * 4 * kLayer + 1.0625 * kLmHead);
  EXPECT_EQ(weights({.quantization = "fp8"}), 4 * kLayer + 2 * kLmHead);
  const ModelFacts facts = llama(kFourKvHeads, {.kv_cache_dtype = "int8"})[0];
  EXPECT_EQ(facts.pass_bytes(1, 1, 0) - facts.pass_bytes(0, 1, 0), 4 * kToken / 2 * (1 + 4.0 / 64));
}

TEST(ModelFactsTest, RowsReadTheExpertsThatTheyChoose) {
  const ModelFacts facts =
      facts_of("MixtralForCausalLM", R"(,"num_key_value_heads":4,"num_local_experts":8,)"
                                     R"("num_experts_per_tok":2)")[0];
  const double expert = 3.0 * 512 * 1024;
  const double others = kAttention + 8 * 512;  // the router
  EXPECT_EQ(facts.pass_bytes(1, 0, 0), 2 * (4 * (others + 2 * expert) + kLmHead) + 4 * kToken);
  EXPECT_NEAR(facts.pass_bytes(1000, 0, 0),
              2 * (4 * (others + 8 * expert) + kLmHead) + 4000 * kToken, 1);
  // The second row shares each expert of the first with a probability of a quarter.
  EXPECT_NEAR(facts.pass_bytes(2, 0, 0), 2 * (4 * (others + 3.5 * expert) + kLmHead) + 8 * kToken,
              1);
  EXPECT_EQ(facts.pass_flops(1, 0), 2 * (4 * (others + 2 * expert) + kLmHead));
  EXPECT_EQ(facts.memory_bytes(0), 2 * (4 * (others + 8 * expert) + 2 * kLmHead));
}

TEST(ModelFactsTest, WindowsLimitWhatIsRead) {
  const ModelFacts facts =
      facts_of("MistralForCausalLM", R"(,"num_key_value_heads":4,"sliding_window":32)")[0];
  EXPECT_EQ(facts.pass_bytes(1, 1, 100), facts.pass_bytes(1, 1, 32));
  EXPECT_LT(facts.pass_bytes(1, 1, 31), facts.pass_bytes(1, 1, 32));
  EXPECT_EQ(facts.pass_flops(1, 100), facts.pass_flops(1, 32));
}

// ---- ranks

TEST(ModelFactsTest, TwoRanksReadHalfAndExchangeTheRest) {
  const ModelFacts half = shared(llama(kTied), 2);
  EXPECT_EQ(half.pass_bytes(1, 1, 100), (llama(kTied)[0].pass_bytes(1, 1, 100)) / 2);
  EXPECT_EQ(half.num_exchanges(), 4 * 2 + 2);  // two sums a layer, the embedding's row, the logits
  // A plane of each sum, half of an embedding and of the logits.
  EXPECT_EQ(half.received_bytes(3), 3 * 4 * (4 * 2 * 512 + 512 / 2 + 500));
  const ModelFacts untied = shared(llama(), 2);
  EXPECT_EQ(untied.num_exchanges(), 4 * 2 + 1);
  EXPECT_EQ(untied.memory_bytes(0), 2 * (2 * kLayer + 1.5 * kLmHead));  // the whole embedding
}

// Three ranks have three, three and two of eight slices: 2 + 2 + 1 partial sums.
TEST(ModelFactsTest, UnevenShares) {
  const std::vector<ModelFacts> all = llama(R"(,"num_key_value_heads":8)");
  const auto planes = [&](int size) { return shared(all, size).layers[0].received_floats / 512; };
  EXPECT_EQ(planes(1), 0);
  EXPECT_EQ(planes(2), 2);
  EXPECT_EQ(planes(3), 2 * 4);
  EXPECT_EQ(planes(4), 2 * 3);
  EXPECT_EQ(planes(8), 2 * 7);
  EXPECT_EQ(shared(all, 3).layers[0].query_elements, 3 * 64);
  EXPECT_EQ(shared(all, 3).output.weights, 334 * 512);
  EXPECT_EQ(all.size(), 5U);  // 1, 2, 3, 4, 8
}

TEST(ModelFactsTest, NormsOverAllHeadsAreAnExchange) {
  const ModelFacts half = shared(facts_of("Olmo2ForCausalLM"), 2);
  EXPECT_EQ(half.num_exchanges(), 4 * 3 + 1);
  EXPECT_EQ(half.layers[0].received_floats, 2 * 512 + (8 + 4) * 64 / 2);
}

TEST(ModelFactsTest, StagesHoldTheModelOnce) {
  for (const std::string extra : {kFourKvHeads, kTied}) {
    const ModelFacts whole = shared(llama(extra), 2);
    double bytes = 0, memory = 0;
    int exchanges = 0;
    for (int i = 0; i < 3; ++i) {
      const ModelFacts stage = whole.stage(i, 3);
      EXPECT_EQ(stage.num_layers(), i == 2 ? 2 : 1);
      bytes += stage.pass_bytes(4, 2, 9);
      memory += stage.memory_bytes(7);
      exchanges += stage.num_exchanges();
    }
    EXPECT_EQ(bytes, whole.pass_bytes(4, 2, 9));
    EXPECT_EQ(exchanges, whole.num_exchanges());
    // A head that is also the embedding is held at both ends.
    EXPECT_EQ(memory, whole.memory_bytes(7) + (extra == kTied ? kLmHead : 0));
  }
}

// ---- heads

std::vector<ModelFacts> head(DraftMethod method, const std::string& json,
                             const std::string& target = kTied) {
  TempDirectory of_draft_head, of_target;
  of_draft_head.write("config.json", json);
  of_target.write("config.json", json_of("LlamaForCausalLM", target));
  DrafterConfig drafter;
  drafter.method = method;
  drafter.model = of_draft_head.path();
  drafter.quantization = "none";
  return head_facts(drafter, of_target.path(), {});
}

TEST(ModelFactsTest, OfDraftHeads) {
  const std::string layer = R"({"hidden_size":512,"intermediate_size":1024,"num_hidden_layers":1,)"
                            R"("num_attention_heads":8,"num_key_value_heads":4,"head_dim":64)";
  const std::vector<ModelFacts> eagle = head(DraftMethod::kEagle, layer + "}");
  EXPECT_EQ(eagle[0].pass_flops(1, 0) / 2, kLayer + 2 * 512 * 512 + kLmHead);
  EXPECT_EQ(shared(eagle, 2).num_exchanges(), 2 + 2);
  // Its first layer also reads the token's embedding, and it scores some tokens.
  const std::vector<ModelFacts> eagle3 =
      head(DraftMethod::kEagle3,
           layer + R"(,"draft_vocab_size":320,"eagle_aux_hidden_state_layer_ids":[1,2,3]})");
  const double wider = kLayer + 512 * 64 * (8 + 2 * 4);
  EXPECT_EQ(eagle3[0].pass_flops(1, 0) / 2, wider + 3 * 512 * 512 + 320 * 512);
  EXPECT_EQ(eagle3[0].pass_bytes(1, 1, 0), eagle3[0].pass_flops(1, 0) + kToken);
  const std::vector<ModelFacts> dspark =
      head(DraftMethod::kDspark,
           layer + R"(,"architectures":["Qwen3DSparkModel"],"block_size":4,"mask_token_id":1,)"
                   R"("target_layer_ids":[0,1],"markov_rank":16})");
  EXPECT_EQ(dspark[0].pass_flops(1, 0) / 2, kLayer + 2 * 512 * 512 + kLmHead + 16 * 1000);
  const std::vector<ModelFacts> medusa =
      head(DraftMethod::kMedusa, R"({"medusa_num_heads":3,"medusa_num_layers":2})");
  EXPECT_EQ(medusa.size(), 1U);
  EXPECT_EQ(medusa[0].pass_flops(1, 7) / 2, 3 * (2 * 512 * 512 + kLmHead));
  EXPECT_EQ(medusa[0].pass_bytes(5, 5, 7), medusa[0].pass_flops(1, 7));
  const std::vector<ModelFacts> mlp =
      head(DraftMethod::kMlpSpeculator, R"({"emb_dim":512,"inner_dim":256,"n_predict":3})");
  EXPECT_EQ(mlp[0].pass_flops(1, 0) / 2, 512 * 256 + 1000 * 256);
}

// ---- loaded models

// All experts count, which a decoder does not tell apart; routers are packed as float32.
TEST(ModelFactsTest, WeightsAreThoseThatALoadedModelReads) {
  const auto backend = make_backend({.num_threads = 1, .act_dtype = DType::kBF16});
  const std::string sizes =
      R"("vocab_size":1024,"hidden_size":512,"num_hidden_layers":2,"torch_dtype":"bfloat16",)"
      R"("max_position_embeddings":512,"num_attention_heads":8,)";
  const std::string llama = R"("num_key_value_heads":4,"head_dim":64,"intermediate_size":1024)";
  for (const auto& [architecture, members] : std::vector<std::pair<std::string, std::string>>{
           {"Llama", llama},
           {"Llama", llama + R"(,"tie_word_embeddings":true)"},
           {"Qwen3", llama},
           {"Gemma2", llama + R"(,"sliding_window":64)"},
           {"Mixtral", llama + R"(,"num_local_experts":4,"num_experts_per_tok":2)"},
           {"Qwen3Moe",
            llama + R"(,"num_experts":4,"num_experts_per_tok":2,"moe_intermediate_size":128,)"
                    R"("mlp_only_layers":[1])"},
           {"Lfm2", llama + R"(,"full_attn_idxs":[1])"},
           {"Qwen3_5", llama + R"(,"full_attention_interval":2,"linear_num_value_heads":16,)"
                               R"("linear_num_key_heads":4,"linear_key_head_dim":64)"},
           {"GraniteMoeHybrid", llama +
                                    R"(,"shared_intermediate_size":1024,"num_local_experts":0,)"
                                    R"("layer_types":["mamba","attention"],"mamba_n_heads":16)"},
           {"GPTNeoX", R"("intermediate_size":1024)"},
           {"OPT", R"("ffn_dim":1024,"word_embed_proj_dim":256,"do_layer_norm_before":false)"}}) {
    TempDirectory directory;
    directory.write("config.json", str_cat(R"({"architectures":[")", architecture,
                                           R"(ForCausalLM"],)", sizes, members, "}"));
    ModelConfig config = load_model_config(directory.path());
    config.random_weights = true;
    const Decoder decoder(config, "", *backend, 64, 4);
    const ModelFacts facts = model_facts(directory.path(), {})[0];
    const auto loaded = static_cast<double>(decoder.pass_bytes());
    EXPECT_NEAR(facts.memory_bytes(0) - 2 * facts.table_weights, loaded, 0.002 * loaded)
        << architecture;
  }
}

}  // namespace
}  // namespace specdec
