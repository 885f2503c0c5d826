// Models with recurrent layers through the engine: drafts, chunks, cached prefixes, preemptions,
// other requests and stages change no bit of an answer. And the comparison notices where a state is
// not that of its tokens.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "core/str_cat.h"
#include "engine/engine_impl.h"
#include "specdec/engine.h"
#include "specdec/error.h"
#include "testing/answers.h"
#include "testing/checkpoint_files.h"
#include "testing/recurrent_models.h"
#include "testing/thrown.h"
#include "testing/with_drafter.h"
#include "testing/wrapped_backend.h"

namespace specdec {
namespace {

using testing::Answers;
using testing::Asked;
using testing::recurrent_models::drafter_that_knows;
using testing::recurrent_models::kGatedDelta;
using testing::recurrent_models::kMamba2;
using testing::recurrent_models::kMamba2ByKeyHead;
using testing::recurrent_models::kShortConv;
using testing::recurrent_models::kVocab;
using testing::recurrent_models::kWideMamba2;
using testing::recurrent_models::mixed_requests;
using testing::recurrent_models::RecurrentModel;
using testing::recurrent_models::write_config;
using Tokens = std::vector<int32_t>;

const RecurrentModel kAttentionLast{"AttentionLast", R"("architectures": ["Lfm2ForCausalLM"],
  "model_type": "lfm2", "block_ff_dim": 96, "block_auto_adjust_ff_dim": false, "conv_L_cache": 3,
  "layer_types": ["conv", "conv", "full_attention", "full_attention"])"};
const RecurrentModel kAttentionFirst{"AttentionFirst", R"("architectures": ["Lfm2ForCausalLM"],
  "model_type": "lfm2", "block_ff_dim": 96, "block_auto_adjust_ff_dim": false, "conv_L_cache": 3,
  "layer_types": ["full_attention", "full_attention", "conv", "conv"])"};
// Wide enough for four ranks.
const RecurrentModel kWideShortConv{"WideShortConv", R"("architectures": ["Lfm2ForCausalLM"],
  "hidden_size": 256, "num_key_value_heads": 4, "model_type": "lfm2", "block_ff_dim": 256,
  "block_auto_adjust_ff_dim": false, "conv_L_cache": 3, "conv_bias": true,
  "layer_types": ["conv", "full_attention", "conv", "conv"])"};
// Two value heads per key head; four ranks of two heads each.
const RecurrentModel kWideGatedDelta{"WideGatedDelta", R"("architectures": ["Qwen3_5ForCausalLM"],
  "model_type": "qwen3_5_text", "intermediate_size": 256, "head_dim": 64,
  "num_key_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 32,
  "linear_num_key_heads": 4, "linear_num_value_heads": 8, "linear_conv_kernel_dim": 4,
  "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"])"};
// Four value heads per key head, which two ranks have each, and all rows of a key head together.
const RecurrentModel kByKeyHead{"ByKeyHead", R"("architectures": ["Qwen3NextForCausalLM"],
  "model_type": "qwen3_next", "intermediate_size": 256, "head_dim": 64,
  "num_key_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 32,
  "linear_num_key_heads": 2, "linear_num_value_heads": 8, "linear_conv_kernel_dim": 4,
  "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 256,
  "shared_expert_intermediate_size": 256,
  "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"])"};

// What a test changes in a batch before its rows run.
struct EditedRows {
  Tokens slots_in;
  Tokens pending;
  std::vector<StateStore> stores;
  const BatchView& batch;
};
using Edit = std::function<void(EditedRows& rows)>;

class EditingBackend final : public testing::WrappedBackend {
 public:
  EditingBackend(std::unique_ptr<Backend> backend, Edit edit)
      : WrappedBackend(*backend), backend_(std::move(backend)), edit_(std::move(edit)) {}

  BatchView stage(const BatchView& batch) override {
    BatchView staged = WrappedBackend::stage(batch);
    RecurrentRows& rows = staged.recurrent;
    rows_.emplace(
        EditedRows{.slots_in = {rows.slots_in, rows.slots_in + batch.num_requests},
                   .pending = {rows.pending, rows.pending + rows.cu_pending[batch.num_requests]},
                   .stores = {rows.stores, rows.stores + rows.cu_stores[batch.num_requests]},
                   .batch = staged});
    edit_(*rows_);
    rows.slots_in = rows_->slots_in.data();
    rows.pending = rows_->pending.data();
    rows.stores = rows_->stores.data();
    return staged;
  }

 private:
  std::unique_ptr<Backend> backend_;
  Edit edit_;
  std::optional<EditedRows> rows_;
};

