// How the ranks of a group share a packed weight: by inputs, with partial sums that every rank
// folds, or by outputs, which every rank gathers. Keeps the settings of PackArgs for the weight's
// lifetime.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/op_args.h"
#include "core/k_slices.h"

namespace specdec {

class RankShare {
 public:
  explicit RankShare(const PackArgs& args);

  Communicator* ranks() const { return ranks_; }  // null: not shared
  bool by_inputs() const { return ranks_ != nullptr && outputs_.empty(); }
  bool by_outputs() const { return !outputs_.empty(); }

  // For weights split by inputs. A rank's part of an exchange is its planes of partial sums, one
  // per subtree of its run: [planes, rows, width] float32.
  int num_planes(int rank) const { return num_planes_[rank]; }
  // All ranks' planes, in order, and how they fold to one.
  const FoldOrder& fold_order() const { return fold_order_; }
  // The planes that an exchange brought, in order; there are fold_order().num_entries.
  std::array<const float*, kNumSlices> planes_of(std::span<const std::span<const std::byte>> parts,
                                                 int64_t plane_floats) const;

  // By rank, where its inputs begin, then the number of all inputs: [size + 1]. Where a weight has
  // an input_order, a rank gets these inputs and computes these columns.
  std::span<const int64_t> inputs() const { return inputs_; }
  int64_t num_inputs(int rank) const { return inputs_[rank + 1] - inputs_[rank]; }

  // For weights split by outputs; likewise.
  std::span<const int64_t> outputs() const { return outputs_; }
  int64_t first_output(int rank) const { return outputs_[rank]; }
  int64_t num_outputs(int rank) const { return outputs_[rank + 1] - outputs_[rank]; }
  int64_t num_outputs() const { return outputs_.back(); }
  int rank_of_output(int64_t output) const;

 private:
  Communicator* ranks_;
  std::vector<int> num_planes_;
  FoldOrder fold_order_;
  std::vector<int64_t> inputs_;
  std::vector<int64_t> outputs_;
};

}  // namespace specdec
