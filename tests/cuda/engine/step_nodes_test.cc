// The number of launches of a whole device step.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "testing/device_drafting.h"
#include "testing/tiny_draft_heads.h"

namespace specdec {
namespace {

using namespace testing::device_engine;
using testing::device_drafting::Drafted;
using testing::device_drafting::World;

namespace heads = testing::tiny_draft_heads;

// Qkv, attention, o, gate and up, down (layer_test.cc), and one that makes records of o's rows,
// because the tiny models' heads together are no multiple of 32 wide.
constexpr int kLayerNodes = 6;

class StepNodesTest : public ::testing::TestWithParam<cuda::testing::DeviceKind> {
 protected:
  // Nodes of a step's graph, with `num_passes` draft passes and two requests.
  static int nodes_of(World& world, const SamplingParams& params, int num_passes) {
    const int depth = num_passes > 0 ? num_passes : 1;
    std::vector<std::unique_ptr<Drafted>> requests;
    std::vector<DeviceSeat> seats;
    for (const Asked& job : jobs_of(2, params)) {
      const auto ordinal = static_cast<int>(requests.size());
      requests.push_back(std::make_unique<Drafted>(world, job, ordinal, depth, depth));
      seats.push_back(requests.back()->seat());
    }
    const auto step = world.backend().make_device_step(
        {.num_seats = 2,
         .max_rows = testing::device_drafting::kMaxRows,
         .block_size = testing::device_drafting::kBlockSize,
         .max_blocks_per_request =
             testing::device_drafting::kMaxModelLen / testing::device_drafting::kBlockSize + 4,
         .tree = {.width = 1, .max_nodes = depth},
         .target = &world.target(),
         .draft = &world.draft(),
         .draft_kind = world.kind()});
    step->set_seats(seats);
    for (int i = 0; i < 3; ++i) {  // run, recorded, launched
      step->launch({.num_seats = 2, .num_passes = num_passes, .max_unseen = 8});
      step->wait();
    }
    return dynamic_cast<cuda::CudaBackend&>(world.backend()).recorder().num_nodes(step.get());
  }

  static SamplingParams drawn() {
    SamplingParams params;
    params.temperature = 0.8f;
    params.max_tokens = 40;
    params.ignore_eos = true;
    return params;
  }
  static SamplingParams likeliest() {
    SamplingParams params = drawn();
    params.temperature = 0.0f;
    return params;
  }
};

// Beside layers: making rows, embeddings, LM head, and verification with commit; drawn tokens add
// the sampler's two.
TEST_P(StepNodesTest, OfAModelThatReadsTokens) {
  TempDirectory target, draft;
  tiny::write_checkpoint(target, tiny::llama_tensors());
  tiny::write_checkpoint(draft, tiny::perturbed(tiny::llama_tensors(), 0.03f));
  World world(GetParam(), target.path(), drafter_of(DraftMethod::kDraftModel, draft.path()));
  const int layers = world.target().model().config().num_layers * kLayerNodes;
  EXPECT_EQ(nodes_of(world, likeliest(), 0), layers + 4);
  EXPECT_EQ(nodes_of(world, drawn(), 0), layers + 6);
  EXPECT_EQ(nodes_of(world, likeliest(), 3), 3 * (layers + 3) + layers + 4);
  EXPECT_EQ(nodes_of(world, drawn(), 3), 3 * (layers + 5) + layers + 6);
}

// Greedy passes of a draft head that scores some tokens also skip the two launches that spread its
// logits.
TEST_P(StepNodesTest, OfAHeadThatScoresSomeTokens) {
  TempDirectory target, head;
  tiny::write_checkpoint(target, heads::target_tensors());
  heads::write_eagle3(head);
  World world(GetParam(), target.path(), drafter_of(DraftMethod::kEagle3, head.path()));
  ASSERT_NE(world.draft().draft_vocabulary().token_ids, nullptr);
  const int greedy_nodes = nodes_of(world, likeliest(), 2);
  EXPECT_EQ(nodes_of(world, drawn(), 2) - greedy_nodes, 2 + 2 * 4);
}

INSTANTIATE_TEST_SUITE_P(Devices, StepNodesTest, ::testing::ValuesIn(cuda::testing::device_kinds()),
                         cuda::testing::test_name);

}  // namespace
}  // namespace specdec
