// Verification on the device against speculation/verification.h, token for token, and against the
// distribution it must leave unchanged.
#include "cuda/kernels/verify.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "speculation/verification.h"
#include "testing/captured.h"
#include "testing/chi_square.h"
#include "testing/device_kinds.h"
#include "testing/toy_language.h"

namespace specdec::cuda {
namespace {

using specdec::testing::chi_square_test;
using specdec::testing::draw_distinct;
using specdec::testing::gumbel_noise;

// A correct rule has a p-value below kAccept once in ten thousand seeds; a wrong one must be below
// kRefuse.
constexpr double kAccept = 1e-4;
constexpr double kRefuse = 1e-12;

std::vector<float> random_distribution(int size, std::mt19937_64& random, double zero_share = 0.2) {
  std::normal_distribution<double> normal(0.0, 1.5);
  std::vector<double> weights;
  for (int i = 0; i < size; ++i) weights.push_back(std::exp(normal(random)));
  for (int i = 1; i < size; ++i) {
    if (std::generate_canonical<double, 32>(random) < zero_share) weights[i] = 0.0;
  }
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<float> result;
  for (const double weight : weights) result.push_back(static_cast<float>(weight / total));
  return result;
}

// One request: its tree, and the target's distribution after each node.
struct Request {
  DraftTree tree;
  std::vector<float> targets;  // [num_nodes, vocab_size]
  uint64_t seed = 0;
  int32_t root_position = 0;
  bool has_rows = true;

  TargetSource target(int vocab_size) const {
    return [this, vocab_size](int node) {
      return std::span<const float>(&targets[static_cast<size_t>(node) * vocab_size], vocab_size);
    };
  }
  UniformSource uniform() const { return step_uniforms(seed, root_position); }
};

struct Shape {
  int vocab_size = 12;
  int draft_vocab_size = 12;
  int max_depth = 3;
  int num_sampled = 2;        // most drafts per node drawn without replacement
  int num_deterministic = 1;  // most drafts per node that are not drawn
  bool is_chain = false;
};

Request random_request(const Shape& shape, std::mt19937_64& random) {
  Request request;
  request.seed = random();
  request.root_position = static_cast<int32_t>(random() % 100000);
  request.tree.reset(3);
  DraftTree& tree = request.tree;
  for (int node = 0; node < tree.num_nodes(); ++node) {
    const auto target = random_distribution(shape.vocab_size, random);
    request.targets.insert(request.targets.end(), target.begin(), target.end());
    if (tree.depth(node) == shape.max_depth || random() % 6 == 0) continue;
    auto draft = target;  // near the target: many drafts are accepted
    draft.resize(shape.draft_vocab_size, 0.01f);
    const auto other = random_distribution(shape.draft_vocab_size, random);
    for (int i = 0; i < shape.draft_vocab_size; ++i) draft[i] = (draft[i] + other[i]) / 2;
    const auto noise = gumbel_noise(shape.draft_vocab_size, random);
    if (shape.is_chain && random() % 4 == 0) {
      tree.add(node, static_cast<int32_t>(random() % shape.vocab_size), 1.0f, 0);
      continue;
    }
    const int num_sampled =
        shape.is_chain ? 1 : static_cast<int>(random() % (shape.num_sampled + 1));
    const int distribution = tree.add_distribution(draft);
    const auto add_deterministic = [&] {
      const int count =
          shape.is_chain ? 0 : static_cast<int>(random() % (shape.num_deterministic + 1));
      for (int i = 0; i < count; ++i) {
        tree.add(node, static_cast<int32_t>(random() % shape.vocab_size), 1.0f, 0);
      }
    };
    add_deterministic();
    for (const int32_t token : draw_distinct(draft, num_sampled, noise)) {
      tree.add_sampled(node, token, 1.0f, 0, distribution);
    }
    add_deterministic();
  }
  return request;
}

class Verify : public testing::CudaDeviceTest {
 protected:
  // Requests in the kernels' form.
  struct OnDevice {
    std::vector<int32_t> cu_rows = {0};
    Buffer cu_rows_buffer, token_ids, parents, positions, seeds;
    Buffer attempts, cu_attempts, targets, drafts, residuals;
    Buffer num_accepted, nodes, num_tokens, tokens;
    int max_depth = 0;
    VerifyTrees trees;
    AcceptedDrafts accepted;
  };

