// Which request of a packed batch a row belongs to.
#pragma once

#include <cstdint>

#include "cuda/device/target.cuh"

namespace specdec::cuda::SPECDEC_TARGET {

// num_requests for a row past the last request's. cu_rows: [num_requests + 1].
__device__ __forceinline__ int request_of_row(const int32_t* cu_rows, int num_requests, int row) {
  int low = 0;
  int high = num_requests;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (row < cu_rows[middle + 1]) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

}  // namespace specdec::cuda::SPECDEC_TARGET
