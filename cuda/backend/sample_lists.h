// The arrays that the rows of a batch point into: token lists, counts and biases, packed.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/op_args.h"
#include "cuda/kernels/sampling.h"

namespace specdec::cuda {

class SampleLists {
 public:
  // `row` for the device, but for what is host memory (its distribution).
  DeviceSampleRow add(const SampleRow& row);
  DeviceRange add_tokens(std::span<const int32_t> tokens);

  // Whether some row changes its logits before they are sampled from.
  bool edits() const { return edits_; }
  std::span<const int32_t> tokens() const { return tokens_; }
  std::span<const DeviceTokenCount> counts() const { return counts_; }
  std::span<const DeviceLogitBias> biases() const { return biases_; }
  void clear();

 private:
  bool edits_ = false;
  std::vector<int32_t> tokens_;
  std::vector<DeviceTokenCount> counts_;
  std::vector<DeviceLogitBias> biases_;
};

}  // namespace specdec::cuda