  OnDevice upload_requests(const std::vector<Request>& requests, const Shape& shape) {
    OnDevice on;
    std::vector<int32_t> token_ids, parents, positions, cu_attempts = {0};
    std::vector<uint64_t> seeds;
    std::vector<VerifyAttempt> attempts;
    std::vector<float> targets, drafts;
    int32_t num_distributions = 0;
    for (const Request& request : requests) {
      const DraftTree& tree = request.tree;
      seeds.push_back(request.seed);
      for (int node = 0; request.has_rows && node < tree.num_nodes(); ++node) {
        token_ids.push_back(tree.tokens()[node]);
        parents.push_back(tree.parents()[node]);
        positions.push_back(request.root_position + tree.depth(node));
        on.max_depth = std::max(on.max_depth, tree.depth(node));
        int num_distributions_here = 0;
        for (const DraftTree::Attempt& attempt : tree.attempts(node)) {
          attempts.push_back(
              {node, attempt.child,
               attempt.distribution < 0 ? -1 : num_distributions + attempt.distribution});
          num_distributions_here = std::max(num_distributions_here, attempt.distribution + 1);
        }
        for (int i = static_cast<int>(drafts.size()) / shape.draft_vocab_size - num_distributions;
             i < num_distributions_here; ++i) {
          const auto draft = tree.distribution(i);
          drafts.insert(drafts.end(), draft.begin(), draft.end());
        }
      }
      num_distributions = static_cast<int32_t>(drafts.size()) / shape.draft_vocab_size;
      if (request.has_rows) {
        targets.insert(targets.end(), request.targets.begin(), request.targets.end());
      }
      on.cu_rows.push_back(static_cast<int32_t>(token_ids.size()));
      cu_attempts.push_back(static_cast<int32_t>(attempts.size()));
    }
    if (attempts.empty()) attempts.push_back({});
    if (drafts.empty()) drafts.push_back(0.0f);
    on.cu_rows_buffer = upload(on.cu_rows);
    on.token_ids = upload(token_ids);
    on.parents = upload(parents);
    on.positions = upload(positions);
    on.seeds = upload(seeds);
    on.attempts = upload(attempts);
    on.cu_attempts = upload(cu_attempts);
    on.targets = upload(targets);
    on.drafts = upload(drafts);
    on.residuals = allocate<double>(token_ids.size());
    const size_t count = requests.size();
    on.max_depth = std::max(on.max_depth, 1);
    on.num_accepted = allocate<int32_t>(count);
    on.nodes = allocate<int32_t>(count * on.max_depth);
    on.num_tokens = allocate<int32_t>(count);
    on.tokens = allocate<int32_t>(count * (on.max_depth + 1));
    on.trees = {.cu_rows = on.cu_rows_buffer.as<int32_t>(),
                .token_ids = on.token_ids.as<int32_t>(),
                .parents = on.parents.as<int32_t>(),
                .positions = on.positions.as<int32_t>(),
                .seeds = on.seeds.as<uint64_t>(),
                .num_requests = static_cast<int>(count)};
    on.accepted = {.num_accepted = on.num_accepted.as<int32_t>(),
                   .nodes = on.nodes.as<int32_t>(),
                   .num_tokens = on.num_tokens.as<int32_t>(),
                   .tokens = on.tokens.as<int32_t>(),
                   .max_depth = on.max_depth};
    return on;
  }

  std::vector<Accepted> read(const OnDevice& on) {
    const auto num_accepted = download<int32_t>(on.num_accepted);
    const auto nodes = download<int32_t>(on.nodes);
    const auto num_tokens = download<int32_t>(on.num_tokens);
    const auto tokens = download<int32_t>(on.tokens);
    std::vector<Accepted> result(num_accepted.size());
    for (size_t i = 0; i < result.size(); ++i) {
      const auto first_node = nodes.begin() + static_cast<int64_t>(i) * on.max_depth;
      const auto first_token = tokens.begin() + static_cast<int64_t>(i) * (on.max_depth + 1);
      result[i].nodes.assign(first_node, first_node + num_accepted[i]);
      result[i].tokens.assign(first_token, first_token + num_tokens[i]);
    }
    return result;
  }

