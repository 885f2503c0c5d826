// Which part of a model each of several ranks holds. All ranks have all layers: some heads of the
// attention, some inputs of what follows the attention and the MLP, some tokens of the vocabulary.
// Norms, routers, embeddings that are no head's, and biases of sums are everybody's.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backend/shared_heads.h"
#include "core/k_slices.h"
#include "model/config.h"
#include "model/rank_place.h"

namespace specdec {

class ModelShard {
 public:
  // Throws InvalidArgument of `field` where the layers cannot be shared by so many ranks, with the
  // sizes that they can, and of pipeline_parallel_size where there are fewer layers than stages.
  ModelShard(const ModelConfig& whole, const RankPlace& place,
             const std::string& field = "tensor_parallel_size");
  // As the first of `size` ranks, which need not be there, would have it.
  ModelShard(const ModelConfig& whole, int size);

  const RankPlace& place() const { return place_; }

  // Of each layer.
  bool is_whole() const { return size_ == 1; }
  int size() const { return size_; }
  Communicator* ranks() const { return ranks_; }

  const HeadShare& heads() const { return all_heads_.by_rank[static_cast<size_t>(rank())]; }
  // Everybody's; of a whole model there is one rank without a communicator.
  const SharedHeads& all_heads() const { return all_heads_; }
  // The inputs of the projection after the attention, and of an MLP's second: the slices of their
  // sums, with the run that this rank has, and every rank's run.
  const KSlices& attention_slices() const { return attention_slices_; }
  const std::vector<SliceRun>& attention_runs() const { return attention_runs_; }
  KSlices inner_slices(int inner_size) const;
  std::vector<SliceRun> inner_runs(int inner_size) const;
  // Of any rank.
  int64_t largest_inner(int inner_size) const;
  // By rank, where its tokens of the vocabulary begin, then the number of tokens: [size + 1]. Empty
  // for a whole model.
  std::vector<int64_t> vocabulary(int64_t num_tokens) const;

  // What a decoder computes of `whole` on this rank: its layers, heads and inner sizes.
  ModelConfig config_of_share(const ModelConfig& whole) const;

 private:
  ModelShard(const ModelConfig& whole, const RankPlace& place, int size, const std::string& field);

  int rank() const { return ranks_ != nullptr ? ranks_->rank() : 0; }

  RankPlace place_;
  Communicator* ranks_ = nullptr;  // of the place, unless it is one rank
  int size_ = 1;
  SharedHeads all_heads_;
  KSlices attention_slices_;
  std::vector<SliceRun> attention_runs_;
};

// The sizes 1 .. kMaxTensorParallel that can share the model.
std::vector<int> tensor_parallel_sizes(const ModelConfig& config);

}  // namespace specdec
