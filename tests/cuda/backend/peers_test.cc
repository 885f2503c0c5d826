// Exchanges between ranks on their devices: sums against the tree written out, late ranks, and
// ranks that never come.
#include "cuda/kernels/peers.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "comm/thread_communicator.h"
#include "core/k_slices.h"
#include "specdec/error.h"
#include "testing/device_kinds.h"
#include "testing/on_ranks.h"
#include "testing/text.h"
#include "testing/values.h"

namespace specdec::cuda {
namespace {

using specdec::testing::has_text;
using specdec::testing::on_ranks;
using specdec::testing::random_values;
using specdec::testing::runs_of;
using specdec::testing::sum_of_slices;
using testing::DeviceKind;

constexpr int kWidth = 1100;
constexpr int kRows = 9;
constexpr size_t kTotal = size_t{kWidth} * kRows;
using Clock = std::chrono::steady_clock;

std::vector<std::vector<float>> random_slices() {
  std::vector<std::vector<float>> slices;
  for (int s = 0; s < kNumSlices; ++s) slices.push_back(random_values(kTotal, 70 + s));
  return slices;
}

// The sum of slices [first, first + count), a subtree.
float sum_of_node(const std::vector<std::vector<float>>& slices, SliceRun node, size_t i) {
  if (node.count == 1) return slices[node.first][i];
  const int half = node.count / 2;
  return sum_of_node(slices, {node.first, half}, i) +
         sum_of_node(slices, {node.first + half, half}, i);
}

// The planes that rank `rank` of `size` sends.
std::vector<float> planes_of(const std::vector<std::vector<float>>& slices, int rank, int size) {
  std::vector<float> planes;
  for (const SliceRun node : subtrees_of(SliceRun::of_rank(rank, size))) {
    for (size_t i = 0; i < kTotal; ++i) planes.push_back(sum_of_node(slices, node, i));
  }
  return planes;
}

// A rank and its device. On a GPU all ranks share one. What waits for the whole GPU there, such as
// cudaFree and the first launch of a graph, waits for kernels of other ranks, which may wait for
// this rank's next kernel. So ranks meet (`barrier`) before each of these.
struct World : testing::BackendWorld {
  World(DeviceKind kind, Communicator& ranks, bool peer_memory = true)
      : BackendWorld(kind, DType::kBF16), kernels(testing::kernels_for(kind).peers) {
    backend->device().set_launch_settings({.peer_memory = peer_memory});
    links = backend->rank_exchange().links(ranks);
  }

  PeerSumParams params(const Buffer& planes, Buffer& out) const {
    PeerSumParams params = {.links = links,
                            .planes = planes.as<float>(),
                            .finish = {.out_features = kWidth, .out = out.data(), .heads = {}},
                            .num_rows = kRows};
    std::vector<SliceRun> nodes;
    for (int rank = 0; rank < links.size; ++rank) {
      const auto subtrees = subtrees_of(SliceRun::of_rank(rank, links.size));
      nodes.insert(nodes.end(), subtrees.begin(), subtrees.end());
      params.first_plane[rank + 1] = params.first_plane[rank] + subtrees.count;
    }
    params.fold_order = fold_order_of(nodes);
    return params;
  }

