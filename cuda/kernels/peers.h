// What the ranks of a group bring each other: partial sums, which every rank folds in the same
// order, columns of rows, and whole rows. All of float32.
//
// Ranks that reach each other's memory need no other help: each has a mailbox that the others write
// to. A block works in rounds of its own. In a round it writes to its slots in the mailboxes of
// others, raises its flags there, waits for theirs, and reads its own slots. There are two of
// each, in turns: the flag of a round says that its sender has read all of the round before.
//
// Where they do not, parts have been copied to this device before.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/k_slices.h"
#include "cuda/gpu/device.h"
#include "cuda/kernels/moe.h"
#include "cuda/kernels/projection.h"

namespace specdec::cuda {

inline constexpr int kMaxPeers = 64;
inline constexpr int kPeerBlocks = 64;    // of a grid, at most
inline constexpr int kSlotFloats = 4096;  // that a block writes to another rank in a round

// A mailbox: flags [kPeerBlocks, kMaxPeers], uint32, then slots [kPeerBlocks, 2, ranks,
// kSlotFloats]. Both are by sender.
inline constexpr int64_t kMailboxFlagBytes = int64_t{kPeerBlocks} * kMaxPeers * 4;
inline constexpr int64_t mailbox_bytes(int num_ranks) {
  return kMailboxFlagBytes + int64_t{kPeerBlocks} * 2 * num_ranks * kSlotFloats * 4;
}

struct PeerLinks {
  int rank = 0;
  int size = 1;
  // Null: parts are there already.
  std::byte* mailboxes[kMaxPeers] = {};  // by rank, this one's own among them
  const float* parts[kMaxPeers] = {};    // by rank
  int num_blocks = 0;                    // of a grid, at most: the same for all ranks
  uint32_t* rounds = nullptr;            // [kPeerBlocks] this rank's, that each block has had
  // In pinned memory: 1 + a rank that did not come in time, from when on nobody waits; or 0.
  uint32_t* missing = nullptr;
  uint64_t timeout = 0;  // nanoseconds
  // Other ranks have the device, too. The next kernel must not start while a block waits: it would
  // take the room that another rank's kernel, which this one waits for, may need.
  bool shares_device = false;

  bool has_mailboxes() const { return mailboxes[0] != nullptr; }
};

// The scales of outputs where every row is an expert's, in order of expert.
struct ExpertScales {
  int num_experts = 0;                    // 0: FinishParams::scales
  const int32_t* cu_rows = nullptr;       // [num_experts + 1]
  int64_t offset = 0;                     // in bytes of weights
  const void* weights[kMaxExperts] = {};  // packed
};

// Sums with Finish::kStore.
struct PeerSumParams {
  PeerLinks links = {};
  const float* planes = nullptr;        // this rank's [planes, num_rows, out_features]
  int first_plane[kMaxPeers + 1] = {};  // of each rank, among those of all
  FoldOrder plan = {};                  // of those of all
  FinishParams finish = {};
  ExpertScales experts = {};
  int num_rows = 0;
  // Every rank folds a share of the columns and sends the sums, which moves fewer bytes and takes a
  // round more. The same bits.
  bool two_shot = false;
};

// Two runs of columns of a rank's part, as they lie in the rows of all.
struct PeerColumns {
  int first[2] = {};
  int count[2] = {};

  constexpr int width() const { return count[0] + count[1]; }
};

struct GatherColumnsParams {
  PeerLinks links = {};
  const float* own = nullptr;  // [num_rows, own_stride], whose first columns are the part
  int64_t own_stride = 0;
  PeerColumns columns[kMaxPeers] = {};
  int num_rows = 0;
  float* out = nullptr;  // [num_rows, out_stride]
  int64_t out_stride = 0;
};

// Row i comes from the rank that has output token_ids[i] + index_offset.
struct GatherRowsParams {
  PeerLinks links = {};
  const float* own = nullptr;  // [num_rows, dim], of which this rank's rows hold something
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