Engine make_engine(const EngineConfig& config, const Edit& edit) {
  return Engine::Impl::engine_of(
      std::make_unique<Engine::Impl>(config, [&edit](const BackendConfig& backend) {
        return std::make_unique<EditingBackend>(make_backend(backend), edit);
      }));
}

class RecurrentTest : public ::testing::TestWithParam<RecurrentModel> {
 protected:
  RecurrentTest() { write_config(GetParam(), directory_); }

  EngineConfig config() const {
    EngineConfig config;
    config.model = directory_.path();
    config.load_format = LoadFormat::kDummy;
    config.device = "cpu";
    config.num_threads = 2;
    config.block_size = 16;
    config.max_model_len = 192;
    config.num_kv_blocks = 400;
    config.max_num_seqs = 6;
    config.max_num_batched_tokens = 64;
    config.distributed_timeout_seconds = 3600;
    return config;
  }

  // Each alone, without drafts and cached prefixes, a prompt in one piece.
  Answers expected() const {
    EngineConfig alone = config();
    alone.enable_prefix_caching = false;
    Engine engine(alone);
    return testing::run_alone(engine, mixed_requests());
  }

  testing::TempDirectory directory_;
};

TEST_P(RecurrentTest, NeitherDraftsNorNeighboursNorChunksNorPreemptionsChangeABit) {
  const Answers answers = expected();
  int64_t num_accepted = 0, num_preemptions = 0, num_cached = 0;
  for (const int num_rows : {5, 13, 64}) {
    for (const int num_blocks : {13, 400}) {
      for (const int width : {1, 3}) {
        SCOPED_TRACE(str_cat(num_rows, " rows, ", num_blocks, " blocks, width ", width));
        EngineConfig drafting = testing::with_drafter(
            config(), testing::custom(drafter_that_knows(answers, mixed_requests())),
            /*num_tokens=*/6, width);
        drafting.max_num_batched_tokens = num_rows;
        drafting.num_kv_blocks = num_blocks;
        Engine engine(drafting);
        EXPECT_EQ(testing::run_to_end(engine, mixed_requests()), answers);
        num_accepted += engine.stats().acceptance.num_accepted_tokens;
        num_preemptions += engine.stats().num_preemptions;
        num_cached += engine.stats().num_cached_tokens;
      }
    }
  }
  EXPECT_GT(num_accepted, 500);
  EXPECT_GT(num_preemptions, 20);
  EXPECT_GT(num_cached, 100);
}

TEST_P(RecurrentTest, DraftersOfEveryKindChangeNoBit) {
  const Answers answers = expected();
  for (const DraftMethod method : {DraftMethod::kNgram, DraftMethod::kSuffix}) {
    for (const DraftLengthPolicy policy : {DraftLengthPolicy::kFixed, DraftLengthPolicy::kAuto}) {
      Engine engine(testing::with_drafter(config(), testing::drafter_of(method), 5, 2, policy));
      EXPECT_EQ(testing::run_to_end(engine, mixed_requests()), answers) << name_of(method);
    }
  }
}

// What plain decoding says is what a draft's row says.
TEST_P(RecurrentTest, RightDraftsAreAllAccepted) {
  std::vector<Asked> asked = mixed_requests();
  // Not those whose prompt has several answers.
  std::erase_if(asked, [](const Asked& one) { return one.params.n > 1 || one.id == "r7"; });
  const auto drafter = drafter_that_knows(expected(), asked, /*is_always_right=*/true);
  Engine engine(testing::with_drafter(config(), testing::custom(drafter), 5));
  testing::run_to_end(engine, asked);
  const AcceptanceStats acceptance = engine.stats().acceptance;
  EXPECT_EQ(acceptance.num_accepted_tokens, acceptance.num_draft_tokens);
  EXPECT_GT(acceptance.num_draft_tokens, 200);
}

