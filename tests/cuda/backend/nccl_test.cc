// The calls of NCCL, recorded by a fake library; and behaviour without the library.
#include "cuda/backend/nccl.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "testing/library_stream.h"
#include "testing/on_ranks.h"
#include "testing/text.h"
#include "testing/thrown.h"

namespace specdec::cuda {
namespace {

using namespace nccl;
using specdec::testing::has_text;
using specdec::testing::on_ranks;

using testing::LibraryStream;

struct Broadcasting {
  const void* from;
  void* to;
  size_t count;
  int root;
};

// One rank of the fake library: the calls it got and its answers. Each rank is a thread.
struct Library {
  int rank = -1;
  int size = 0;
  char id = 0;
  int depth = 0;  // of nested groups
  std::vector<Broadcasting> broadcasts;
  void* stream = nullptr;
  bool is_alive = false;
  Result initialises = kSuccess;
};
thread_local Library library;
constexpr char kId = 42;

Api made_up() {
  return {
      .GetErrorString = [](Result) { return "made-up trouble"; },
      .GetUniqueId =
          [](UniqueId* id) {
            std::fill_n(id->internal, sizeof(id->internal), kId);
            return kSuccess;
          },
      .CommInitRank =
          [](Comm** comm, int size, UniqueId id, int rank) {
            library.rank = rank;
            library.size = size;
            library.id = id.internal[127];
            if (library.initialises != kSuccess) return library.initialises;
            library.is_alive = true;
            *comm = reinterpret_cast<Comm*>(&library);
            return kSuccess;
          },
      .CommDestroy =
          [](Comm*) {
            library.is_alive = false;
            return kSuccess;
          },
      .CommAbort =
          [](Comm*) {
            library.is_alive = false;
            return kSuccess;
          },
      .GroupStart =
          [] {
            ++library.depth;
            return kSuccess;
          },
      .GroupEnd =
          [] {
            --library.depth;
            return kSuccess;
          },
      .Broadcast =
          [](const void* from, void* to, size_t count, int dtype, int root, Comm*, void* stream) {
            EXPECT_EQ(dtype, kFloat32);
            EXPECT_EQ(library.depth, 1);
            library.broadcasts.push_back({from, to, count, root});
            library.stream = stream;
            return kSuccess;
          }};
}

TEST(Nccl, PartsOfAnySizesAreBroadcastSideBySide) {
  on_ranks(3, [](Communicator& ranks) {
    library = {};
    LibraryStream stream;
    {
      const auto copies = make_nccl_copies(made_up(), stream, ranks);
      EXPECT_EQ(library.rank, ranks.rank());
      EXPECT_EQ(library.size, 3);
      EXPECT_EQ(library.id, kId);  // rank 0's
      EXPECT_TRUE(copies->can_be_recorded());
      const std::vector<float> own(7);
      std::vector<float> all(16);
      const int64_t counts[] = {5, 0, 7};
      copies->gather(own.data(), counts, all.data());
      ASSERT_EQ(library.broadcasts.size(), 2u);  // rank 1 has no part
      for (const Broadcasting& each : library.broadcasts) {
        const size_t offset = each.root == 0 ? 0 : 5;
        EXPECT_EQ(each.to, all.data() + offset);
        EXPECT_EQ(each.count, static_cast<size_t>(counts[each.root]));
        if (each.root == ranks.rank()) {
          EXPECT_EQ(each.from, own.data());
        }
      }
      EXPECT_EQ(library.depth, 0);
      EXPECT_EQ(library.stream, &stream);
      EXPECT_TRUE(library.is_alive);
    }
    EXPECT_FALSE(library.is_alive);
  });
}

TEST(Nccl, ItsWaitsCanBeEnded) {
  on_ranks(2, [](Communicator& ranks) {
    library = {};
    LibraryStream stream;
    const auto copies = make_nccl_copies(made_up(), stream, ranks);
    copies->end();
    EXPECT_FALSE(library.is_alive);
    copies->end();  // there is nothing to end
  });
}

TEST(Nccl, ItsErrorsAreNamed) {
  on_ranks(2, [](Communicator& ranks) {
    library = {};
    library.initialises = 5;
    LibraryStream stream;
    const auto error = specdec::testing::error_of<DeviceError>(
        [&] { make_nccl_copies(made_up(), stream, ranks); });
    EXPECT_TRUE(has_text(error.what(), "ncclCommInitRank: made-up trouble")) << error.what();
  });
}

TEST(Nccl, ALibraryThatIsNotThereIsNamed) {
  const NcclLibrary found = open_nccl({"libspecdec_no_such.so.2"});
  EXPECT_EQ(found.problem, "there is no libspecdec_no_such.so.2");
  const NcclLibrary another = open_nccl({"libc.so.6"});
  EXPECT_TRUE(has_text(another.problem, "libc.so.6 has no nccl")) << another.problem;
}

}  // namespace
}  // namespace specdec::cuda