  std::vector<Accepted> weigh(const std::vector<Request>& requests, const Shape& shape) {
    OnDevice on = upload_requests(requests, shape);
    kernels().verify.weigh(stream(), {.trees = on.trees,
                                      .attempts = on.attempts.as<VerifyAttempt>(),
                                      .cu_attempts = on.cu_attempts.as<int32_t>(),
                                      .target = on.targets.as<float>(),
                                      .drafts = on.drafts.as<float>(),
                                      .vocab_size = shape.vocab_size,
                                      .draft_vocab_size = shape.draft_vocab_size,
                                      .num_rows = on.cu_rows.back(),
                                      .is_block = shape.is_chain,
                                      .residuals = on.residuals.as<double>(),
                                      .accepted = on.accepted});
    return read(on);
  }

  static std::vector<Request> random_requests(const Shape& shape, int count, uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<Request> requests;
    for (int i = 0; i < count; ++i) {
      requests.push_back(random_request(shape, random));
      requests.back().has_rows = i % 7 != 2;
    }
    return requests;
  }
};

void expect_same(const Accepted& device, const Accepted& cpu, int request) {
  EXPECT_EQ(device.nodes, cpu.nodes) << "request " << request;
  EXPECT_EQ(device.tokens, cpu.tokens) << "request " << request;
}

TEST_P(Verify, WeighsTreesAndChainsAsTheCpuDoes) {
  int num_accepted = 0;
  for (const Shape& shape :
       {Shape{}, Shape{.vocab_size = 4, .draft_vocab_size = 4, .num_sampled = 4},
        Shape{.vocab_size = 40, .draft_vocab_size = 33, .max_depth = 2, .num_sampled = 6},
        Shape{.vocab_size = 33, .draft_vocab_size = 40, .num_deterministic = 3},
        Shape{.vocab_size = 3001, .draft_vocab_size = 3001, .max_depth = 2},
        Shape{.max_depth = 5, .is_chain = true},
        Shape{.vocab_size = 2100, .draft_vocab_size = 1900, .max_depth = 4, .is_chain = true}}) {
    // Chains in one batch by block verification, and all trees by rejection.
    const auto requests = random_requests(shape, 24, shape.vocab_size);
    for (const bool is_block : {false, true}) {
      if (is_block && !shape.is_chain) continue;
      Shape batch = shape;
      batch.is_chain = is_block;
      const auto device = weigh(requests, batch);
      for (size_t i = 0; i < requests.size(); ++i) {
        const Request& request = requests[i];
        if (!request.has_rows) {
          EXPECT_TRUE(device[i].tokens.empty());
          continue;
        }
        const auto rule = is_block ? accept_block : accept_rejection;
        const Accepted cpu =
            rule(request.tree, request.target(shape.vocab_size), request.uniform());
        expect_same(device[i], cpu, static_cast<int>(i));
        num_accepted += static_cast<int>(cpu.nodes.size());
      }
    }
  }
  EXPECT_GT(num_accepted, 100);
}

TEST_P(Verify, AgreesWhereNothingIsLeftAndWhereADraftIsCertain) {
  // A draft equal to the target; a one-hot target; a token of zero probability.
  std::vector<Request> requests(3);
  const std::vector<float> even = {0.25f, 0.25f, 0.25f, 0.25f}, single = {0, 1, 0, 0};
  for (int i = 0; i < 3; ++i) {
    Request& request = requests[i];
    request.seed = 77 + i;
    request.tree.reset(0);
    const int distribution = request.tree.add_distribution(i == 1 ? single : even);
    request.tree.add_sampled(0, i == 2 ? -1 : 1, 1.0f, 0, distribution);
    request.tree.add_sampled(0, 2, 1.0f, 0, distribution);
    for (int node = 0; node < request.tree.num_nodes(); ++node) {
      const auto& target = i == 0 ? even : single;
      request.targets.insert(request.targets.end(), target.begin(), target.end());
    }
  }
  const auto device = weigh(requests, {.vocab_size = 4, .draft_vocab_size = 4});
  for (int i = 0; i < 3; ++i) {
    expect_same(device[i],
                accept_rejection(requests[i].tree, requests[i].target(4), requests[i].uniform()),
                i);
  }
}

TEST_P(Verify, WalksAlongWhatWasSampled) {
  const Shape shape = {.max_depth = 6, .num_sampled = 3};
  const auto requests = random_requests(shape, 40, 5);
  std::mt19937 random(6);
  OnDevice on = upload_requests(requests, shape);
  std::vector<int32_t> sampled;
  for (const Request& request : requests) {
    for (int node = 0; request.has_rows && node < request.tree.num_nodes(); ++node) {
      const auto attempts = request.tree.attempts(node);
      const bool agrees = !attempts.empty() && random() % 4 != 0;
      sampled.push_back(agrees ? request.tree.tokens()[attempts[random() % attempts.size()].child]
                               : static_cast<int32_t>(random() % 100));
    }
  }
  const Buffer sampled_buffer = upload(sampled);
  const std::vector<double> rates = {0.9, 0.7, 0.5, 1.0};
  const Buffer rates_buffer = upload(rates);
  for (const bool is_synthetic : {false, true}) {
    kernels().verify.walk(stream(), {.trees = on.trees,
                                     .sampled = sampled_buffer.as<int32_t>(),
                                     .rates = is_synthetic ? rates_buffer.as<double>() : nullptr,
                                     .num_rates = static_cast<int>(rates.size()),
                                     .accepted = on.accepted});
    const auto device = read(on);
    for (size_t i = 0; i < requests.size(); ++i) {
      const Request& request = requests[i];
      if (!request.has_rows) {
        EXPECT_TRUE(device[i].tokens.empty());
        continue;
      }
      const std::span<const int32_t> here(&sampled[on.cu_rows[i]], request.tree.num_nodes());
      expect_same(device[i],
                  is_synthetic ? accept_synthetic(request.tree, rates, here, request.uniform())
                               : accept_exact(request.tree, here),
                  static_cast<int>(i));
    }
  }
}

TEST_P(Verify, MovesTheCacheOfAcceptedNodesInAGraph) {
  const Shape shape = {.max_depth = 5, .num_sampled = 3, .num_deterministic = 2};
  constexpr int kBlockSize = 4, kMaxBlocks = 40;
  // More requests than the kernel has threads.
  const auto requests = random_requests(shape, 300, 9);
  OnDevice on = upload_requests(requests, shape);
  std::mt19937 random(10);
  std::vector<int32_t> sampled, base_lens, tables;
  for (const Request& request : requests) {
    base_lens.push_back(static_cast<int32_t>(random() % 60));
    for (int i = 0; i < kMaxBlocks; ++i) tables.push_back(static_cast<int32_t>(random() % 5000));
    for (int node = 0; request.has_rows && node < request.tree.num_nodes(); ++node) {
      const auto attempts = request.tree.attempts(node);
      sampled.push_back(attempts.empty() ? 0 : request.tree.tokens()[attempts.back().child]);
    }
  }
  const Buffer sampled_buffer = upload(sampled), base_buffer = upload(base_lens);
  const Buffer table_buffer = upload(tables);
  Buffer slots = allocate<int64_t>(2 * requests.size() * on.max_depth);
  Buffer num_pairs = allocate<int32_t>(1);
  const auto graph = testing::captured(device(), [&](Stream& stream) {
    kernels().verify.walk(stream, {.trees = on.trees,
                                   .sampled = sampled_buffer.as<int32_t>(),
                                   .rates = nullptr,
                                   .num_rates = 0,
                                   .accepted = on.accepted});
    kernels().verify.kv_moves(stream, {.cu_rows = on.cu_rows_buffer.as<int32_t>(),
                                       .accepted = on.accepted,
                                       .base_lens = base_buffer.as<int32_t>(),
                                       .block_tables = table_buffer.as<int32_t>(),
                                       .max_blocks_per_request = kMaxBlocks,
                                       .block_size = kBlockSize,
                                       .num_requests = static_cast<int>(requests.size()),
                                       .slots = slots.as<int64_t>(),
                                       .num_pairs = num_pairs.as<int32_t>()});
  });
  stream().launch(*graph);
  std::vector<int64_t> expected;
  const auto accepted = read(on);
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto slot = [&](int node) {
      const int position = base_lens[i] + node;
      return static_cast<int64_t>(tables[i * kMaxBlocks + position / kBlockSize]) * kBlockSize +
             position % kBlockSize;
    };
    for (size_t depth = 0; depth < accepted[i].nodes.size(); ++depth) {
      const int to = static_cast<int>(depth) + 1;
      if (accepted[i].nodes[depth] == to) continue;
      expected.push_back(slot(accepted[i].nodes[depth]));
      expected.push_back(slot(to));
    }
  }
  ASSERT_GT(expected.size(), 200u);
  ASSERT_EQ(download<int32_t>(num_pairs)[0], static_cast<int>(expected.size() / 2));
  auto found = download<int64_t>(slots);
  found.resize(expected.size());
  EXPECT_EQ(found, expected);
}

class EmittedOnDevice : public Verify {
 protected:
  static constexpr int kNumTrials = 500;

