// Models that draft all levels in one pass: PARD, P-EAGLE, DFlash, DSpark and Medusa.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "model/decoder.h"
#include "specdec/engine.h"
#include "testing/chain_batch.h"
#include "testing/draft_probe.h"
#include "testing/small_heads.h"
#include "testing/text.h"
#include "testing/tiny_draft_heads.h"
#include "testing/tiny_engine.h"

namespace specdec {
namespace {

namespace tiny = testing::tiny_llama;
using testing::Asked;
using testing::Ended;
using testing::MedusaShape;
using Tokens = std::vector<int32_t>;

constexpr int kMask = 35;

enum class Kind { kPard, kPEagle, kDflash, kDspark, kMedusa, kMedusaOfTarget };

// A P-EAGLE head of the tiny Llama that reads the inputs of its layers and its last output.
tiny::Tensors peagle_tensors() {
  std::mt19937 random(13);
  tiny::Tensors tensors;
  const auto matrix = [&](const std::string& name, int rows, int in_features) {
    tensors.emplace(name + ".weight", testing::random_matrix(random, rows, in_features));
  };
  const auto norm = [&](const std::string& name) {
    tensors.emplace(name + ".weight", testing::random_tensor(random, {tiny::kHidden}, 1.0f));
  };
  constexpr int kQ = tiny::kHeads * tiny::kHeadDim, kKv = tiny::kKvHeads * tiny::kHeadDim;
  matrix("fc", tiny::kHidden, 3 * tiny::kHidden);
  for (const char* name : {"midlayer.hidden_norm", "midlayer.input_layernorm",
                           "midlayer.post_attention_layernorm", "norm"}) {
    norm(name);
  }
  matrix("midlayer.self_attn.q_proj", kQ, 2 * tiny::kHidden);
  matrix("midlayer.self_attn.k_proj", kKv, 2 * tiny::kHidden);
  matrix("midlayer.self_attn.v_proj", kKv, 2 * tiny::kHidden);
  matrix("midlayer.self_attn.o_proj", tiny::kHidden, kQ);
  matrix("midlayer.mlp.gate_proj", tiny::kInner, tiny::kHidden);
  matrix("midlayer.mlp.up_proj", tiny::kInner, tiny::kHidden);
  matrix("midlayer.mlp.down_proj", tiny::kHidden, tiny::kInner);
  matrix("lm_head", tiny::kVocab, tiny::kHidden);
  tensors.emplace("mask_hidden", testing::random_tensor(random, {1, 1, 3 * tiny::kHidden}, 1.0f));
  return tensors;
}

std::string peagle_config(const std::string& extra) {
  return str_cat(R"({"architectures":["LlamaForCausalLMEagle3"],"vocab_size":)", tiny::kVocab,
                 R"(,"hidden_size":)", tiny::kHidden, R"(,"intermediate_size":)", tiny::kInner,
                 R"(,"num_hidden_layers":1,"num_attention_heads":)", tiny::kHeads,
                 R"(,"num_key_value_heads":)", tiny::kKvHeads, R"(,"head_dim":)", tiny::kHeadDim,
                 R"(,"rope_theta":)", tiny::kTheta,
                 R"(,"eagle_aux_hidden_state_layer_ids":[0,1,2])", extra, "}");
}

class ParallelDraftingTest : public tiny::EngineFixture {
 protected:
  static MedusaShape medusa_shape(Kind kind) {
    return {.num_heads = 4,
            .has_bias = true,
            .has_vllm_names = kind == Kind::kMedusa,
            .output_rows = kind == Kind::kMedusa ? tiny::kVocab : 0};
  }

