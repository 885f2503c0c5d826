// Engines whose features are compared with what one pass over the same tokens leaves.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/str_cat.h"
#include "engine/engine_impl.h"
#include "runtime/model_runner.h"
#include "specdec/engine.h"
#include "testing/tiny_llama.h"
#include "testing/with_drafter.h"

namespace specdec::testing {

inline const TapSpec kTestTaps = {.layer_inputs = {0, 1, tiny_llama::kLayers},
                                  .final_hidden = true};

inline EngineConfig with_test_taps(EngineConfig config) {
  config.tapped_layers = kTestTaps.layer_inputs;
  config.tap_final_hidden = kTestTaps.final_hidden;
  return config;
}

// An engine with taps, and the tokens that each of its requests ended with.
class TappedEngine {
 public:
  explicit TappedEngine(const EngineConfig& config) : config_(config) {
    auto impl = std::make_unique<Engine::Impl>(with_test_taps(config),
                                               [this](const BackendConfig& backend) {
                                                 auto made = make_backend(backend);
                                                 backend_ = made.get();
                                                 return made;
                                               });
    impl_ = impl.get();
    engine_ = std::make_unique<Engine>(Engine::Impl::engine_of(std::move(impl)));
  }

  Engine& engine() { return *engine_; }

  void add(uint64_t id, const std::vector<int32_t>& prompt, int max_tokens,
           float temperature = 0.8f) {
    SamplingParams params;
    params.temperature = temperature;
    params.seed = 7 + tokens_.size();
    params.max_tokens = max_tokens;
    params.ignore_eos = true;
    tokens_[id] = prompt;
    engine_->add_request(id, prompt, params);
  }

  void run() {
    while (engine_->has_unfinished_requests()) {
      for (const RequestOutput& output : engine_->step()) {
        ASSERT_EQ(output.error, "");
        std::vector<int32_t>& tokens = tokens_[output.request_id];
        for (const CompletionOutput& part : output.outputs) {
          tokens.insert(tokens.end(), part.new_token_ids.begin(), part.new_token_ids.end());
          if (part.finish_reason != FinishReason::kNone) check_returned(part, tokens);
        }
      }
    }
  }

  // Compares the features of all blocks that the prefix cache still has of the requests' tokens
  // with those of the same tokens in one pass of a runner of its own. Returns how many blocks.
  int check_blocks() {
    int num_blocks = 0;
    for (const auto& [id, tokens] : tokens_) {
      SCOPED_TRACE(id);
      const std::vector<BlockRef> blocks =
          impl_->prefix_cache().match(tokens, static_cast<int>(tokens.size())).blocks;
      const std::vector<std::byte> expected = in_one_pass(tokens);
      const size_t block_bytes = row_bytes() * static_cast<size_t>(config_.block_size);
      for (size_t i = 0; i < blocks.size(); ++i, ++num_blocks) {
        const auto block = static_cast<size_t>(blocks[i].id());
        const std::vector<std::byte> found =
            read(*backend_, impl_->features(), block * block_bytes, block_bytes);
        const auto begin = expected.begin() + static_cast<int64_t>(i * block_bytes);
        const bool is_equal = std::equal(found.begin(), found.end(), begin);
        EXPECT_TRUE(is_equal) << "block " << i << " of " << blocks.size();
        if (!is_equal) return num_blocks;
      }
    }
    return num_blocks;
  }

 private:
  // Compares what a completion returned with one pass over its tokens but the last.
  void check_returned(const CompletionOutput& part, std::vector<int32_t> tokens) {
    ASSERT_NE(part.tapped_states, nullptr);
    const TappedStates& states = *part.tapped_states;
    tokens.pop_back();
    EXPECT_EQ(states.num_tokens, static_cast<int>(tokens.size()));
    EXPECT_EQ(states.num_taps, kTestTaps.num_taps());
    EXPECT_EQ(states.hidden_size, tiny_llama::kHidden);
    EXPECT_EQ(states.dtype, name_of(backend_->act_dtype()));
    EXPECT_TRUE(states.values == in_one_pass(tokens));
  }

  size_t row_bytes() const {
    return static_cast<size_t>(kTestTaps.width(tiny_llama::kHidden)) *
           size_of(backend_->act_dtype());
  }

  static std::vector<std::byte> read(Backend& backend, const PagedRowsView& features, size_t offset,
                                     size_t size) {
    std::vector<std::byte> bytes(size);
    backend.read(static_cast<const std::byte*>(features.rows) + offset, bytes);
    return bytes;
  }

