// Rows to sample, built where the step's state lies: on the device.
#include "cuda/device/ptx.cuh"
#include "cuda/kernels/sampling_passes.cuh"
#include "cuda/kernels/sampling_requests.cuh"

namespace specdec::cuda::SPECDEC_TARGET {
namespace {

constexpr int kThreads = 128;

__global__ void __launch_bounds__(kThreads) build_rows_kernel(BuildRowsParams params) {
  ptx::wait_for_previous();
  ptx::let_next_start();
  const int row = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (row >= params.num_rows) return;
  const int request = request_of_row(params.cu_rows, params.num_requests, row);
  if (request >= params.num_requests) {
    params.rows[row] = DeviceSampleRow{};
    return;
  }
  const int first = params.cu_rows[request];
  DeviceSampleRow& built = params.rows[row];
  built = params.requests[request];
  int32_t* path = params.paths + static_cast<int64_t>(row) * kMaxPathTokens;
  int length = 0;
  // From the node up to the root, which is committed; the order of the tokens does not matter.
  for (int node = row - first; node > 0 && length < kMaxPathTokens; ++length) {
    path[length] = params.token_ids[first + node];
    node = params.parents != nullptr ? params.parents[first + node] : node - 1;
  }
  built.position = static_cast<int64_t>(params.positions[row]) + 1;
  built.path = path;
  built.num_path_tokens = length;
  if (params.min_tokens != nullptr &&
      params.output_lens[request] + length >= params.min_tokens[request]) {
    built.early_banned = {};
  }
}

__global__ void __launch_bounds__(kThreads) count_tokens_kernel(CountTokensParams params) {
  ptx::wait_for_previous();
  ptx::let_next_start();
  const int request = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (request >= params.num_requests) return;
  const int count = params.num_tokens[request];
  int32_t* table = params.count_tables != nullptr ? params.count_tables[request] : nullptr;
  if (table != nullptr) {
    const int32_t* tokens = params.tokens + static_cast<int64_t>(request) * params.max_tokens;
    for (int i = 0; i < count; ++i) table[tokens[i]] += 2;
  }
  if (params.output_lens != nullptr) params.output_lens[request] += count;
}

LaunchConfig config_for(int count) {
  return {.grid = {static_cast<unsigned>((count + kThreads - 1) / kThreads)},
          .block = {kThreads},
          .overlaps_previous = true};
}

}  // namespace

void build_rows(Stream& stream, const BuildRowsParams& params) {
  if (params.num_rows == 0) return;
  launch("sample_build_rows", stream, build_rows_kernel, config_for(params.num_rows), params);
}

void count_tokens(Stream& stream, const CountTokensParams& params) {
  if (params.num_requests == 0) return;
  launch("sample_count_tokens", stream, count_tokens_kernel, config_for(params.num_requests),
         params);
}

}  // namespace specdec::cuda::SPECDEC_TARGET
