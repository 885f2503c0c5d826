// Exchanges between the ranks of a group: partial sums, which every rank folds in the same order,
// columns of rows, and whole rows. All data is float32.
//
// Ranks that reach each other's memory exchange by mailboxes: every rank has one, which the others
// write to. A block works in rounds of its own. In a round it writes to its buffers in the other
// ranks' mailboxes, raises its flags there, waits for the flags in its own mailbox, and reads the
// buffers there. Each buffer is double, used in turn: the flag of a round also says that its sender
// has read everything of the round before.
//
// Where ranks do not reach each other's memory, their parts are copied to this device before the
// kernel runs.
//
// Plain version: the tree of slices written out, sum_of_slices (tests/testing/on_ranks.h) and
// sum_of_node (tests/cuda/backend/peers_test.cc), compared by peers_test.cc. Gathers have no plain
// version: CudaSlices.OutputsThatRanksShareAreGathered (tests/cuda/backend/slices_test.cc) compares
// outputs and embeddings that ranks share with whole ones.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/k_slices.h"
#include "cuda/gpu/device.h"
#include "cuda/kernels/moe.h"
#include "cuda/kernels/projection.h"

namespace specdec::cuda {

inline constexpr int kMaxPeers = 64;
inline constexpr int kPeerBlocks = 64;      // most blocks of a grid
inline constexpr int kBufferFloats = 4096;  // floats that a block sends a rank in a round

// A mailbox: uint32 flags [kPeerBlocks, kMaxPeers], then buffers [kPeerBlocks, 2, ranks,
// kBufferFloats]. Both are indexed by the sending rank.
inline constexpr int64_t kMailboxFlagBytes = int64_t{kPeerBlocks} * kMaxPeers * 4;
inline constexpr int64_t mailbox_bytes(int num_ranks) {
  return kMailboxFlagBytes + int64_t{kPeerBlocks} * 2 * num_ranks * kBufferFloats * 4;
}

struct PeerLinks {
  int rank = 0;
  int size = 1;
  // Null: `parts` have been copied to this device.
  std::byte* mailboxes[kMaxPeers] = {};  // by rank, this rank's included
  const float* parts[kMaxPeers] = {};    // by rank
  int num_blocks = 0;                    // most blocks of a grid, the same for all ranks
  uint32_t* rounds = nullptr;            // [kPeerBlocks] rounds that each block has finished
  // In pinned memory: 0, or 1 + the rank that did not come in time. Once set, no block waits again.
  uint32_t* missing = nullptr;
  uint64_t timeout = 0;  // nanoseconds
  // Other ranks run on this device, too. The next kernel must not start while a block waits: it
  // could take the room of another rank's kernel, the one that this block waits for.
  bool shares_device = false;

  bool has_mailboxes() const { return mailboxes[0] != nullptr; }
};

// Where rows belong to experts, in the order of the experts. FinishParams::bias is then
// [num_experts, out_features].
struct RowExperts {
  int num_experts = 0;                    // 0: rows belong to none
  const int32_t* cu_rows = nullptr;       // [num_experts + 1]
  int64_t scales_offset = 0;              // in the weights, bytes; 0: FinishParams::scales applies
  const void* weights[kMaxExperts] = {};  // packed
};

// A sum over ranks, with the epilogue of Finish::kStore.
struct PeerSumParams {
  PeerLinks links = {};
  const float* planes = nullptr;        // [planes of this rank, num_rows, out_features]
  int first_plane[kMaxPeers + 1] = {};  // of each rank, among all ranks' planes
  DeviceFoldOrder fold_order = {};      // of all ranks' planes
  FinishParams finish = {};
  RowExperts experts = {};
  int num_rows = 0;
  // Every rank folds a share of the elements and sends its sums. This moves fewer bytes, takes one
  // more round, and gives the same bits.
  bool two_shot = false;
};

// The columns of a rank's part: two runs of columns of the whole rows.
struct PeerColumns {
  int first[2] = {};
  int count[2] = {};

  constexpr int width() const { return count[0] + count[1]; }
};

struct GatherColumnsParams {
  PeerLinks links = {};
  const float* own = nullptr;  // [num_rows, own_stride]; the part is the first columns
  int64_t own_stride = 0;
  PeerColumns columns[kMaxPeers] = {};
  int num_rows = 0;
  float* out = nullptr;  // [num_rows, out_stride]
  int64_t out_stride = 0;
};

// Row i comes from the rank that has output token_ids[i] + index_offset.
struct GatherRowsParams {
  PeerLinks links = {};
  const float* own = nullptr;  // [num_rows, dim]; valid where this rank has the row
  const int32_t* token_ids = nullptr;
  int32_t index_offset = 0;
  int32_t first_output[kMaxPeers + 1] = {};  // of each rank
  int num_rows = 0;
  int dim = 0;
  float* out = nullptr;  // [num_rows, dim]
};

struct PeerKernels {
  void (*sum)(Stream&, const PeerSumParams&) = nullptr;
  void (*gather_columns)(Stream&, const GatherColumnsParams&) = nullptr;
  void (*gather_rows)(Stream&, const GatherRowsParams&) = nullptr;
};

namespace native {
PeerKernels peer_kernels();
}
namespace emulated {
PeerKernels peer_kernels();
}

}  // namespace specdec::cuda
