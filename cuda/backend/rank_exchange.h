// What ranks of a group exchange of products, on its way over the host: from device memory to the
// communicator's, and back.
#pragma once

#include <cstdint>

#include "backend/rank_share.h"
#include "backend/shared_heads.h"
#include "core/buffer.h"
#include "cuda/backend/packed_linear.h"
#include "cuda/backend/workspace.h"
#include "cuda/gpu/device.h"
#include "cuda/kernels/projection.h"

namespace specdec::cuda {

// Waits for the stream, so nothing of it can be recorded.
class RankExchange {
 public:
  RankExchange(Device& device, Stream& stream, const ProjectionKernels& kernels, DType act_dtype);

  // Device memory for this rank's planes: [num_planes, num_rows, out_features].
  float* own_planes(const CudaPackedLinear& weight, int num_rows);
  // Everybody's planes, in order, on the device. Valid until the next exchange.
  const float* exchange_planes(const CudaPackedLinear& weight, int num_rows);
  // Rows [first_row, first_row + count) of such planes of num_rows rows, as `finish` says.
  void finish_planes(const CudaPackedLinear& weight, const float* planes, int num_rows,
                     int first_row, int count, const FinishParams& finish);

  // Device memory for this rank's own columns.
  float* own_floats(int64_t count) { return own_.get<float>(static_cast<size_t>(count)); }
  // out [num_rows, num_outputs] = everybody's columns, of which `own_floats` has this rank's.
  void gather_outputs(const RankShare& share, int num_rows, float* out);
  // out [num_rows, dim] = everybody's rows: row i is the next one of rank owners[i], of which
  // `own_floats` has this rank's `num_own`.
  void gather_rows(const RankShare& share, std::span<const int> owners, int num_own, int64_t dim,
                   float* out);
  // Rows of q, then k, of all heads [num_rows, (num_heads + num_kv_heads) * head_dim], on the
  // device, of which `sums` [num_rows, num_outputs] begin with this rank's. Valid until the next
  // exchange.
  const float* gather_heads(const SharedHeads& shared, const float* sums, int num_rows,
                            int num_outputs, int head_dim);

 private:
  using Parts = std::span<const std::span<const std::byte>>;
  // Of the first floats of own_floats.
  Parts exchange(const RankShare& share, int64_t num_floats);
  // Host memory that the device can read from, free to be written.
  float* pinned(int64_t num_floats);
  void upload(float* to, int64_t num_floats);

  Device& device_;
  Stream& stream_;
  const ProjectionKernels& kernels_;
  DType act_dtype_;
  Workspace own_;
  Workspace all_;
  Buffer pinned_;
};

}  // namespace specdec::cuda
