// Exchanges between the ranks of a group: by kernels that write to each other's memory if the
// devices allow it, else by copies. The same kernels fold the sums either way.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
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
  // Exchanges and adds up all ranks' planes; own_planes() holds this rank's. `finish` covers all
  // rows.
  void sum(const CudaPackedLinear& weight, int num_rows, const FinishParams& finish,
           const RowExperts& experts = {});

  // Device memory for this rank's part of a gather.
  float* own_floats(int64_t count) { return own_.get<float>(static_cast<size_t>(count)); }
  // out [num_rows, num_outputs] = all ranks' columns; own_floats() holds this rank's.
  void gather_outputs(const RankShare& share, int num_rows, float* out);
  // Returns the rows with all ranks' inputs, on the device, valid until the next call. own_floats()
  // holds this rank's inputs.
  const float* gather_inputs(const RankShare& share, int num_rows);
  // out [num_rows, dim]: row i comes from the rank that has output token_ids[i] + index_offset.
  // own_floats() [num_rows, dim] holds this rank's rows.
  void gather_rows(const RankShare& share, const int32_t* token_ids, int index_offset, int num_rows,
                   int dim, float* out);
  // Returns the q, then k, of all ranks' heads: [num_rows, (num_heads + num_kv_heads) * head_dim]
  // on the device, valid until the next call. `sums` [num_rows, num_outputs] begin with this rank's
  // q and k.
  const float* gather_heads(const SharedHeads& shared, const float* sums, int num_rows,
                            int num_outputs, int head_dim);
  // Returns the values of all ranks' heads: [num_rows, num_heads * head_dim] on the device, valid
  // until the next call. own_floats() holds this rank's.
  const float* gather_values(const SharedHeads& shared, int num_rows, int head_dim);

  // How a group is linked. The first call, or the first exchange, must come at the same point on
  // all ranks.
  const PeerLinks& links(Communicator& ranks) { return group_of(ranks).links; }
  // Whether graphs can record exchanges of all groups that have exchanged so far.
  bool can_be_recorded() const;
  // Throws RankFailure if a rank did not come in time: results computed since are wrong. Called
  // before the host uses results.
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
  // Opens the mailboxes of all ranks. Returns the obstacle if some rank cannot, else "".
  std::string open_mailboxes(Communicator& ranks, Group& group);
  // out [num_rows, bounds.back()] = all ranks' columns, those of rank r from bounds[r] on;
  // own_floats() holds this rank's.
  void gather_columns(Communicator& ranks, std::span<const int64_t> bounds, int num_rows,
                      float* out);
  const float* without_gaps(const float* rows, int num_rows, int stride, int width);
  // Joins the ranks in an NCCL group; returns likewise.
  std::string join_nccl(Communicator& ranks, Group& group);
  // Called while the host waits for the device. Throws RankFailure once a rank is gone, or after
  // the timeout if the device waits without one of its own.
  void watch(std::chrono::nanoseconds waited);
  void start_watch();
  // Ends waits on the device; results are wrong from then on.
  void end_waits();
  // The links for one exchange. Without mailboxes it copies the ranks' parts first.
  PeerLinks links_for(Communicator& ranks, const float* own, std::span<const int64_t> counts);

  Device& device_;
  // The backend's only stream: its groups of ranks (a target's and a draft model's) exchange one
  // after another, in the same order on all ranks, so they never wait for each other crosswise.
  RehearsalStream& stream_;
  const PeerKernels& kernels_;
  std::map<Communicator*, Group> groups_;
  std::chrono::steady_clock::time_point last_look_;  // when the ranks were last checked
  Workspace own_;
  Workspace all_;
  Workspace parts_;
};

}  // namespace specdec::cuda
