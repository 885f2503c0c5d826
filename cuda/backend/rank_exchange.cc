#include "cuda/backend/rank_exchange.h"

#include <algorithm>
#include <vector>

#include "comm/communicator.h"
#include "core/check.h"

namespace specdec::cuda {

RankExchange::RankExchange(Device& device, Stream& stream, const ProjectionKernels& kernels,
                           DType act_dtype)
    : device_(device),
      stream_(stream),
      kernels_(kernels),
      act_dtype_(act_dtype),
      own_(device, stream, "sums of this rank"),
      all_(device, stream, "sums of all ranks") {}

float* RankExchange::own_planes(const CudaPackedLinear& weight, int num_rows) {
  return own_floats(weight.num_planes() * num_rows * weight.out_features());
}

const float* RankExchange::exchange_planes(const CudaPackedLinear& weight, int num_rows) {
  const RankShare& share = weight.share();
  const int64_t plane_floats = num_rows * weight.out_features();
  const Parts parts = exchange(share, weight.num_planes() * plane_floats);
  const auto planes = share.planes_of(parts, plane_floats);
  const int num_planes = share.plan().num_steps;
  float* host = pinned(num_planes * plane_floats);
  for (int i = 0; i < num_planes; ++i) {
    std::copy_n(planes[i], plane_floats, host + i * plane_floats);
  }
  // The kernel that folds them reads whole tiles.
  const int64_t num_floats = num_planes * plane_floats;
  float* all = all_.get<float>(static_cast<size_t>(num_floats + kTileOutputs));
  upload(all, num_floats);
  return all;
}

void RankExchange::finish_planes(const CudaPackedLinear& weight, const float* planes, int num_rows,
                                 int first_row, int count, const FinishParams& finish) {
  FinishSumsParams params = {.act_dtype = act_dtype_,
                             .finish = finish,
                             .num_rows = count,
                             .sums = planes + first_row * weight.out_features(),
                             .ld = weight.out_features(),
                             .first_tile = 0,
                             .num_tiles = weight.num_tiles(),
                             .plan = weight.share().plan(),
                             .plane_stride = num_rows * weight.out_features()};
  params.finish.scales = weight.scales();
  kernels_.finish_sums(stream_, params);
}

void RankExchange::gather_outputs(const RankShare& share, int num_rows, float* out) {
  const Communicator& ranks = *share.ranks();
  const Parts parts = exchange(share, num_rows * share.num_outputs(ranks.rank()));
  float* host = pinned(num_rows * share.num_outputs());
  for (int rank = 0; rank < ranks.size(); ++rank) {
    const int64_t count = share.num_outputs(rank);
    const float* from = reinterpret_cast<const float*>(parts[rank].data());
    SPECDEC_CHECK_EQ(parts[rank].size(), num_rows * count * sizeof(float));
    for (int row = 0; row < num_rows; ++row, from += count) {
      std::copy_n(from, count, host + row * share.num_outputs() + share.first_output(rank));
    }
  }
  upload(out, num_rows * share.num_outputs());
}

void RankExchange::gather_rows(const RankShare& share, std::span<const int> owners, int num_own,
                               int64_t dim, float* out) {
  const Parts parts = exchange(share, num_own * dim);
  const int64_t num_rows = static_cast<int64_t>(owners.size());
  float* host = pinned(num_rows * dim);
  std::vector<int64_t> next(parts.size());
  for (int64_t row = 0; row < num_rows; ++row) {
    const float* from = reinterpret_cast<const float*>(parts[owners[row]].data());
    std::copy_n(from + next[owners[row]], dim, host + row * dim);
    next[owners[row]] += dim;
  }
  upload(out, num_rows * dim);
}

const float* RankExchange::gather_heads(const SharedHeads& shared, const float* sums, int num_rows,
                                        int num_outputs, int head_dim) {
  SPECDEC_CHECK(!stream_.is_capturing());
  const int64_t width = shared.part_width(shared.ranks->rank(), head_dim);
  float* host = pinned(int64_t{num_rows} * num_outputs);
  stream_.copy_to_host(host, sums, static_cast<size_t>(num_rows) * num_outputs * sizeof(float));
  stream_.synchronize();
  const size_t part_bytes = static_cast<size_t>(num_rows * width) * sizeof(float);
  float* part = reinterpret_cast<float*>(shared.ranks->part(part_bytes));
  for (int row = 0; row < num_rows; ++row) {
    std::copy_n(host + int64_t{row} * num_outputs, width, part + row * width);
  }
  const Parts parts = shared.ranks->exchange(part_bytes);
  const int64_t all_width = int64_t{shared.num_heads() + shared.num_kv_heads()} * head_dim;
  host = pinned(num_rows * all_width);
  for (int row = 0; row < num_rows; ++row) {
    shared.gather_row(parts, row, head_dim, host + row * all_width);
  }
  float* all = all_.get<float>(static_cast<size_t>(num_rows * all_width));
  upload(all, num_rows * all_width);
  return all;
}

RankExchange::Parts RankExchange::exchange(const RankShare& share, int64_t num_floats) {
  SPECDEC_CHECK(!stream_.is_capturing());
  const size_t size_bytes = static_cast<size_t>(num_floats) * sizeof(float);
  float* host = pinned(num_floats);
  if (num_floats > 0) stream_.copy_to_host(host, own_floats(num_floats), size_bytes);
  stream_.synchronize();
  std::byte* part = share.ranks()->part(size_bytes);
  std::copy_n(reinterpret_cast<const std::byte*>(host), size_bytes, part);
  return share.ranks()->exchange(size_bytes);
}

float* RankExchange::pinned(int64_t num_floats) {
  stream_.synchronize();  // what was uploaded from it
  const size_t size_bytes = static_cast<size_t>(num_floats) * sizeof(float);
  if (pinned_.size_bytes() < size_bytes) {
    pinned_ = {};
    pinned_ = device_.allocate_pinned(std::max(size_bytes, size_t{1} << 16), "sums of ranks");
  }
  return pinned_.as<float>();
}

void RankExchange::upload(float* to, int64_t num_floats) {
  stream_.copy_to_device(to, pinned_.data(), static_cast<size_t>(num_floats) * sizeof(float));
}

}  // namespace specdec::cuda