  // The p-value of steps' first tokens. Drafts are drawn from `drawn_from` and reported as drawn
  // from `reported`.
  double p_value(const std::vector<float>& drawn_from, const std::vector<float>& reported,
                 bool is_chain, bool shares_coins) {
    std::mt19937_64 random(11);
    std::vector<Request> requests(kNumTrials);
    const std::vector<float> target = {0.45f, 0.3f, 0.15f, 0.1f};
    for (int i = 0; i < kNumTrials; ++i) {
      Request& request = requests[i];
      request.seed = shares_coins ? 5 : random();
      request.tree.reset(0);
      const int distribution = request.tree.add_distribution(reported);
      const auto noise = gumbel_noise(4, random);
      for (const int32_t token : draw_distinct(drawn_from, is_chain ? 1 : 2, noise)) {
        request.tree.add_sampled(0, token, 1.0f, 0, distribution);
      }
      for (int node = 0; node < request.tree.num_nodes(); ++node) {
        request.targets.insert(request.targets.end(), target.begin(), target.end());
      }
    }
    std::vector<int64_t> counts(4);
    const auto accepted =
        weigh(requests, {.vocab_size = 4, .draft_vocab_size = 4, .is_chain = is_chain});
    for (const Accepted& each : accepted) ++counts[each.tokens.front()];
    return chi_square_test(counts, std::vector<double>(target.begin(), target.end())).p_value;
  }

  const std::vector<float> draft_ = {0.1f, 0.2f, 0.3f, 0.4f};
  const std::vector<float> flatter_ = {0.3f, 0.28f, 0.22f, 0.2f};
};

TEST_P(EmittedOnDevice, TokensFollowTheTarget) {
  EXPECT_GT(p_value(draft_, draft_, false, false), kAccept);
  EXPECT_GT(p_value(draft_, draft_, true, false), kAccept);
}

TEST_P(EmittedOnDevice, WrongDraftsAndSharedCoinsAreRefused) {
  EXPECT_LT(p_value({0.01f, 0.01f, 0.01f, 0.97f}, flatter_, false, false), kRefuse);
  EXPECT_LT(p_value(draft_, draft_, true, true), kRefuse);
}

INSTANTIATE_TEST_SUITE_P(Devices, Verify, ::testing::ValuesIn(testing::device_kinds()),
                         testing::test_name);
INSTANTIATE_TEST_SUITE_P(Devices, EmittedOnDevice, ::testing::ValuesIn(testing::device_kinds()),
                         testing::test_name);

}  // namespace
}  // namespace specdec::cuda
