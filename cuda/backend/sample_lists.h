// Token lists, counts and biases of a batch's rows, each kind in one array; a row names ranges of
// these.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/op_args.h"
#include "cuda/kernels/sampling.h"

namespace specdec::cuda {

class SampleLists {
 public:
  // Adds the row's lists and returns the row for the device, without its distribution, which is
  // host memory.
  DeviceSampleRow add(const SampleRow& row);
  DeviceRange add_tokens(std::span<const int32_t> tokens);

  // Whether some row's logits are changed before a token is sampled.
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