  PeerKernels kernels;
  PeerLinks links;
};

void come_late(std::minstd_rand& random) {
  std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
}

class CudaPeers : public ::testing::TestWithParam<DeviceKind> {};

TEST_P(CudaPeers, BothSumsAreTheTreeHoweverLateRanksCome) {
  const auto slices = random_slices();
  for (const int size : {2, 3, 4, 5, 8}) {
    on_ranks(size, [&](Communicator& ranks) {
      World world(GetParam(), ranks);
      ASSERT_TRUE(world.links.has_mailboxes());
      const Buffer planes = world.upload(planes_of(slices, ranks.rank(), size));
      Buffer out = world.allocate<float>(kTotal);
      ranks.barrier();
      std::minstd_rand random(static_cast<unsigned>(ranks.rank() + 1));
      for (int turn = 0; turn < 6; ++turn) {
        PeerSumParams params = world.params(planes, out);
        params.two_shot = turn % 2 == 1;
        come_late(random);
        world.kernels.sum(world.backend->stream(), params);
        const std::vector<float> sums = world.download<float>(out);
        for (size_t i = 0; i < kTotal; ++i) {
          float s[kNumSlices];
          for (int slice = 0; slice < kNumSlices; ++slice) s[slice] = slices[slice][i];
          ASSERT_EQ(sums[i], sum_of_slices(s)) << size << " ranks, turn " << turn << ", at " << i;
        }
      }
      ranks.barrier();
    });
  }
}

TEST_P(CudaPeers, AnotherOrderOfRanksShows) {
  const auto slices = random_slices();
  on_ranks(4, [&](Communicator& ranks) {
    World world(GetParam(), ranks);
    const int rotated = (ranks.rank() + 1) % 4;
    const Buffer planes = world.upload(planes_of(slices, rotated, 4));
    Buffer out = world.allocate<float>(kTotal);
    ranks.barrier();
    world.kernels.sum(world.backend->stream(), world.params(planes, out));
    const std::vector<float> sums = world.download<float>(out);
    ranks.barrier();
    int num_different = 0;
    for (size_t i = 0; i < kTotal; ++i) {
      num_different += sums[i] != sum_of_node(slices, {}, i);
    }
    EXPECT_GT(num_different, static_cast<int>(kTotal / 10));
  });
}

TEST_P(CudaPeers, GraphsExchangeEachTimeTheyAreLaunched) {
  const auto slices = random_slices();
  on_ranks(2, [&](Communicator& ranks) {
    World world(GetParam(), ranks);
    Stream& stream = world.backend->stream();
    const Buffer planes = world.upload(planes_of(slices, ranks.rank(), 2));
    Buffer out = world.allocate<float>(kTotal);
    const auto work = [&] {
      for (const bool two_shot : {false, true, false}) {
        PeerSumParams params = world.params(planes, out);
        params.two_shot = two_shot;
        params.finish.accumulate = true;
        world.kernels.sum(stream, params);
      }
    };
    ranks.barrier();
    work();
    stream.synchronize();
    ranks.barrier();
    stream.begin_capture();
    work();
    const std::unique_ptr<Graph> graph = stream.end_capture();
    ranks.barrier();
    std::minstd_rand random(static_cast<unsigned>(ranks.rank() + 1));
    for (int turn = 0; turn < 3; ++turn) {
      come_late(random);
      stream.launch(*graph);
      stream.flush();
    }
    const std::vector<float> sums = world.download<float>(out);
    ranks.barrier();
    for (size_t i = 0; i < kTotal; ++i) {
      float expected = 0.0f;
      for (int turn = 0; turn < 12; ++turn) expected = sum_of_node(slices, {}, i) + expected;
      ASSERT_EQ(sums[i], expected) << i;
    }
  });
}

TEST_P(CudaPeers, CopiesOverTheHostGiveTheSameSums) {
  if (testing::group_sizes(GetParam(), {3}).empty()) GTEST_SKIP() << "ranks share the GPU";
  const auto slices = random_slices();
  constexpr int64_t kN = 35, kK = 600;
  const KSlices whole = KSlices::whole(kK, 64);
  const std::vector<float> weight = random_values(kN * kK, 1);
  const std::vector<float> x = random_values(3 * kK, 2);
  std::vector<float> sums[2];
  for (const bool peer_memory : {false, true}) {
    const std::vector<SliceRun> runs = runs_of(3);
    on_ranks(3, [&](Communicator& ranks) {
      World world(GetParam(), ranks, peer_memory);
      EXPECT_EQ(world.links.has_mailboxes(), peer_memory);
      EXPECT_EQ(world.backend->can_record_ranks(), peer_memory);
      const KSlices own = whole.cut(runs[ranks.rank()]);
      const WeightView view = {.values = {weight.data(), DType::kF32, {kN, kK}}};
      const auto share = world.backend->pack_linear({.parts = {&view, 1},
                                                     .format = WeightFormat::kInt8,
                                                     .k_slices = &own,
                                                     .ranks = &ranks,
                                                     .rank_runs = runs});
      std::vector<float> inputs;
      for (int row = 0; row < 3; ++row) {
        inputs.insert(inputs.end(), x.begin() + row * kK + own.begin(),
                      x.begin() + row * kK + own.end());
      }
      const Buffer rows = world.upload(inputs);
      Buffer out = world.allocate<float>(3 * kN);
      world.backend->linear({.weight = share.get(),
                             .in = {.x = rows.data(), .dtype = DType::kF32, .num_rows = 3},
                             .out = out.as<float>()});
      const auto result = world.download<float>(out);
      if (ranks.rank() == 2) sums[peer_memory] = result;
    });
  }
  EXPECT_EQ(sums[0], sums[1]);
}

TEST_P(CudaPeers, ARankThatDoesNotComeFailsTheOthers) {
  constexpr std::chrono::milliseconds kTimeout(1800);  // PeerLinks::timeout, too
  auto groups = make_thread_communicators(2, kTimeout);
  std::vector<std::jthread> threads;
  std::atomic<bool> has_failed = false;
  threads.emplace_back([&] {
    World world(GetParam(), *groups[1]);
    while (!has_failed) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  });
  World world(GetParam(), *groups[0]);
  const Buffer planes = world.upload(planes_of(random_slices(), 0, 2));
  Buffer out = world.allocate<float>(kTotal);
  const auto begin = Clock::now();
  std::vector<float> sums(kTotal);
  try {
    for (int turn = 0; turn < 3; ++turn) {  // only the first turn waits
      world.kernels.sum(world.backend->stream(), world.params(planes, out));
    }
    world.backend->read(out.data(), std::as_writable_bytes(std::span(sums)));
    ADD_FAILURE() << "nobody missed rank 1";
  } catch (const RankFailure& failure) {
    EXPECT_EQ(failure.rank(), 1);
    EXPECT_TRUE(has_text(failure.what(), "1.8 s")) << failure.what();
  }
  EXPECT_LT(Clock::now() - begin, kTimeout + std::chrono::seconds(10));
  EXPECT_THROW(groups[1]->barrier(), RankFailure);  // the group has ended
  has_failed = true;
}

INSTANTIATE_TEST_SUITE_P(Devices, CudaPeers, ::testing::ValuesIn(testing::device_kinds()),
                         testing::test_name);

}  // namespace
}  // namespace specdec::cuda