  DrafterConfig drafter(Kind kind) {
    DrafterConfig drafter = testing::drafter_of(DraftMethod::kMedusa, head_.path());
    drafter.parallel_drafting = kind == Kind::kPard || kind == Kind::kPEagle;
    switch (kind) {
      case Kind::kPard:
        drafter.method = DraftMethod::kDraftModel;
        tiny::write_checkpoint(head_, tiny::perturbed(tiny::llama_tensors(), 0.03f),
                               str_cat(R"(,"pard_token":)", kMask));
        break;
      case Kind::kPEagle:
        drafter.method = DraftMethod::kEagle3;
        testing::write_head(head_, peagle_tensors(),
                            peagle_config(str_cat(R"(,"ptd_token_id":)", kMask)));
        break;
      case Kind::kDflash:
        drafter.method = DraftMethod::kDflash;
        testing::tiny_draft_heads::write_dflash(head_, /*is_dspark=*/false);
        break;
      case Kind::kDspark:
        drafter.method = DraftMethod::kDspark;
        testing::tiny_draft_heads::write_dflash(head_, /*is_dspark=*/true);
        break;
      case Kind::kMedusa:
      case Kind::kMedusaOfTarget:
        testing::write_head(head_, testing::medusa_tensors(medusa_shape(kind)),
                            testing::medusa_config(medusa_shape(kind)));
    }
    return drafter;
  }

  EngineConfig with(Kind kind, int num_tokens, int width) {
    return testing::with_drafter(config(), drafter(kind), num_tokens, width);
  }