// Prompts that share one more token with what is cached each time; few states are kept.
TEST_P(RecurrentTest, PrefixHitsOfEveryLengthChangeNoBit) {
  EngineConfig cached = config();
  cached.max_num_seqs = 1;
  EngineConfig plain = cached;
  plain.enable_prefix_caching = false;
  Engine caching(cached), computing(plain);
  std::mt19937 random(3);
  Tokens text;
  for (int i = 0; i < 100; ++i) text.push_back(static_cast<int32_t>(random() % kVocab));
  Asked asked;
  asked.id = "r";
  asked.params.max_tokens = 9;
  asked.params.temperature = 0.0f;
  asked.params.ignore_eos = true;
  asked.params.logprobs = 1;
  for (int round = 0; round < 2; ++round) {
    for (size_t length = 1; length <= text.size(); ++length) {
      asked.prompt = text;
      asked.prompt.resize(length);
      const size_t num_others = round == 0 ? 1 : random() % 20;
      for (size_t i = 0; i < num_others; ++i) {
        asked.prompt.push_back(static_cast<int32_t>(random() % kVocab));
      }
      EXPECT_EQ(testing::run_to_end(caching, {asked}), testing::run_to_end(computing, {asked}))
          << length << " tokens of the text and " << num_others << " others";
    }
  }
  EXPECT_GT(caching.stats().num_cached_tokens, 1000);
  EXPECT_EQ(computing.stats().num_cached_tokens, 0);
}

// A conversation's next turn begins after the state that the one before left.
TEST_P(RecurrentTest, TheNextTurnContinuesTheLatestState) {
  EngineConfig cached = config();
  cached.num_kv_blocks = 40;
  Engine engine(cached);
  Asked asked;
  asked.id = "r";
  asked.prompt = Tokens(70, 7);
  asked.params.max_tokens = 60;
  asked.params.ignore_eos = true;
  const Answers first = testing::run_to_end(engine, {asked});
  const Tokens answer = testing::tokens_of(first.at("r"));
  asked.prompt.insert(asked.prompt.end(), answer.begin(), answer.end());
  asked.prompt.push_back(3);
  testing::run_to_end(engine, {asked});
  EXPECT_EQ(engine.stats().num_cached_tokens, 128);  // of 129 that have been computed
}

TEST_P(RecurrentTest, StagesOfAPipelineChangeNoBit) {
  const Answers answers = expected();
  EngineConfig staged = testing::with_drafter(
      config(), testing::custom(drafter_that_knows(answers, mixed_requests())),
      /*num_tokens=*/4, /*width=*/2);
  staged.pipeline_parallel_size = 2;
  staged.num_threads = 1;
  staged.num_kv_blocks = 40;
  Engine engine(staged);
  EXPECT_EQ(testing::run_to_end(engine, mixed_requests()), answers);
  EXPECT_GT(engine.stats().num_overlapped_steps, 10);
}

// Rank 0 has the last stage, which times passes for all.
class RecurrentStagesTest : public RecurrentTest {};

TEST_P(RecurrentStagesTest, StagesWithoutRecurrentLayersRunTheOthers) {
  const Answers answers = expected();
  EngineConfig staged = testing::with_drafter(
      config(), testing::custom(drafter_that_knows(answers, mixed_requests())), 4, 2,
      DraftLengthPolicy::kAuto);
  staged.pipeline_parallel_size = 2;
  staged.num_threads = 1;
  Engine engine(staged);
  EXPECT_EQ(testing::run_to_end(engine, mixed_requests()), answers);
  EXPECT_GT(engine.stats().num_cached_tokens, 10);
}

class RecurrentRanksTest : public RecurrentTest {};

TEST_P(RecurrentRanksTest, RanksThatShareTheLayersChangeNoBit) {
  const Answers answers = expected();
  for (const int size : {2, 4}) {
    EngineConfig shared = testing::with_drafter(
        config(), testing::custom(drafter_that_knows(answers, mixed_requests())),
        /*num_tokens=*/4, /*width=*/2);
    shared.tensor_parallel_size = size;
    shared.num_threads = 1;
    Engine engine(shared);
    EXPECT_EQ(testing::run_to_end(engine, mixed_requests()), answers) << size;
  }
}

TEST_P(RecurrentRanksTest, RanksThatShareIntegersChangeNoBit) {
  EngineConfig whole = config();
  whole.quantization = "int4";
  EngineConfig shared = whole;
  shared.tensor_parallel_size = 2;
  shared.num_threads = 1;
  const std::vector<Asked> requests = mixed_requests(/*count=*/4);
  Engine one(whole), two(shared);
  EXPECT_EQ(testing::run_to_end(two, requests), testing::run_to_end(one, requests));
}

// Models whose checkpoint has an MTP layer.
class RecurrentMtpTest : public RecurrentTest {};