  // Features of the tokens in order, of an uninterrupted pass.
  std::vector<std::byte> in_one_pass(const std::vector<int32_t>& tokens) {
    if (reference_ == nullptr) {
      reference_backend_ = make_backend(
          {.device = config_.device, .num_threads = 1, .act_dtype = backend_->act_dtype()});
      reference_ = std::make_unique<ModelRunner>(
          load_model_config(config_.model), config_.model, *reference_backend_,
          RunnerLimits{.max_model_len = kMostTokens, .max_rows = kMostTokens, .max_logit_rows = 1},
          Quantization::kNone, kTestTaps);
      reference_->allocate_cache(
          kMostTokens / config_.block_size,
          {.block_size = config_.block_size, .dtype = backend_->act_dtype()});
    }
    BlockPool pool(kMostTokens / config_.block_size);
    BlockTable blocks(config_.block_size);
    EXPECT_TRUE(blocks.reserve(pool, static_cast<int>(tokens.size())));
    BatchInputs inputs;
    inputs.add_chain(tokens, 0, blocks);
    reference_backend_->begin_step();
    reference_->forward(inputs);
    reference_backend_->end_step();
    std::vector<std::byte> features;
    for (size_t i = 0; i < tokens.size(); ++i) {
      const auto slot = static_cast<size_t>(blocks.slot(static_cast<int>(i)));
      const std::vector<std::byte> row =
          read(*reference_backend_, reference_->features(), slot * row_bytes(), row_bytes());
      features.insert(features.end(), row.begin(), row.end());
    }
    return features;
  }

  static constexpr int kMostTokens = 256;
  EngineConfig config_;
  Backend* backend_ = nullptr;  // the engine's
  Engine::Impl* impl_ = nullptr;
  std::unique_ptr<Engine> engine_;
  std::map<uint64_t, std::vector<int32_t>> tokens_;
  std::unique_ptr<Backend> reference_backend_;
  std::unique_ptr<ModelRunner> reference_;
};

// Tests of features whatever the device: a fixture has config(), of a tiny Llama, and draft_path(),
// of a model that drafts for it.
inline std::vector<int32_t> tapped_prompt(int i, int length) {
  std::vector<int32_t> prompt;
  for (int j = 0; j < length; ++j) prompt.push_back((i * 5 + j * 3 + j * j) % tiny_llama::kVocab);
  return prompt;
}

inline void expect_features_of_chunks_and_neighbours(EngineConfig config) {
  config.max_num_batched_tokens = 11;
  TappedEngine tapped(config);
  for (int i = 0; i < 4; ++i) tapped.add(i, tapped_prompt(i, 20 + 13 * i), 30);
  tapped.run();
  EXPECT_GE(tapped.check_blocks(), 12);
}

inline void expect_features_after_a_prefix_hit(const EngineConfig& config) {
  TappedEngine tapped(config);
  const std::vector<int32_t> shared = tapped_prompt(1, 50);
  tapped.add(1, shared, 20);
  tapped.run();
  std::vector<int32_t> longer = shared;
  for (int32_t token : tapped_prompt(2, 20)) longer.push_back(token);
  tapped.add(2, longer, 20);
  tapped.run();
  EXPECT_GE(tapped.engine().stats().num_cached_tokens, 48);
  EXPECT_GE(tapped.check_blocks(), 8);
}

inline void expect_features_after_preemption(EngineConfig config) {
  config.num_kv_blocks = 12;
  config.max_model_len = 96;
  TappedEngine tapped(config);
  for (int i = 0; i < 4; ++i) tapped.add(i, tapped_prompt(i, 24), 60);
  tapped.run();
  EXPECT_GT(tapped.engine().stats().num_preemptions, 0);
  EXPECT_GE(tapped.check_blocks(), 5);
}

// `draft_path`: the target, perturbed, so that some branches of its trees are accepted.
inline void expect_features_of_accepted_trees(EngineConfig config, const std::string& draft_path) {
  config = with_drafter(config, drafter_of(DraftMethod::kDraftModel, draft_path), 3, 3);
  TappedEngine tapped(config);
  for (int i = 0; i < 3; ++i) tapped.add(i, tapped_prompt(i, 9 + 7 * i), 50);
  tapped.run();
  const AcceptanceStats& acceptance = tapped.engine().stats().acceptance;
  EXPECT_GT(acceptance.num_accepted_tokens, 0);
  EXPECT_LT(acceptance.num_accepted_tokens, acceptance.num_draft_tokens);
  EXPECT_GE(tapped.check_blocks(), 10);
}

}  // namespace specdec::testing
