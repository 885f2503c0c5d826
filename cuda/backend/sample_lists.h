// Token lists, counts and biases of all rows of a batch, one after another: rows name ranges of
// them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/op_args.h"
#include "cuda/kernels/sampling.h"

namespace specdec::cuda {

class SampleLists {
 public:
  // Adds the lists of `row` and returns the row for the device. Its distribution, which is memory
  // of the host, is left out.
  DeviceSampleRow add(const SampleRow& row);
  DeviceRange add_tokens(std::span<const int32_t> tokens);

  // Whether logits of some row are changed before a token is sampled from them.
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