TEST_P(RecurrentMtpTest, DraftsOfItsMtpLayerChangeNoBit) {
  const Answers answers = expected();
  struct Case {
    int width = 1;
    DraftLengthPolicy policy = DraftLengthPolicy::kFixed;
    int num_rows = 64;
    int num_ranks = 1;
    int num_drafting = 0;  // of the ranks; 0: the engine chooses
    int num_stages = 1;
  };
  for (const Case& one :
       {Case{}, Case{.width = 3, .num_rows = 13},
        Case{.width = 2, .policy = DraftLengthPolicy::kAuto}, Case{.width = 2, .num_ranks = 2},
        Case{.num_stages = 2}, Case{.num_ranks = 2, .num_drafting = 1},
        Case{.width = 2, .num_ranks = 4, .num_drafting = 2}}) {
    SCOPED_TRACE(
        str_cat("width ", one.width, ", ", one.num_ranks, " ranks, ", one.num_stages, " stages"));
    EngineConfig drafting = testing::with_drafter(config(), testing::drafter_of(DraftMethod::kMtp),
                                                  5, one.width, one.policy);
    drafting.speculative.drafters[0].draft_tensor_parallel_size = one.num_drafting;
    drafting.max_num_batched_tokens = one.num_rows;
    drafting.tensor_parallel_size = one.num_ranks;
    drafting.pipeline_parallel_size = one.num_stages;
    if (one.num_ranks * one.num_stages > 1) drafting.num_threads = 1;
    Engine engine(drafting);
    EXPECT_EQ(testing::run_to_end(engine, mixed_requests()), answers);
    if (one.policy == DraftLengthPolicy::kAuto) continue;
    EXPECT_GT(engine.stats().acceptance.num_draft_tokens, 500);
    EXPECT_GT(engine.stats().acceptance.num_accepted_tokens, 0);  // one in 61 is right by chance
  }
}

// ---- faults that the comparison must notice

class RecurrentFaultTest : public RecurrentTest {
 protected:
  // Whether answers differ where `edit` changes the batches; it says how often it did.
  void expect_noticed(const std::function<int(EditedRows& rows)>& edit) {
    const Answers answers = expected();
    int num_edits = 0;
    Engine engine = make_engine(
        testing::with_drafter(config(),
                              testing::custom(drafter_that_knows(answers, mixed_requests())), 6, 3),
        [&](EditedRows& rows) { num_edits += edit(rows); });
    EXPECT_NE(testing::run_to_end(engine, mixed_requests()), answers);
    EXPECT_GT(num_edits, 0);
  }
};

TEST_P(RecurrentFaultTest, WithoutAFaultAnswersAreEqual) {
  const Answers answers = expected();
  Engine engine = make_engine(
      testing::with_drafter(config(),
                            testing::custom(drafter_that_knows(answers, mixed_requests())), 6, 3),
      [](auto&) {});
  EXPECT_EQ(testing::run_to_end(engine, mixed_requests()), answers);
}

TEST_P(RecurrentFaultTest, ARejectedDraftInTheStateIsNoticed) {
  expect_noticed([](EditedRows& rows) {
    for (int32_t& record : rows.pending) record ^= 1;
    return static_cast<int>(rows.pending.size());
  });
}

TEST_P(RecurrentFaultTest, AnAcceptedDraftThatTheStateLacksIsNoticed) {
  expect_noticed([](EditedRows& rows) {
    for (size_t i = 1; i < rows.pending.size(); ++i) rows.pending[i] = rows.pending[i - 1];
    return std::max(static_cast<int>(rows.pending.size()) - 1, 0);
  });
}

TEST_P(RecurrentFaultTest, AnotherStateAfterAPrefixHitIsNoticed) {
  const int num_slots = config().max_num_seqs;
  expect_noticed([num_slots](EditedRows& rows) {
    int num_edits = 0;
    for (int32_t& slot : rows.slots_in) {
      if (slot <= num_slots) continue;
      --slot;
      ++num_edits;
    }
    return num_edits;
  });
}

TEST_P(RecurrentFaultTest, AStateThatIsNotStoredIsNoticed) {
  int num_steps = 0;
  expect_noticed([&](EditedRows& rows) {
    if (++num_steps % 5 != 0 || rows.stores.size() < 2) return 0;
    std::swap(rows.stores.front().slot, rows.stores.back().slot);
    return 1;
  });
}

INSTANTIATE_TEST_SUITE_P(Models, RecurrentTest, ::testing::Values(kShortConv, kGatedDelta, kMamba2),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Models, RecurrentStagesTest,
                         ::testing::Values(kAttentionLast, kAttentionFirst),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Models, RecurrentRanksTest,
                         ::testing::Values(kWideShortConv, kWideGatedDelta, kByKeyHead, kWideMamba2,
                                           kMamba2ByKeyHead),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Models, RecurrentMtpTest, ::testing::Values(kWideGatedDelta, kByKeyHead),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Models, RecurrentFaultTest,
                         ::testing::Values(kShortConv, kGatedDelta, kMamba2),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace specdec
