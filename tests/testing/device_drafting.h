// A device step beside the host's drafter: both draft for the same tokens, and their drafts are
// compared node for node.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/request.h"
#include "model/decoder.h"
#include "model/draft_heads/draft_head_config.h"
#include "runtime/model_drafter.h"
#include "speculation/draft_tree.h"
#include "testing/device_engine_world.h"
#include "testing/device_kinds.h"

namespace specdec::testing::device_drafting {

using device_engine::Tokens;
using testing::Asked;

inline constexpr int kBlockSize = 16;
inline constexpr int kMaxModelLen = 96;
inline constexpr int kNumBlocks = 32;
inline constexpr int kMaxRows = 128;
inline constexpr int kMaxKeptRows = 64;

// A target, and a draft model or head for the device; the host drafts with a second copy of it.
class World {
 public:
  World(cuda::testing::DeviceKind kind, const std::string& target_model,
        const DrafterConfig& drafter)
      : backend_(cuda::testing::make_backend(kind, DType::kBF16)), drafter_(drafter) {
    const ModelConfig config = load_model_config(target_model);
    if (is_draft_head(drafter.method)) {
      head_ = load_draft_head_config(drafter, {.config = config, .directory = target_model});
    }
    target_ = std::make_unique<ModelRunner>(config, target_model, *backend_, limits(),
                                            Quantization::kNone, head_.taps);
    target_->allocate_cache(kNumBlocks, kv_format());
    draft_ = make_draft(target_model);
    host_draft_ = make_draft(target_model);
  }

  Backend& backend() { return *backend_; }
  ModelRunner& target() { return *target_; }
  ModelRunner& draft() { return *draft_; }
  BlockPool& pool() { return pool_; }

  const SpanConfig& span() const { return head_.span; }
  DraftModelKind kind() const { return host_drafter(DraftSampling::kCoupled)->kind(); }
  std::unique_ptr<ModelDrafter> host_drafter(DraftSampling sampling) const {
    return std::make_unique<ModelDrafter>(
        *host_draft_, pool_,
        ModelDrafterOptions{.sampling = sampling,
                            .max_rows = kMaxRows,
                            .max_model_len = kMaxModelLen,
                            .vocab_size = tiny_llama::kVocab,
                            .is_draft_head = is_draft_head(drafter_.method),
                            .num_layers = host_draft_->model().config().num_layers,
                            .max_depth = head_.max_depth,
                            .is_parallel = head_.is_parallel,
                            .span = head_.span,
                            .max_span_rows = kMaxKeptRows,
                            .shape = {}});
  }

 private:
  static RunnerLimits limits() {
    return {.max_model_len = kMaxModelLen,
            .max_rows = kMaxRows,
            .max_logit_rows = 16,
            .max_kept_rows = kMaxKeptRows};
  }
  static KvFormat kv_format() { return {.block_size = kBlockSize, .dtype = DType::kBF16}; }

  std::unique_ptr<ModelRunner> make_draft(const std::string& target_model) {
    std::unique_ptr<ModelRunner> runner;
    if (!is_draft_head(drafter_.method)) {
      runner = std::make_unique<ModelRunner>(load_model_config(drafter_.model), drafter_.model,
                                             *backend_, limits(), Quantization::kNone);
      runner->allocate_cache(kNumBlocks, kv_format());
      return runner;
    }
    runner = std::make_unique<ModelRunner>(*backend_, limits(), [&](int max_rows) {
      const DraftHeadTarget target = {.config = target_->model().config(),
                                      .directory = target_model};
      return load_draft_head(
          head_, {.target = target,
                  .target_parts = dynamic_cast<const Decoder&>(target_->model()).parts(),
                  .quantization = Quantization::kNone,
                  .backend = *backend_,
                  .max_model_len = kMaxModelLen + head_.span.num_rows,
                  .max_rows = max_rows});
    });
    runner->allocate_cache(kNumBlocks, kv_format(), {.num_spare = 16});
    runner->set_features(target_->features());
    return runner;
  }

  std::unique_ptr<Backend> backend_;
  DrafterConfig drafter_;
  DraftHeadConfig head_;
  std::unique_ptr<ModelRunner> target_, draft_, host_draft_;
  BlockPool pool_{kNumBlocks};
};

// A request whose prompt the target has run, but for its last token.
struct Drafted {
  Drafted(World& world, const Asked& job, int ordinal, int max_depth, int max_nodes)
      : request(static_cast<uint64_t>(ordinal), job.params),
        max_depth(max_depth),
        completion(request, 0, *job.params.seed, ordinal, job.prompt, kBlockSize, kMaxModelLen) {
    EXPECT_TRUE(
        completion.sequence.blocks.reserve(world.pool(), sequence().max_num_tokens() + max_nodes));
    if (sequence().num_tokens() == 1) return;
    BatchInputs inputs;
    inputs.clear();
    inputs.add_chain(sequence().tokens().first(sequence().num_tokens() - 1), 0, sequence().blocks);
    world.target().forward(inputs);
  }

  Sequence& sequence() { return completion.sequence; }
  DeviceSeat seat() {
    const std::span<const int32_t> tokens = sequence().tokens();
    DeviceSeat seat{.is_active = true,
                    .num_tokens = sequence().num_tokens(),
                    .num_prompt_tokens = sequence().num_prompt_tokens(),
                    .max_num_tokens = sequence().max_num_tokens(),
                    .num_seen = 0,
                    .max_depth = max_depth,
                    .tokens = tokens.last(std::min<size_t>(tokens.size(), kMaxUnseen)),
                    .stop_token_ids = request.params.stop_token_ids,
                    .min_tokens = request.params.min_tokens,
                    .sampling = completion.make_row({}),
                    .blocks = sequence().blocks.ids()};
    seat.sampling.banned_token_ids = {};  // stop tokens, as long as the output is short
    seat.sampling.want_logprobs = false;
    seat.sampling.num_logprobs = 0;
    return seat;
  }

