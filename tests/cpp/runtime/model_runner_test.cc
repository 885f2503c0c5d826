#include "runtime/model_runner.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "testing/tiny_llama.h"

namespace specdec {
namespace {

using testing::TempDirectory;
namespace tiny = testing::tiny_llama;

constexpr int kBlockSize = 16;
constexpr int kNumBlocks = 32;

// A runner of the tiny model with its own blocks; every row's whole distribution can be read.
class RunnerUnderTest {
 public:
  explicit RunnerUnderTest(DType dtype) {
    tiny::write_checkpoint(directory_, tiny::llama_tensors());
    backend_ = make_backend({.device = "cpu", .num_threads = 2, .act_dtype = dtype});
    const std::string path = directory_.path();
    runner_ = std::make_unique<ModelRunner>(
        load_model_config(path), path, *backend_,
        RunnerLimits{.max_model_len = 128, .max_rows = 128, .max_logit_rows = 4});
    runner_->allocate_cache(kNumBlocks, {.block_size = kBlockSize, .dtype = dtype});
  }

  // Logprobs of the whole vocabulary after each of the batch's rows, most likely token first.
  std::vector<PositionLogprobs> run(BatchInputs& inputs) {
    runner_->forward(inputs);
    std::vector<int32_t> row_ids(inputs.num_rows());
    std::vector<SampleRow> rows(inputs.num_rows());
    std::vector<SampleResult> results(inputs.num_rows());
    for (int i = 0; i < inputs.num_rows(); ++i) {
      row_ids[i] = i;
      rows[i].temperature = 0.0f;
      rows[i].want_logprobs = true;
      rows[i].num_logprobs = -1;
    }
    runner_->sample(row_ids, rows, LogprobsMode::kRaw, results);
    std::vector<PositionLogprobs> logprobs;
    for (SampleResult& result : results) logprobs.push_back(std::move(result.logprobs));
    return logprobs;
  }

  std::vector<PositionLogprobs> run_chain(const std::vector<int32_t>& tokens, int base_len,
                                          const BlockTable& blocks) {
    BatchInputs inputs;
    inputs.add_chain(tokens, base_len, blocks);
    return run(inputs);
  }

  BlockTable table(int num_tokens) {
    BlockTable blocks(kBlockSize);
    EXPECT_TRUE(blocks.reserve(pool_, num_tokens));
    return blocks;
  }

 private:
  TempDirectory directory_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<ModelRunner> runner_;
  BlockPool pool_{kNumBlocks};
};

bool equal(const PositionLogprobs& a, const PositionLogprobs& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.token_id == y.token_id && x.logprob == y.logprob;
  });
}

class ModelRunnerTest : public ::testing::TestWithParam<DType> {};

// The tokens from the root of a tree to one of its nodes.
std::vector<int32_t> path_to(const std::vector<int32_t>& tokens,
                             const std::vector<int32_t>& parents, int node) {
  std::vector<int32_t> path;
  for (; node >= 0; node = parents[node]) path.insert(path.begin(), tokens[node]);
  return path;
}

TEST_P(ModelRunnerTest, ATreeNodeEqualsItsPathRunAsAChain) {
  RunnerUnderTest runner(GetParam());
  const std::vector<int32_t> prompt{5, 9, 2, 30, 11, 7, 7, 1, 19, 23, 4, 8, 15, 16};
  const int prompt_len = static_cast<int>(prompt.size());
  std::mt19937 random(3);
  for (int trial = 0; trial < 5; ++trial) {
    const int num_nodes = 2 + static_cast<int>(random() % 20);
    std::vector<int32_t> tokens;
    std::vector<int32_t> parents;
    for (int i = 0; i < num_nodes; ++i) {
      tokens.push_back(static_cast<int32_t>(random() % tiny::kVocab));
      parents.push_back(i == 0 ? -1 : static_cast<int32_t>(random() % i));
    }
    const BlockTable tree_blocks = runner.table(prompt_len + num_nodes);
    const BlockTable other_blocks = runner.table(32);
    runner.run_chain(prompt, 0, tree_blocks);
    BatchInputs inputs;
    inputs.add_chain(std::vector<int32_t>{3, 1, 4, 1, 5}, 0, other_blocks);
    const int first = inputs.add_tree(tokens, parents, prompt_len, tree_blocks);
    const std::vector<PositionLogprobs> tree = runner.run(inputs);
    for (int node = 0; node < num_nodes; ++node) {
      const BlockTable chain_blocks = runner.table(prompt_len + num_nodes);
      runner.run_chain(prompt, 0, chain_blocks);
      const auto chain = runner.run_chain(path_to(tokens, parents, node), prompt_len, chain_blocks);
      ASSERT_TRUE(equal(tree[first + node], chain.back())) << "node " << node;
    }
  }
}

TEST_P(ModelRunnerTest, AWrongParentChangesTheResult) {
  RunnerUnderTest runner(GetParam());
  const BlockTable blocks = runner.table(32);
  const std::vector<int32_t> tokens{5, 9, 2, 30};
  BatchInputs right;
  right.add_tree(tokens, std::vector<int32_t>{-1, 0, 0, 1}, 0, blocks);
  const auto expected = runner.run(right);
  BatchInputs wrong;
  wrong.add_tree(tokens, std::vector<int32_t>{-1, 0, 0, 2}, 0, blocks);
  const auto changed = runner.run(wrong);
  EXPECT_TRUE(equal(expected[2], changed[2]));
  EXPECT_FALSE(equal(expected[3], changed[3]));
}

TEST_P(ModelRunnerTest, AWrongPositionChangesTheResult) {
  RunnerUnderTest runner(GetParam());
  const BlockTable blocks = runner.table(32);
  const std::vector<int32_t> first{5};
  const std::vector<int32_t> next{9};
  const std::vector<uint64_t> mask{0b11};
  const auto run_at = [&](int32_t depth) {
    runner.run_chain(first, 0, blocks);
    BatchInputs inputs;
    inputs.add_tree_level(next, std::vector<int32_t>{depth}, 1, mask, 1, 0, blocks);
    return runner.run(inputs)[0];
  };
  EXPECT_TRUE(equal(run_at(1), runner.run_chain({5, 9}, 0, blocks)[1]));
  EXPECT_FALSE(equal(run_at(2), runner.run_chain({5, 9}, 0, blocks)[1]));
}

INSTANTIATE_TEST_SUITE_P(DTypes, ModelRunnerTest, ::testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace specdec