  testing::TempDirectory head_;
};

constexpr Kind kKinds[] = {Kind::kPard,   Kind::kPEagle, Kind::kDflash,
                           Kind::kDspark, Kind::kMedusa, Kind::kMedusaOfTarget};

// Prompts in chunks, preemption, prefix hits, trees, adaptive lengths.
TEST_F(ParallelDraftingTest, AnswersAreThoseWithoutDrafts) {
  std::vector<Asked> requests = tiny::four_requests(/*max_tokens=*/40, /*growth=*/13);
  requests.push_back(requests[3]);
  requests.back().id = "again";
  requests.back().arrives = 20;
  EngineConfig plain = config();
  plain.max_num_batched_tokens = 24;
  plain.num_kv_blocks = 24;
  Engine without(plain);
  const std::map<std::string, Ended> expected = testing::run_to_end(without, requests);
  for (const Kind kind : kKinds) {
    for (const int width : {1, 3}) {
      for (const auto policy : {DraftLengthPolicy::kFixed, DraftLengthPolicy::kAuto}) {
        EngineConfig config = with(kind, 4, width);
        config.max_num_batched_tokens = plain.max_num_batched_tokens;
        config.num_kv_blocks = plain.num_kv_blocks;
        config.speculative.draft_length_policy = policy;
        Engine engine(config);
        EXPECT_EQ(testing::run_to_end(engine, requests), expected)
            << static_cast<int>(kind) << " width " << width;
        const EngineStats stats = engine.stats();
        EXPECT_EQ(stats.num_free_kv_blocks, plain.num_kv_blocks);
        if (policy == DraftLengthPolicy::kAuto) continue;
        EXPECT_GT(stats.acceptance.num_draft_tokens, 0);
        if (kind == Kind::kPard) {  // the target, perturbed
          EXPECT_GT(stats.acceptance.num_accepted_tokens, 0);
        }
      }
    }
  }
}

// Greedy drafts under rejection are the target's own choices.
TEST_F(ParallelDraftingTest, GreedyAnswersAreThoseWithoutDraftsUnderRejection) {
  SamplingParams greedy = tiny::sampled(30);
  greedy.temperature = 0.0f;
  const auto prompts = tiny::prompts_of(6);
  Engine without(config());
  const auto expected = without.generate(prompts, greedy);
  for (const Kind kind : kKinds) {
    for (const int width : {1, 3}) {
      EngineConfig config = with(kind, 4, width);
      config.speculative.verification = Verification::kStandard;
      Engine engine(config);
      const auto completions = engine.generate(prompts, greedy);
      for (size_t i = 0; i < prompts.size(); ++i) {
        EXPECT_EQ(completions[i][0].token_ids, expected[i][0].token_ids);
      }
      EXPECT_NO_THROW(engine.generate(prompts, tiny::sampled(30)));
    }
  }
}

// ---- drafts, against the logits of every level by another path

// Probabilities of the tokens of each level.
using Levels = std::vector<std::vector<double>>;

std::vector<double> softmax(const std::vector<double>& logits) {
  std::vector<double> probabilities;
  const double highest = *std::ranges::max_element(logits);
  for (const double logit : logits) probabilities.push_back(std::exp(logit - highest));
  const double total = std::accumulate(probabilities.begin(), probabilities.end(), 0.0);
  for (double& probability : probabilities) probability /= total;
  return probabilities;
}

// The tree that grows by the likeliest `width` tokens below each of the likeliest `width` nodes.
std::map<Tokens, double> expected_tree(const Levels& levels, int width) {
  std::map<Tokens, double> tree;
  std::vector<std::pair<double, Tokens>> frontier = {{1.0, {}}};
  for (const std::vector<double>& level : levels) {
    std::vector<int32_t> tokens(level.size());
    std::iota(tokens.begin(), tokens.end(), 0);
    std::ranges::stable_sort(tokens, [&](int a, int b) { return level[a] > level[b]; });
    std::vector<std::pair<double, Tokens>> next;
    for (const auto& [survival, path] : frontier) {
      for (int i = 0; i < width; ++i) {
        Tokens longer = path;
        longer.push_back(tokens[i]);
        next.emplace_back(survival * level[tokens[i]], longer);
        tree.emplace(std::move(longer), survival * level[tokens[i]]);
      }
    }
    std::ranges::stable_sort(next, [](const auto& a, const auto& b) { return a.first > b.first; });
    next.resize(width);
    frontier = std::move(next);
  }
  return tree;
}

// The likeliest `count` nodes.
std::map<Tokens, double> likeliest(const std::map<Tokens, double>& tree, size_t count) {
  std::vector<std::pair<double, Tokens>> nodes;
  for (const auto& [path, survival] : tree) nodes.emplace_back(survival, path);
  std::ranges::stable_sort(nodes, [](const auto& a, const auto& b) { return a.first > b.first; });
  nodes.resize(std::min(count, nodes.size()));
  std::map<Tokens, double> kept;
  for (const auto& [survival, path] : nodes) kept.emplace(path, survival);
  return kept;
}

void expect_drafts(EngineConfig config, const Tokens& tokens, const Levels& levels) {
  config.speculative.drafters[0].quantization = "none";
  const testing::DraftedTree drafted = testing::drafted_tree(config, tokens);
  std::vector<Tokens> paths = {{}};
  std::map<Tokens, double> got;
  for (size_t i = 0; i < drafted.tokens.size(); ++i) {
    Tokens path = paths[drafted.parents[i]];
    path.push_back(drafted.tokens[i]);
    got.emplace(path, drafted.survivals[i]);
    paths.push_back(std::move(path));
  }
  const SpeculativeConfig& speculative = config.speculative;
  const auto expected =
      likeliest(expected_tree(levels, speculative.tree_width), speculative.max_nodes());
  ASSERT_EQ(got.size(), expected.size());
  for (const auto& [path, survival] : expected) {
    ASSERT_TRUE(got.contains(path));
    EXPECT_NEAR(got.at(path), survival, 1e-5);
  }
}

TEST_F(ParallelDraftingTest, PardDraftsAreThoseAtMaskTokens) {
  const Tokens tokens = tiny::prompt_of(3, 29);
  for (const int width : {1, 3}) {
    const EngineConfig config = with(Kind::kPard, 5, width);
    const auto backend = make_backend({.num_threads = 2});
    testing::ChainRunner runner(head_.path(), *backend, 64, 64);
    Tokens masked = tokens;
    masked.insert(masked.end(), 4, kMask);
    const std::vector<float> logits = runner.run(masked, 64);
    Levels levels;
    for (size_t row = tokens.size() - 1; row < masked.size(); ++row) {
      const auto begin = logits.begin() + static_cast<std::ptrdiff_t>(row * tiny::kVocab);
      levels.push_back(softmax({begin, begin + tiny::kVocab}));
    }
    expect_drafts(config, tokens, levels);
  }
}

// The input of the target's LM head at the last of some tokens.
std::vector<double> final_hidden(EngineConfig config, const Tokens& tokens) {
  config.tap_final_hidden = true;
  Engine engine(config);
  const Completion completion = engine.generate({tokens}, tiny::sampled(1))[0][0];
  std::vector<float> state(tiny::kHidden);
  const std::span<const std::byte> last(completion.tapped_states->values);
  std::ranges::copy(last.last(tiny::kHidden * sizeof(float)),
                    std::as_writable_bytes(std::span(state)).begin());
  return {state.begin(), state.end()};
}

TEST_F(ParallelDraftingTest, MedusaDraftsAreThoseOfItsHeads) {
  const Tokens tokens = tiny::prompt_of(4, 21);
  const tiny::Tensors target = tiny::llama_tensors();
  const std::vector<double> state = final_hidden(config(), {tokens.begin(), tokens.end() - 1});
  for (const Kind kind : {Kind::kMedusa, Kind::kMedusaOfTarget}) {
    const MedusaShape shape = medusa_shape(kind);
    const tiny::Tensors tensors = testing::medusa_tensors(shape);
    for (const int width : {1, 3}) {
      const EngineConfig config = with(kind, 4, width);
      Levels levels;
      for (int head = 0; head < 4; ++head) {
        const tiny::Tensor& output =
            kind == Kind::kMedusa ? tensors.at(shape.output(head)) : target.at("lm_head.weight");
        const std::vector<double> hidden = testing::medusa_hidden(tensors, shape, head, state);
        levels.push_back(softmax(testing::multiply(output, hidden)));
      }
      expect_drafts(config, tokens, levels);
    }
  }
}

// ---- what is refused

TEST_F(ParallelDraftingTest, AModelThatWasNotTrainedForItIsRefused) {
  for (const Kind kind : {Kind::kPard, Kind::kPEagle}) {
    const EngineConfig config = with(kind, 4, 1);
    const auto refused = [&](const std::string& extra) {
      if (kind == Kind::kPard) {
        tiny::write_checkpoint(head_, tiny::llama_tensors(), extra);
      } else {
        testing::write_head(head_, peagle_tensors(), peagle_config(extra));
      }
      return testing::checkpoint_error_of([&] { Engine engine(config); });
    };
    const CheckpointError missing = refused("");
    EXPECT_EQ(missing.file(), head_.file("config.json"));
    EXPECT_TRUE(testing::has_text(missing.what(), "mask_token_id"));
    EXPECT_TRUE(testing::has_text(refused(R"(,"mask_token_id":37)").what(), "mask_token_id: 37"));
  }
  tiny::Tensors tensors = peagle_tensors();
  const EngineConfig config = with(Kind::kPEagle, 4, 1);
  const std::string mask = str_cat(R"(,"ptd_token_id":)", kMask);
  const auto tensor_refused = [&] {
    testing::write_head(head_, tensors, peagle_config(mask));
    return testing::checkpoint_error_of([&] { Engine engine(config); }).tensor();
  };
  tensors.at("mask_hidden").shape = {1, 1, 3 * tiny::kHidden - 1};
  tensors.at("mask_hidden").values.pop_back();
  EXPECT_EQ(tensor_refused(), "mask_hidden");
  tensors.erase("mask_hidden");
  EXPECT_EQ(tensor_refused(), "mask_hidden");
}

}  // namespace
}  // namespace specdec