  Request request;
  int max_depth;
  CompletionState completion;
  DraftTree tree;
};

struct Case {
  TreeShape shape;
  int num_passes = 0;
  DraftSampling sampling = DraftSampling::kCoupled;
  SamplingParams params;
};

// Counts over all steps of all requests.
struct Seen {
  int num_branched = 0;  // trees that were more than a chain
  // By how many drafts were accepted; the last count is of those whose longest path was.
  int num_none = 0;
  int num_some = 0;
  int num_whole = 0;
};

// Compares and commits what a step brought.
inline void check(Drafted& request, const SequenceOutcome& outcome, Seen& seen) {
  const DraftTree& tree = request.tree;
  const auto tokens = tree.tokens().subspan(1);
  const auto parents = tree.parents().subspan(1);
  EXPECT_EQ(outcome.drafts, Tokens(tokens.begin(), tokens.end()));
  EXPECT_EQ(outcome.parents, Tokens(parents.begin(), parents.end()));
  int node = DraftTree::kRoot;
  int deepest = 0;
  for (int i = 1; i < tree.num_nodes(); ++i) deepest = std::max(deepest, tree.depth(i));
  for (int i = 0; i < static_cast<int>(outcome.accepted.size()); ++i) {
    EXPECT_EQ(tree.parents()[outcome.accepted[i]], node);
    node = outcome.accepted[i];
    if (i < static_cast<int>(outcome.tokens.size())) {
      EXPECT_EQ(tree.tokens()[node], outcome.tokens[i]);
    }
  }
  const int num_accepted = static_cast<int>(outcome.accepted.size());
  if (deepest > 0) {
    ++(num_accepted == 0 ? seen.num_none : num_accepted < deepest ? seen.num_some : seen.num_whole);
  }
  EXPECT_EQ(outcome.tokens.empty(), request.sequence().is_finished());  // each step brings some
  for (const int32_t token : outcome.tokens) {
    EXPECT_FALSE(request.sequence().is_finished());
    request.sequence().append(token);
    request.completion.committed(token);
  }
  seen.num_branched += tree.is_chain() ? 0 : 1;
}

inline void draft_on_host(ModelDrafter& drafter, const Case& test,
                          std::vector<std::unique_ptr<Drafted>>& requests) {
  std::vector<DraftRequest> asks;
  for (const auto& request : requests) {
    Sequence& sequence = request->sequence();
    request->tree.reset(sequence.tokens().back());
    const int max_depth = sequence.max_draft_depth(request->max_depth);
    if (sequence.is_finished() || max_depth < 1) continue;
    request->completion.begin_step();
    asks.push_back({.sequence = sequence.ordinal,
                    .tokens = sequence.tokens(),
                    .max_depth = max_depth,
                    .max_nodes = test.shape.num_nodes(max_depth),
                    .draft_budget = test.shape.num_nodes(max_depth),
                    .tree_width = test.shape.width,
                    .num_remaining = sequence.max_num_tokens() - sequence.num_tokens(),
                    .blocks = &sequence.blocks,
                    .rows = &request->completion,
                    .tree = &request->tree,
                    .error = {}});
  }
  if (!asks.empty()) drafter.draft(asks);
}

// Runs all jobs to their end in steps of the device, and compares the drafts of each step with
// those that the host drafts for the same tokens.
inline Seen compare(World& world, const Case& test, const std::vector<Asked>& jobs) {
  std::vector<std::unique_ptr<Drafted>> requests;
  for (const Asked& job : jobs) {
    const auto index = static_cast<int>(requests.size());
    // The second request may not draft as deep.
    const int max_depth = index == 1 ? std::max(1, test.num_passes - 2) : test.num_passes;
    requests.push_back(
        std::make_unique<Drafted>(world, job, index, max_depth, test.shape.max_nodes));
  }
  const DraftModelKind kind = world.kind();
  auto device =
      world.backend().make_device_step({.num_seats = 4,
                                        .max_rows = kMaxRows,
                                        .block_size = kBlockSize,
                                        .max_blocks_per_request = kMaxModelLen / kBlockSize + 4,
                                        .tree = test.shape,
                                        .sampling = test.sampling,
                                        .target = &world.target(),
                                        .draft = &world.draft(),
                                        .draft_kind = kind,
                                        .span = world.span()});
  Seen seen;
  EXPECT_NE(device, nullptr);
  if (device == nullptr) return seen;
  std::vector<DeviceSeat> seats;
  for (const auto& request : requests) seats.push_back(request->seat());
  device->set_seats(seats);

  const auto drafter = world.host_drafter(test.sampling);
  const auto goes_on = [](const auto& request) { return !request->sequence().is_finished(); };
  const auto most_unseen = static_cast<unsigned>(max_unseen_after(kind, test.num_passes));
  for (int step = 0; std::ranges::any_of(requests, goes_on); ++step) {
    draft_on_host(*drafter, test, requests);
    device->launch(
        {.num_seats = static_cast<int>(requests.size()),
         .num_passes = test.num_passes,
         .max_unseen = step == 0 ? kMaxUnseen : static_cast<int>(std::bit_ceil(most_unseen))});
    const StepOutcome outcome = device->wait();
    for (size_t i = 0; i < requests.size(); ++i) {
      SCOPED_TRACE(str_cat("step ", step, ", request ", i));
      check(*requests[i], outcome.sequences[i], seen);
    }
    if (::testing::Test::HasFailure()) return seen;
  }
  return seen;
}

}  // namespace specdec::testing::device_drafting
