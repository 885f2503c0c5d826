// What the ranks of a group exchange of products: by kernels that write to each other's memory
// where devices reach it, else by copies. The sums are the same kernels' either way.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "backend/rank_share.h"
#include "backend/shared_heads.h"
#include "core/buffer.h"
#include "cuda/backend/packed_linear.h"
#include "cuda/backend/part_copies.h"
#include "cuda/backend/workspace.h"
#include "cuda/gpu/device.h"
#include "cuda/gpu/rehearsal_stream.h"
#include "cuda/kernels/peers.h"

namespace specdec::cuda {

class RankExchange {
 public:
  RankExchange(Device& device, RehearsalStream& stream, const PeerKernels& kernels);
  ~RankExchange() { stream_.set_watch(nullptr, nullptr); }
  RankExchange(const RankExchange&) = delete;
  RankExchange& operator=(const RankExchange&) = delete;

  // Device memory for this rank's planes: [num_planes, num_rows, out_features].
  float* own_planes(const CudaPackedLinear& weight, int num_rows);
  // Adds up all ranks' planes, of which own_planes() has this rank's; `finish` is of all rows.
  void sum(const CudaPackedLinear& weight, int num_rows, const FinishParams& finish,
           const ExpertScales& experts = {});

  // Device memory for this rank's own part of what is gathered.
  float* own_floats(int64_t count) { return own_.get<float>(static_cast<size_t>(count)); }
  // out [num_rows, num_outputs] = everybody's columns, of which `own_floats` has this rank's.
  void gather_outputs(const RankShare& share, int num_rows, float* out);
  // out [num_rows, dim]: row i is that of the rank that has output token_ids[i] + index_offset. Of
  // `own_floats` [num_rows, dim] this rank's rows are read.
  void gather_rows(const RankShare& share, const int32_t* token_ids, int index_offset, int num_rows,
                   int dim, float* out);
  // Rows of q, then k, of all heads [num_rows, (num_heads + num_kv_heads) * head_dim], on the
  // device, of which `sums` [num_rows, num_outputs] begin with this rank's. Valid until the next.
  const float* gather_heads(const SharedHeads& shared, const float* sums, int num_rows,
                            int num_outputs, int head_dim);

  // How a group is linked; all of its ranks call this, or exchange something, for the first time at
  // the same point.
  const PeerLinks& links(Communicator& ranks) { return group_of(ranks).links; }
  // Whether graphs can do all of this, for the groups that there were exchanges in so far.
  bool can_be_recorded() const;
  // Throws RankFailure where a rank did not come in time: what the device has computed since is
  // wrong. Called before the host believes what it reads.
  void check() const;

 private:
  // A group of ranks and how they are linked.
  struct Group {
    std::shared_ptr<PeerMemory> mailbox;
    std::vector<std::shared_ptr<PeerMemory>> others;
    Buffer rounds;
    Buffer missing;  // pinned
    std::unique_ptr<PartCopies> copies;
    PeerLinks links;
  };
  Group& group_of(Communicator& ranks);
  void link(Communicator& ranks, Group& group);
  // Opens the mailboxes of all ranks; why not, where one cannot.
  std::string open_mailboxes(Communicator& ranks, Group& group);
  const float* without_gaps(const float* rows, int num_rows, int stride, int width);
  // Joins the ranks' NCCL; likewise.
  std::string join_nccl(Communicator& ranks, Group& group);
  // The links for one exchange; copies the parts where there are no mailboxes.
  // Called while the host waits for the device. Throws RankFailure once a rank is gone, or after
  // the timeout where the device itself waits for ever.
  void watch(std::chrono::nanoseconds waited);
  void start_watch();
  // Ends the waits of the device.
  void end_waits();
  PeerLinks links_for(Communicator& ranks, const float* own, std::span<const int64_t> counts);

  Device& device_;
  // The backend's only one: groups of ranks (a target's and a draft model's) exchange one after
  // another, in the same order on all ranks, and never wait for each other crosswise.
  RehearsalStream& stream_;
  const PeerKernels& kernels_;
  std::map<Communicator*, Group> groups_;
  std::chrono::steady_clock::time_point last_look_;  // at the ranks
  Workspace own_;
  Workspace all_;
  Workspace parts_;
};

}  // namespace specdec::cuda
